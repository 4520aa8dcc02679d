"""Which of the files that lie together make one model.

A directory is read the way transformers reads it: `model.safetensors`, else its index, else the PyTorch
files; what else lies there (adapters, optimizer states, a second copy in another layout) is left alone. Where
there is no whole model, a checkpoint that a training over several processes left is opened (`trees`). A
file that is one shard of several stands for the whole set: a verdict about a part would be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tiebeam.checkpoint.distributed.detect import NOT_WEIGHTS, tree_below, tree_of, tree_of_file
from tiebeam.checkpoint.files import Files, contained
from tiebeam.checkpoint.json_files import read_json
from tiebeam.errors import UnreadableInput

SUFFIXES = {
    "safetensors": (".safetensors",),
    "pytorch": (".bin", ".pt", ".pth", ".ckpt"),
    "gguf": (".gguf",),
    "npz": (".npz",),
}
_INDEXES = {"model.safetensors.index.json": "safetensors", "pytorch_model.bin.index.json": "pytorch"}
_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>\.[A-Za-z0-9]+)$")
_MAX_SHARDS = 100_000


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one model. `weight_map` is its index's claim of which tensor lies where."""

    format: str
    shards: list[str]
    index: str = ""
    weight_map: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    """Where a tree lies below the directory, with a slash; its shards are named from there."""


def find_model(source: str, files: Files, names: list[str]) -> FileSet:
    """The model among `names`, the files of the directory that a person calls `source`."""
    if "model.safetensors" in names:
        return FileSet("safetensors", ["model.safetensors"])
    for index, format in _INDEXES.items():
        if index in names and not (format == "pytorch" and "pytorch_model.bin" in names):
            return indexed(source, files, names, index)
    tree = None if "pytorch_model.bin" in names else tree_of(names)
    if tree is not None:
        return FileSet(tree.format, tree.names)
    for format, suffixes in SUFFIXES.items():
        found = [name for name in names if name.endswith(suffixes) and not NOT_WEIGHTS.match(name)]
        if "pytorch_model.bin" in found:
            found = ["pytorch_model.bin"]
        if found:
            return FileSet(format, _one_model(source, format, found, names))
    below = tree_below(source, files, names)
    if below is not None:
        return FileSet(below[1].format, below[1].names, folder=below[0])
    if any(name.startswith("adapter_model.") for name in names):
        raise UnreadableInput(f"{source} holds an adapter, not a model; name the model it was made for")
    raise UnreadableInput(_no_weights(source, names, files.folders()))


def _no_weights(source: str, names: list[str], folders: list[str]) -> str:
    if folders and not any(name.endswith(".json") for name in names):
        return f"{source} holds no weights, only folders ({_some(folders)}); name one, as {source}/{folders[0]}"
    what = f"holds {_some(names)}" if names else "is empty"
    return f"{source} {what}; expected *.safetensors, *.bin, *.pt, *.gguf or *.npz"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _one_model(source: str, format: str, found: list[str], names: list[str]) -> list[str]:
    """The files that make one model, of those with the right suffix."""
    sharded = [name for name in found if _SHARD.match(name)]
    stems = {match["stem"] for match in map(_SHARD.match, sharded) if match}
    models = len(stems) + len(found) - len(sharded)
    if format == "safetensors" and len(stems) <= 1:
        # Unindexed parts make one model together; a consolidated copy beside the shards is the same weights again.
        return whole_set(sharded[0], names) if sharded else found
    if models > 1:
        raise UnreadableInput(f"{source} holds {models} models ({_some(found)}); name one, as {source}/{found[0]}")
    return whole_set(found[0], names)


def whole_set(name: str, names: Iterable[str]) -> list[str]:
    """All shards of the set that `name` belongs to; just `name` when it is not a shard."""
    match = _SHARD.match(name)
    if not match:
        return [name]
    count, width = int(match["count"]), len(match["number"])
    if not 1 <= count <= _MAX_SHARDS:
        raise UnreadableInput(f"{name} claims to be one of {count:,} shards")
    wanted = [f"{match['stem']}-{i:0{width}d}-of-{match['count']}{match['suffix']}" for i in range(1, count + 1)]
    missing = sorted(set(wanted) - set(names))
    if missing:
        few = f"{missing[0]} is missing" if len(missing) == 1 else f"{len(missing)} are missing, {missing[0]} first"
        raise UnreadableInput(f"{name} is one of {count:,} shards and {few}; fetch the whole set")
    return wanted


def indexed(source: str, files: Files, names: Iterable[str], index: str) -> FileSet:
    """A sharded model through its index, every shard of it present and inside the model's directory."""
    weight_map = read_json(files, index, source).get("weight_map")
    if not isinstance(weight_map, dict) or not set(map(type, weight_map.values())) <= {str}:
        raise UnreadableInput(f"{source}/{index} has no weight_map from tensor names to files")
    shards = sorted(set(weight_map.values()))
    if not 1 <= len(shards) <= _MAX_SHARDS:
        raise UnreadableInput(f"{source}/{index} names {len(shards):,} shards")
    for shard in set(shards).difference(names):
        if "/" not in contained(shard, f"{source}/{index}"):  # in a folder: found or missed when it is opened
            raise UnreadableInput(f"{source}/{index} names the shard {shard}, which is not there; fetch it again")
    return FileSet("pytorch" if index.startswith("pytorch_model") else "safetensors", shards, index, weight_map)


def model_of_file(source: str, files: Files, names: list[str], name: str) -> FileSet:
    """The model that the file `name` is, or is a part of."""
    if name.endswith(".index.json"):
        return indexed(source, files, names, name)
    tree = tree_of_file(files, names, name)
    if tree is not None:
        return FileSet(tree.format, tree.names)
    return FileSet(_format_of(files, name), whole_set(name, names))


def _format_of(files: Files, name: str) -> str:
    """By what the file is, not by what it is called."""
    size, magic = files.head(name, 16)
    if magic.startswith(b"GGUF"):
        return "gguf"
    if magic.startswith(b"PK\x03\x04"):
        return "npz" if name.endswith(".npz") else "pytorch"
    if magic[8:9] == b"{":  # before pickle: a header of 640 bytes starts like one, b"\x80\x02"
        return "safetensors"
    if name.endswith(".safetensors"):
        return "safetensors"
    if name.endswith(SUFFIXES["pytorch"]) or magic.startswith(b"\x80"):
        return "pytorch"
    if name.endswith(".gguf"):
        raise UnreadableInput(f"{name} is not a GGUF file: it starts with {magic[:4]!r}, not b'GGUF'")
    if name.endswith(".npz"):
        raise UnreadableInput(f"{name} is not an npz file: it is not a zip archive")
    if name.endswith(".json"):
        raise UnreadableInput(f"{name} holds no weights; name the directory that it lies in")
    if not size:
        raise UnreadableInput(f"{name} is empty")
    raise UnreadableInput(f"{name} is neither safetensors, GGUF, PyTorch nor npz (it starts with {magic[:8]!r})")
