"""Refine the rows of the table on the hidden states that the calibration stored. No layer is run.

The closed form measures every head row in one metric, the mean of h h' over all positions. The true cost of a wrong
logit depends on where the token is likely: KL weighs each position by its own probability. With both maps fixed, the
mean KL over the stored hidden states is a smooth function of the rows alone, so a few passes of Adam lower it:

    mean_t KL(softmax(W h_t) || softmax(S B h_t))  +  1/2 sum_v b^2 f_v |e_v - s_v A|^2

The second term is the cost of the embedding (f_v: how often v is read), as in the closed form. Only the most likely
rows are trained, and the softmax is over them: they hold nearly all of the probability, and the others keep the
closed form. The pass with the lowest cost on held-out text wins; if none is better, the closed form stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.families import Scales

Array = NDArray[Any]

ROWS = 12288  # rows that are trained, the most likely first
PASSES = 4  # over the stored hidden states
LEARNING_RATE = 3e-3  # times the root mean square of the trained rows; falls to zero
_BATCH = 512  # positions per step
_BETAS = 0.9, 0.98


@dataclass(frozen=True)
class HeadProblem:
    """What n rows of the table are trained on: the same rows of E and W, their weight as embedding, the maps A, B."""

    E: Array  # [n, D]
    W: Array  # [n, D]
    read: Array  # [n]: b^2 times how often each token is read
    A: Array  # [R, D]
    B: Array  # [R, D]
    fixed: Array  # [n], bool: rows that are stored exactly
    scales: Scales

    def cost(self, S: Array, hidden: Sequence[Array]) -> float:  # [n, R], [t, D] each
        """KL of the head plus the cost of the embedding, in nats per token."""
        total, positions = 0.0, 0
        for h in _batches(hidden):
            p, q, _ = self._predictions(S, h)
            total += float((np.exp(p) * (p - q)).sum(dtype=np.float64))
            positions += len(h)
        wrong = self.E - S @ self.A
        wrong[self.fixed] = 0.0
        return total / positions + 0.5 * float(self.read @ np.einsum("nd,nd->n", wrong, wrong, dtype=np.float64))

    def gradient(self, S: Array, h: Array) -> Array:  # [n, R], [t, D] -> [n, R]
        p, q, slope = self._predictions(S, h)
        np.exp(p, out=p)
        np.exp(q, out=q)
        q -= p
        q *= slope
        q /= len(h)
        found: Array = q.T @ (h @ self.B.T)
        found += (self.read[:, None].astype(np.float32) * (S @ self.A - self.E)) @ self.A.T
        found[self.fixed] = 0.0
        return found

    def _predictions(self, S: Array, h: Array) -> tuple[Array, Array, Array | float]:  # [t, n] each
        """Log-probabilities of the original and of the joint head, and the slope of the latter's logits."""
        z = h @ self.W.T
        y = (h @ self.B.T) @ S.T
        y[:, self.fixed] = z[:, self.fixed]
        slope: Array | float = self.scales.logits
        z, y = z * slope, y * slope
        if self.scales.softcap is not None:
            z = self.scales.softcap * np.tanh(z / self.scales.softcap)
            t = np.tanh(y / self.scales.softcap)
            y, slope = self.scales.softcap * t, slope * (1 - t * t)
        return _log_softmax(z), _log_softmax(y), slope


def refine(
    problem: HeadProblem,
    S: Array,  # [n, R]
    hidden: Sequence[Array],
    held_out: Sequence[Array],
    passes: int = PASSES,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Array, float, float]:
    """The refined rows [n, R], and the cost on held-out positions before and after."""
    before = best_cost = problem.cost(S, held_out)
    best, now = S, S.copy()
    mean, square = np.zeros_like(S), np.zeros_like(S)
    rate = LEARNING_RATE * float(np.sqrt(np.mean(S * S)))
    batches = list(_batches(hidden))
    steps = passes * len(batches)
    order = np.random.default_rng(0)
    for i in range(passes):
        for j, at in enumerate(order.permutation(len(batches))):
            step = i * len(batches) + j
            g = problem.gradient(now, batches[at])
            mean += (1 - _BETAS[0]) * (g - mean)
            g *= g
            square += (1 - _BETAS[1]) * (g - square)
            np.divide(square, 1 - _BETAS[1] ** (step + 1), out=g)
            np.sqrt(g, out=g)
            g += 1e-12
            np.divide(mean, g, out=g)
            g *= rate * (1 - step / steps) / (1 - _BETAS[0] ** (step + 1))
            now -= g
            progress(step + 1, steps)
        cost = problem.cost(now, held_out)
        if cost < best_cost:
            best, best_cost = now.copy(), cost
    return best, before, best_cost


def _log_softmax(x: Array) -> Array:
    """Over the last axis, in place and in float32: these are the largest arrays here."""
    x -= x.max(axis=1, keepdims=True)
    x -= np.log(np.exp(x).sum(axis=1, keepdims=True))
    return x


def _batches(hidden: Sequence[Array]) -> list[Array]:
    return [h[at : at + _BATCH] for h in hidden for at in range(0, len(h), _BATCH)]
