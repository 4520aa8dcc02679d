"""A tensor as a header describes it, and the checkpoint as a table of them.

Nothing here reads a weight until asked. Every format ends in the same form: a tensor is a byte range of a
file, so reading rows, comparing and copying are written once, and two tensors that share storage are
simply two names for one range.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.files import Files
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.checkpoint.distributed.sharded_tensor import Pieced


class TensorInfo(NamedTuple):
    """Where a tensor lies. A tuple and not a dataclass: a 200-shard model makes thousands of them at once."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    file: str
    begin: int
    """First byte in `file` (or in the unpacked member, when `packing` says the bytes are compressed)."""
    end: int
    strides: tuple[int, ...] | None = None
    """In elements; None means row-major and dense, which is all but a few PyTorch tensors."""
    packing: str = ""
    """Empty: plain bytes of `file`. Otherwise the zip member of `file` that must be inflated to reach them, or the
    name under which the checkpoint keeps the pieces that must be put together."""

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
    """What one file says about itself: its tensors, its free-form metadata, and notes for a person to see."""

    tensors: dict[str, TensorInfo]
    metadata: Mapping[str, Any] = {}
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """An opened model: everything its headers say, and lazy access to the numbers.

    `config` is config.json where there is one; GGUF has none, its facts are in `metadata`. `architecture`
    is the model type as the model names itself. `aliases` maps a name that is not stored to the stored name
    it stands for. `notes` are sentences a person should see (a guess, an ignored file). `pieced` has the tensors
    that lie in pieces (a checkpoint of several processes), by their `packing`.
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
    pieced: Mapping[str, Pieced] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Size of the files that hold tensors; where those hold an optimizer's too, of the model's tensors."""
        if self.pieced:
            return sum({t.storage: t.nbytes for t in self.tensors.values()}.values())
        return sum(self.files.size(name) for name in {t.file for t in self.tensors.values()})

    def read_bytes(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes begin:end of the tensor's own range."""
        info = self.tensors[name]
        end = info.nbytes if end is None else min(end, info.nbytes)
        assert 0 <= begin <= end
        if info.packing in self.pieced:
            return self.pieced[info.packing].read(self.files, info.begin + begin, info.begin + end, name)
        if info.packing:
            from tiebeam.checkpoint.formats.zip_archive import read_member

            return read_member(self.files, info.file, info.packing, info.begin + begin, info.begin + end)
        return self.files.read(info.file, info.begin + begin, info.begin + end)

    def rows(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:  # -> [stop-start, ...]
        """Rows start:stop as numbers: the stored type where NumPy has it, float32 otherwise (bf16, f8, GGUF)."""
        info = self.tensors[name]
        if not info.shape:
            raise BadRequest(f"{name} is a scalar and has no rows; read it whole with tensor({name!r})")
        stop = info.shape[0] if stop is None else min(stop, info.shape[0])
        assert 0 <= start <= stop
        if info.strides is not None:
            raw = self.read_bytes(name)
            return dtypes.decode_strided(info.dtype, raw, info.shape, info.strides)[start:stop]
        shape = (stop - start, *info.shape[1:])
        begin, end = dtypes.row_range(info.dtype, info.shape, start, stop)
        return dtypes.decode(info.dtype, self.read_bytes(name, begin, end), shape)

    def tensor(self, name: str) -> NDArray[np.generic]:
        """The whole tensor, as `rows` gives it."""
        info = self.tensors[name]
        if info.shape:
            return self.rows(name)
        return dtypes.decode(info.dtype, self.read_bytes(name), ())
