"""The training loop: batches in, a run directory with a checkpoint out. One loop for every backend and rank count.

A run whose length is given in steps is deterministic by its seed on a CPU. The clock counts training only: validation
and saving do not shorten a run given in minutes. An interrupted run resumes from its last saved state to the same
losses. Several ranks run the loop together (tiebeam.train.distributed); only rank 0 writes files and reports.

`train` runs one training to its end. `training` opens a run that the caller advances a few steps at a time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.corpus import Batches, bits_per_byte
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.backends import Backend, make_backend
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.distributed.failures import is_peer_failure, rank_lost
from tiebeam.train.evaluation import held_out_loss, losses_by_document
from tiebeam.train.held_out_windows import HeldOutWindows
from tiebeam.train.result import Diverged, Evaluation, Result
from tiebeam.train.run_card import run_card
from tiebeam.train.run_directory import RunDirectory
from tiebeam.train.schedule import Schedule
from tiebeam.train.settings import Settings

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Report = Callable[[dict[str, Any]], None]
Note = Callable[[str], None]
_ROUNDING = 1e-9  # 9 of 30 steps are three tenths of the run


def train(
    settings: Settings, corpus: Corpus, out: Path, *, model: Any = None, resume: bool = False, force: bool = False,
    report: Report | None = None, interrupted: Callable[[], bool] = lambda: False,
    distribution: Distribution | None = None, note: Note | None = None,
) -> Result:  # fmt: skip
    """Train a model on a corpus and write a run directory.

        corpus = build_corpus(["books/"], vocab=2048)
        result = train(Settings(steps=100), corpus, Path("run"))
        print(result.final.bpb)

    Args:
        settings: the run; `settings.backend` chooses torch or MLX.
        corpus: tokenized text, from `tiebeam.corpus.build_corpus`.
        out: the run directory to write, or with `resume` to continue.
        model: start from this model of the backend instead of a new one.
        resume: continue from the last saved state at `out` (without one: from the start) and write what is missing.
        force: replace the run at `out`.
        report: called on rank 0 with every record of metrics.jsonl.
        interrupted: polled after every step; True saves the state and ends the run unfinished.
        distribution: the ranks of a multi-rank run, already joined. All ranks make the same call.
        note: called with a sentence when the number of CPU threads is chosen, and when it changes.

    Raises:
        BadRequest: the settings do not fit together, or `out` holds something else, or another process trains there.
        UnreadableInput: the state to resume is damaged.
        Unwritable: the disk is full, or `out` may not be written. The last saved state is kept.
        Diverged: the loss is NaN or infinite.
        RankLost: another rank exited or hangs.
    """
    with training(
        settings, corpus, out, model=model, resume=resume, force=force, report=report, distribution=distribution,
        note=note,
    ) as run:  # fmt: skip
        while not run.done:
            if run.advance(1, interrupted):
                return run.interrupt()
        return run.finish()


@contextmanager
def training(
    settings: Settings, corpus: Corpus, out: Path, *, model: Any = None, resume: bool = False, force: bool = False,
    report: Report | None = None, distribution: Distribution | None = None, by_document: bool = False,
    note: Note | None = None,
) -> Iterator[Training]:  # fmt: skip
    """Open a run without training it; the caller advances it, so that several runs can take turns in one process.

    The arguments are those of `train`. `by_document` adds the summed loss of every held-out document to each check
    (`val_documents`, in nats, by `HeldOutWindows.groups`).

        with training(Settings(steps=100), corpus, Path("a")) as a, training(..., Path("b")) as b:
            while not (a.done and b.done):
                for run in (a, b):
                    run.advance(5)
            results = [run.finish() for run in (a, b)]
    """
    distribution = distribution or Distribution()
    distribution.check(settings)
    config = settings.model(corpus.vocab)
    if model is not None and model.config != config:
        raise BadRequest(f"the model has {model.config}, but the settings ask for {config}; make them the same")
    run = RunDirectory.open(out) if resume else RunDirectory(out)
    try:
        backend = make_backend(settings, config, distribution, model)
        with ExitStack() as stack:
            distribution.on_main(lambda: stack.enter_context(RunDirectory.occupied(out, resume=resume, force=force)))
            loop = Training(
                settings, corpus, run, backend, distribution, report or (lambda record: None), by_document,
                note or (lambda text: None),
            )  # fmt: skip
            with backend.running():
                loop.begin(resume)
                yield loop
    except BaseException as error:
        if is_peer_failure(error, distribution):
            raise rank_lost(error, run, distribution) from None
        raise


class Training:
    """A run that is being trained. `seconds` is its own clock: training only, without checks, saves and waiting."""

    def __init__(
        self, settings: Settings, corpus: Corpus, run: RunDirectory, backend: Backend, distribution: Distribution,
        report: Report, by_document: bool = False, note: Note = lambda text: None,
    ) -> None:  # fmt: skip
        self.settings, self.corpus, self.run, self.backend = settings, corpus, run, backend
        self.distribution, self.report, self.by_document, self.note = distribution, report, by_document, note
        self.schedule = Schedule(settings.warmup_steps, settings.decay_from)
        self.batches = Batches(
            corpus.train, settings.batch, settings.context, settings.seed,
            rank=distribution.rank, world=distribution.world_size,
        )  # fmt: skip
        self.windows = HeldOutWindows(corpus, settings.context, settings.validation_tokens)
        self.untie_at = settings.model(corpus.vocab).untie_at
        self.step, self.seconds = 0, 0.0
        self._checks = 0  # that are due by now
        self._step_seconds = 0.0  # of the last step without measurements
        self._saved_at, self._saved_step = time.monotonic(), -1

    def begin(self, resume: bool) -> None:
        """Write run.json, or load the saved state."""
        choice = getattr(self.backend, "thread_choice", None)
        if choice is not None:
            self.note(str(choice))
        if resume:
            self._resume()
        else:
            self.distribution.on_main(self._write_settings)
        self._checks = math.floor(self.progress / self.settings.validate_every + _ROUNDING)

    @property
    def done(self) -> bool:
        """Whether all steps are done; `finish` writes the model."""
        return self.progress >= 1

    def advance(self, steps: int, interrupted: Callable[[], bool] = lambda: False) -> bool:
        """Train at most `steps` steps, with the checks and saves that are due; True if `interrupted` ended them."""
        for _ in range(steps):
            if self.done:
                break
            self._train_step()
            save = time.monotonic() - self._saved_at > self.settings.save_every
            self.seconds, save, stop = self.distribution.agree(self.seconds, save, interrupted())
            if self.progress / self.settings.validate_every + _ROUNDING >= self._checks + 1 and not self.done:
                self._checks += 1
                self.check()
            if stop or save:
                self.save()
            if stop:
                return True
        return False

    def interrupt(self) -> Result:
        """Save the state and return what there is; the run can be resumed."""
        self.save()
        return self._result(self.check(), finished=False)

    def finish(self) -> Result:
        """The last check, the loss on the full held-out split, and the checkpoint."""
        found = self.check()
        result = self._result(found if self.windows.whole else self._validate(None, full=True), finished=True)
        self.save()
        exported = self.backend.export()

        def write() -> None:
            assert exported is not None
            self.run.save_model(*exported, self.corpus, run_card(self.settings, self.corpus, result))

        self.distribution.on_main(write)
        return result

    @property
    def progress(self) -> float:
        """The fraction of the run that is done."""
        return self.settings.budget.progress(self.step, self.seconds)

    def _train_step(self) -> None:
        settings, backend, started = self.settings, self.backend, time.perf_counter()
        progress = self.progress
        if self.untie_at is not None and backend.tied and progress >= self.untie_at:
            backend.untie()
        multiplier = self.schedule.multiplier(self.step, progress)
        backend.set_schedule(multiplier, self.schedule.momentum_at(self.step, progress))
        log = self.step % settings.log_every == 0
        loss = backend.forward_backward(self.batches, measure=log)
        [loss] = self.distribution.sum(loss / self.distribution.world_size)
        if not math.isfinite(loss):
            raise Diverged(loss, self.step, settings.warmup_steps)
        gradient_metrics = backend.gradient_metrics() if log else {}
        backend.optimizer_step()
        self.backend.synchronize()
        self.step += 1
        changed = backend.adjust_threads()
        if changed is not None:
            self.note(f"from step {self.step:,} on: {changed}")
        spent = time.perf_counter() - started
        # Measuring gradients costs time, and not the same for every variant: such a step counts as the one before it.
        self.seconds += (self._step_seconds or spent) if log else spent
        if log:
            speed = settings.step_tokens / (self._step_seconds or spent)
            self._log({"loss": loss, "rate": multiplier, "tokens_per_second": speed, **gradient_metrics})
        else:
            self._step_seconds = spent

    def _log(self, values: dict[str, Any]) -> None:
        if self.distribution.is_main:
            record = {"step": self.step, "seconds": round(self.seconds, 3), "done": min(1.0, self.progress), **values}
            self.run.log(record)
            self.report(record)

    def check(self) -> Evaluation:
        """The loss on the held-out windows of every check. Not counted by the clock."""
        if not self.by_document:
            return self._validate(self.settings.validation_tokens)
        windows = self.windows
        with self.backend.evaluating():
            sums = losses_by_document(
                self.backend.target_losses, windows, batch=self.settings.batch, distribution=self.distribution
            )
        tokens = len(windows.positions)
        nats = float(sums.sum()) / tokens
        found = Evaluation(nats, bits_per_byte(nats, tokens, int(windows.bytes.sum())), tokens)
        self._log_evaluation(found, val_documents=sums.tolist())
        return found

    def _validate(self, max_tokens: int | None, **extra: Any) -> Evaluation:
        with self.backend.evaluating():
            found = held_out_loss(
                self.backend.loss_sum, self.corpus, self.settings.context, batch=self.settings.batch,
                max_tokens=max_tokens, distribution=self.distribution,
            )  # fmt: skip
        self._log_evaluation(found, **extra)
        return found

    def _log_evaluation(self, found: Evaluation, **extra: Any) -> None:
        self._log({"val_loss": found.nats, "val_bpb": found.bpb, "val_tokens": found.tokens, **extra})

    def save(self) -> None:
        """Save the state for resuming, unless it is saved already."""
        if self._saved_step == self.step:
            return
        if self.progress >= 1:
            self.distribution.on_main(self.run.drop_model)
        facts = {
            "backend": self.settings.backend,
            "step": self.step,
            "seconds": self.seconds,
            "batches": self.batches.state(),
            "tied": self.backend.tied,
        }
        self.backend.save_state(self.run, facts)
        self._saved_at, self._saved_step = time.monotonic(), self.step

    def _resume(self) -> None:
        if self.run.has_state:
            self._load_state()
        finished = self.progress >= 1
        if finished and self.run.is_finished(self.step):
            raise BadRequest(f"{self.run.path} is finished after {self.step:,} steps; give more `steps` or `minutes`")
        self.distribution.on_main(lambda: self.run.drop_metrics_after(self.step, final=finished))
        self.distribution.on_main(self._write_settings)  # the length may be another: the next resume goes to that

    def _write_settings(self) -> None:
        self.run.write_run(self.settings.to_dict(), self.corpus)

    def _load_state(self) -> None:
        saved, facts = self.run.saved_state(), self.run.read_facts()
        saved_by = facts.get("backend", "torch")  # 0.1 wrote it on MLX only
        if saved_by != self.settings.backend:
            raise UnreadableInput(
                f"the state in {self.run.path} was saved by the {saved_by} backend; resume with `backend={saved_by!r}`"
            )
        if self.backend.tied and not facts["tied"]:
            self.backend.untie()
        self.backend.load_state(saved, facts)
        self.batches.restore(facts["batches"])
        self.step, self.seconds = int(facts["step"]), float(facts["seconds"])
        self._saved_step = self.step

    def _result(self, final: Evaluation, finished: bool) -> Result:
        return Result(
            path=str(self.run.path),
            steps=self.step,
            seconds=self.seconds,
            tokens_per_second=self.step * self.settings.step_tokens / self.seconds if self.seconds else 0.0,
            final=final,
            params=self.backend.parameter_count,
            tied=self.backend.tied,
            finished=finished,
        )
