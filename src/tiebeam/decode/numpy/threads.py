"""Work in blocks on several threads: what BLAS does not parallelise, or does badly.

NumPy releases the GIL inside its loops, so plain threads run in parallel. The calling thread and its helpers take
blocks from one list until it is empty; a helper that the system runs late takes fewer of them. Each block is computed
in the same way by whichever thread takes it, so no result depends on the threads.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from math import inf
from queue import SimpleQueue
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from tiebeam.decode.numpy.ops import Array

_MATRIX_BLOCK = 3 << 19  # bytes: about 100 microseconds of reading, long against taking it
_CACHE_BLOCK = 1 << 18  # bytes that stay in a core's cache through several passes
_MOST_HELPERS = 7
_TRIAL = 8  # products
_SOONEST, _LATEST = 64, 4096  # products between two trials; a token of GPT-2 is 49

RowBlock = tuple[Array, slice]  # rows of a matrix [R, in], and their place in the product


def blas_threads() -> int:
    """How many threads NumPy's BLAS uses, by its environment variables."""
    for variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if os.environ.get(variable, "").isdigit():
            return max(1, int(os.environ[variable]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def for_each(function: Callable[..., object], blocks: Sequence[tuple[Any, ...]]) -> None:
    """function(*block) for each block, in any order and in any thread."""
    helpers = _helpers() if len(blocks) > 1 else None
    if helpers is not None:
        helpers.run(_Job(function, blocks))
        return
    for block in blocks:
        function(*block)


def for_row_blocks(function: Callable[..., object], x: Array, *more: Array) -> None:  # [T, ...] each
    """function(x, *more) for blocks of their rows that stay in cache."""
    step = max(1, _CACHE_BLOCK * len(x) // max(1, x.nbytes))
    if step >= len(x):
        function(x, *more)
        return
    starts = range(0, len(x), step)
    for_each(function, [tuple(a[start : start + step] for a in (x, *more)) for start in starts])


def matrix_blocks(pieces: Sequence[Array]) -> list[RowBlock]:
    """The rows of the matrices [out_i, in], one below the other, in blocks: an even number of each, of equal size."""
    blocks: list[RowBlock] = []
    top = 0
    for W in pieces:
        count = 2 * (W.nbytes // (2 * _MATRIX_BLOCK)) or 1 + (W.nbytes > _MATRIX_BLOCK)
        edges = [len(W) * i // count for i in range(count + 1)]
        blocks += [(W[a:b], slice(top + a, top + b)) for a, b in pairwise(edges) if a < b]
        top += len(W)
    return blocks


def matrix_vector(blocks: Sequence[RowBlock], x: Array, out: Array) -> Array:  # [in], [out] -> [out]
    """`out` filled with W @ x, for the W that `matrix_blocks` cut.

    The product takes as long as reading W. `vecdot`, one dot product per row, reads with nearly the full bandwidth of
    a core.
    """

    def product(W: Array, rows: slice) -> None:
        np.vecdot(W, x, out=out[rows])

    if len(blocks) == 1:
        product(*blocks[0])
        return out
    helped, began = _PACE.helped_now, perf_counter()
    if helped:
        for_each(product, blocks)
    else:
        for block in blocks:
            product(*block)
    _PACE.note(helped, (perf_counter() - began) / (x.nbytes * len(out)))
    return out


class Pace:
    """Whether helpers make the products faster at present. They do not where other programs use the cores: a helper
    that loses its core while it holds the GIL stops everyone. Now and then the other way is tried for a few products.
    """

    def __init__(self) -> None:
        self.helped, self._interval, self._left, self._trial = True, _SOONEST, _SOONEST, 0
        self._costs: dict[bool, deque[float]] = {True: deque(maxlen=_TRIAL), False: deque(maxlen=_TRIAL)}

    @property
    def helped_now(self) -> bool:
        return self.helped != (self._trial > 0)

    def note(self, helped: bool, cost: float) -> None:
        """The cost of one product, in seconds per byte or in any other unit."""
        self._costs[helped].append(cost)
        if self._trial == 0:
            self._left -= 1
            self._trial = _TRIAL if self._left <= 0 else 0
            return
        self._trial -= 1
        if self._trial:
            return
        tried, used = (median(self._costs[way] or [inf]) for way in (not self.helped, self.helped))
        if tried < 0.95 * used:
            self.helped, self._interval = not self.helped, _SOONEST
        else:
            self._interval = min(2 * self._interval, _LATEST)
        self._left = self._interval


_PACE = Pace()


class _Job:
    """Blocks that any thread may take."""

    __slots__ = ("_all", "_blocks", "_finished", "_function", "_total", "error")

    def __init__(self, function: Callable[..., object], blocks: Sequence[tuple[Any, ...]]) -> None:
        self._function, self._blocks, self._total = function, list(blocks), len(blocks)
        self._blocks.reverse()  # they are taken from the end
        self._finished: list[None] = []  # appending is atomic, counting is not
        self._all: SimpleQueue[None] = SimpleQueue()
        self.error: BaseException | None = None

    def work(self) -> None:
        """Take blocks until none is left."""
        function, blocks, finished = self._function, self._blocks, self._finished
        while blocks:
            try:
                block = blocks.pop()
            except IndexError:  # another thread was faster
                break
            try:
                function(*block)
            except BaseException as error:
                self.error = error
            finished.append(None)
        if len(finished) == self._total:
            self._all.put(None)

    def wait(self) -> None:
        """Until the blocks that other threads have taken are finished."""
        if len(self._finished) < self._total:
            self._all.get()
        if self.error is not None:
            raise self.error


class _Helpers:
    def __init__(self, count: int) -> None:
        self._jobs: SimpleQueue[_Job] = SimpleQueue()
        self._count = count
        for _ in range(count):
            threading.Thread(target=self._serve, name="tiebeam-decode", daemon=True).start()

    def run(self, job: _Job) -> None:
        for _ in range(self._count):
            self._jobs.put(job)
        job.work()
        job.wait()

    def _serve(self) -> None:
        with np.errstate(all="ignore"):  # as in Decoder.forward: the state belongs to a thread
            while True:
                self._jobs.get().work()


@cache
def _helpers() -> _Helpers | None:
    count = min(_MOST_HELPERS, blas_threads() - 1)
    return _Helpers(count) if count > 0 else None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_helpers.cache_clear)  # a fork has no threads but its own
