"""One PyTorch file per rank (`..._rank0.bin`, `..._rank1.bin`), each with its own part of every tensor.

The parts are objects that describe the whole tensor. A ShardedTensor has the offsets of its shards. A DTensor has the
device mesh, the rank's coordinate in it, and the dimension along which it is sharded (into equal chunks, the last ones
shorter or empty). If the files hold plain tensors instead, nothing in them says how they fit together.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.sharded_tensor import Chunk, ShardedTensor, TensorTable, join_chunks
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.torch.pickle_reader import PickledObject
from tiebeam.checkpoint.formats.torch.reader import Contents, read_contents, tensor_info
from tiebeam.checkpoint.formats.torch.rebuild import DistributedTensor, Tensor, are_offsets, is_torch_size
from tiebeam.checkpoint.formats.torch.state_dict import find_state_dict
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_CHUNKS

_FLAT = re.compile(r"(^|\.)_?flat_param(_\d+)?$")


class _LocalPart(NamedTuple):
    """A rank's part of a DTensor: its coordinate in the mesh, and the sharded dimension per mesh axis."""

    info: TensorInfo
    coordinate: tuple[int, ...]
    dims: tuple[int | None, ...]


def holds_distributed_tensors(files: Files, name: str) -> bool:
    """Whether a file holds parts of tensors that describe the whole."""
    tensors = find_state_dict(read_contents(files, name).root, name).tensors
    return any(type(tensor.storage) is DistributedTensor for tensor in tensors.values())


def read_ranks(files: Files, folder: str, names: dict[int, str]) -> tuple[TensorTable, Header]:
    """The model that the files of all ranks make: sharded tensors, and those that every rank holds whole."""
    label = folder.rstrip("/") or "this folder"
    if list(names) != list(range(len(names))):
        missing = next(i for i in range(max(names)) if i not in names)
        raise UnreadableInput(f"{label} has no file of rank {missing}; {len(names)} of {max(names) + 1} are there")
    shards: dict[str, list[Chunk]] = {}
    parts: dict[str, list[_LocalPart]] = {}
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    whole: dict[str, TensorInfo] = {}
    unreadable: dict[str, str] = {}
    left = MAX_CHUNKS
    for rank, name in names.items():
        contents = read_contents(files, folder + name)
        tensors = find_state_dict(contents.root, name).tensors
        left -= len(tensors)
        if left < 0:
            raise UnreadableInput(f"{label} has more shards than the limit of {MAX_CHUNKS:,}; refusing to read")
        if flat := next((key for key in tensors if _FLAT.search(key)), None):
            raise UnreadableInput(
                f"{name} is a local shard of FSDP: {flat!r} has all parameters in one dimension, without their shapes; "
                "load it with FSDP on as many ranks and save it again with StateDictType.SHARDED_STATE_DICT or "
                "FULL_STATE_DICT"
            )
        for key, tensor in tensors.items():
            if type(tensor.storage) is not DistributedTensor:
                if rank == 0 and not tensor.unreadable:
                    whole[key] = tensor_info(key, tensor, folder + name, contents.locate)
                continue
            description = _description(key, tensor, name)
            if described.setdefault(key, description) != description:
                raise UnreadableInput(f"the files in {label} disagree about {key!r}")
            if tensor.storage.kind == "ShardedTensor":
                shards.setdefault(key, []).extend(_shards(key, tensor.storage, contents, folder + name))
            else:
                part = _local_part(key, tensor.storage, contents, folder + name, len(description[1]))
                if isinstance(part, str):
                    unreadable[key] = part
                else:
                    parts.setdefault(key, []).append(part)
    if not described:
        raise UnreadableInput(
            f"{label} holds one file per rank, of plain tensors that do not say how they fit together (replicas? "
            f"tensor parallel?); if each is whole, name one, as {folder}{names[0]}; else merge them with the trainer"
        )
    table = TensorTable()
    for key, (dtype, shape) in described.items():
        if key in unreadable:
            table.add(key, shape, ShardedTensor(dtype, shape, unreadable=unreadable[key]))
            continue
        chunks = shards.get(key) or _chunks_on_mesh(parts[key], shape)
        table.add(key, shape, join_chunks(files, dtype, shape, _distinct(chunks), f"{key!r} in {label}"))
    return table, Header({key: info for key, info in whole.items() if key not in described})


