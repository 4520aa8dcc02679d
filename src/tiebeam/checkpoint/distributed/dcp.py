"""Checkpoints of torch.distributed.checkpoint (DCP), as FSDP and most trainers of today write them.

A directory of `__RANK_N.distcp` files, each a row of blobs (torch.save of one piece of one tensor), and `.metadata`, a
pickle that says which tensors there are, how they are cut, and where each piece lies. That pickle is read by `pickles`,
which calls nothing: what it mentions of torch stays a record with a name. Only `.metadata` is read here; a blob is
opened when its numbers are asked for.

The Hugging Face writer of DCP makes `shard-RANK-model-N-of-M.safetensors` instead, without `.metadata`: each file's own
header says where its pieces belong.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.detect import METADATA, SHARD
from tiebeam.checkpoint.distributed.sharded_tensor import Piece, Pieced, Slice, Table, put_together
from tiebeam.checkpoint.files import Files, contained
from tiebeam.checkpoint.formats import safetensors
from tiebeam.checkpoint.formats.torch.pickle_reader import Global, Opaque, read_pickle
from tiebeam.checkpoint.formats.torch.rebuild import BUILDERS, MAX_DIMENSION, Tensor, element_type
from tiebeam.checkpoint.formats.torch.state_dict import find_weights
from tiebeam.checkpoint.tensors import TensorInfo
from tiebeam.errors import UnreadableInput

_MAX_METADATA = 256 << 20  # a few hundred bytes a piece, and a tensor has one for every process
_MAX_OPS = 32_000_000  # some 70 a piece
_MAX_PIECES = 2_000_000
_MAX_DIMENSIONS, _MAX_DEPTH, _MAX_PATH = 32, 48, 4096
_MODULE = "torch.distributed.checkpoint.metadata"
_OPTIMIZER = re.compile(r"^(\w+\.)?(optim|optimi[sz]ers?)(_\w+)?\.")


class Stored(NamedTuple):
    """One tensor as the metadata describes it; where its pieces lie is looked up for the model's tensors only."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[list[Any], ...]
    """One list, or one of every process."""


class Part(NamedTuple):
    """The model found among everything that was saved."""

    table: Table
    at: str
    beside: tuple[str, ...]
    tensors_beside: int
    notes: tuple[str, ...] = ()


def read_metadata(files: Files, folder: str, names: list[str]) -> Part:
    """The model in a DCP directory: `folder` is its path below `files`, with a slash, or empty."""
    described: dict[str, list[Any]] = {}
    where: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for name in names:
        if METADATA.match(name):
            root = _unpickled(files, folder + name)
            for key, record in _field(root, "state_dict_metadata", folder + name).items():
                described.setdefault(key, []).append(record)
            where.update(_field(root, "storage_data", folder + name))
            planned = _state(root).get("planner_data")
            paths.update(planned if type(planned) is dict else {})
    left_out: dict[str, str] = {}
    found = {key: _stored(key, records, folder, left_out) for key, records in described.items()}
    part = _model_part(_Blobs(files, folder, where), found, paths)
    notes = [
        f"tensors left out, {len(left_out)} in all: {key!r} is of the element type {kind}"
        for key, kind in left_out.items()
    ]
    return part._replace(notes=tuple(notes[:1]))


def _unpickled(files: Files, name: str) -> Opaque:
    size = files.size(name)
    if size > _MAX_METADATA:
        raise UnreadableInput(f"{name} is {size:,} bytes; above {_MAX_METADATA:,} it is not believed")
    root, _ = read_pickle(files.read(name, 0, size), name, BUILDERS, _nothing, key_name=_key_name, max_ops=_MAX_OPS)
    if type(root) is not Opaque or root.kind != Global(_MODULE, "Metadata"):
        raise UnreadableInput(f"{name} is not the metadata of a torch distributed checkpoint")
    return root


def _key_name(key: object) -> str | None:
    """A MetadataIndex as a string: its tensor's name and the offsets of the piece."""
    if type(key) is not Opaque or key.kind != Global(_MODULE, "MetadataIndex"):
        return None
    state = _state(key)
    name, offsets = state.get("fqn"), state.get("offset")
    if type(name) is not str or len(name) > 1024:
        return None
    if type(offsets) is not tuple or not _is_shape(offsets):
        return name if offsets is None else None
    return _place(name, offsets)


def _place(name: str, offsets: tuple[int, ...]) -> str:
    return f"{name}\0{','.join(map(str, offsets))}"


def _is_shape(numbers: tuple[object, ...]) -> bool:
    return len(numbers) <= _MAX_DIMENSIONS and all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in numbers)


def _state(record: object) -> dict[str, Any]:
    state = record.state if type(record) is Opaque else None
    return state if type(state) is dict else {}


def _field(root: Opaque, field: str, file: str) -> dict[str, Any]:
    value = _state(root).get(field)
    if type(value) is not dict:
        raise UnreadableInput(f"{file} is damaged: it has no {field}")
    return value


