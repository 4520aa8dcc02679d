"""Batches of token windows: deterministic by seed, resumable by a step number.

Order `random` visits every window of the stream once per epoch, in an order drawn from the seed, with a new window
offset in each epoch. The order is a keyed permutation computed on demand, so a stream of any length costs no memory
and any step can be reached at once. Order `stream` reads sequentially, as parameter-golf does, and starts over at the
end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from tiebeam.corpus.shards import TokenStream
from tiebeam.errors import BadRequest

Batch = tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]  # x, y: [B, T]


class Batches:
    """An endless iterator of x, y: [B, T] each; y is x one token later.

    With `world` ranks each rank gets its part of every batch. Together they see what a single rank would see, and
    `step` is the same number on all of them.
    """

    def __init__(
        self,
        tokens: TokenStream,
        batch: int,
        context: int,
        seed: int = 0,
        order: Literal["random", "stream"] = "random",
        *,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if batch < 1 or context < 1:
            raise BadRequest(f"batch={batch} and context={context} must both be at least 1")
        if len(tokens) < context + 1:
            raise BadRequest(
                f"context={context} needs {context + 1:,} tokens and the text has {len(tokens):,}; "
                "use a shorter context or more text"
            )
        self.tokens, self.batch, self.context, self.seed, self.order = tokens, batch, context, seed, order
        if batch % world:
            raise BadRequest(f"a batch of {batch} windows is not divisible by {world} ranks")
        self.rows = range(rank * batch // world, (rank + 1) * batch // world)
        self.step = 0
        self._windows = max(1, (len(tokens) - context) // context)  # as many as fit at every offset
        self._slack = len(tokens) - 1 - self._windows * context

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        x = np.empty((len(self.rows), self.context), np.int64)
        y = np.empty_like(x)
        for i, row in enumerate(self.rows):
            window = self._window(self.step * self.batch + row)
            x[i], y[i] = window[:-1], window[1:]
        self.step += 1
        return x, y

    def _window(self, number: int) -> npt.NDArray[np.int64]:  # [T + 1]
        if self.order == "stream":
            start = number * self.context % len(self.tokens)
            stop = min(start + self.context + 1, len(self.tokens))
            window = self.tokens.read(start, stop)
            rest = self.context + 1 - len(window)
            return np.concatenate((window, self.tokens.read(0, rest))) if rest else window
        epoch, index = divmod(number, self._windows)
        offset = _mix(self.seed, epoch, 0) % (self._slack + 1)
        start = offset + _permuted(index, self._windows, _mix(self.seed, epoch, 1)) * self.context
        return self.tokens.read(start, start + self.context + 1)

    def state(self) -> dict[str, int | str]:
        """The step, and everything else that decides the batches, so that `restore` can check it."""
        return {
            "step": self.step,
            "batch": self.batch,
            "context": self.context,
            "seed": self.seed,
            "order": self.order,
            "tokens": len(self.tokens),
        }

    def restore(self, state: dict[str, int | str]) -> None:
        here = self.state()
        for name, value in state.items():
            if name != "step" and here.get(name) != value:
                raise BadRequest(
                    f"the saved state has {name}={value} and this run has {name}={here.get(name)}; use the same value"
                )
        self.step = int(state["step"])


def every_target(tokens: TokenStream, batch: int, context: int) -> Iterator[Batch]:
    """Read the whole stream once, in order. Each token but the first is a target once; the last batches are smaller."""
    targets = len(tokens) - 1
    whole = max(0, targets) // context
    for first in range(0, whole, batch):
        rows = min(batch, whole - first)
        span = tokens.read(first * context, (first + rows) * context + 1).astype(np.int64)
        yield span[:-1].reshape(rows, context), span[1:].reshape(rows, context)
    if targets > whole * context:
        span = tokens.read(whole * context, len(tokens)).astype(np.int64)
        yield span[None, :-1], span[None, 1:]


def _mix(*values: int) -> int:
    """A well-mixed 64-bit number from a few integers (the finalizer of splitmix64)."""
    mixed = 0
    for value in values:
        mixed = (mixed + value + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        mixed ^= mixed >> 31
    return mixed


def _permuted(index: int, count: int, key: int) -> int:
    """Position of `index` in a keyed permutation of range(count): a four-round Feistel network with cycle walking."""
    half = max(1, ((count - 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:
        left, right = index >> half, index & low
        for turn in range(4):
            left, right = right, left ^ (_mix(key, turn, right) & low)
        index = left << half | right
        if index < count:
            return index
