"""The run on MLX: tiebeam.train.loop's, with its batches, schedule, files and numbers, and MLX's step.

The state in resume.safetensors is MLX's own, so a run goes on with the backend that it was begun with.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np

from tiebeam.corpus import Batches, bits_per_byte, every_target
from tiebeam.errors import BadRequest
from tiebeam.train.backends.mlx.gpt import GPT
from tiebeam.train.backends.mlx.gradients import accumulated, provenance
from tiebeam.train.backends.mlx.optimizers import Optimizers
from tiebeam.train.backends.mlx.run_directory import ArrayRunDirectory
from tiebeam.train.result import Diverged, Evaluation, Result
from tiebeam.train.run_card import card_of
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import GLANCE_TOKENS, Settings

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Report = Callable[[dict[str, Any]], None]


def train(
    settings: Settings, corpus: Corpus, out: Path, *, resume: bool = False, force: bool = False,
    report: Report | None = None, interrupted: Callable[[], bool] = lambda: False, model: GPT | None = None,
) -> Result:  # fmt: skip
    """Train, and leave a run directory at `out`. `interrupted` is asked after every step.

    `model` is one to begin with instead of a new one, of the shape that the settings give.
    """
    if settings.backend != "mlx":
        raise BadRequest(f"backend is {settings.backend!r}, not mlx; use tiebeam.train.train")
    config = settings.model(corpus.vocab)
    if model is not None and model.config != config:
        raise BadRequest(f"the model is {model.config} but the settings ask for {config}; make it of the same")
    device = choose_device(settings.device)
    place = ArrayRunDirectory.open(out) if resume else ArrayRunDirectory.create(out, force)
    with mx.stream(device):
        model = model or GPT(config, settings.seed)
        run = _Run(settings, corpus, ArrayRunDirectory(place.path), report or (lambda record: None), model)
        return run.go(resume, interrupted)


def choose_device(name: str) -> mx.Device:
    """MLX's device of that name; "auto" is the GPU where there is one, and "mps" is its name with torch."""
    if name == "auto":
        return mx.default_device()
    if name == "cpu":
        return mx.Device(mx.cpu)
    if name not in ("gpu", "mps"):
        raise BadRequest(f"--device is {name!r}; on MLX it is one of auto, cpu, gpu")
    if not mx.is_available(mx.gpu):
        raise BadRequest(f"--device is {name!r}, which this machine or this MLX does not have; it has: cpu")
    return mx.Device(mx.gpu)


def evaluate(model: GPT, corpus: Corpus, *, batch: int = 16, most_tokens: int | None = None) -> Evaluation:
    """The numbers of tiebeam.train.evaluate: every held-out target once, in nats and in bits per byte."""
    total, tokens, text = 0.0, 0, 0
    for x, y in every_target(corpus.val, batch, model.config.context):
        total += float(np.array(model(mx.array(x), mx.array(y), reduction="sum", gradients=False)))
        tokens += y.size
        text += corpus.bytes_of(y.reshape(-1), x.reshape(-1))
        if most_tokens is not None and tokens >= most_tokens:
            break
    nats = total / tokens
    return Evaluation(nats, bits_per_byte(nats, tokens, text), tokens)


class _Run:
    def __init__(self, settings: Settings, corpus: Corpus, run: ArrayRunDirectory, report: Report, model: GPT) -> None:
        self.settings, self.corpus, self.run, self.report, self.model = settings, corpus, run, report, model
        self.optimizers = Optimizers(model, settings.heights, settings.optimizer)
        self.schedule = Schedule(settings.warmup_steps, settings.decay_from)
        self.budget = Budget(settings.steps, 60 * settings.minutes if settings.minutes is not None else None)
        self.batches = Batches(corpus.train, settings.batch, settings.context, settings.seed)
        self.step, self.seconds = 0, 0.0
        self._saved_at = time.monotonic()

    def go(self, resume: bool, interrupted: Callable[[], bool]) -> Result:
        if resume:
            self._restore()
        else:
            self.run.write_run(self.settings.to_dict(), self.corpus)
        next_check = (math.floor(self._done() / self.settings.validate_every) + 1) * self.settings.validate_every
        while self._done() < 1:
            self._one_step()
            if self._done() >= next_check and self._done() < 1:
                next_check += self.settings.validate_every
                self._validate(GLANCE_TOKENS)
            stop = interrupted()
            if stop or time.monotonic() - self._saved_at > self.settings.save_every:
                self._save()
            if stop:
                return self._result(self._validate(GLANCE_TOKENS), finished=False)
        return self._result(self._finish(), finished=True)

    def _done(self) -> float:
        """The fraction of the run that is behind us."""
        return self.budget.progress(self.step, self.seconds)

    def _one_step(self) -> None:
        settings, started = self.settings, time.perf_counter()
        done = self._done()
        untie_at = self.model.config.untie_at
        if untie_at is not None and self.model.tied and done >= untie_at:
            self.optimizers.untie()
        rate = self.schedule.multiplier(self.step, done)
        self.optimizers.set(rate, self.schedule.momentum_at(self.step, done))
        found = accumulated(self.model, self.batches, settings.accumulate, z_loss=settings.z_loss)
        if not math.isfinite(found.loss):
            raise Diverged(found.loss, self.step, settings.warmup_steps)
        look = self.step % settings.log_every == 0
        shares = provenance(self.model, found) if look else {}
        self.optimizers.step(found.tree)
        self.step += 1
        spent = time.perf_counter() - started
        self.seconds += spent
        if look:
            speed = settings.step_tokens / spent
            self._log({"loss": found.loss, "rate": rate, "tokens_per_second": speed, **shares})

    def _log(self, values: dict[str, Any]) -> None:
        record = {"step": self.step, "seconds": round(self.seconds, 3), "done": min(1.0, self._done()), **values}
        self.run.log(record)
        self.report(record)

    def _validate(self, most_tokens: int | None) -> Evaluation:
        """Off the clock."""
        found = evaluate(self.model, self.corpus, batch=self.settings.batch, most_tokens=most_tokens)
        self._log({"val_loss": found.nats, "val_bpb": found.bpb, "val_tokens": found.tokens})
        return found

    def _finish(self) -> Evaluation:
        final = self._validate(None)
        self._save()
        card = card_of(self.settings, self.corpus, self.model, final, self.step)
        self.run.save_checkpoint(self.model, self.corpus, card)
        return final

    def _save(self) -> None:
        tensors = {f"model.{name}": np.array(tensor) for name, tensor in self.model.tensors().items()}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizers.state().items()}
        facts = {"step": self.step, "seconds": self.seconds, "batches": self.batches.state(), "tied": self.model.tied}
        self.run.save_arrays(tensors, facts)
        self._saved_at = time.monotonic()

    def _restore(self) -> None:
        tensors, facts = self.run.load_arrays()
        if self.model.tied and not facts["tied"]:
            self.optimizers.untie()
        self.model.load(_under("model.", tensors))
        self.optimizers.restore(_under("optimizer.", tensors))
        self.batches.restore(facts["batches"])
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        self.run.forget_after(self.step)
        if self._done() >= 1:
            self.run.refuse_finished(self.step)

    def _result(self, final: Evaluation, finished: bool) -> Result:
        return Result(
            path=str(self.run.path),
            steps=self.step,
            seconds=self.seconds,
            tokens_per_second=self.step * self.settings.step_tokens / self.seconds if self.seconds else 0.0,
            final=final,
            params=self.model.size,
            tied=self.model.tied,
            finished=finished,
        )


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
