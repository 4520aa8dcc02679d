"""Fixes that lose nothing, as edits of a checkpoint. Everything the doctor needs from `surgery` is imported here.

A fix that needs a decision (which of two matrices is right, how many rows the vocabulary has) is not applied by
`doctor --fix`; its finding says what a person can do.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint, stored_state
from tiebeam.doctor.rule import Finding

if TYPE_CHECKING:
    from tiebeam.doctor.diagnosis import Diagnosis
    from tiebeam.inspection import Report
    from tiebeam.surgery import Outcome, Plan
    from tiebeam.surgery.edits import Edit
    from tiebeam.surgery.source import Source


@dataclass(frozen=True, slots=True)
class Repair:
    """A change of a checkpoint that keeps every value: its name in reports, and the edit that makes it."""

    name: str
    edit: Callable[[Source], Edit]


def _declare(source: Source, tied: bool) -> Edit:
    from tiebeam.surgery.pair_edits import set_flag  # here and below: diagnose() needs no surgery

    return set_flag(source, tied)


def _declare_as_stored(source: Source) -> Edit:
    """One matrix or two equal ones: tied. Two different ones: untied."""
    return _declare(source, stored_state(source.report) in ("one", "head", "equal"))


def _drop_head(source: Source) -> Edit:
    from tiebeam.surgery.pair_edits import drop_head, drop_tied_copies

    return drop_head(source) | drop_tied_copies(source) | _declare(source, True)


def _drop_aliases(source: Source) -> Edit:
    from tiebeam.surgery.pair_edits import drop_aliases

    return drop_aliases(source)


def _rename_head(source: Source) -> Edit:
    from tiebeam.surgery.pair_edits import rename_head

    return rename_head(source) | _drop_aliases(source) | _declare(source, True)


def _declare_boolean(source: Source) -> Edit:
    """As stored; two equal matrices stay untied if the invalid value means false."""
    says_false = any(value in (0, "false", "False") for value in source.tie_flags().values() if value is not None)
    return _declare(source, not says_false) if source.report.pair.equal else _declare_as_stored(source)


def _rename_files(source: Source) -> Edit:
    """The names that every loader looks for: model.safetensors, or numbered shards with an index."""
    from tiebeam.surgery.edits import Edit

    old = [shard.name for shard in source.layout.shards]
    many = f"model-{{:05d}}-of-{len(old):05d}.safetensors"
    new = [many.format(i) if len(old) > 1 else "model.safetensors" for i in range(1, len(old) + 1)]
    return Edit(files=dict(zip(old, new, strict=True)))


def _rename_foreign(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit

    name = ExaminedCheckpoint(source.checkpoint, source.report).foreign_name
    assert name is not None
    return Edit(rename={name: source.tensor_name("head" if name == source.head else "embed")})


def _drop_stale(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit

    return Edit(stale=frozenset(source.checkpoint.stale))


def _nothing(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit

    return Edit()


DECLARE_TIED = Repair("declare tied", lambda source: _declare(source, True))
DECLARE_UNTIED = Repair("declare untied", lambda source: _declare(source, False))
AGREE_AT_EVERY_LEVEL = Repair("agree at every level", _declare_as_stored)
WRITE_FLAG = Repair("write the flag out", _declare_as_stored)
DROP_HEAD = Repair("drop the head", _drop_head)
RENAME_HEAD = Repair("rename the head", _rename_head)
DROP_ALIASES = Repair("drop the alias notes", _drop_aliases)
WRITE_BOOLEAN = Repair("write a boolean flag", _declare_boolean)
RENAME_FILES = Repair("rename the files", _rename_files)
RENAME_FOREIGN = Repair("rename the foreign tensor", _rename_foreign)
DROP_STALE = Repair("drop stale index entries", _drop_stale)
STRIP_WRAPPERS = Repair("strip the wrapper prefix", _nothing)  # changes every name: made after all other edits
CONSOLIDATE = Repair("consolidate", _nothing)  # reading and writing it is the change


@dataclass(frozen=True, slots=True)
class FixPlan:
    """What `doctor --fix` would change. `plan` is None if nothing can be fixed without a decision; `left` are the
    findings that need one."""

    diagnosis: Diagnosis
    plan: Plan | None
    left: tuple[Finding, ...]

    def write(self, out: str | os.PathLike[str], *, force: bool = False) -> Outcome:
        """Write the fixed model to `out`; `force` replaces a model that is there."""
        from tiebeam.surgery import execute

        assert self.plan is not None, "nothing to write"
        return execute(self.plan, out, force=force)


def plan_fix(source: str | os.PathLike[str]) -> FixPlan:
    """Plan every fix that keeps all values; nothing is written."""
    from tiebeam.doctor.diagnosis import diagnosis_of
    from tiebeam.doctor.rules import RULES
    from tiebeam.surgery import Plan, open_source
    from tiebeam.surgery.edits import Edit

    opened = open_source(source, target=source if os.fspath(source).endswith(".gguf") else None)  # a GGUF stays one
    diagnosis = diagnosis_of(opened.checkpoint, opened.report)
    examined = ExaminedCheckpoint(opened.checkpoint, opened.report)
    edit, repairs = Edit(), []
    for code in dict.fromkeys(finding.code for finding in diagnosis.findings):
        repair = RULES[code].fix(examined)
        if repair is not None:
            edit = edit | repair.edit(opened)
            repairs.append(repair)
    if STRIP_WRAPPERS in repairs:
        own = examined.wrapped_names
        edit = edit.renaming(opened.stored_names, lambda name: own.get(name, name))
    left = tuple(finding for finding in diagnosis.findings if finding.repair is None)
    if not edit and CONSOLIDATE not in repairs:
        return FixPlan(diagnosis, None, left)
    # Not exact: where loaders disagreed, or started a head at random, there are no logits to keep.
    plan = Plan("doctor --fix", opened, edit, _expect_only({finding.code for finding in left}), exact=False)
    return FixPlan(diagnosis, plan, left)


def _expect_only(left: set[str]) -> Callable[[Report], str | None]:
    """A check of the result: it has no findings but those of `left`."""

    def expect(report: Report) -> str | None:
        from tiebeam.checkpoint import open_checkpoint
        from tiebeam.doctor.diagnosis import diagnosis_of

        findings = diagnosis_of(open_checkpoint(report.model), report).findings
        remaining = {finding.code for finding in findings} - left
        return f"the fixed model still has {', '.join(sorted(remaining))}" if remaining else None

    return expect
