"""Train every variant with every seed, each in its own run directory below `out`.

Finished runs are kept, interrupted ones are resumed, and a directory with other content is an error. The number of
threads is fixed by the first call, so that later runs do not get fewer on a busy machine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import write_text
from tiebeam.compare.subprocess_run import RunOutcome, train_in_subprocess
from tiebeam.compare.variants import VariantConfig
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.train import Budget, RunDirectory, Settings, train
from tiebeam.train.run_directory import MODEL, RUN, STATE

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

PLAN, MEMORY = "compare.json", "memory.json"
OnRecord = Callable[["Run", dict[str, Any]], None]


class Interrupted(TiebeamError):
    """Training was interrupted; finished steps are kept and can be resumed."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run: a variant with a seed, and its directory."""

    config: VariantConfig
    seed: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name


def prepare_directory(out: Path, plan: dict[str, Any], force: bool = False) -> dict[str, Any]:
    """Create `out`, or check that it holds this comparison. Returns the plan with the threads of the first call."""
    stored = out / PLAN
    if out.exists() and not out.is_dir():
        raise BadRequest(f'{out} is a file; pass a directory as out="DIR"')
    if out.exists() and any(out.iterdir()) and not stored.is_file():
        raise BadRequest(f'{out} is not empty and not a comparison; pass another out="DIR"')
    if stored.is_file() and not force:
        try:
            before = json.loads(stored.read_text())
            threads = before["threads"]
        except (OSError, ValueError, KeyError, TypeError):
            raise BadRequest(f'{stored} is damaged; start over with force=True, or pass another out="DIR"') from None
        changed = [key for key in plan if key not in ("threads", "command") and before.get(key) != plan[key]]
        if changed:
            old, new = before.get(changed[0]), plan[changed[0]]
            raise BadRequest(
                f'{out} holds a comparison with {changed[0]} {old}, not {new}; pass another out="DIR", or replace it '
                "with force=True"
            )
        plan = {**plan, "threads": threads}
    out.mkdir(parents=True, exist_ok=True)
    write_text(stored, json.dumps(plan, indent=2) + "\n")
    return plan


def run_all(
    configs: Sequence[VariantConfig], seeds: Sequence[int], corpus: Corpus, out: Path, *, threads: int,
    equal_steps: bool = False, force: bool = False, in_subprocess: bool = True, report: OnRecord | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Run]:  # fmt: skip
    """Train the runs that are not finished. With `equal_steps` all runs take the steps of the first one.

    The order is seed by seed, so that a slow phase of the machine does not affect one variant alone.
    """
    runs, steps = [], None
    for seed in seeds:
        for config in configs:
            settings = replace(config.settings, seed=seed, threads=threads)
            if equal_steps and settings.minutes is not None and steps is not None:
                settings = replace(settings, minutes=None, steps=steps)
            run = Run(replace(config, settings=settings), seed, out / f"{config.variant.name}-s{seed}")
            _train_or_resume(run, corpus, force, in_subprocess, report, interrupted)
            steps = steps or final_metrics(run.path)["step"]
            runs.append(run)
    return runs


def _train_or_resume(
    run: Run, corpus: Corpus, force: bool, in_subprocess: bool, report: OnRecord | None, interrupted: Callable[[], bool]
) -> None:
    resume = not force and _holds_this_run(run, corpus)
    if resume and is_finished(run.path):
        return
    resume = resume and (run.path / STATE).is_file() and not _budget_used_up(run)
    outcome = _train(run, corpus, resume, in_subprocess, report, interrupted)
    if not outcome.finished:
        raise Interrupted(f"{run.path} stopped after {outcome.steps:,} steps")
    write_text(run.path / MEMORY, json.dumps({"peak_bytes": outcome.peak_bytes}) + "\n")


def _budget_used_up(run: Run) -> bool:
    """Whether a run was killed after its last step and before saving its model; then it must start over."""
    settings = run.config.settings
    facts = RunDirectory.open(run.path).load_state()[1]
    budget = Budget(settings.steps, 60 * settings.minutes if settings.minutes is not None else None)
    return budget.progress(facts["step"], facts["seconds"]) >= 1


def _train(
    run: Run,
    corpus: Corpus,
    resume: bool,
    in_subprocess: bool,
    report: OnRecord | None,
    interrupted: Callable[[], bool],
) -> RunOutcome:
    def on_record(record: dict[str, Any]) -> None:
        if report:
            report(run, record)

    settings = run.config.settings
    if in_subprocess:
        return train_in_subprocess(
            settings, corpus, run.path, resume=resume, force=not resume, report=on_record, interrupted=interrupted
        )
    result = train(
        settings, corpus, run.path, resume=resume, force=not resume, report=on_record, interrupted=interrupted
    )
    return RunOutcome(result.finished, result.steps, None)


def _holds_this_run(run: Run, corpus: Corpus) -> bool:
    """Whether the directory holds this run, finished or not; False if it is empty or missing."""
    if not run.path.exists() or not any(run.path.iterdir()):
        return False
    if not (run.path / RUN).is_file():
        raise BadRequest(f'{run.path} is not empty and not a run; pass another out="DIR"')
    stored = RunDirectory.open(run.path).read_run()
    ours = json.loads(json.dumps(run.config.settings.to_dict()))
    theirs = json.loads(json.dumps(Settings.from_dict(stored["settings"]).to_dict()))
    for key in ours:
        if key != "threads" and ours[key] != theirs[key]:
            raise BadRequest(
                f'{run.path} was trained with {key} {theirs[key]}, not {ours[key]}; pass another out="DIR", or '
                "replace it with force=True"
            )
    if stored["corpus"].get("digest") != corpus.to_dict()["digest"]:
        raise BadRequest(
            f'{run.path} was trained on another text; pass another out="DIR", or replace it with force=True'
        )
    return True


def is_finished(path: Path) -> bool:
    return (path / MODEL).is_file() and bool(_final_validation(path))


def _final_validation(path: Path) -> dict[str, Any]:
    """The validation on the whole held-out split at the end of a run; empty before."""
    last: dict[str, Any] = {}
    for record in RunDirectory.open(path).metrics():
        if "val_bpb" in record and record["done"] >= 1:
            last = record
    return last


def final_metrics(path: Path) -> dict[str, Any]:
    """Final validation record of a finished run."""
    found = _final_validation(path)
    assert found, f"{path} is not finished"
    return found
