"""What a surgery changes, as data: tensors dropped, renamed, copied, added and rewritten; config values set;
files beside the weights; metadata of a GGUF.

A `Shard` describes one weight file of the target. If nothing in it changes it keeps its `original`, which is copied
or linked whole. `apply` computes the target's shards from an `Edit` without reading tensors, so that the dry run, the
writer and the model card use one description.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.write.copy_bytes import Content
from tiebeam.checkpoint.write.safetensors import INDEX, Entry, arrange, insert, layout
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.checkpoint.write.gguf import Preamble

_OWN_FILE = 32 << 20
_LISTED = 4  # changed tensors of a file that are listed one by one
_NUMBERED = re.compile(r"^(?P<stem>.+)-\d{5,}-of-\d{5,}(?P<suffix>\.[A-Za-z0-9]+)$")


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file of the target."""

    name: str
    entries: tuple[Entry, ...]
    metadata: Mapping[str, str] = field(default_factory=dict)
    original: Path | None = None
    container: Preamble | None = None
    """The metadata part of a GGUF file; None for safetensors."""

    @property
    def contents(self) -> list[Content]:
        return self.container.layout(self.entries) if self.container else layout(self.entries, self.metadata)

    @property
    def nbytes(self) -> int:
        return sum(entry.nbytes for entry in self.entries)


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a plan: a file, and what changes in it."""

    file: str
    what: str

    def __str__(self) -> str:
        return f"{self.file}: {self.what}"

    def to_dict(self) -> dict[str, str]:
        return {"file": self.file, "what": self.what}


@dataclass(frozen=True, slots=True)
class Edit:
    """Changes to tensors, config and metadata.

    rename          stored name: new name
    copy            new name: the stored tensor that it copies
    rewrite         stored name: the tensor that takes its place in the same file
    config          path of keys: new value
    documents       file beside the weights: its new content
    documented      file beside the weights: what changes in it, for the report
    gguf            key of a GGUF's metadata: new value
    drop_metadata   keys to remove from the metadata of the weight files
    files           weight file: new name; the same name where only an index is missing
    stale           names in the index that no file stores; the index is always written anew without them
    leave           file beside the weights that is not copied: why
    """

    drop: frozenset[str] = frozenset()
    rename: Mapping[str, str] = field(default_factory=dict)
    copy: Mapping[str, str] = field(default_factory=dict)
    add: tuple[Entry, ...] = ()
    rewrite: Mapping[str, Entry] = field(default_factory=dict)
    config: Mapping[tuple[str, ...], Any] = field(default_factory=dict)
    drop_metadata: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    stale: frozenset[str] = frozenset()
    documents: Mapping[str, bytes] = field(default_factory=dict)
    gguf: Mapping[str, Any] = field(default_factory=dict)
    documented: Mapping[str, str] = field(default_factory=dict)
    leave: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(getattr(self, part.name) for part in fields(self))

    def __or__(self, other: Edit) -> Edit:
        """Both edits; where they change the same tensor, they must agree."""
        both: list[tuple[Mapping[Any, Any], Mapping[Any, Any]]]
        names = ("rename", "copy", "config", "rewrite", "documents", "gguf", "documented", "leave")
        both = [(getattr(self, name), getattr(other, name)) for name in names]
        assert all(mine[key] == others[key] for mine, others in both for key in mine.keys() & others.keys())
        return Edit(
            self.drop | other.drop,
            {**self.rename, **other.rename},
            {**self.copy, **other.copy},
            self.add + other.add,
            {**self.rewrite, **other.rewrite},
            {**self.config, **other.config},
            self.drop_metadata | other.drop_metadata,
            {**self.files, **other.files},
            self.stale | other.stale,
            {**self.documents, **other.documents},
            {**self.gguf, **other.gguf},
            {**self.documented, **other.documented},
            {**self.leave, **other.leave},
        )

    def renaming(self, stored: Iterable[str], clean: Callable[[str], str]) -> Edit:
        """This edit, with every name of the result changed by `clean`; `stored` are the names before the edit."""
        renamed = {name: clean(self.rename.get(name, name)) for name in stored if name not in self.drop}
        return replace(
            self,
            rename={name: new for name, new in renamed.items() if new != name},
            copy={clean(name): source for name, source in self.copy.items()},
            add=tuple(replace(entry, name=clean(entry.name)) for entry in self.add),
        )


def apply(edit: Edit, shards: Iterable[Shard]) -> list[Shard]:
    """The shards after the edit. Shards that do not change are returned as they are."""
    before = [replace(shard, name=edit.files.get(shard.name, shard.name)) for shard in shards]
    stored = {entry.name: entry for shard in before for entry in shard.entries}
    for name in (*edit.drop, *edit.rename, *edit.copy.values(), *edit.rewrite):
        assert name in stored, name
    after = [_edited(shard, edit) for shard in before]
    new = [replace(stored[source], name=name) for name, source in edit.copy.items()]
    present = {entry.name for shard in after for entry in shard.entries}
    for entry in (*new, *edit.add):
        if entry.name in present:
            raise BadRequest(f"the source already stores a tensor called {entry.name!r}")
        present.add(entry.name)
        if len(after) > 1 and entry.nbytes >= _OWN_FILE and _NUMBERED.match(after[-1].name):
            # A large tensor gets a new file: no file is rewritten, and all others can be linked.
            after.append(Shard(after[-1].name, (entry,), after[-1].metadata))
            continue
        # The smallest file gets it: only that one is rewritten, and the others can be linked.
        at = min(range(len(after)), key=lambda i: (after[i].nbytes, -i))
        old = after[at].entries
        grown = (*old, entry) if after[at].container else tuple(insert(old, entry))
        after[at] = replace(after[at], entries=grown, original=None)
    return _renumbered([shard for shard in after if shard.entries], len(before))


def _edited(shard: Shard, edit: Edit) -> Shard:
    names = {entry.name for entry in shard.entries}
    changed = edit.drop | edit.rename.keys() | edit.rewrite.keys()
    container = shard.container.replacing(edit.gguf) if shard.container and edit.gguf else shard.container
    if not (names & changed or shard.metadata.keys() & edit.drop_metadata) and container is shard.container:
        return shard
    kept = [
        replace(edit.rewrite.get(entry.name, entry), name=edit.rename.get(entry.name, entry.name))
        for entry in shard.entries
        if entry.name not in edit.drop
    ]
    metadata = {key: value for key, value in shard.metadata.items() if key not in edit.drop_metadata}
    arranged = tuple(kept if shard.container else arrange(kept))
    return replace(shard, entries=arranged, metadata=metadata, original=None, container=container)


def _renumbered(shards: list[Shard], before: int) -> list[Shard]:
    """Renumber "00002-of-00003" names after files were added or became empty."""
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
    file_of = {entry.name: shard.name for shard in before for entry in shard.entries}
    tensors = {entry.name: entry for shard in before for entry in shard.entries}
    changes += [Change(file_of[name], f"- {_tensor(tensors[name])}") for name in sorted(edit.drop)]
    changes += _rewrites(edit.rewrite, tensors, file_of)
    changes += _renames(edit.rename, file_of)
    changes += [Change(old, f"is renamed to {new}") for old, new in edit.files.items() if old != new]
    if edit.files and len(edit.files) > 1:
        changes.append(Change(INDEX, "is written"))
    changes += [Change(INDEX, f"- {name}, which no file stores") for name in sorted(edit.stale)]
    for shard in after:
        for entry in shard.entries:
            if entry.name in edit.copy:
                changes.append(Change(shard.name, f"+ {_tensor(entry)}, a copy of {edit.copy[entry.name]}"))
            elif any(entry is new for new in edit.add):
                changes.append(Change(shard.name, f"+ {_tensor(entry)}"))
    changes += [Change("metadata", f"- {key!r}, an alias that is no longer true") for key in sorted(edit.drop_metadata)]
    changes += [Change("metadata", _setting(key, value)) for key, value in edit.gguf.items()]
    changes += [Change(name, edit.documented.get(name, "is changed")) for name in edit.documents]
    changes += [Change(name, f"is not copied: {why}") for name, why in edit.leave.items()]
    return changes


def _rewrites(new: Mapping[str, Entry], old: Mapping[str, Entry], file_of: Mapping[str, str]) -> list[Change]:
    """One line per tensor; one per file for many tensors that keep their shapes."""
    changes: list[Change] = []
    same: dict[str, list[str]] = {}
    for name, entry in new.items():
        if entry.shape != old[name].shape:
            what = f"{name} {entry.dtype} {list(old[name].shape)} -> {list(entry.shape)}"
            changes.append(Change(file_of[name], what))
        elif entry.dtype != old[name].dtype:
            what = f"{name} {old[name].dtype} -> {entry.dtype} {list(entry.shape)}"
            changes.append(Change(file_of[name], what))
        else:
            same.setdefault(file_of[name], []).append(name)
    for file, names in same.items():
        if len(names) > _LISTED:
            changes.append(Change(file, f"{len(names):,} tensors are changed: {names[0]}, {names[1]}, ..."))
        else:
            changes += [Change(file, f"{_tensor(old[name])} is changed") for name in names]
    return changes


def _setting(key: str, value: Any) -> str:
    return f"{key} has {len(value):,} values" if isinstance(value, list) else f"{key} = {_json(value)}"


def _renames(rename: Mapping[str, str], file_of: Mapping[str, str]) -> list[Change]:
    """One line per renamed tensor, or per file if nearly all names lose the same prefix."""
    changes: list[Change] = []
    lost: dict[tuple[str, str], list[str]] = {}
    for old, new in rename.items():
        if old.endswith(new):
            lost.setdefault((file_of[old], old.removesuffix(new)), []).append(old)
        else:
            changes.append(Change(file_of[old], f"{old} is renamed to {new}"))
    for (file, prefix), names in lost.items():
        if len(names) == 1:
            changes.append(Change(file, f"{names[0]} is renamed to {rename[names[0]]}"))
        else:
            changes.append(Change(file, f"{prefix} is removed from the names of {len(names):,} tensors"))
    return changes


def parameters_added(edit: Edit, before: Iterable[Shard]) -> int:
    """The change in the number of stored parameters."""
    sizes = {entry.name: prod(entry.shape) for shard in before for entry in shard.entries}
    new = (*edit.add, *edit.rewrite.values())
    added = sum(sizes[source] for source in edit.copy.values()) + sum(prod(entry.shape) for entry in new)
    return added - sum(sizes[name] for name in (*edit.drop, *edit.rewrite))


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
    return json.dumps(value, ensure_ascii=False)
