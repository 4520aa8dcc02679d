"""Train every variant with every seed, each in its own run directory below `out`.

Finished runs are kept, interrupted ones are resumed, and a directory with other content is an error. The number of
threads is fixed by the first call, so that later runs do not get fewer on a busy machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import Kind, check_replaceable, occupy, write_text
from tiebeam.compare.subprocess_run import RunOutcome, train_in_subprocess
from tiebeam.compare.variants import VariantConfig
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.train import RunDirectory, Settings, train
from tiebeam.train.run_directory import KIND as RUN_KIND
from tiebeam.train.run_directory import RUN

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

PLAN, MEMORY = "compare.json", "memory.json"
_OURS = re.compile(r"compare\.json|report\.(json|html)|figures/[\w-]+\.(png|svg)|[a-z]+-s\d+(\.tbp)?")


def _is_ours(name: str) -> bool:
    run, _, file = name.partition("/")
    return bool(_OURS.fullmatch(name) or (_OURS.fullmatch(run) and RUN_KIND.owns(file)))


KIND = Kind("a comparison of tiebeam compare", lambda path: (path / PLAN).is_file(), _is_ours)
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


def check_directory(out: Path, force: bool = False) -> None:
    """Refuse a directory that holds anything but a comparison; `force` replaces one."""
    if out.exists() and not out.is_dir():
        raise BadRequest(f'{out} is a file; pass a directory as out="DIR"')
    names = [path.name for path in out.iterdir()] if out.is_dir() else []
    if PLAN not in names and not all(KIND.is_temporary(name) for name in names):
        raise BadRequest(f'{out} is not empty and not a comparison; pass another out="DIR"')
    if PLAN in names and force:
        check_replaceable(out, force, KIND)


@contextmanager
def prepared_directory(out: Path, plan: dict[str, Any], force: bool = False) -> Iterator[dict[str, Any]]:
    """Create and lock `out`, or check that it holds this comparison. Yields the plan with the first call's threads."""
    check_directory(out, force)
    lock = occupy(out, KIND, force)
    try:
        plan = _agreed(out, plan)
        write_text(out / PLAN, json.dumps(plan, indent=2) + "\n")
        yield plan
    finally:
        lock.release()


def _agreed(out: Path, plan: dict[str, Any]) -> dict[str, Any]:
    stored = out / PLAN
    if not stored.is_file():
        return plan
    try:
        before = json.loads(stored.read_text("utf-8"))
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
    return {**plan, "threads": threads}


def run_all(
    configs: Sequence[VariantConfig], seeds: Sequence[int], corpus: Corpus, out: Path, *, threads: int,
    equal_steps: bool = False, in_subprocess: bool = True, report: OnRecord | None = None,
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
            _train_or_resume(run, corpus, in_subprocess, report, interrupted)
            steps = steps or final_metrics(run.path)["step"]
            runs.append(run)
    return runs


def _train_or_resume(
    run: Run, corpus: Corpus, in_subprocess: bool, report: OnRecord | None, interrupted: Callable[[], bool]
) -> None:
    resume = _holds_this_run(run, corpus)
    if resume and RunDirectory(run.path).is_finished():
        if (run.path / MEMORY).is_file():
            return
        outcome = RunOutcome(True, 0, None)  # killed before its memory was noted
    else:
        outcome = _train(run, corpus, resume, in_subprocess, report, interrupted)
    if not outcome.finished:
        raise Interrupted(f"{run.path} stopped after {outcome.steps:,} steps")
    write_text(run.path / MEMORY, json.dumps({"peak_bytes": outcome.peak_bytes}) + "\n")


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
        return train_in_subprocess(settings, corpus, run.path, resume=resume, report=on_record, interrupted=interrupted)
    result = train(settings, corpus, run.path, resume=resume, report=on_record, interrupted=interrupted)
    return RunOutcome(result.finished, result.steps, None)


def _holds_this_run(run: Run, corpus: Corpus) -> bool:
    """Whether the directory holds this run, finished or not; False if there is none yet."""
    if not (run.path / RUN).is_file():
        RunDirectory.check(run.path)
        return False
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


def final_metrics(path: Path) -> dict[str, Any]:
    """Final validation record of a finished run."""
    found = RunDirectory.open(path).final_validation()
    assert found, f"{path} is not finished"
    return found
