"""A tensor as a header describes it, and a checkpoint as a table of tensors.

Numbers are read only when asked for. In every format a tensor is a byte range of a file, so reading rows, comparing
and copying are written once, and two tensors with one storage are two names for one range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.files import Files
from tiebeam.errors import BadRequest, NumbersNotRead
from tiebeam.limits import MAX_INFLATED_STRIDED

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.checkpoint.distributed.sharded_tensor import ShardedTensor


class TensorInfo(NamedTuple):
    """Where a tensor is stored. A tuple and not a dataclass: opening a large model creates thousands of them."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    begin: int
    """First byte in `file`, or in the inflated zip member that `packing` names."""
    end: int
    strides: tuple[int, ...] | None = None
    """In elements; None means dense and row-major, as nearly all tensors are."""
    packing: str = ""
    """Empty: plain bytes of `file`. Otherwise the compressed zip member of `file` that holds them, or the key of
    `Checkpoint.sharded` whose chunks must be joined."""

    @property
    def nbytes(self) -> int:
        return self.end - self.begin

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def storage(self) -> tuple[str, str, int, int]:
        """Equal for two tensors exactly when they are the same bytes."""
        return (self.file, self.packing, self.begin, self.end)


class Header(NamedTuple):
    """The header of one file: its tensors, its metadata, and notes for the user."""

    tensors: dict[str, TensorInfo]
    metadata: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: everything in its headers, and access to the numbers on demand.

    `config` is config.json, if there is one; GGUF files have none, their facts are in `metadata`. `architecture` is the
    model type as the model names itself. `aliases` maps a name that is not stored to the stored name that it stands
    for. `notes` are sentences for the user (a guess, an ignored file). `sharded` has the tensors of a distributed
    checkpoint, by their `packing`. `stale` are names that the index lists and no file stores.
    """

    source: str
    format: str
    files: Files
    tensors: Mapping[str, TensorInfo]
    config: Mapping[str, Any] | None = None
    config_name: str = "config.json"
    metadata: Mapping[str, Any] = field(default_factory=dict)
    architecture: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    sharded: Mapping[str, ShardedTensor] = field(default_factory=dict)
    stale: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Size of the files that hold tensors; in a distributed checkpoint, of the model's tensors only."""
        if self.sharded:
            return sum({t.storage: t.nbytes for t in self.tensors.values()}.values())
        return sum(self.files.size(name) for name in {t.file for t in self.tensors.values()})

    def read_bytes(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes begin:end of the tensor's own range."""
        info = self.tensors[name]
        end = info.nbytes if end is None else min(end, info.nbytes)
        assert 0 <= begin <= end
        if info.packing in self.sharded:
            return self.sharded[info.packing].read(self.files, info.begin + begin, info.begin + end, name)
        if info.packing:
            from tiebeam.checkpoint.formats.zip_archive import read_member

            return read_member(self.files, info.file, info.packing, info.begin + begin, info.begin + end)
        return self.files.read(info.file, info.begin + begin, info.begin + end)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:  # -> [stop-start, ...]
        """Rows start:stop as numbers, in the stored type if NumPy has it, else in float32 (bf16, f8, GGUF)."""
        info = self.tensors[name]
        if not info.shape:
            raise BadRequest(f"{name} is a scalar and has no rows; read it whole with tensor({name!r})")
        stop = info.shape[0] if stop is None else min(stop, info.shape[0])
        assert 0 <= start <= stop
        if info.strides is not None:  # must be read whole, and a compressed one can be far larger than its file
            if info.packing and info.nbytes > MAX_INFLATED_STRIDED:
                raise NumbersNotRead(
                    f"the numbers of {name} are not read: {info.nbytes:,} bytes, compressed and not in row-major "
                    f"order, exceed the limit of {MAX_INFLATED_STRIDED:,}; save it uncompressed"
                )
            raw = self.read_bytes(name)
            return dtypes.decode_strided(info.dtype, raw, info.shape, info.strides)[start:stop]
        shape = (stop - start, *info.shape[1:])
        begin, end = dtypes.row_range(info.dtype, info.shape, start, stop)
        return dtypes.decode(info.dtype, self.read_bytes(name, begin, end), shape)

    def tensor(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, decoded as by `rows`."""
        info = self.tensors[name]
        if info.shape:
            return self.rows(name)
        return dtypes.decode(info.dtype, self.read_bytes(name), ())
