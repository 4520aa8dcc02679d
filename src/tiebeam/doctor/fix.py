"""Fixes that lose nothing, as edits of a checkpoint. Everything the doctor needs from `surgery` is imported here.

A fix that needs a decision (which of two matrices is right, how many rows the vocabulary has) is not applied by
`doctor --fix`; its finding says what a person can do.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam import families
from tiebeam.doctor.examined import ExaminedCheckpoint, stored_state
from tiebeam.doctor.rule import Finding, Severity

if TYPE_CHECKING:
    from tiebeam.doctor.diagnosis import Diagnosis
    from tiebeam.inspection import Report
    from tiebeam.surgery import Outcome, Plan
    from tiebeam.surgery.edits import Edit
    from tiebeam.surgery.source import Source


class Repair(NamedTuple):
    """A change of a checkpoint that keeps every value: its name in reports, and the edit that makes it."""

    name: str
    edit: Callable[[Source], Edit]


def _declare(source: Source, tied: bool) -> Edit:
    """Set the flag. A model that is declared untied also stores what a loader would no longer tie."""
    from tiebeam.surgery.pair_edits import set_flag, write_followers  # here and below: diagnose() needs no surgery

    return set_flag(source, tied) if tied else set_flag(source, tied) | write_followers(source)


def _declare_as_stored(source: Source) -> Edit:
    """One matrix or two equal ones: tied. Two different ones: untied. A head alone: as it is declared."""
    state, declared = stored_state(source.report), source.report.pair.declared
    if state == "head" and declared is False:
        return _declare(source, False)
    return _declare(source, state in ("one", "head", "equal"))


def _drop_head(source: Source) -> Edit:
    from tiebeam.surgery.tie import plan_tie

    return plan_tie(source).edit  # so that it refuses what `tie` refuses


def _drop_aliases(source: Source) -> Edit:
    from tiebeam.surgery.pair_edits import drop_aliases

    return drop_aliases(source)


def _rename_head(source: Source) -> Edit:
    from tiebeam.surgery.tie import plan_tie

    return plan_tie(source).edit


def _write_followers(source: Source) -> Edit:
    from tiebeam.surgery.pair_edits import write_followers

    return write_followers(source)


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
    return Edit(rename={name: source.architecture_name("head" if name == source.head else "embed")})


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
WRITE_FOLLOWERS = Repair("store what the flag no longer ties", _write_followers)
WRITE_BOOLEAN = Repair("write a boolean flag", _declare_boolean)
RENAME_FILES = Repair("rename the files", _rename_files)
RENAME_FOREIGN = Repair("rename the foreign tensor", _rename_foreign)
DROP_STALE = Repair("drop stale index entries", _drop_stale)
STRIP_WRAPPERS = Repair("strip the wrapper prefix", _nothing)  # changes every name: made after all other edits
CONSOLIDATE = Repair("consolidate", _nothing)  # reading and writing it is the change


@dataclass(frozen=True, slots=True)
class FixPlan:
    """What `doctor --fix` would change. `plan` is None if nothing can be fixed without a decision; `left` are the
    findings that need one; `notes` say why a fix is refused, and which loader the fixes leave worse off."""

    diagnosis: Diagnosis
    plan: Plan | None
    left: tuple[Finding, ...]
    notes: tuple[str, ...] = ()

    def write(self, out: str | os.PathLike[str], *, force: bool = False) -> Outcome:
        """Write the fixed model to `out`; `force` replaces a model that is there."""
        from tiebeam.surgery import execute

        assert self.plan is not None, "nothing to write"
        return execute(self.plan, out, force=force)


def plan_fix(source: str | os.PathLike[str]) -> FixPlan:
    """Plan every fix that keeps all values; nothing is written."""
    from tiebeam.doctor.diagnosis import diagnosis_of
    from tiebeam.doctor.rules import RULES
    from tiebeam.errors import BadRequest
    from tiebeam.surgery import Plan, open_source
    from tiebeam.surgery.edits import Edit

    opened = open_source(source, target=source if os.fspath(source).endswith(".gguf") else None)  # a GGUF stays one
    diagnosis = diagnosis_of(opened.checkpoint, opened.report)
    examined = ExaminedCheckpoint(opened.checkpoint, opened.report)
    edit, fixed, notes, repairs = Edit(), set(), [], []
    for code in dict.fromkeys(finding.code for finding in diagnosis.findings):
        repair = RULES[code].fix(examined)
        try:
            change = repair.edit(opened) if repair else None
        except BadRequest as error:
            notes.append(f"{code} is not fixed: {error}")
            continue
        if repair and (
            change or repair in (STRIP_WRAPPERS, CONSOLIDATE)
        ):  # else nothing to fix: the type ignores its flag
            edit = edit | (change or Edit())
            fixed.add(code)
            repairs.append(repair)
    if STRIP_WRAPPERS in repairs:
        own = examined.wrapped_names
        edit = edit.renaming(opened.stored_names, lambda name: own.get(name, name))
    left = tuple(finding for finding in diagnosis.findings if finding.code not in fixed)
    if not edit and CONSOLIDATE not in repairs:
        return FixPlan(diagnosis, None, left, tuple(notes))
    notes += worse_off(diagnosis, opened, edit)
    # Not exact: where loaders disagreed, or started a head at random, there are no logits to keep.
    expect = _expect_only({finding.code for finding in left})
    plan = Plan("doctor --fix", opened, edit, expect, exact=False, notes=tuple(notes))
    return FixPlan(diagnosis, plan, left, tuple(notes))


_LOADS = ("ties", "keeps both", "copies", "loads")


def worse_off(diagnosis: Diagnosis, source: Source, edit: Edit) -> list[str]:
    """A sentence for every loader that loads the model as it is, and would not load the fixed one."""
    from tiebeam.doctor.loaders import predictions

    report, config = _edited(source, edit)
    before = {p.loader: p for p in diagnosis.loaders}
    return [
        f"{after.loader} loads the model as it is ({before[after.loader].outcome}), but not the fixed one: "
        f"{after.outcome} ({after.reason})"
        for after in predictions(report, config)
        if after.loader in before and before[after.loader].outcome in _LOADS and after.outcome not in _LOADS
    ]


def _edited(source: Source, edit: Edit) -> tuple[Report, dict[str, Any] | None]:
    """The report and the config that the fixed model will have."""
    pair = source.report.pair
    embed, head = pair.embed, pair.head
    if head is not None and source.head is not None and source.head in edit.rename:
        embed, head = replace(head, name=edit.rename[source.head]), None
    elif source.head in edit.drop:
        head = None
    config = json.loads(json.dumps(source.layout.config)) if source.layout.config is not None else None
    declared, by = pair.declared, pair.declared_by
    if config is not None and edit.config:
        for path, value in edit.config.items():
            level = config
            for key in path[:-1]:
                level = level[key]
            level[path[-1]] = value
        found = families.resolve_declared(config, source.architecture)
        declared, by = found.value, found.by
    elif source.is_gguf:
        declared = head is None
    after = replace(pair, embed=embed, head=head, declared=declared, declared_by=by)
    if head is None:
        after = replace(after, equal=None, one_storage=False)
    return replace(source.report, pair=after), config


def _expect_only(left: set[str]) -> Callable[[Report], str | None]:
    """A check of the result: it has no findings above a note but those of `left`."""

    def expect(report: Report) -> str | None:
        from tiebeam.checkpoint import open_checkpoint
        from tiebeam.doctor.diagnosis import diagnosis_of

        findings = diagnosis_of(open_checkpoint(report.model), report).findings
        remaining = {finding.code for finding in findings if finding.severity is not Severity.NOTE} - left
        return f"the fixed model still has {', '.join(sorted(remaining))}" if remaining else None

    return expect