def _stored(name: str, records: list[Any], folder: str, left_out: dict[str, str]) -> Stored | None:
    """The tensor that one record (or one of every process) describes; None for what is not a tensor, or left out."""
    found: Stored | None = None
    for record in records:
        if type(record) is not Opaque or record.kind != Global(_MODULE, "TensorStorageMetadata"):
            return None
        state = _state(record)
        properties = state.get("properties")
        stated = properties.state if type(properties) is Opaque else None
        kind = stated[0] if type(stated) is tuple and stated else _state(properties).get("dtype")
        size, chunks = state.get("size"), state.get("chunks")
        if type(size) is not tuple or not _is_shape(size) or type(chunks) is not list:
            raise UnreadableInput(f"{folder}.metadata gives {name!r} a shape that no tensor can have")
        if prod(n or 1 for n in size) > MAX_DIMENSION:
            raise UnreadableInput(f"{folder}.metadata gives {name!r} a shape that no tensor can have")
        dtype = element_type(kind)
        if dtype is None:
            left_out[name] = ".".join(kind) if type(kind) is Global else "unknown"
            return None
        if found is not None and (dtype, size) != (found.dtype, found.shape):
            raise UnreadableInput(f"the metadata files in {folder or '.'} disagree about {name!r}")
        found = Stored(name, dtype, size, (*(found.chunks if found else ()), chunks))
    return found


class _Blobs:
    """Where pieces lie: the metadata's answers, checked against the files that are there."""

    def __init__(self, files: Files, folder: str, where: Mapping[str, Any]) -> None:
        self.files, self.folder, self._where = files, folder, where
        self._left = _MAX_PIECES
        self._opened: dict[str, tuple[int, Mapping[str, TensorInfo] | None]] = {}

    def put_together(self, stored: Stored) -> Pieced:
        """The tensor from its pieces."""
        self._left -= sum(map(len, stored.chunks))
        if self._left < 0:
            raise UnreadableInput(f"{self.folder}.metadata names more than {_MAX_PIECES:,} pieces; refused as a bomb")
        pieces: dict[str, Piece] = {}
        why = ""
        for chunk in (chunk for chunks in stored.chunks for chunk in chunks):
            offsets, sizes = _state(chunk).get("offsets"), _state(chunk).get("sizes")
            if type(offsets) is not tuple or type(sizes) is not tuple or not _is_shape(offsets + sizes):
                raise UnreadableInput(f"{self.folder}.metadata has a piece of {stored.name!r} that makes no sense")
            if not prod(sizes):
                continue  # a process that got nothing
            key = _place(stored.name, offsets)
            info = _state(self._where.get(key))
            if info.get("transform_descriptors"):
                why = "they went through an extension of the writer (compression, perhaps) that is not known here"
            pieces[key] = self._piece(stored.name, offsets, sizes, info)
        if why:
            return Pieced(stored.dtype, stored.shape, why=why)
        label = f"{stored.name!r} in {self.folder or './'}"
        return put_together(self.files, stored.dtype, stored.shape, pieces.values(), label)

    def _piece(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], info: dict[str, Any]) -> Piece:
        path, begin, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if type(path) is not str or type(begin) is not int or type(length) is not int or len(path) > _MAX_PATH:
            raise UnreadableInput(f"{self.folder}.metadata does not say where {name!r} lies; the save was not finished")
        if not (0 <= begin <= MAX_DIMENSION and 0 <= length <= MAX_DIMENSION):
            raise UnreadableInput(f"{self.folder}.metadata puts {name!r} at bytes that no file can have")
        file = self.folder + contained(path, f"{self.folder}.metadata")
        size, tensors = self._open(file, name)
        if tensors is not None:  # a safetensors file: the metadata's offsets mean nothing, its own header's do
            found = tensors.get(name)
            if found is None:
                raise UnreadableInput(f"{file} does not hold {name!r}, where {self.folder}.metadata puts it")
            return Piece(offsets, sizes, file, partial(_known, found), (file, found.begin, found.end))
        if begin + length > size:
            raise UnreadableInput(f"{file} is truncated: {name!r} ends at byte {begin + length:,}, and it has {size:,}")
        return Piece(offsets, sizes, file, partial(_locate, name, file, begin, length), (file, begin, length))

    def _open(self, file: str, name: str) -> tuple[int, Mapping[str, TensorInfo] | None]:
        if file not in self._opened:
            try:
                size, magic = self.files.head(file, 16)
            except UnreadableInput as error:
                raise UnreadableInput(f"{error}, and {self.folder}.metadata puts {name!r} there") from None
            tensors = safetensors.read_header(self.files, file).tensors if magic[8:9] == b"{" else None
            self._opened[file] = size, tensors
        return self._opened[file]


