"""PyTorch files, read without PyTorch and without running anything in them.

`torch.save` writes a pickle that describes the objects, and one block of bytes per storage: since PyTorch 1.6 as zip
members, before that one after the other in a plain file. `pickle_reader` reads the pickle without calling
anything, `rebuild` records which storage a tensor is a view of, and `state_dict` finds the model among the rest. Two
names for one storage become two names for one byte range.

Tensors are row-major in nearly every file; a transposed or sliced view keeps its strides, in elements.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from tiebeam.checkpoint.dtypes import BITS
from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.formats.torch.pickle_reader import Builder, TruncatedPickle, no_value, read_pickle
from tiebeam.checkpoint.formats.torch.rebuild import (
    BUILDERS,
    Storage,
    Tensor,
    are_offsets,
    is_torch_size,
    legacy_storage_of,
    storage_of,
)
from tiebeam.checkpoint.formats.torch.state_dict import find_state_dict
from tiebeam.checkpoint.formats.zip_archive import Archive, open_archive
from tiebeam.checkpoint.tensors import Header, TensorInfo
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_DIMENSION, MAX_PICKLE, MAX_REPEATED

_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001


class Block(NamedTuple):
    """Where the bytes of a storage are: in the file, or in the inflated zip member `packing`."""

    begin: int
    size: int
    packing: str = ""


class _Storages:
    """Builds persistent ids, and refuses a storage with two element types: PyTorch would take the first for both."""

    def __init__(self, file: str, build: Builder) -> None:
        self.file, self.build, self.dtypes = file, build, dict[str, str]()

    def __call__(self, identity: tuple[object, ...]) -> object:
        storage = self.build(identity)
        if type(storage) is Storage:
            dtype = self.dtypes.setdefault(storage.key, storage.dtype)
            if dtype != storage.dtype and storage.numel:  # an empty one may have several
                raise UnreadableInput(f"{self.file} is damaged: the storage {storage.key!r} has two element types")
        return storage


class Contents(NamedTuple):
    """What was passed to torch.save, as data, and a function that locates storages in the file."""

    root: object
    locate: Callable[[Storage], Block]


def read_header(files: Files, name: str) -> Header:
    """The tensors of one PyTorch file. The metadata says where in it they were found, if not at the top level."""
    contents = read_contents(files, name)
    return _header(contents.root, name, contents.locate)


def read_contents(files: Files, name: str) -> Contents:
    """Everything that one PyTorch file describes. Nothing is called and no numbers are read."""
    magic = files.read(name, 0, min(files.size(name), 512))
    if magic.startswith(b"PK"):
        return _read_zip(files, name)
    if magic.startswith(b"\x80"):
        return _read_legacy(files, name)
    if magic.startswith(b"version https://git-lfs"):
        raise UnreadableInput(f"{name} is a Git LFS pointer, not the weights; fetch them with: git lfs pull")
    if magic[257:262] == b"ustar":
        raise UnreadableInput(
            f"{name} is a tar archive from before PyTorch 0.2, which is not supported; if you trust it, save it "
            f"again: torch.save(torch.load({name!r}, weights_only=False), 'new.pt')"
        )
    raise UnreadableInput(f"{name} is not a PyTorch file (it starts with {magic[:8]!r})")


def _read_zip(files: Files, name: str) -> Contents:
    archive = open_archive(files, name)
    pickled = [member for member in archive.members if member.count("/") == 1 and member.endswith("/data.pkl")]
    if len(pickled) != 1:
        raise UnreadableInput(
            f"{name} is a zip archive without a PyTorch pickle; if torch.export made it, or if it is a zipped folder, "
            "save the model's state_dict with torch.save instead"
        )
    prefix = pickled[0].removesuffix("data.pkl")
    _check_byte_order(archive, prefix)
    size = archive.members[pickled[0]].size
    if size > MAX_PICKLE:
        raise UnreadableInput(
            f"{name} holds a pickle of {size:,} bytes, which exceeds the limit of {MAX_PICKLE:,}; refusing to read"
        )
    root, _ = read_pickle(archive.read(pickled[0]), name, BUILDERS, _Storages(name, storage_of))

    def locate(storage: Storage) -> Block:
        member = archive.members.get(f"{prefix}data/{storage.key}")
        if member is None:
            raise UnreadableInput(
                f"{name} refers to the storage {storage.key!r}, which is missing; the file is incomplete"
            )
        begin = archive.begin(member.name)  # checks the local header, also of a deflated member
        return Block(0, member.size, member.name) if member.deflated else Block(begin, member.size)

    return Contents(root, locate)


def _check_byte_order(archive: Archive, prefix: str) -> None:
    record = f"{prefix}byteorder"
    if record in archive.members:
        order = archive.read(record, 0, min(16, archive.members[record].size))
        _refuse_big_endian(archive.file, order != b"little")


def _refuse_big_endian(name: str, big: bool) -> None:
    if big:
        raise UnreadableInput(
            f"{name} was written on a big-endian machine; load it with PyTorch on a little-endian one and save it again"
        )


def _read_legacy(files: Files, name: str) -> Contents:
    """Five pickles (magic, protocol, system, objects, storage keys in order), then the storages, concatenated."""
    size = files.size(name)
    try:
        magic, _ = read_pickle(files.read(name, 0, min(size, 64)), name, {}, no_value)
    except UnreadableInput:
        magic = None
    if magic != _LEGACY_MAGIC:
        raise UnreadableInput(
            f"{name} is a plain Python pickle, not a file of torch.save; loading it can run any code, so it is "
            "not read: if you trust it, load it yourself and save its tensors with torch.save or safetensors"
        )
    length = min(size, 1 << 18)
    while True:
        try:
            root, keys, itemsizes, at = _legacy_pickles(files.read(name, 0, length), name)
            break
        except TruncatedPickle:
            if length >= min(size, MAX_PICKLE):
                raise
            length = min(size, MAX_PICKLE, length * 4)
    blocks: dict[str, Block] = {}
    for key in keys:
        itemsize = itemsizes.get(key)
        if at + 8 > size or itemsize is None:
            raise UnreadableInput(f"{name} is damaged: its storages are invalid at byte {at:,} of {size:,}")
        (numel,) = struct.unpack("<q", files.read(name, at, at + 8))
        blocks[key] = Block(at + 8, numel * itemsize)
        at += 8 + numel * itemsize
        if numel < 0 or at > size:
            raise UnreadableInput(
                f"{name} is truncated: its storages need at least {at:,} bytes, the file has {size:,}"
            )

    def locate(storage: Storage) -> Block:
        try:
            return blocks[storage.key]
        except KeyError:
            raise UnreadableInput(f"{name} refers to a storage that is missing; the file is incomplete") from None

    return Contents(root, locate)


def _legacy_pickles(raw: bytes, name: str) -> tuple[object, list[str], dict[str, int], int]:
    """The objects, the storage keys in file order, bytes per element by key, and the byte where the data starts."""
    storages = _Storages(name, legacy_storage_of)

    def persistent(identity: tuple[object, ...]) -> object:
        if identity[:1] == ("module",) and len(identity) > 1:  # a class with its source code
            return identity[1]
        return storages(identity)

    _, at = read_pickle(raw, name, {}, no_value)
    protocol, at = read_pickle(raw, name, {}, no_value, at)
    system, at = read_pickle(raw, name, {}, no_value, at)
    if protocol != _LEGACY_PROTOCOL or type(system) is not dict:
        raise UnreadableInput(f"{name} is damaged: it has the magic number of a PyTorch file, but not its first fields")
    _refuse_big_endian(name, system.get("little_endian") is False)
    root, at = read_pickle(raw, name, BUILDERS, persistent, at)
    keys, at = read_pickle(raw, name, {}, no_value, at)
    if type(keys) is not list or not all(type(key) is str for key in keys) or len(set(keys)) != len(keys):
        raise UnreadableInput(f"{name} is damaged: it does not list its storages")
    return root, keys, {key: BITS[dtype] // 8 for key, dtype in storages.dtypes.items()}, at


def _header(root: object, file: str, locate: Callable[[Storage], Block]) -> Header:
    found = find_state_dict(root, file)
    tensors: dict[str, TensorInfo] = {}
    skipped: dict[str, str] = {}
    for name, tensor in found.tensors.items():
        if tensor.unreadable:
            skipped[name] = tensor.unreadable
        else:
            tensors[name] = tensor_info(name, tensor, file, locate)
    if skipped and not tensors:
        name, reason = next(iter(skipped.items()))
        raise UnreadableInput(
            f"{file} holds no plain tensors: {name!r} is {reason}; save a plain copy of the weights with torch.save"
        )
    notes = []
    if found.path:
        others = f"; {', '.join(map(repr, found.others))} ignored" if found.others else ""
        notes.append(f"the weights are under {found.path!r} in {file}{others}")
    if skipped:
        name, reason = next(iter(skipped.items()))
        notes.append(f"{len(skipped)} of the tensors in {file} were skipped: {name!r} is {reason}")
    return Header(tensors, {"tiebeam.weights_at": found.path} if found.path else {}, tuple(notes))


def tensor_info(name: str, tensor: Tensor, file: str, locate: Callable[[Storage], Block]) -> TensorInfo:
    """The view as a byte range, checked to be inside its storage, and the storage inside the file."""
    storage: Storage = tensor.storage
    dtype = tensor.dtype if type(tensor.dtype) is str else storage.dtype
    shape, strides, offset = _checked_view(name, tensor, file)
    block = locate(storage)
    unit, itemsize = BITS[storage.dtype] // 8, BITS[dtype] // 8
    count = storage.numel if storage.part is None else storage.part
    # A legacy file has the number of elements twice, and torch reads as many as the second says.
    if storage.numel * unit != block.size or storage.first + count > storage.numel:
        wanted = f"{storage.numel * unit:,}" if 0 <= storage.numel <= MAX_DIMENSION else "an impossible number of"
        raise UnreadableInput(
            f"{file}: the storage of {name!r} should have {wanted} bytes; the file holds {block.size:,}"
        )
    size = prod(shape)
    if not size:
        return TensorInfo(name, shape, dtype, file, block.begin, block.begin, None, block.packing)
    reach = 1 + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    if (offset + reach) * itemsize > count * unit:
        raise UnreadableInput(
            f"{file}: {name!r} is a view of elements {offset:,}..{offset + reach:,} of a storage that has "
            f"{count * unit // itemsize:,}"
        )
    if size > max(reach, MAX_REPEATED):
        raise UnreadableInput(
            f"{file}: {name!r} expands {reach:,} stored elements to {size:,}, which exceeds the limit of "
            f"{MAX_REPEATED:,}; refusing to read"
        )
    begin = block.begin + storage.first * unit + offset * itemsize
    dense = _row_major(shape, strides)
    return TensorInfo(
        name, shape, dtype, file, begin, begin + reach * itemsize, None if dense else strides, block.packing
    )


def _checked_view(name: str, tensor: Tensor, file: str) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    shape, strides, offset = tensor.shape, tensor.strides, tensor.offset
    fits = is_torch_size(shape) and are_offsets(strides) and len(shape) == len(strides)
    if fits and are_offsets((offset,)):
        return shape, strides, offset  # type: ignore[return-value]
    raise UnreadableInput(f"{file}: {name!r} has a shape, strides or offset that no tensor can have")


def _row_major(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for n, stride in zip(reversed(shape), reversed(strides), strict=True):
        if n != 1 and stride != expected:
            return False
        expected *= n
    return True
