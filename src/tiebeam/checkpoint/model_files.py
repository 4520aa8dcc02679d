"""Find which files of a directory make one model.

A directory is read as transformers reads it: `model.safetensors`, else its index, else the PyTorch files; adapters,
optimizer states and copies in other formats are ignored. If there is no whole model, a distributed checkpoint is looked
for (`distributed.detect`). A file that is one shard of several opens the whole set, because a verdict on a part
would be wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tiebeam._pattern import pattern
from tiebeam.checkpoint.distributed.detect import detect_files, detect_from_file, find_in_subfolder
from tiebeam.checkpoint.file_roles import INDEXES, SUFFIXES, is_never_weights
from tiebeam.checkpoint.files import Files, contained
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.not_a_model import what_file, what_instead
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_SHARDS

_SHARD = pattern(r"^(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>\.[A-Za-z0-9]+)$")


@dataclass(frozen=True, slots=True)
class FileSet:
    """The files of one model. `weight_map` maps tensor names to files, as its index lists them."""

    format: str
    shards: list[str]
    index: str = ""
    weight_map: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    """Path of a distributed checkpoint below the directory, with a trailing slash; `shards` are relative to it."""


def find_model(source: str, files: Files, names: list[str]) -> FileSet:
    """The model among `names`, the files of the directory `source`."""
    if "model.safetensors" in names:
        return FileSet("safetensors", ["model.safetensors"])
    for index, format in INDEXES.items():
        if index in names and not (format == "pytorch" and "pytorch_model.bin" in names):
            return indexed(source, files, names, index)
    distributed = None if "pytorch_model.bin" in names else detect_files(names)
    if distributed is not None:
        return FileSet(distributed.format, distributed.names)
    for format, suffixes in SUFFIXES.items():
        found = [name for name in names if name.endswith(suffixes) and not is_never_weights(name)]
        if "pytorch_model.bin" in found:
            found = ["pytorch_model.bin"]
        if found:
            return FileSet(format, _one_model(source, format, found, names))
    below = find_in_subfolder(source, files, names)
    if below is not None:
        return FileSet(below[1].format, below[1].names, folder=below[0])
    if any(name.startswith("adapter_model.") for name in names):
        raise UnreadableInput(f"{source} holds an adapter, not a model; name its base model")
    raise UnreadableInput(_no_weights(source, names, files.folders()))


def _no_weights(source: str, names: list[str], folders: list[str]) -> str:
    instead = what_instead(source, names, folders)
    if instead:
        return instead
    if folders and not any(name.endswith(".json") for name in names):
        return f"{source} holds no weights, only folders ({_some(folders)}); name one, as {source}/{folders[0]}"
    what = f"holds {_some(names)}" if names else "is empty"
    return f"{source} {what}; expected *.safetensors, *.bin, *.pt, *.gguf or *.npz"


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" …" if len(names) > 3 else "")


def _one_model(source: str, format: str, found: list[str], names: list[str]) -> list[str]:
    """The files that make one model, among those with the suffix of the format."""
    sharded = [name for name in found if _SHARD.match(name)]
    stems = {match["stem"] for match in map(_SHARD.match, sharded) if match}
    models = len(stems) + len(found) - len(sharded)
    if format == "safetensors" and len(stems) <= 1:
        # Files without an index make one model together; a consolidated copy beside the shards has the same weights.
        return all_shards(sharded[0], names) if sharded else found
    if models > 1:
        raise UnreadableInput(f"{source} holds {models} models ({_some(found)}); name one, as {source}/{found[0]}")
    return all_shards(found[0], names)


def all_shards(name: str, names: Iterable[str]) -> list[str]:
    """All shards of the set that `name` belongs to; only `name` if it is not a shard."""
    match = _SHARD.match(name)
    if not match:
        return [name]
    count, width = int(match["count"]), len(match["number"])
    if not 1 <= count <= MAX_SHARDS:
        raise UnreadableInput(
            f"{name} is one of {count:,} shards, which exceeds the limit of {MAX_SHARDS:,}; refusing to read"
        )
    wanted = [f"{match['stem']}-{i:0{width}d}-of-{match['count']}{match['suffix']}" for i in range(1, count + 1)]
    missing = sorted(set(wanted) - set(names))
    if missing:
        few = f"{missing[0]} is missing" if len(missing) == 1 else f"{len(missing)} are missing, {missing[0]} first"
        raise UnreadableInput(f"{name} is one of {count:,} shards and {few}; download all of them")
    return wanted


def indexed(source: str, files: Files, names: Iterable[str], index: str) -> FileSet:
    """A sharded model by its index. Every shard must exist, inside the model's directory."""
    weight_map = read_json(files, index, source).get("weight_map")
    if not isinstance(weight_map, dict) or not set(map(type, weight_map.values())) <= {str}:
        raise UnreadableInput(f"{source}/{index} has no weight_map from tensor names to files")
    shards = sorted(set(weight_map.values()))
    if not 1 <= len(shards) <= MAX_SHARDS:
        raise UnreadableInput(f"{source}/{index} names {len(shards):,} shards; the limit is {MAX_SHARDS:,}")
    for shard in set(shards).difference(names):
        if "/" not in contained(shard, f"{source}/{index}"):  # a shard in a subfolder is checked when it is opened
            raise UnreadableInput(f"{source}/{index} names the shard {shard}, which is missing; download it again")
    return FileSet("pytorch" if index.startswith("pytorch_model") else "safetensors", shards, index, weight_map)


def model_of_file(source: str, files: Files, names: list[str], name: str) -> FileSet:
    """The model that the file `name` holds, or is part of."""
    if name.endswith(".index.json"):
        return indexed(source, files, names, name)
    distributed = detect_from_file(files, names, name)
    if distributed is not None:
        return FileSet(distributed.format, distributed.names)
    return FileSet(_format_of(files, name), all_shards(name, names))


def _format_of(files: Files, name: str) -> str:
    """The format of a file, by its first bytes; its suffix decides only if they do not."""
    size, start = files.head(name, 64)
    magic, instead = start[:16], what_file(name, size, start)
    if instead:
        raise UnreadableInput(instead)
    if magic.startswith(b"GGUF"):
        return "gguf"
    if magic.startswith(b"PK\x03\x04"):
        return "npz" if name.endswith(".npz") else "pytorch"
    if magic[8:9] == b"{":  # before pickle: a header of 640 bytes starts with b"\x80\x02" too
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
        raise UnreadableInput(f"{name} holds no weights; name its directory")
    if not size:
        raise UnreadableInput(f"{name} is empty")
    raise UnreadableInput(f"{name} is neither safetensors, GGUF, PyTorch nor npz (it starts with {magic[:8]!r})")
