"""Memory of the fused loss: the chunk of logits, and the gradients that it returns.

Fresh memory is expensive: the kernel clears each page of 4 KB at its first use, several times slower than later writes,
and the gradient of a table is written only a few times. Large buffers on Linux therefore ask for huge pages, which
makes the first use faster. `LossBuffers` avoids it altogether: it keeps the buffers between steps.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor

_HUGE = 8 << 20  # bytes; smaller buffers mostly come from memory that was used before
_HUGE_PAGE = 2 << 20


def fresh(shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """`torch.empty`, in huge pages where the buffer is large and the system has them."""
    buffer = torch.empty(shape, dtype=dtype, device=device)
    nbytes = buffer.numel() * buffer.element_size()
    advise = _advise_huge_pages() if device.type == "cpu" and nbytes >= _HUGE else None
    if advise is not None:
        start = -(-buffer.data_ptr() // _HUGE_PAGE) * _HUGE_PAGE
        end = (buffer.data_ptr() + nbytes) // _HUGE_PAGE * _HUGE_PAGE
        advise(start, end - start)  # a refusal costs speed only
    return buffer


@cache
def _advise_huge_pages() -> Callable[[int, int], int] | None:
    advice = getattr(mmap, "MADV_HUGEPAGE", None)  # Linux only
    if advice is None:
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return lambda start, nbytes: int(madvise(start, nbytes, advice))


class LossBuffers:
    """Buffers of `tied_cross_entropy` that are kept from step to step.

    A buffer is used again once nothing else refers to its memory: the gradient of a table returns with
    `zero_grad(set_to_none=True)`, and one that is still someone's `.grad` (or a view of it) is left alone and a second
    buffer is made. Between the steps the memory stays taken: about one table and a chunk of logits.

    >>> buffers = LossBuffers()
    >>> h, W = torch.randn(8, 16), torch.randn(100, 16, requires_grad=True)
    >>> from tiebeam.nn import tied_cross_entropy
    >>> for _ in range(3):
    ...     W.grad = None
    ...     tied_cross_entropy(h, W, torch.arange(8), buffers=buffers).backward()
    >>> buffers.count  # the logits and the gradient of W, in all three steps
    2
    """

    def __init__(self) -> None:
        self._held: dict[tuple[Any, ...], list[_Held]] = {}

    @property
    def count(self) -> int:
        """How many buffers are held."""
        return sum(map(len, self._held.values()))

    def take(self, shape: tuple[int, ...] | torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous buffer with arbitrary content."""
        held = self._held.setdefault((*shape, dtype, device), [])
        for one in held:
            if one.is_free():
                return one.alias()
        new = _Held(fresh(shape, dtype, device))
        held.append(new)
        return new.alias()

    def clear(self) -> None:
        """Release the buffers that are held."""
        self._held.clear()

    def __getstate__(self) -> dict[str, Any]:
        return {"_held": {}}  # the content means nothing outside a step


class _Held:
    """One buffer. Aliases of it are given away; the count of references to its memory says whether one is left."""

    def __init__(self, buffer: Tensor) -> None:
        self._buffer, self._storage = buffer, buffer.untyped_storage()
        self._own_references = self._references()

    def is_free(self) -> bool:
        return 0 < self._references() <= self._own_references

    def alias(self) -> Tensor:
        return self._buffer.detach()

    def _references(self) -> int:
        count = getattr(torch._C, "_storage_Use_Count", None)
        return 0 if count is None else int(count(self._storage._cdata))
