"""What other heads, or other hidden states, do to the predictions: nats, KL and the next token, at every position.

Rows of the head are taken a few thousand at a time. For each such part the logits of the original are computed once,
and the logits of every variant beside them; only sums over the vocabulary are kept. So no [positions, vocabulary]
array exists, and no variant of the matrix exists as a whole. With p the original's probabilities and d the change of a
logit, the sums of p d and of p e^d over the vocabulary give everything:

    KL = log(sum p e^d) - sum p d          change in nats = log(sum p e^d) - d_target
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from tiebeam.decode.engine import Engine, Ids
from tiebeam.decode.numpy.ops import softcap
from tiebeam.errors import UnreadableInput
from tiebeam.surgery.quantize.rounding import Array

_LOGITS = 1 << 22  # logits of the original in memory at a time
_MOST_ROWS, _FEWEST_ROWS = 2048, 64
_POSITIONS = 256  # of one product
_LARGEST_CHANGE = 80.0  # e^80 is still a float32


@dataclass
class Effect:
    """At each of the first n positions, for hidden states `states` [n, D]: the sums, and from them the effect."""

    states: Array
    shifted: Array = field(init=False)  # [n] sum of p e^d
    change: Array = field(init=False)  # [n] sum of p d
    target: Array = field(init=False)  # [n] d of the target
    top: Array = field(init=False)  # [n] largest logit
    top_id: Ids = field(init=False)
    nats: Array = field(init=False)  # [n] change of the loss
    kl: Array = field(init=False)
    same: Array = field(init=False)  # [n] bool

    def __post_init__(self) -> None:
        n = len(self.states)
        self.shifted, self.change, self.target = np.zeros(n), np.zeros(n), np.zeros(n)
        self.top, self.top_id = np.full(n, -np.inf, np.float32), np.zeros(n, np.int64)

    def close(self, total: Array, top_id: Ids) -> None:
        n = len(self.states)
        log_shift = np.log(self.shifted / total[:n])
        self.kl = np.maximum(log_shift - self.change / total[:n], 0.0)
        self.nats = log_shift - self.target
        self.same = self.top_id == top_id[:n]


@dataclass(frozen=True)
class HeadVariant:
    """A head, given as a function from rows start:stop to their numbers, and the hidden states it is used with."""

    rows: Callable[[int, int], Array]
    effects: Sequence[Effect]


def measure_heads(
    engine: Engine,
    states: Array,
    targets: Ids,
    variants: Sequence[HeadVariant],
    progress: Callable[[int], None] = lambda rows: None,
) -> Array:  # [N, D], [N] -> [N]
    """Fill the effects of `variants`; returns the original's nats at every position. `progress` gets rows done."""
    head = engine.head.rows
    assert isinstance(head, np.ndarray)
    V, N = len(head), len(states)
    logits = _logits_of(engine, states)
    lse, top_id, nats = _original(logits, head, states, targets)
    step = max(_FEWEST_ROWS, min(_MOST_ROWS, _LOGITS // N))
    total = np.zeros(N)
    with ThreadPoolExecutor(1) as ahead:  # the next variant is rounded while this one is multiplied
        for start in range(0, V, step):
            stop = min(start + step, V)
            before = np.concatenate([logits(states[part], head[start:stop]) for part in _parts(N)])  # [N, r]
            p = np.exp(before - lse[:, None].astype(np.float32))
            total += p.sum(axis=1, dtype=np.float64)
            waiting = ahead.submit(variants[0].rows, start, stop) if variants else None
            for i, variant in enumerate(variants):
                assert waiting is not None
                rows = waiting.result()
                waiting = ahead.submit(variants[i + 1].rows, start, stop) if i + 1 < len(variants) else None
                for effect in variant.effects:
                    for part in _parts(len(effect.states)):
                        after = logits(effect.states[part], rows)
                        _add(effect, part, after, before[part], p[part], targets[part], start)
            progress(stop - start)
    for variant in variants:
        for effect in variant.effects:
            effect.close(total, top_id)
    return nats


def _add(effect: Effect, part: slice, after: Array, before: Array, p: Array, targets: Ids, start: int) -> None:
    """Add one part of the vocabulary at some positions; `after` [t, r] is overwritten."""
    best = after.argmax(axis=1)
    at = np.arange(len(after))
    top = after[at, best]
    better = top > effect.top[part]
    effect.top[part] = np.where(better, top, effect.top[part])
    effect.top_id[part] = np.where(better, best + start, effect.top_id[part])
    after -= before
    np.minimum(after, _LARGEST_CHANGE, out=after)
    effect.change[part] += np.einsum("tv,tv->t", p, after)
    inside = np.flatnonzero((targets >= start) & (targets < start + after.shape[1]))
    effect.target[part.start + inside] = after[inside, targets[inside] - start]
    np.exp(after, out=after)
    effect.shifted[part] += np.einsum("tv,tv->t", p, after)


def _original(
    logits: Callable[[Array, Array], Array], head: Array, states: Array, targets: Ids
) -> tuple[Array, Ids, Array]:
    """log-sum-exp [N], the most likely token [N] and the loss in nats [N] of the original."""
    N = len(states)
    top, top_id, total = np.full(N, -np.inf), np.zeros(N, np.int64), np.zeros(N)
    right = np.zeros(N)
    for start in range(0, len(head), _MOST_ROWS):
        W = head[start : start + _MOST_ROWS]
        for part in _parts(N):
            found = logits(states[part], W)
            at, best = np.arange(len(found)), found.argmax(axis=1)
            inside = np.flatnonzero((targets[part] >= start) & (targets[part] < start + len(W)))
            right[part.start + inside] = found[inside, targets[part][inside] - start]
            new = np.maximum(top[part], found[at, best])
            top_id[part] = np.where(found[at, best] > top[part], best + start, top_id[part])
            found -= new[:, None].astype(np.float32)
            np.exp(found, out=found)
            scaled = np.exp(np.where(np.isfinite(top[part]), top[part] - new, -np.inf))
            total[part] = total[part] * scaled + found.sum(axis=1, dtype=np.float64)
            top[part] = new
    lse = np.log(total) + top
    return lse, top_id, lse - right


def _logits_of(engine: Engine, states: Array) -> Callable[[Array, Array], Array]:
    """(hidden states, rows of a head) -> logits, as the engine computes them; refuses a head that does more."""
    scales, head = engine.spec.scales, engine.head.rows

    def logits(h: Array, rows: Array) -> Array:  # [t, D], [r, D] -> [t, r]
        found: Array = h @ rows.T
        if scales.logits != 1.0:
            found *= scales.logits
        return softcap(found, scales.softcap) if scales.softcap is not None else found

    expected = engine.unembed(states[:2])
    if engine.head.map is not None or not np.allclose(
        logits(states[:2], np.asarray(head)), expected, rtol=1e-3, atol=1e-3 * float(np.abs(expected).max())
    ):
        raise UnreadableInput(f"the head of {engine.source} is not one plain matrix; its rounding cannot be measured")
    return logits


def _parts(positions: int) -> list[slice]:
    return [slice(at, min(at + _POSITIONS, positions)) for at in range(0, positions, _POSITIONS)]
