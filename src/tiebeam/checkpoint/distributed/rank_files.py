"""One PyTorch file per process (`..._rank0.bin`, `..._rank1.bin`), each with its own part of every tensor.

The parts are objects that know the whole: a ShardedTensor carries the offsets of each of its shards, a DTensor the
mesh of processes, its own place in it, and along which dimension it was cut (into equal chunks, the last ones shorter
or empty). Where the files hold plain tensors instead, nothing in them says how they fit together.
"""

from __future__ import annotations

import re
from functools import partial
from typing import Any, NamedTuple

from tiebeam.checkpoint.distributed.sharded_tensor import Piece, Pieced, Table, put_together
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.torch.pickle_reader import Opaque
from tiebeam.checkpoint.formats.torch.reader import Contents, read_contents, tensor_info
from tiebeam.checkpoint.formats.torch.rebuild import MAX_DIMENSION, Spread, Tensor
from tiebeam.checkpoint.formats.torch.state_dict import find_weights
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput

_FLAT = re.compile(r"(^|\.)_?flat_param(_\d+)?$")
_MAX_PIECES = 2_000_000


class _Mine(NamedTuple):
    """A process's part of one tensor before its offsets are known: its place in the mesh, and the cut dimensions."""

    info: TensorInfo
    place: tuple[int, ...]
    dims: tuple[int | None, ...]


def is_spread(files: Files, name: str) -> bool:
    """Whether a file holds parts that know the whole, or a flat parameter that should."""
    tensors = find_weights(read_contents(files, name).root, name).tensors
    return any(type(tensor.storage) is Spread for tensor in tensors.values())


def read_ranks(files: Files, folder: str, names: dict[int, str]) -> tuple[Table, Header]:
    """The model that the files of all processes make, and what each of them holds whole."""
    called = folder.rstrip("/") or "this folder"
    if list(names) != list(range(len(names))):
        missing = next(i for i in range(max(names)) if i not in names)
        raise UnreadableInput(f"{called} has no file of process {missing}; of {max(names) + 1}, {len(names)} are there")
    shards: dict[str, list[Piece]] = {}
    locals_: dict[str, list[_Mine]] = {}
    described: dict[str, tuple[str, tuple[int, ...]]] = {}
    whole: dict[str, TensorInfo] = {}
    unclear: dict[str, str] = {}
    left = _MAX_PIECES
    for rank, name in names.items():
        contents = read_contents(files, folder + name)
        tensors = find_weights(contents.root, name).tensors
        left -= len(tensors)
        if left < 0:
            raise UnreadableInput(f"{called} is cut into more than {_MAX_PIECES:,} pieces; refused as a bomb")
        if flat := next((key for key in tensors if _FLAT.search(key)), None):
            raise UnreadableInput(
                f"{name} is a local shard of FSDP: {flat!r} is all parameters in one row, without their shapes; load "
                "it with FSDP in as many processes and save it again with StateDictType.SHARDED_STATE_DICT or "
                "FULL_STATE_DICT"
            )
        for key, tensor in tensors.items():
            if type(tensor.storage) is not Spread:
                if rank == 0 and not tensor.unreadable:
                    whole[key] = tensor_info(key, tensor, folder + name, contents.locate)
                continue
            said = _description(key, tensor, name)
            if described.setdefault(key, said) != said:
                raise UnreadableInput(f"the files in {called} disagree about {key!r}")
            if tensor.storage.kind == "ShardedTensor":
                shards.setdefault(key, []).extend(_shards(key, tensor.storage, contents, folder + name))
            else:
                mine = _local(key, tensor.storage, contents, folder + name, said)
                if isinstance(mine, str):
                    unclear[key] = mine
                else:
                    locals_.setdefault(key, []).append(mine)
    if not described:
        raise UnreadableInput(
            f"{called} holds one file a process, of plain tensors that do not say how they fit together (replicas? "
            f"tensor parallel?); if each is whole, name one, as {folder}{names[0]}; else merge them with their trainer"
        )
    table = Table()
    for key, (dtype, shape) in described.items():
        if key in unclear:
            table.add(key, shape, Pieced(dtype, shape, why=unclear[key]))
            continue
        pieces = shards.get(key) or _placed(locals_[key], shape)
        table.add(key, shape, put_together(files, dtype, shape, _once(pieces), f"{key!r} in {called}"))
    return table, Header({key: info for key, info in whole.items() if key not in described})


