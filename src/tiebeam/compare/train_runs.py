"""Train every contender with every seed, each in a run directory of its own below OUT.

A finished run is kept, an interrupted one goes on, and a directory that holds anything else is refused. The number of
threads is settled once for all: a later run must not get fewer because the earlier ones kept the machine busy.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import write_text
from tiebeam.compare.subprocess_run import Outcome, train_apart
from tiebeam.compare.variants import Contender
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.train import Budget, RunDirectory, Settings, train
from tiebeam.train.run_directory import MODEL, RUN, STATE

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

PLAN, MEMORY = "compare.json", "memory.json"
Report = Callable[["Planned", dict[str, Any]], None]


class Interrupted(TiebeamError):
    """Stopped on the way; what is done is kept."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One run: a contender with a seed, and its place."""

    contender: Contender
    seed: int
    path: Path

    @property
    def name(self) -> str:
        return self.path.name


def claim(out: Path, plan: dict[str, Any], force: bool = False) -> dict[str, Any]:
    """Make OUT ours, or find it so. Returns the plan that stands: the threads of the first call are kept."""
    held = out / PLAN
    if out.exists() and not out.is_dir():
        raise BadRequest(f"{out} is a file; name a directory")
    if out.exists() and any(out.iterdir()) and not held.is_file():
        raise BadRequest(f"{out} already holds something else; name another --out")
    if held.is_file() and not force:
        try:
            before = json.loads(held.read_text())
            threads = before["threads"]
        except (OSError, ValueError, KeyError, TypeError):
            raise BadRequest(f"{held} is damaged; start over with --force, or name another --out") from None
        changed = [key for key in plan if key not in ("threads", "command") and before.get(key) != plan[key]]
        if changed:
            old, new = before.get(changed[0]), plan[changed[0]]
            raise BadRequest(
                f"{out} holds a comparison with {changed[0]} {old}, not {new}; name another --out, or replace it "
                "with --force"
            )
        plan = {**plan, "threads": threads}
    out.mkdir(parents=True, exist_ok=True)
    write_text(held, json.dumps(plan, indent=2) + "\n")
    return plan


def run_all(
    field: Sequence[Contender], seeds: Sequence[int], corpus: Corpus, out: Path, *, threads: int,
    equal_steps: bool = False, force: bool = False, apart: bool = True, report: Report | None = None,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[Planned]:  # fmt: skip
    """Train what is not trained yet. With `equal_steps` the first run has the time, and the others take its steps.

    Variants take turns within a seed, so that a slow spell of the machine does not fall on one of them alone.
    """
    planned, steps = [], None
    for seed in seeds:
        for contender in field:
            settings = replace(contender.settings, seed=seed, threads=threads)
            if equal_steps and settings.minutes is not None and steps is not None:
                settings = replace(settings, minutes=None, steps=steps)
            run = Planned(replace(contender, settings=settings), seed, out / f"{contender.variant.name}-s{seed}")
            _train(run, corpus, force, apart, report, interrupted)
            steps = steps or _final(RunDirectory.open(run.path))["step"]
            planned.append(run)
    return planned


def _train(
    run: Planned, corpus: Corpus, force: bool, apart: bool, report: Report | None, interrupted: Callable[[], bool]
) -> None:
    resume = not force and _stands(run, corpus)
    if resume and finished(run.path):
        return
    resume = resume and (run.path / STATE).is_file()
    resume = resume and not _spent(run)
    outcome = _one(run, corpus, resume, apart, report, interrupted)
    if not outcome.finished:
        raise Interrupted(f"{run.path} stopped after {outcome.steps:,} steps")
    write_text(run.path / MEMORY, json.dumps({"peak_bytes": outcome.peak_bytes}) + "\n")


def _spent(run: Planned) -> bool:
    """Killed between its last step and its model: the state has nothing left to run, so it starts over."""
    settings = run.contender.settings
    facts = RunDirectory.open(run.path).load_state()[1]
    budget = Budget(settings.steps, 60 * settings.minutes if settings.minutes is not None else None)
    return budget.progress(facts["step"], facts["seconds"]) >= 1


def _one(
    run: Planned, corpus: Corpus, resume: bool, apart: bool, report: Report | None, interrupted: Callable[[], bool]
) -> Outcome:
    def tell(record: dict[str, Any]) -> None:
        if report:
            report(run, record)

    settings = run.contender.settings
    if apart:
        return train_apart(
            settings, corpus, run.path, resume=resume, force=not resume, report=tell, interrupted=interrupted
        )
    result = train(settings, corpus, run.path, resume=resume, force=not resume, report=tell, interrupted=interrupted)
    return Outcome(result.finished, result.steps, None)


def _stands(run: Planned, corpus: Corpus) -> bool:
    """Whether the directory holds this very run, finished or begun; False when there is nothing."""
    if not run.path.exists() or not any(run.path.iterdir()):
        return False
    if not (run.path / RUN).is_file():
        raise BadRequest(f"{run.path} already holds something else; name another --out")
    held = RunDirectory.open(run.path).read_run()
    ours = json.loads(json.dumps(run.contender.settings.to_dict()))
    theirs = json.loads(json.dumps(Settings.from_dict(held["settings"]).to_dict()))
    for key in ours:
        if key != "threads" and ours[key] != theirs[key]:
            raise BadRequest(
                f"{run.path} was trained with {key} {theirs[key]}, not {ours[key]}; name another --out, or replace it "
                "with --force"
            )
    if held["corpus"].get("digest") != corpus.to_dict()["digest"]:
        raise BadRequest(f"{run.path} was trained on another text; name another --out, or replace it with --force")
    return True


def finished(path: Path) -> bool:
    run = RunDirectory.open(path)
    return (path / MODEL).is_file() and bool(_final(run))


def _final(run: RunDirectory) -> dict[str, Any]:
    """The last whole validation, which is written when a run ends; empty before."""
    last: dict[str, Any] = {}
    for record in run.metrics():
        if "val_bpb" in record and record["done"] >= 1:
            last = record
    return last


def final_of(path: Path) -> dict[str, Any]:
    """The record a finished run ended with."""
    found = _final(RunDirectory.open(path))
    assert found, f"{path} is not finished"
    return found
