"""A source named by a person -> an open checkpoint.

A directory is read the way transformers reads it: `model.safetensors`, else its index, else the PyTorch
files; what else lies there (adapters, optimizer states, a second copy in another layout) is left alone. A
file that is one shard of several opens the whole set: a verdict about a part would be wrong.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tiebeam.checkpoint import safetensors
from tiebeam.checkpoint.documents import read_json
from tiebeam.checkpoint.files import Files, LocalFiles
from tiebeam.checkpoint.tensors import Checkpoint, Header, TensorInfo
from tiebeam.errors import UnreadableInput

_SHARD = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5,})-of-(?P<count>\d{5,})(?P<suffix>\.[A-Za-z0-9]+)$")
_PYTORCH_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
# Beside the weights of a training run or an adapter; never the model itself.
_NOT_WEIGHTS = re.compile(
    r"^(adapter_|training_args|optimizer|scheduler|scaler|rng_state|random_states|sampler|.*\.index\.)"
)


def open_checkpoint(source: str | os.PathLike[str]) -> Checkpoint:
    """Open `source`: a directory, a file, `org/name[@rev]` or `hf://org/name[@rev]`. Reads headers only."""
    text = os.fspath(source)
    path = Path(text)
    if not text.startswith("hf://"):
        try:
            if path.is_dir():
                return _open_directory(text, LocalFiles(path))
            if path.exists():
                return _open_file(text, path)
        except OSError as error:
            raise UnreadableInput(f"{text} cannot be read: {error.strerror or error}") from None
    if text.startswith("hf://") or re.fullmatch(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", text):
        from tiebeam.checkpoint.hub import open_hub

        return open_hub(text)
    if path.is_symlink():
        raise UnreadableInput(f"{text} is a link that leads nowhere, or in a circle")
    raise UnreadableInput(f"{text} does not exist, and is not a model on the Hub (org/name)")


def _open_directory(source: str, files: LocalFiles) -> Checkpoint:
    names = files.names()
    config = read_json(files, "config.json", source) if "config.json" in names else None
    if "model.safetensors" in names:
        return assemble(source, "safetensors", files, ["model.safetensors"], config)
    for index, format in (("model.safetensors.index.json", "safetensors"), ("pytorch_model.bin.index.json", "pytorch")):
        if index in names and not (format == "pytorch" and "pytorch_model.bin" in names):
            return open_indexed(source, format, files, index, config)
    for format, suffixes in (
        ("safetensors", (".safetensors",)),
        ("pytorch", _PYTORCH_SUFFIXES),
        ("gguf", (".gguf",)),
        ("npz", (".npz",)),
    ):
        found = [name for name in names if name.endswith(suffixes) and not _NOT_WEIGHTS.match(name)]
        if "pytorch_model.bin" in found:
            found = ["pytorch_model.bin"]
        if found:
            return assemble(source, format, files, _one_model(source, format, found, names), config)
    if any(name.startswith("adapter_model.") for name in names):
        raise UnreadableInput(f"{source} holds an adapter, not a model; name the model it was made for")
    what = f"holds {', '.join(names[:3])}{' …' if len(names) > 3 else ''}" if names else "is empty"
    raise UnreadableInput(f"{source} {what}; expected *.safetensors, *.bin, *.pt, *.gguf or *.npz")


def _one_model(source: str, format: str, found: list[str], names: list[str]) -> list[str]:
    """The files that make one model, of those with the right suffix."""
    if len(found) == 1 and not _SHARD.match(found[0]):
        return found
    if format in ("gguf", "npz", "pytorch") and not all(_SHARD.match(name) for name in found):
        raise UnreadableInput(f"{source} holds {len(found)} models ({', '.join(found[:3])} …); name one of the files")
    sharded = [name for name in found if _SHARD.match(name)]
    if sharded and format == "safetensors":
        found = sharded  # a consolidated copy beside the shards is the same weights again
    stems = {_SHARD.match(name)["stem"] for name in sharded}  # type: ignore[index]
    if len(stems) > 1:
        raise UnreadableInput(
            f"{source} holds the shards of {len(stems)} models ({', '.join(sorted(stems)[:3])}); name one of the files"
        )
    return whole_set(found[0], names) if sharded else found


def whole_set(name: str, names: Iterable[str]) -> list[str]:
    """All shards of the set that `name` belongs to; just `name` when it is not a shard."""
    match = _SHARD.match(name)
    if not match:
        return [name]
    count, width = int(match["count"]), len(match["number"])
    if not 1 <= count <= 100_000:
        raise UnreadableInput(f"{name} claims to be one of {count:,} shards")
    wanted = [f"{match['stem']}-{i:0{width}d}-of-{match['count']}{match['suffix']}" for i in range(1, count + 1)]
    missing = sorted(set(wanted) - set(names))
    if missing:
        raise UnreadableInput(
            f"{name} is one of {count} shards and {len(missing)} are missing, {missing[0]} among them"
        )
    return wanted


def _open_file(source: str, path: Path) -> Checkpoint:
    files = LocalFiles(path.parent)
    names = files.names()
    format = _format_of(files, path.name)
    config = read_json(files, "config.json", str(path.parent)) if "config.json" in names and format != "gguf" else None
    return assemble(source, format, files, whole_set(path.name, names), config)


def _format_of(files: Files, name: str) -> str:
    """By what the file is, not by what it is called."""
    magic = files.read(name, 0, min(16, files.size(name)))
    if magic.startswith(b"GGUF"):
        return "gguf"
    if magic.startswith(b"PK\x03\x04"):
        return "npz" if name.endswith(".npz") else "pytorch"
    if magic[8:9] == b"{":  # before pickle: a header of 640 bytes starts like one, b"\x80\x02"
        return "safetensors"
    if name.endswith(_PYTORCH_SUFFIXES) or (magic.startswith(b"\x80") and not name.endswith(".safetensors")):
        return "pytorch"
    if name.endswith(".gguf"):
        raise UnreadableInput(f"{name} is not a GGUF file: it starts with {magic[:4]!r}, not b'GGUF'")
    if name.endswith(".npz"):
        raise UnreadableInput(f"{name} is not an npz file: it is not a zip archive")
    if name.endswith(".safetensors"):
        return "safetensors"
    raise UnreadableInput(f"{name} is neither safetensors, GGUF, PyTorch nor npz (it starts with {magic[:8]!r})")


def open_indexed(source: str, format: str, files: Files, index: str, config: Mapping[str, Any] | None) -> Checkpoint:
    """A sharded model through its index, which must agree with what the shards hold."""
    weight_map = read_json(files, index, source).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(shard, str) for shard in weight_map.values()):
        raise UnreadableInput(f"{source}/{index} has no weight_map from tensor names to files")
    shards = sorted(set(weight_map.values()))
    if not shards:
        raise UnreadableInput(f"{source}/{index} names no shards")
    present = set(files.names())
    for shard in shards:
        if isinstance(files, LocalFiles):
            files.path(shard)
        if shard not in present and "/" not in shard:
            raise UnreadableInput(f"{source}/{index} names the shard {shard}, which is not there; download it again")
    checkpoint = assemble(source, format, files, shards, config)
    for name, shard in weight_map.items():
        info = checkpoint.tensors.get(name)
        if info is None or info.file != shard:
            raise UnreadableInput(f"{source}/{index} puts {name!r} in {shard}, which does not hold it")
    return checkpoint


def _header_reader(format: str) -> Callable[[Files, str], Header]:
    if format == "safetensors":
        return safetensors.read_header
    if format == "pytorch":
        from tiebeam.checkpoint.pytorch import read_header

        return read_header
    if format == "gguf":
        from tiebeam.checkpoint.gguf import read_header as read_gguf_header

        return read_gguf_header
    from tiebeam.checkpoint.npz import read_header as read_npz_header

    return read_npz_header


def assemble(source: str, format: str, files: Files, shards: list[str], config: Mapping[str, Any] | None) -> Checkpoint:
    """Read the header of every shard and join them into one table."""
    read_header = _header_reader(format)
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    notes: list[str] = []
    for shard in shards:
        header = read_header(files, shard)
        if not tensors.keys().isdisjoint(header.tensors):
            twice = min(tensors.keys() & header.tensors.keys())
            raise UnreadableInput(f"{source} stores {twice!r} twice, in {tensors[twice].file} and in {shard}")
        tensors.update(header.tensors)
        for key, value in header.metadata.items():
            metadata.setdefault(key, value)
        notes += header.notes
    if not tensors:
        raise UnreadableInput(f"{source} holds no tensors")
    architecture = metadata.get("general.architecture") if format == "gguf" else (config or {}).get("model_type")
    return Checkpoint(
        source=source,
        format=format,
        files=files,
        tensors=tensors,
        config=config,
        metadata=metadata,
        architecture=architecture if isinstance(architecture, str) else None,
        aliases=safetensors.alias_notes(metadata, tensors) if format == "safetensors" else {},
        notes=tuple(notes),
    )