def _description(key: str, tensor: Tensor, name: str) -> tuple[str, tuple[int, ...]]:
    shape, dtype = tensor.shape, tensor.dtype
    if type(dtype) is not str:
        raise UnreadableInput(f"{name}: {key!r} is of an element type that is not read here")
    if type(shape) is not tuple or len(shape) > 32 or not all(type(n) is int and 0 <= n < MAX_DIMENSION for n in shape):
        raise UnreadableInput(f"{name}: {key!r} has a shape that no tensor can have")
    return dtype, shape


def _slots(record: object) -> dict[str, Any]:
    return _attributes(record.state if type(record) is Opaque else None)


def _attributes(state: object) -> dict[str, Any]:
    """What an object was given, also where its class has slots: (None, attributes)."""
    if type(state) is tuple and len(state) == 2:
        state = state[1]
    return state if type(state) is dict else {}


def _shards(key: str, spread: Spread, contents: Contents, file: str) -> list[Piece]:
    listed = spread.state[0] if type(spread.state) is tuple and spread.state else None
    pieces = []
    offsets: Any
    for shard in listed[:64] if type(listed) is list else ():
        tensor, metadata = _slots(shard).get("tensor"), _slots(_slots(shard).get("metadata"))
        offsets = metadata.get("shard_offsets")
        if type(tensor) is not Tensor or tensor.unreadable or type(offsets) not in (list, tuple):
            raise UnreadableInput(f"{file}: a shard of {key!r} makes no sense")
        if len(offsets) > 32 or not all(type(n) is int and 0 <= n <= MAX_DIMENSION for n in offsets):
            raise UnreadableInput(f"{file}: a shard of {key!r} makes no sense")
        pieces.append(_piece(tensor_info(key, tensor, file, contents.locate), tuple(offsets)))
    return pieces


def _piece(info: TensorInfo, offsets: tuple[int, ...]) -> Piece:
    identity = (info.file, info.packing, info.begin, info.end, info.strides)
    return Piece(offsets, info.shape, info.file, partial(_known, info), identity)


def _known(info: TensorInfo, files: Files) -> TensorInfo:
    return info


def _local(key: str, spread: Spread, contents: Contents, file: str, said: tuple[str, tuple[int, ...]]) -> _Mine | str:
    """A DTensor's local part; a sentence when its cut is one that is not put together here."""
    state = _attributes(spread.state)
    tensor, spec = state.get("_local_tensor"), _slots(state.get("_spec"))
    placements: Any = spec.get("placements")
    place: Any = _slots(spec.get("mesh")).get("_coordinate_on_dim")
    if type(tensor) is not Tensor or tensor.unreadable:
        raise UnreadableInput(f"{file}: the part of {key!r} makes no sense")
    if type(placements) not in (tuple, list) or type(place) not in (tuple, list) or len(place) != len(placements):
        return "the file does not say where in the mesh of processes it belongs"
    dims: list[int | None] = []
    for placement in placements[:8]:
        kind = placement.kind.name if type(placement) is Opaque and placement.kind else ""
        dim = _slots(placement).get("dim")
        if kind == "Replicate":
            dims.append(None)
        elif kind == "Shard" and type(dim) is int and 0 <= dim < len(said[1]) and dim not in dims:
            dims.append(dim)
        else:
            return f"it is cut over the mesh in a way ({kind or 'unknown'}) that is not put together here"
    if len(dims) != len(place) or not all(type(n) is int and 0 <= n < 1 << 20 for n in place):
        return "the file does not say where in the mesh of processes it belongs"
    return _Mine(tensor_info(key, tensor, file, contents.locate), tuple(place), tuple(dims))


def _placed(parts: list[_Mine], shape: tuple[int, ...]) -> list[Piece]:
    """Chunks are as large as the largest along each dimension that is cut; a place counts them."""
    pieces = []
    chunk = [max((p.info.shape[d] for p in parts if len(p.info.shape) == len(shape)), default=0)
             for d in range(len(shape))]  # fmt: skip
    for part in parts:
        offsets = [0] * len(shape)
        for place, dim in zip(part.place, part.dims, strict=True):
            if dim is not None:
                offsets[dim] = min(place * chunk[dim], shape[dim])
        pieces.append(_piece(part.info, tuple(offsets)))
    return pieces


def _once(pieces: list[Piece]) -> list[Piece]:
    """Processes that held the same part saved it more than once; the first will do."""
    kept: dict[tuple[int, ...], Piece] = {}
    for piece in pieces:
        if all(piece.sizes):
            kept.setdefault(piece.offsets, piece)
    return list(kept.values())
