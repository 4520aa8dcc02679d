"""Logits -> the next token: greedy, or drawn with temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiebeam.decode.numpy.ops import Array, softmax
from tiebeam.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Sampling:
    """temperature 0 is greedy. top-k cuts first, then top-p, then one of what is left is drawn."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise BadRequest(f"the temperature must be 0 (greedy) or above; it is {self.temperature}")
        if self.top_k is not None and self.top_k < 1:
            raise BadRequest(f"top-k must be at least 1; it is {self.top_k}")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise BadRequest(f"top-p must be above 0 and at most 1; it is {self.top_p}")
        if self.temperature == 0 and (self.top_k or self.top_p):
            raise BadRequest("greedy always takes the likeliest token; top-k and top-p need a temperature above 0")
        if self.seed is not None and self.seed < 0:
            raise BadRequest(f"the seed must not be negative; it is {self.seed}")

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def choose(self, logits: Array, random: np.random.Generator) -> int:  # [V] -> id
        if self.temperature == 0:
            return int(np.argmax(logits))
        ids, p = self.distribution(logits)
        return int(ids[np.searchsorted(np.cumsum(p), random.random() * p.sum(), side="right").clip(max=len(p) - 1)])

    def distribution(self, logits: Array) -> tuple[Array, Array]:  # [V] -> ids [C], probabilities [C]
        """What a token is drawn from, likeliest first."""
        z = logits.astype(np.float64) / self.temperature
        if self.top_k is not None and self.top_k < len(z):
            ids = np.argpartition(z, -self.top_k)[-self.top_k :]
        else:
            ids = np.arange(len(z))
        ids = ids[np.argsort(-z[ids], kind="stable")]
        p = softmax(z[ids])
        if self.top_p is not None:
            keep = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1  # the fewest that reach top_p
            ids, p = ids[:keep], p[:keep]
        return ids, p / p.sum()
