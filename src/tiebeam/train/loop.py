"""The run: batches in, a checkpoint out, and every number on the way written down.

Deterministic by seed on a CPU when its length is given in steps. The clock counts training only: validation,
saving and what came before an interruption do not shorten a run that is given in minutes. An interrupted run
goes on from its last saved state to the same losses.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tiebeam.corpus import Batches
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.nn import GPT, Provenance, gradient_provenance
from tiebeam.train.card import card_of
from tiebeam.train.evaluation import Evaluation, evaluate
from tiebeam.train.machine import arithmetic, choose_device, free_threads
from tiebeam.train.optimizers import make_optimizers
from tiebeam.train.rundir import RunDirectory
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import CHECKPOINT_SECONDS, Settings
from tiebeam.train.state import load_into, state_of

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Report = Callable[[dict[str, Any]], None]
_GLANCE = 1 << 16  # targets of a validation on the way


class Diverged(TiebeamError):
    """The loss stopped being a number."""


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended."""

    path: str
    steps: int
    seconds: float
    tokens_per_second: float
    final: Evaluation
    params: int
    tied: bool
    finished: bool

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def train(
    settings: Settings, corpus: Corpus, out: Path, *, resume: bool = False, force: bool = False,
    report: Report | None = None, interrupted: Callable[[], bool] = lambda: False,
) -> Result:  # fmt: skip
    """Train, and leave a run directory at `out`. `interrupted` is asked after every step."""
    run = RunDirectory.open(out) if resume else RunDirectory.create(out, force)
    return _Run(settings, corpus, run, report or (lambda record: None)).go(resume, interrupted)


class _Run:
    def __init__(self, settings: Settings, corpus: Corpus, run: RunDirectory, report: Report) -> None:
        self.settings, self.corpus, self.run, self.report = settings, corpus, run, report
        torch.set_num_threads(settings.threads or free_threads())
        torch.manual_seed(settings.seed)
        self.device = choose_device(settings.device)
        self.model = GPT(settings.model(corpus.vocab)).to(self.device)
        self.optimizers = make_optimizers(self.model.roles(), settings.rates, settings.optimizer)
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
        forward: Any = torch.compile(self.model) if self.settings.compile else self.model
        next_check = (math.floor(self._done() / self.settings.validate_every) + 1) * self.settings.validate_every
        while self._done() < 1:
            self._one_step(forward)
            if self._done() >= next_check and self._done() < 1:
                next_check += self.settings.validate_every
                self._validate(_GLANCE)
            stop = interrupted()
            if stop or time.monotonic() - self._saved_at > CHECKPOINT_SECONDS:
                self._save()
            if stop:
                return self._result(self._validate(_GLANCE), finished=False)
        return self._result(self._finish(), finished=True)

    def _done(self) -> float:
        """The fraction of the run that is behind us."""
        return self.budget.progress(self.step, self.seconds)

    def _one_step(self, forward: Any) -> None:
        settings, started = self.settings, time.perf_counter()
        untie_at = self.model.config.untie_at
        if untie_at is not None and self.model.tied and self._done() >= untie_at:
            self.model.untie(self.optimizers)
        done = self._done()
        rate = self.schedule.multiplier(self.step, done)
        self.optimizers.set(rate, self.schedule.momentum_at(self.step, done))
        look = self.step % settings.log_every == 0
        watch = gradient_provenance(self.model.table) if look and self.model.tied and not settings.compile else None
        total = 0.0
        with watch or nullcontext():
            for _ in range(settings.accumulate):
                x, y = (torch.from_numpy(part).to(self.device) for part in next(self.batches))
                with arithmetic(self.device):
                    loss = forward(x, y, z_loss=settings.z_loss) / settings.accumulate
                loss.backward()
                total += float(loss.detach())
        if not math.isfinite(total):
            raise Diverged(
                f"the loss is {total} at step {self.step}; lower the rates (--rate-scale 0.5), warm up longer "
                f"(--warmup-steps {max(50, 2 * settings.warmup_steps)}), or add --softcap 15"
            )
        provenance = watch.result.to_dict() if watch else _two_gradients(self.model) if look else {}
        self.optimizers.step()
        self.optimizers.zero_grad()
        self.step += 1
        spent = time.perf_counter() - started
        self.seconds += spent
        if look:
            self._log(
                {
                    "loss": total,
                    "rate": rate,
                    "tokens_per_second": settings.batch * settings.accumulate * settings.context / spent,
                    **provenance,
                }
            )

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
        self.run.save_model(self.model, self.corpus, card_of(self.settings, self.corpus, self.model, final, self.step))
        return final

    def _save(self) -> None:
        tensors, facts = state_of(self.model, list(self.optimizers))
        facts |= {"step": self.step, "seconds": self.seconds, "batches": self.batches.state(), "tied": self.model.tied}
        self.run.save_state(tensors, facts)
        self._saved_at = time.monotonic()

    def _restore(self) -> None:
        tensors, facts = self.run.load_state()
        if self.model.tied and not facts["tied"]:
            self.model.untie(self.optimizers)
        load_into(self.model, list(self.optimizers), tensors, facts)
        self.batches.restore(facts["batches"])
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        self.run.forget_after(self.step)
        if self._done() >= 1:
            raise BadRequest(
                f"{self.run.path} is finished after {self.step:,} steps; give it more --steps or --minutes"
            )

    def _result(self, final: Evaluation, finished: bool) -> Result:
        settings = self.settings
        tokens = self.step * settings.batch * settings.accumulate * settings.context
        return Result(
            path=str(self.run.path),
            steps=self.step,
            seconds=self.seconds,
            tokens_per_second=tokens / self.seconds if self.seconds else 0.0,
            final=final,
            params=sum(p.numel() for p in self.model.parameters()),
            tied=self.model.tied,
            finished=finished,
        )


def _two_gradients(model: GPT) -> dict[str, float]:
    """Of an untied pair, what `gradient_provenance` tells of a tied one: each end has a gradient of its own."""
    head = model.lm_head.weight.grad if model.lm_head is not None else None
    lookup = model.table.weight.grad
    if head is None or lookup is None:
        return {}
    sizes = float(lookup.norm()), float(head.norm())
    both = sizes[0] * sizes[1]
    return Provenance(*sizes, float((lookup * head).sum()) / both if both else 0.0).to_dict()
