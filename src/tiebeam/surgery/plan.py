"""What a surgery will change (`Plan`), and what it changed (`Outcome`). Nothing here reads or writes tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam import _html
from tiebeam._visible import visible
from tiebeam.checkpoint import Checkpoint
from tiebeam.inspection import Report
from tiebeam.surgery.edits import Change, Edit, Shard, apply, describe
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    from tiebeam.decode.engine import Ids
    from tiebeam.surgery.proof import Proof

Progress = Callable[[str, int, int], None]
"""Called with (stage, done, total)."""


def no_progress(stage: str, done: int, total: int) -> None:
    """The default `Progress`: report nothing."""


@dataclass(frozen=True)
class Plan:
    """Everything that will change. Print `plan.changes` to review it, pass it to `execute` to write it.

    expect          gets the report of the written model; returns what is wrong with it, or None
    exact           the logits stay the same to the bit
    nothing_to_do   why there is nothing to write: the model already is as requested
    kept            (rows of the source, the same rows in the result), where the result has other rows as well; only
                    their logits are compared
    facts           more for the JSON document: what the verb was asked to do
    measure         for plans that change the logits: runs the written model before it replaces the target
    prove           in place of comparing source and result: compares the result with what it should compute
    inputs          files read beside the source; they must not change meanwhile either
    """

    verb: str
    source: Source
    edit: Edit
    expect: Callable[[Report], str | None]
    exact: bool = True
    notes: tuple[str, ...] = ()
    nothing_to_do: str = ""
    measure: Callable[[Checkpoint], Mapping[str, Any]] | None = None
    prove: Callable[[Checkpoint, str, str | None], Proof] | None = None
    inputs: tuple[Path, ...] = ()
    kept: tuple[Ids, Ids] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def checkpoint(self) -> Checkpoint:
        return self.source.checkpoint

    @property
    def report(self) -> Report:
        """The report of the source."""
        return self.source.report

    @cached_property
    def shards(self) -> list[Shard]:
        """The weight files of the target."""
        return apply(self.edit, self.source.layout.shards)

    @cached_property
    def changes(self) -> tuple[Change, ...]:
        layout = self.source.layout
        changes = describe(self.edit, layout.shards, self.shards, layout.config or {})
        if self.source.converted:
            name = Path(self.checkpoint.source).name
            changes.insert(0, Change(name, f"{self.checkpoint.format} is converted to safetensors"))
        return tuple(changes)

    def to_dict(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "source": self.checkpoint.source,
            "tie": str(self.report.tie),
            "exact": self.exact,
            "changes": [change.to_dict() for change in self.changes],
            "notes": [*([self.nothing_to_do] if self.nothing_to_do else []), *self.notes],
            **self.facts,
        }

    def _repr_html_(self) -> str:
        rows = [*_change_rows(self.changes), *(("note", note) for note in self.to_dict()["notes"])]
        return _html.table(rows, title=f"{self.verb} {self.checkpoint.source}: not written yet")


@dataclass(frozen=True)
class Outcome:
    """What was written: the reports before and after, the changes, the digests and the proof."""

    verb: str
    source: str
    target: str
    before: Report
    after: Report
    changes: tuple[Change, ...]
    digests: tuple[str, str]
    proof: Proof | None = None
    left: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        lines = [f"{self.target}: {self.after.tie} (was {self.before.tie})", *map(str, self.changes)]
        return "\n  ".join(map(visible, lines))

    def _repr_html_(self) -> str:
        rows = [("tie", f"{self.before.tie} -> {self.after.tie}"), *_change_rows(self.changes)]
        rows += [("proof", str(self.proof))] if self.proof else []
        rows += [("note", note) for note in self.notes]
        return _html.table([*rows, ("digest", self.digests[1])], title=f"{self.verb}: {self.target}")

    def to_dict(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "source": self.source,
            "target": self.target,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "changes": [change.to_dict() for change in self.changes],
            "digest_before": self.digests[0],
            "digest_after": self.digests[1],
            "proof": self.proof.to_dict() if self.proof else None,
            "left_behind": list(self.left),
            "notes": list(self.notes),
            **({"measured": dict(self.measured)} if self.measured else {}),
            **self.facts,
        }


def _change_rows(changes: tuple[Change, ...]) -> list[tuple[str, str]]:
    return [(change.file, change.what) for change in changes]
