"""The safe cures: findings whose repair keeps every number, joined into one surgery.

What needs a decision (which of two tables is right, how many rows a vocabulary has) is not here: it is
explained, not guessed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

from tiebeam.doctor.examination import Diagnosis, findings_of
from tiebeam.doctor.findings import Finding
from tiebeam.doctor.loaders import stored_state, what_loaders_do
from tiebeam.inspection import Report
from tiebeam.surgery import Plan, Source, open_source
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.pair_edits import drop_aliases, drop_head, drop_tied_copies, rename_head, set_flag


def _declare_what_is_stored(source: Source) -> Edit:
    """One matrix, or two equal ones, are tied; two different ones are not."""
    return set_flag(source, stored_state(source.report) in ("one", "head", "equal"))


# What a finding's `repair` names -> the edit that does it.
_REPAIRS: dict[str, Callable[[Source], Edit]] = {
    "declare tied": lambda source: set_flag(source, True),
    "declare untied": lambda source: set_flag(source, False),
    "agree at every level": _declare_what_is_stored,
    "write the flag out": _declare_what_is_stored,
    "drop the head": lambda source: drop_head(source) | drop_tied_copies(source) | set_flag(source, True),
    "rename the head": lambda source: rename_head(source) | drop_aliases(source) | set_flag(source, True),
    "drop the alias notes": drop_aliases,
}


@dataclass(frozen=True, slots=True)
class Cure:
    """`plan` is None when nothing can be cured safely; `left` are the findings that need a decision."""

    diagnosis: Diagnosis
    plan: Plan | None
    left: tuple[Finding, ...]


def plan_cure(source: str | os.PathLike[str]) -> Cure:
    """What the safe cures would change; nothing is written."""
    opened = open_source(source)
    report = opened.report
    findings = findings_of(opened.checkpoint, report)
    diagnosis = Diagnosis(report, findings, what_loaders_do(report, opened.checkpoint.config))
    edit = Edit()
    for repair in dict.fromkeys(f.repair for f in findings if f.repair):
        edit = edit | _REPAIRS[repair](opened)
    left = tuple(f for f in findings if f.repair is None)
    if not edit:
        return Cure(diagnosis, None, left)
    # The logits are the same only where a loader agreed with itself before; a random head has no logits to keep.
    return Cure(diagnosis, Plan("doctor --fix", opened, edit, _cured({f.code for f in left}), exact=False), left)


def _cured(still: set[str]) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        from tiebeam.checkpoint import open_checkpoint

        found = {f.code for f in findings_of(open_checkpoint(report.model), report)} - still
        return f"the cured model still has {', '.join(sorted(found))}" if found else None

    return expect
