"""torch.distributed.checkpoint (DCP), the format of FSDP and most current trainers.

A directory of `__RANK_N.distcp` files, each a sequence of blobs (torch.save of one chunk of one tensor), and
`.metadata`, a pickle that lists the tensors, their chunks, and where each chunk is stored. `pickle_reader` reads that
pickle without calling anything. Opening reads only `.metadata`; a blob is opened when its numbers are asked for.

The Hugging Face writer of DCP makes `shard-RANK-model-N-of-M.safetensors` instead, without `.metadata`: the header of
each file gives the offsets of its chunks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from math import prod
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.detect import METADATA, SHARD
from tiebeam.checkpoint.distributed.sharded_tensor import Chunk, FileSlice, ShardedTensor, TensorTable, join_chunks
from tiebeam.checkpoint.files import Files, contained
from tiebeam.checkpoint.formats import safetensors
from tiebeam.checkpoint.formats.torch.pickle_reader import Global, PickledObject, no_value, read_pickle
from tiebeam.checkpoint.formats.torch.rebuild import BUILDERS, Tensor, are_offsets, element_type, is_torch_size
from tiebeam.checkpoint.formats.torch.state_dict import find_state_dict
from tiebeam.checkpoint.tensors import TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import (
    DCP_MEMORY_PER_BYTE,
    MAX_CHUNKS,
    MAX_DCP_METADATA,
    MAX_DCP_METADATA_MEMORY,
    MAX_DCP_METADATA_OPS,
    MAX_DIMENSION,
)  # fmt: skip

_MAX_DEPTH, _MAX_PATH = 48, 4096
_MODULE = "torch.distributed.checkpoint.metadata"
_OPTIMIZER = re.compile(r"^(\w+\.)?(optim|optimi[sz]ers?)(_\w+)?\.")


class TensorMetadata(NamedTuple):
    """One tensor as the metadata describes it. Its chunks are located later, for tensors of the model only."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    records: tuple[list[Any], ...]
    """ChunkStorageMetadata records: one list, or one list per rank."""


class DcpModel(NamedTuple):
    """The model found among everything that was saved."""

    table: TensorTable
    path: str
    """Dotted path of the model in what was saved, such as 'app.model'."""
    others: tuple[str, ...]
    """Paths of what was saved beside the model."""
    other_tensors: int
    notes: tuple[str, ...] = ()


