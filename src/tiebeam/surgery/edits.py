"""What a surgery changes, as data: tensors dropped, renamed, copied and added; config values set.

A `Shard` is a file to be; as long as nothing in it changes it keeps its `original` and is copied or linked
whole. An `Edit` is applied to the shards of a source without touching a byte, so the same description serves
the dry run, the writing and the model card.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.write.copy_bytes import Content
from tiebeam.checkpoint.write.safetensors import Entry, arrange, insert, layout
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.checkpoint.write.gguf import Preamble

_OWN_FILE = 32 << 20
_NUMBERED = re.compile(r"^(?P<stem>.+)-\d{5,}-of-\d{5,}(?P<suffix>\.[A-Za-z0-9]+)$")


@dataclass(frozen=True, slots=True)
class Shard:
    """One weights file of the target."""

    name: str
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    original: Path | None = None
    container: Preamble | None = None
    """What else a GGUF file holds; None for safetensors."""

    @property
    def contents(self) -> list[Content]:
        return self.container.layout(self.entries) if self.container else layout(self.entries, self.metadata)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a plan: which file, and what becomes of it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

    def to_dict(self) -> dict[str, str]:
        return {"file": self.file, "what": self.what}


@dataclass(frozen=True, slots=True)
class Edit:
    """`copy` maps a new tensor to the stored one whose numbers it takes; `config` maps a path of keys to a value;
    `forget` names entries of the files' own metadata that no longer hold."""

    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    copy: Mapping[str, str] = field(default_factory=dict)
    add: tuple[Entry, ...] = ()
    config: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    forget: frozenset[str] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.drop or self.rename or self.copy or self.add or self.config or self.forget)

    def __or__(self, other: Edit) -> Edit:
        """Both; they must not speak about the same tensor."""
        assert not self.drop & other.drop
        assert not self.rename.keys() & other.rename.keys()
        assert not self.copy.keys() & other.copy.keys()
        return Edit(
            self.drop | other.drop,
            {**self.rename, **other.rename},
            {**self.copy, **other.copy},
            self.add + other.add,
            {**self.config, **other.config},
            self.forget | other.forget,
        )


def apply(edit: Edit, shards: Iterable[Shard]) -> list[Shard]:
    """The shards after the edit; those it does not touch are returned as they are."""
    before = list(shards)
    stored = {entry.name: entry for shard in before for entry in shard.entries}
    for name in (*edit.drop, *edit.rename, *edit.copy.values()):
        assert name in stored, name
    after = [_edited(shard, edit) for shard in before]
    new = [replace(stored[source], name=name) for name, source in edit.copy.items()]
    present = {entry.name for shard in after for entry in shard.entries}
    for entry in (*new, *edit.add):
        if entry.name in present:
            raise BadRequest(f"the source already stores a tensor called {entry.name!r}")
        present.add(entry.name)
        if len(after) > 1 and entry.nbytes >= _OWN_FILE and _NUMBERED.match(after[-1].name):
            # a file of its own: none has to be rewritten, and all others can be linked
            after.append(Shard(after[-1].name, (entry,), after[-1].metadata))
            continue
        # The lightest file takes it: it is the one that is rewritten, and the others can be linked.
        at = min(range(len(after)), key=lambda i: (after[i].nbytes, -i))
        old = after[at].entries
        grown = (*old, entry) if after[at].container else tuple(insert(old, entry))
        after[at] = replace(after[at], entries=grown, original=None)
    return _renumbered([shard for shard in after if shard.entries], len(before))


def _edited(shard: Shard, edit: Edit) -> Shard:
    names = {entry.name for entry in shard.entries}
    if not (names & (edit.drop | edit.rename.keys()) or shard.metadata.keys() & edit.forget):
        return shard
    kept = [
        replace(entry, name=edit.rename.get(entry.name, entry.name))
        for entry in shard.entries
        if entry.name not in edit.drop
    ]
    metadata = {key: value for key, value in shard.metadata.items() if key not in edit.forget}
    return replace(shard, entries=tuple(kept if shard.container else arrange(kept)), metadata=metadata, original=None)


def _renumbered(shards: list[Shard], before: int) -> list[Shard]:
    """A file that lost its last tensor is gone; those that say "2 of 3" must say so rightly."""
    if len(shards) == before:
        return shards
    matches = [_NUMBERED.match(shard.name) for shard in shards]
    return [
        replace(shard, name=f"{match['stem']}-{i:05d}-of-{len(shards):05d}{match['suffix']}") if match else shard
        for i, (shard, match) in enumerate(zip(shards, matches, strict=True), 1)
    ]


def describe(edit: Edit, before: Iterable[Shard], after: Iterable[Shard], config: Mapping[str, Any]) -> list[Change]:
    """Every change as a line: `model.safetensors: + lm_head.weight BF16 [32000, 2048]`."""
    changes = [
        Change("config.json", f"{'.'.join(path)} {_value(config, path)} -> {_json(value)}")
        for path, value in edit.config.items()
    ]
    home = {entry.name: shard.name for shard in before for entry in shard.entries}
    tensors = {entry.name: entry for shard in before for entry in shard.entries}
    changes += [Change(home[name], f"- {_tensor(tensors[name])}") for name in sorted(edit.drop)]
    changes += [Change(home[old], f"{old} is renamed to {new}") for old, new in edit.rename.items()]
    for shard in after:
        for entry in shard.entries:
            if entry.name in edit.copy:
                changes.append(Change(shard.name, f"+ {_tensor(entry)}, a copy of {edit.copy[entry.name]}"))
            elif any(entry is new for new in edit.add):
                changes.append(Change(shard.name, f"+ {_tensor(entry)}"))
    changes += [Change("metadata", f"- {key!r}, an alias that no longer holds") for key in sorted(edit.forget)]
    return changes


def parameters_added(edit: Edit, before: Iterable[Shard]) -> int:
    """How the number of stored parameters changes."""
    sizes = {entry.name: prod(entry.shape) for shard in before for entry in shard.entries}
    added = sum(sizes[source] for source in edit.copy.values()) + sum(prod(entry.shape) for entry in edit.add)
    return added - sum(sizes[name] for name in edit.drop)


def _tensor(entry: Entry) -> str:
    return f"{entry.name} {entry.dtype} {list(entry.shape)}"


def _value(config: Mapping[str, Any], path: tuple[str, ...]) -> str:
    level: Any = config
    for key in path:
        if not isinstance(level, Mapping) or key not in level:
            return "(absent)"
        level = level[key]
    return _json(level)


def _json(value: Any) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)