def _locate(name: str, file: str, begin: int, length: int, files: Files) -> TensorInfo:
    """The numbers inside a blob, which is a file of torch.save."""
    from tiebeam.checkpoint.formats.torch.reader import read_contents, tensor_info

    blob = Slice(files, file, begin, begin + length)
    contents = read_contents(blob, file)
    if type(contents.root) is not Tensor:
        raise UnreadableInput(f"{file} does not hold a tensor at byte {begin:,}, where {name!r} should be")
    if contents.root.unreadable:
        raise UnreadableInput(f"{file}: {name!r} is {contents.root.unreadable}")
    info = tensor_info(name, contents.root, file, contents.locate)
    return info if info.packing else info._replace(begin=info.begin + begin, end=info.end + begin)


def _model_part(blobs: _Blobs, saved: Mapping[str, Stored | None], paths: Mapping[str, Any]) -> Part:
    """Names are flattened paths; the paths, where they were kept, say where the model is among the rest."""
    tree: dict[str, Any] = {}
    for name, stored in saved.items():
        leaf = Tensor(stored, 0, stored.shape, (), stored.dtype) if stored else None
        _plant(tree, _path(name, paths.get(name)), leaf)
    weights = find_weights(tree, f"{blobs.folder}.metadata")
    table = Table()
    for name, tensor in weights.tensors.items():
        stored = tensor.storage
        if _OPTIMIZER.match(name):
            continue
        table.add(name, stored.shape, blobs.put_together(stored))
    return Part(
        table, weights.at, tuple(_beside(tree, weights.at)), sum(map(bool, saved.values())) - len(table.tensors)
    )


def _path(name: str, path: object) -> tuple[str, ...]:
    if type(path) is tuple and 0 < len(path) <= _MAX_DEPTH and all(type(part) in (str, int) for part in path):
        return tuple(str(part)[:1024] for part in path)
    return (name,)


def _plant(tree: dict[str, Any], path: tuple[str, ...], leaf: object) -> None:
    for part in path[:-1]:
        below = tree.setdefault(part, {})
        if type(below) is not dict:  # a name that is a tensor and a level at once: no tree of dictionaries has one
            raise UnreadableInput(f"the metadata's paths contradict each other at {part!r}")
        tree = below
    if path[-1] in tree:
        raise UnreadableInput(f"the metadata has two entries at {'.'.join(path)!r}")
    tree[path[-1]] = leaf


def _beside(tree: dict[str, Any], at: str) -> Iterator[str]:
    """What else lies in the levels that were passed on the way to the model."""
    passed = ""
    while at:
        key = next((key for key in tree if at == key or at.startswith(f"{key}.")), None)
        if key is None or type(tree[key]) is not dict:
            return
        yield from (passed + other for other, value in tree.items() if other != key and type(value) is dict)
        passed, at, tree = f"{passed}{key}.", at[len(key) + 1 :], tree[key]


def read_shards(files: Files, folder: str, names: list[str]) -> Part:
    """The model in shards of the Hugging Face writer, each with its offsets in the header."""
    cut: dict[str, list[Piece]] = {}
    types: dict[str, str] = {}
    for name in names:
        if not SHARD.match(name):
            continue
        header = safetensors.read_header(files, folder + name)
        offsets = _sharding(header.metadata.get("DCP_SHARDING_INFO"), folder + name)
        for key, info in header.tensors.items():
            entry = offsets.get(key)
            at = entry.get("saved_offsets") if isinstance(entry, dict) else None
            if not isinstance(at, list) or not _is_shape(tuple(at)) or len(at) != len(info.shape):
                raise UnreadableInput(f"{folder + name} does not say which part of {key!r} it holds")
            if types.setdefault(key, info.dtype) != info.dtype:
                raise UnreadableInput(f"{folder or './'} holds {key!r} in two types, {types[key]} and {info.dtype}")
            identity = (info.file, info.begin, info.end)
            cut.setdefault(key, []).append(Piece(tuple(at), info.shape, info.file, partial(_known, info), identity))
    table = Table()
    mine = [key for key in cut if not _OPTIMIZER.match(key)]
    # {"model": ..., "optimizer": ...} flattened without a record of the levels: no model says `model.` twice itself
    wrapped = all(key.startswith("model.") for key in mine) and any(key.startswith("model.model.") for key in mine)
    for key in mine:
        pieces = cut[key]
        ends = [[o + n for o, n in zip(p.offsets, p.sizes, strict=True)] for p in pieces]
        if len({len(end) for end in ends}) > 1:
            raise UnreadableInput(f"{folder or './'} holds pieces of {key!r} that do not fit together")
        shape = tuple(max(axis) for axis in zip(*ends, strict=True))
        whole = put_together(files, types[key], shape, pieces, f"{key!r} in {folder or './'}")
        table.add(key.removeprefix("model.") if wrapped else key, shape, whole)
    return Part(table, "model" if wrapped else "", (), len(cut) - len(mine))


def _known(info: TensorInfo, files: Files) -> TensorInfo:
    return info


def _sharding(text: object, file: str) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UnreadableInput(f"{file} is named like a shard of a distributed save, but its header has no offsets")
    return document


def _nothing(identity: tuple[object, ...]) -> object:
    return None