def _description(key: str, tensor: Tensor, name: str) -> tuple[str, tuple[int, ...]]:
    shape, dtype = tensor.shape, tensor.dtype
    if type(dtype) is not str:
        raise UnreadableInput(f"{name}: {key!r} has an element type that is not supported")
    if not is_torch_size(shape):
        raise UnreadableInput(f"{name}: {key!r} has a shape that no tensor can have")
    return dtype, shape


def _slots(record: object) -> dict[str, Any]:
    return _attributes(record.state if type(record) is PickledObject else None)


def _attributes(state: object) -> dict[str, Any]:
    """The attributes of an object, also of a class with slots, whose state is (None, attributes)."""
    if type(state) is tuple and len(state) == 2:
        state = state[1]
    return state if type(state) is dict else {}


def _shards(key: str, whole: DistributedTensor, contents: Contents, file: str) -> list[Chunk]:
    """The shards of a ShardedTensor in one file."""
    listed = whole.state[0] if type(whole.state) is tuple and whole.state else None
    chunks = []
    for shard in listed[:64] if type(listed) is list else ():
        tensor, metadata = _slots(shard).get("tensor"), _slots(_slots(shard).get("metadata"))
        offsets = metadata.get("shard_offsets")
        offsets = tuple(offsets) if type(offsets) is list else offsets
        if type(tensor) is not Tensor or tensor.unreadable or not are_offsets(offsets):
            raise UnreadableInput(f"{file} has an invalid shard of {key!r}")
        chunks.append(Chunk.at(offsets, tensor_info(key, tensor, file, contents.locate)))
    return chunks


def _local_part(key: str, whole: DistributedTensor, contents: Contents, file: str, rank: int) -> _LocalPart | str:
    """The local part of a DTensor of `rank` dimensions, or the reason why its placement is not supported."""
    state = _attributes(whole.state)
    tensor, spec = state.get("_local_tensor"), _slots(state.get("_spec"))
    placements: Any = spec.get("placements")
    coordinate: Any = _slots(spec.get("mesh")).get("_coordinate_on_dim")
    if type(tensor) is not Tensor or tensor.unreadable:
        raise UnreadableInput(f"{file} has an invalid part of {key!r}")
    no_place = "the file does not give the rank's coordinate in the device mesh"
    if type(placements) not in (tuple, list) or type(coordinate) not in (tuple, list):
        return no_place
    dims: list[int | None] = []
    for placement in placements[:8]:
        kind = placement.kind.name if type(placement) is PickledObject and placement.kind else ""
        dim = _slots(placement).get("dim")
        if kind == "Replicate":
            dims.append(None)
        elif kind == "Shard" and type(dim) is int and 0 <= dim < rank and dim not in dims:
            dims.append(dim)
        else:
            return f"its placement on the mesh ({kind or 'unknown'}) is not supported"
    if not len(dims) == len(coordinate) == len(placements):
        return no_place
    if not all(type(n) is int and 0 <= n < 1 << 20 for n in coordinate):
        return no_place
    return _LocalPart(tensor_info(key, tensor, file, contents.locate), tuple(coordinate), tuple(dims))


def _chunks_on_mesh(parts: list[_LocalPart], shape: tuple[int, ...]) -> list[Chunk]:
    """Offsets are coordinate times chunk size; along a sharded dimension all chunks but the last have one size."""
    chunks = []
    step = [max((p.info.shape[d] for p in parts if len(p.info.shape) == len(shape)), default=0)
            for d in range(len(shape))]  # fmt: skip
    for part in parts:
        offsets = [0] * len(shape)
        for index, dim in zip(part.coordinate, part.dims, strict=True):
            if dim is not None:
                offsets[dim] = min(index * step[dim], shape[dim])
        chunks.append(Chunk.at(tuple(offsets), part.info))
    return chunks


def _distinct(chunks: list[Chunk]) -> list[Chunk]:
    """Without empty chunks and replicas: ranks that held the same part all saved it."""
    kept: dict[tuple[int, ...], Chunk] = {}
    for chunk in chunks:
        if all(chunk.sizes):
            kept.setdefault(chunk.offsets, chunk)
    return list(kept.values())