def read_metadata(files: Files, folder: str, names: list[str]) -> DcpModel:
    """The model in a DCP directory. `folder` is its path below `files` with a trailing slash, or empty."""
    described: dict[str, list[Any]] = {}
    where: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    metadata = [name for name in names if METADATA.match(name)]
    for name in metadata:
        root = _unpickled(files, folder + name, MAX_DCP_METADATA_MEMORY // len(metadata))
        for key, record in _field(root, "state_dict_metadata", folder + name).items():
            described.setdefault(key, []).append(record)
        where.update(_field(root, "storage_data", folder + name))
        planned = _state(root).get("planner_data")
        paths.update(planned if type(planned) is dict else {})
    skipped: dict[str, str] = {}
    saved = {key: _tensor_metadata(key, records, folder, skipped) for key, records in described.items()}
    model = _find_model(_ChunkLocator(files, folder, where), saved, paths)
    notes = [
        f"skipped tensors with an unsupported element type ({len(skipped)}): {key!r} is {dtype}"
        for key, dtype in skipped.items()
    ]
    return model._replace(notes=tuple(notes[:1]))


def _unpickled(files: Files, name: str, max_memory: int) -> PickledObject:
    size = files.size(name)
    if size > MAX_DCP_METADATA:
        raise UnreadableInput(
            f"{name} has {size:,} bytes, which exceeds the limit of {MAX_DCP_METADATA:,}; refusing to read"
        )
    raw = files.read(name, 0, size)
    memory = max(max_memory, DCP_MEMORY_PER_BYTE * size)
    root, _ = read_pickle(raw, name, BUILDERS, no_value, 0, _key_name, max_ops=MAX_DCP_METADATA_OPS, max_memory=memory)
    if type(root) is not PickledObject or root.kind != Global(_MODULE, "Metadata"):
        raise UnreadableInput(f"{name} is not the metadata of a torch distributed checkpoint")
    return root


def _key_name(key: object) -> str | None:
    """A MetadataIndex as a string: the name of the tensor and the offsets of the chunk."""
    if type(key) is not PickledObject or key.kind != Global(_MODULE, "MetadataIndex"):
        return None
    state = _state(key)
    name, offsets = state.get("fqn"), state.get("offset")
    if type(name) is not str or len(name) > 1024:
        return None
    if not are_offsets(offsets):
        return name if offsets is None else None
    return _chunk_key(name, offsets)


def _chunk_key(name: str, offsets: tuple[int, ...]) -> str:
    return f"{name}\0{','.join(map(str, offsets))}"


def _state(record: object) -> dict[str, Any]:
    state = record.state if type(record) is PickledObject else None
    return state if type(state) is dict else {}


def _field(root: PickledObject, field: str, file: str) -> dict[str, Any]:
    value = _state(root).get(field)
    if type(value) is not dict:
        raise UnreadableInput(f"{file} is damaged: it has no {field}")
    return value


def _tensor_metadata(name: str, records: list[Any], folder: str, skipped: dict[str, str]) -> TensorMetadata | None:
    """The tensor that one record (or one per rank) describes; None if it is not a tensor or must be skipped."""
    found: TensorMetadata | None = None
    for record in records:
        if type(record) is not PickledObject or record.kind != Global(_MODULE, "TensorStorageMetadata"):
            return None
        state = _state(record)
        properties = state.get("properties")
        values = properties.state if type(properties) is PickledObject else None
        kind = values[0] if type(values) is tuple and values else _state(properties).get("dtype")
        size, chunks = state.get("size"), state.get("chunks")
        if not is_torch_size(size) or type(chunks) is not list:
            raise UnreadableInput(f"{folder}.metadata gives {name!r} a shape that no tensor can have")
        dtype = element_type(kind)
        if dtype is None:
            skipped[name] = ".".join(kind) if type(kind) is Global else "unknown"
            return None
        if found is not None and (dtype, size) != (found.dtype, found.shape):
            raise UnreadableInput(f"the metadata files in {folder or '.'} disagree about {name!r}")
        found = TensorMetadata(name, dtype, size, (*(found.records if found else ()), chunks))
    return found


class _ChunkLocator:
    """Finds chunks as the metadata says, and checks the answers against the files."""

    def __init__(self, files: Files, folder: str, where: Mapping[str, Any]) -> None:
        self.files, self.folder, self._where = files, folder, where
        self._left = MAX_CHUNKS
        self._opened: dict[str, tuple[int, Mapping[str, TensorInfo] | None]] = {}

    def tensor(self, stored: TensorMetadata) -> ShardedTensor:
        """The tensor with all its chunks located."""
        self._left -= sum(map(len, stored.records))
        if self._left < 0:
            raise UnreadableInput(
                f"{self.folder}.metadata names more shards than the limit of {MAX_CHUNKS:,}; refusing to read"
            )
        chunks: dict[str, Chunk] = {}
        unreadable = ""
        for record in (record for records in stored.records for record in records):
            offsets, sizes = _state(record).get("offsets"), _state(record).get("sizes")
            if not are_offsets(offsets) or not is_torch_size(sizes):
                raise UnreadableInput(f"{self.folder}.metadata has an invalid shard of {stored.name!r}")
            if not prod(sizes):
                continue  # a rank without a part of this tensor
            key = _chunk_key(stored.name, offsets)
            info = _state(self._where.get(key))
            if info.get("transform_descriptors"):
                unreadable = (
                    "a storage extension of the writer (perhaps compression) transformed them, which is not supported"
                )
            chunks[key] = self._chunk(stored.name, offsets, sizes, info)
        if unreadable:
            return ShardedTensor(stored.dtype, stored.shape, unreadable=unreadable)
        label = f"{stored.name!r} in {self.folder or './'}"
        return join_chunks(self.files, stored.dtype, stored.shape, chunks.values(), label)

    def _chunk(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], info: dict[str, Any]) -> Chunk:
        path, begin, length = info.get("relative_path"), info.get("offset"), info.get("length")
        if type(path) is not str or type(begin) is not int or type(length) is not int or len(path) > _MAX_PATH:
            raise UnreadableInput(
                f"{self.folder}.metadata does not say where {name!r} is stored; the save did not finish"
            )
        if not (0 <= begin <= MAX_DIMENSION and 0 <= length <= MAX_DIMENSION):
            raise UnreadableInput(f"{self.folder}.metadata puts {name!r} at an impossible byte range")
        file = self.folder + contained(path, f"{self.folder}.metadata")
        size, tensors = self._open(file, name)
        if tensors is not None:  # a safetensors file: its header has the offsets, the metadata's are not used
            found = tensors.get(name)
            if found is None:
                raise UnreadableInput(f"{file} does not hold {name!r}, where {self.folder}.metadata puts it")
            return Chunk.at(offsets, found)._replace(sizes=sizes)
        if begin + length > size:
            raise UnreadableInput(f"{file} is truncated: {name!r} ends at byte {begin + length:,}, and it has {size:,}")
        return Chunk(offsets, sizes, file, partial(_locate, name, file, begin, length), (file, begin, length))

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
    """The tensor in a blob, which is a file of torch.save."""
    from tiebeam.checkpoint.formats.torch.reader import read_contents, tensor_info

    blob = FileSlice(files, file, begin, begin + length)
    contents = read_contents(blob, file)
    if type(contents.root) is not Tensor:
        raise UnreadableInput(f"{file} does not hold a tensor at byte {begin:,}, where {name!r} should be")
    if contents.root.unreadable:
        raise UnreadableInput(f"{file}: {name!r} is {contents.root.unreadable}")
    info = tensor_info(name, contents.root, file, contents.locate)
    return info if info.packing else info._replace(begin=info.begin + begin, end=info.end + begin)


