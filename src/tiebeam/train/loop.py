"""The run: batches in, a checkpoint out, and every number on the way written down.

Deterministic by seed on a CPU when its length is given in steps. The clock counts training only: validation,
saving and what came before an interruption do not shorten a run that is given in minutes. An interrupted run
goes on from its last saved state to the same losses. Several processes walk through it together (distribution.py);
the first of them alone writes files and reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from tiebeam.corpus import Batches
from tiebeam.doctor.guard import guard
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.nn import GPT, Provenance, gradient_provenance
from tiebeam.train.device import arithmetic
from tiebeam.train.distribution import Distribution, ProcessLost
from tiebeam.train.evaluation import evaluate
from tiebeam.train.optimizers import make_optimizers
from tiebeam.train.result import Diverged, Evaluation, Result
from tiebeam.train.resume_state import load_into, read_facts, read_shared, read_whole, state_of
from tiebeam.train.run_card import card_of
from tiebeam.train.run_directory import RunDirectory
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import GLANCE_TOKENS, Settings

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Report = Callable[[dict[str, Any]], None]


def train(
    settings: Settings, corpus: Corpus, out: Path, *, resume: bool = False, force: bool = False,
    report: Report | None = None, interrupted: Callable[[], bool] = lambda: False,
    processes: Distribution | None = None,
) -> Result:  # fmt: skip
    """Train, and leave a run directory at `out`. `interrupted` is asked after every step.

    With several `processes`, joined already, all of them make the same call.
    """
    if settings.backend != "torch":
        raise BadRequest(f"backend is {settings.backend!r}, not torch; use tiebeam.train.backends.mlx.train")
    processes = processes or Distribution()
    processes.check(settings)
    run = RunDirectory.open(out) if resume else RunDirectory(out)
    try:
        if not resume:
            processes.on_main(lambda: RunDirectory.create(out, force))
        return _Run(settings, corpus, run, report or (lambda record: None), processes).go(resume, interrupted)
    except BaseException as error:
        if processes.lost(error):
            raise _farewell(error, run, processes) from None
        raise


class _Run:
    def __init__(
        self, settings: Settings, corpus: Corpus, run: RunDirectory, report: Report, processes: Distribution
    ) -> None:
        self.settings, self.corpus, self.run, self.report = settings, corpus, run, report
        self.processes = processes
        torch.set_num_threads(settings.threads or processes.threads())
        torch.manual_seed(settings.seed)
        self.device = processes.device(settings.device)
        self.model = GPT(settings.model(corpus.vocab)).to(self.device)
        self.forward: Any = processes.wrap(self.model, settings.compile)
        self.optimizers = make_optimizers(self.model.roles(), settings.heights, settings.optimizer, processes.spread)
        self.guard = None
        if processes.world > 1:
            self.guard = guard(self.model, tied=self.model.tied)
            for optimizer in self.optimizers:
                self.guard.watch(optimizer)
        self.schedule = Schedule(settings.warmup_steps, settings.decay_from)
        self.budget = Budget(settings.steps, 60 * settings.minutes if settings.minutes is not None else None)
        self.batches = Batches(
            corpus.train, settings.batch, settings.context, settings.seed, rank=processes.rank, world=processes.world
        )
        self.step, self.seconds = 0, 0.0
        self._saved_at, self._saved_step = time.monotonic(), -1

    def go(self, resume: bool, interrupted: Callable[[], bool]) -> Result:
        if resume:
            self._restore()
        else:
            self.processes.on_main(lambda: self.run.write_run(self.settings.to_dict(), self.corpus))
        next_check = (math.floor(self._done() / self.settings.validate_every) + 1) * self.settings.validate_every
        while self._done() < 1:
            self._one_step()
            self.seconds, save, stop = self.processes.agree(self.seconds, self._save_is_due(), interrupted())
            if self._done() >= next_check and self._done() < 1:
                next_check += self.settings.validate_every
                self._validate(GLANCE_TOKENS)
            if stop or save:
                self._save()
            if stop:
                return self._result(self._validate(GLANCE_TOKENS), finished=False)
        return self._result(self._finish(), finished=True)

    def _done(self) -> float:
        """The fraction of the run that is behind us."""
        return self.budget.progress(self.step, self.seconds)

    def _one_step(self) -> None:
        settings, processes, started = self.settings, self.processes, time.perf_counter()
        untie_at = self.model.config.untie_at
        if untie_at is not None and self.model.tied and self._done() >= untie_at:
            self._untie()
        done = self._done()
        rate = self.schedule.multiplier(self.step, done)
        self.optimizers.set(rate, self.schedule.momentum_at(self.step, done))
        look = self.step % settings.log_every == 0
        watch = None
        if look and self.model.tied and not settings.compile:
            watch = gradient_provenance(self.model.table, processes.gather_gradient)
        total = 0.0
        with watch or nullcontext():
            for number in range(settings.accumulate):
                x, y = (torch.from_numpy(part).to(self.device) for part in next(self.batches))
                with processes.micro_batch(self.forward, last=number == settings.accumulate - 1):
                    with arithmetic(self.device):
                        loss = self.forward(x, y, z_loss=settings.z_loss) / settings.accumulate
                    loss.backward()
                total += float(loss.detach())
        [total] = processes.summed(total / processes.world)
        if not math.isfinite(total):
            raise Diverged(total, self.step, settings.warmup_steps)
        provenance = watch.result.to_dict() if watch else self._two_gradients() if look else {}
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
                    "tokens_per_second": settings.step_tokens / spent,
                    **provenance,
                }
            )

    def _untie(self) -> None:
        self.model.untie(self.optimizers)
        if self.guard:
            self.guard.tied = False
        self.forward = None  # before the next wrapper: two of them on one model would both answer its gradients
        self.forward = self.processes.wrap(self.model, self.settings.compile)

    def _two_gradients(self) -> dict[str, float]:
        """Of an untied pair, what `gradient_provenance` tells of a tied one: each end has a gradient of its own."""
        ends = self.model.table.weight.grad, self.model.lm_head.weight.grad if self.model.lm_head is not None else None
        if ends[0] is None or ends[1] is None:
            return {}
        lookup, head = (self.processes.whole(end) for end in ends if end is not None)
        sums = torch.stack([lookup.square().sum(), head.square().sum(), (lookup * head).sum()])
        return Provenance.of(self.model.table.over_ranks(sums)).to_dict()

    def _log(self, values: dict[str, Any]) -> None:
        if not self.processes.is_main:
            return
        record = {"step": self.step, "seconds": round(self.seconds, 3), "done": min(1.0, self._done()), **values}
        self.run.log(record)
        self.report(record)

    def _validate(self, most_tokens: int | None) -> Evaluation:
        """Off the clock."""
        found = evaluate(
            self.model, self.corpus, batch=self.settings.batch, most_tokens=most_tokens, processes=self.processes
        )
        self._log({"val_loss": found.nats, "val_bpb": found.bpb, "val_tokens": found.tokens})
        return found

    def _finish(self) -> Evaluation:
        final = self._validate(None)
        self._save()
        model = self.processes.whole_model(self.model)
        if model is not None:
            self.run.save_model(model, self.corpus, card_of(self.settings, self.corpus, model, final, self.step))
        self.processes.barrier()
        return final

    def _save_is_due(self) -> bool:
        return time.monotonic() - self._saved_at > self.settings.save_every

    def _save(self) -> None:
        if self._saved_step == self.step:
            return
        if self.guard:
            self.guard.enforce("training")
        tensors, facts = state_of(self.model, list(self.optimizers))
        facts |= {"step": self.step, "seconds": self.seconds, "batches": self.batches.state(), "tied": self.model.tied}
        self.run.save_state(tensors, facts, self.processes)
        self._saved_at, self._saved_step = time.monotonic(), self.step

    def _restore(self) -> None:
        saved = self.run.saved_state()
        facts = read_facts(saved)
        if self.model.tied and not facts["tied"]:
            self._untie()
        parts = list(self.optimizers)
        tensors = read_shared(saved, self.model, parts) if self.processes.world > 1 else read_whole(saved)
        load_into(self.model, parts, tensors, facts)
        if self.guard:
            self.guard.enforce("resuming")
        self.batches.restore(facts["batches"])
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        self.processes.on_main(lambda: self.run.forget_after(self.step))
        if self._done() >= 1:
            self.run.refuse_finished(self.step)

    def _result(self, final: Evaluation, finished: bool) -> Result:
        return Result(
            path=str(self.run.path),
            steps=self.step,
            seconds=self.seconds,
            tokens_per_second=self.step * self.settings.step_tokens / self.seconds if self.seconds else 0.0,
            final=final,
            params=self.processes.parameters(self.model),
            tied=self.model.tied,
            finished=finished,
        )


def _farewell(error: BaseException, run: RunDirectory, processes: Distribution) -> ProcessLost:
    """What to say when another process is gone."""
    missing = processes.missing()
    ranks = ", ".join(map(str, missing))
    # Whoever answers may still be stuck: then all there is to say is what the exchange died of.
    who = f"rank {ranks} of {processes.world} is gone" if missing else f"a process is silent ({_first_line(error)})"
    try:
        step = int(read_facts(run.saved_state())["step"])
    except TiebeamError:
        way_on = "no state was saved yet: start again"
    else:
        way_on = f"the state of step {step:,} is saved, go on with: {processes.start} --resume --out {run.path}"
    return ProcessLost(f"{who}; {way_on}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
