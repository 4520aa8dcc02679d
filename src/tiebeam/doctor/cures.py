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
from tiebeam.surgery import Plan, open_case
from tiebeam.surgery.cases import Case
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.repairs import drop_aliases, drop_followers, drop_head, rename_head, set_flag


def _declare_what_is_stored(case: Case) -> Edit:
    """One matrix, or two equal ones, are tied; two different ones are not."""
    return set_flag(case, stored_state(case.report) in ("one", "head", "equal"))


# What a finding's `repair` names -> the edit that does it.
_REPAIRS: dict[str, Callable[[Case], Edit]] = {
    "declare tied": lambda case: set_flag(case, True),
    "declare untied": lambda case: set_flag(case, False),
    "agree at every level": _declare_what_is_stored,
    "write the flag out": _declare_what_is_stored,
    "drop the head": lambda case: drop_head(case) | drop_followers(case) | set_flag(case, True),
    "rename the head": lambda case: rename_head(case) | drop_aliases(case) | set_flag(case, True),
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
    case = open_case(source)
    report = case.report
    findings = findings_of(case.checkpoint, report)
    diagnosis = Diagnosis(report, findings, what_loaders_do(report, case.checkpoint.config))
    edit = Edit()
    for repair in dict.fromkeys(f.repair for f in findings if f.repair):
        edit = edit | _REPAIRS[repair](case)
    left = tuple(f for f in findings if f.repair is None)
    if not edit:
        return Cure(diagnosis, None, left)
    # The logits are the same only where a loader agreed with itself before; a random head has no logits to keep.
    return Cure(diagnosis, Plan("doctor --fix", case, edit, _cured({f.code for f in left}), exact=False), left)


def _cured(still: set[str]) -> Callable[[Report], str | None]:
    def expect(report: Report) -> str | None:
        from tiebeam.checkpoint import open_checkpoint

        found = {f.code for f in findings_of(open_checkpoint(report.model), report)} - still
        return f"the cured model still has {', '.join(sorted(found))}" if found else None

    return expect