def _find_model(
    locator: _ChunkLocator, saved: Mapping[str, TensorMetadata | None], paths: Mapping[str, Any]
) -> DcpModel:
    """Names are flattened paths. The paths themselves, if they were saved, tell the model from the rest."""
    root: dict[str, Any] = {}
    for name, stored in saved.items():
        leaf = Tensor(stored, 0, stored.shape, (), stored.dtype) if stored else None
        _insert(root, _path(name, paths.get(name)), leaf)
    found = find_state_dict(root, f"{locator.folder}.metadata")
    table = TensorTable()
    for name, tensor in found.tensors.items():
        if not _OPTIMIZER.match(name):
            table.add(name, tensor.storage.shape, locator.tensor(tensor.storage))
    others = sum(map(bool, saved.values())) - len(table.tensors)
    return DcpModel(table, found.path, tuple(_paths_beside(root, found.path)), others)


def _path(name: str, path: object) -> tuple[str, ...]:
    if type(path) is tuple and 0 < len(path) <= _MAX_DEPTH and all(type(part) in (str, int) for part in path):
        return tuple(str(part)[:1024] for part in path)
    return (name,)


def _insert(root: dict[str, Any], path: tuple[str, ...], leaf: object) -> None:
    for part in path[:-1]:
        below = root.setdefault(part, {})
        if type(below) is not dict:  # a name that is both a tensor and a level
            raise UnreadableInput(f"the metadata's paths contradict each other at {part!r}")
        root = below
    if path[-1] in root:
        raise UnreadableInput(f"the metadata has two entries at {'.'.join(path)!r}")
    root[path[-1]] = leaf


def _paths_beside(root: dict[str, Any], path: str) -> Iterator[str]:
    """What else is stored in the levels above the model."""
    prefix = ""
    while path:
        key = next((key for key in root if path == key or path.startswith(f"{key}.")), None)
        if key is None or type(root[key]) is not dict:
            return
        yield from (prefix + other for other, value in root.items() if other != key and type(value) is dict)
        prefix, path, root = f"{prefix}{key}.", path[len(key) + 1 :], root[key]


def read_shards(files: Files, folder: str, names: list[str]) -> DcpModel:
    """The model in shards of the Hugging Face writer, whose headers have the offsets."""
    label = folder or "./"
    chunks: dict[str, list[Chunk]] = {}
    dtypes: dict[str, str] = {}
    for name in names:
        if not SHARD.match(name):
            continue
        header = safetensors.read_header(files, folder + name)
        sharding = _sharding_info(header.metadata.get("DCP_SHARDING_INFO"), folder + name)
        for key, info in header.tensors.items():
            entry = sharding.get(key)
            offsets = entry.get("saved_offsets") if isinstance(entry, dict) else None
            if not isinstance(offsets, list) or not are_offsets(tuple(offsets)) or len(offsets) != len(info.shape):
                raise UnreadableInput(f"{folder + name} does not say which part of {key!r} it holds")
            if dtypes.setdefault(key, info.dtype) != info.dtype:
                raise UnreadableInput(f"{label} holds {key!r} in two types, {dtypes[key]} and {info.dtype}")
            chunks.setdefault(key, []).append(Chunk.at(tuple(offsets), info))
    table = TensorTable()
    keys = [key for key in chunks if not _OPTIMIZER.match(key)]
    # {"model": ..., "optimizer": ...}, flattened without the paths: a model's own names do not repeat `model.`
    wrapped = all(key.startswith("model.") for key in keys) and any(key.startswith("model.model.") for key in keys)
    for key in keys:
        ends = [[o + n for o, n in zip(chunk.offsets, chunk.sizes, strict=True)] for chunk in chunks[key]]
        if len({len(end) for end in ends}) > 1:
            raise UnreadableInput(f"{label} holds shards of {key!r} with different numbers of dimensions")
        shape = tuple(max(axis) for axis in zip(*ends, strict=True))
        tensor = join_chunks(files, dtypes[key], shape, chunks[key], f"{key!r} in {label}")
        table.add(key.removeprefix("model.") if wrapped else key, shape, tensor)
    return DcpModel(table, "model" if wrapped else "", (), len(chunks) - len(keys))


def _sharding_info(text: object, file: str) -> dict[str, Any]:
    try:
        document = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise UnreadableInput(f"{file} is named like a shard of a distributed save, but its header has no offsets")
    return document
