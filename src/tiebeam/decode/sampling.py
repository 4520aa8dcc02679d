"""Choose the next token from logits: greedy, or sampled with temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tiebeam.decode.numpy.ops import Array, softmax
from tiebeam.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to choose the next token. Temperature 0 is greedy. top-k applies before top-p."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if not 0.0 <= self.temperature < float("inf"):
            raise BadRequest(f"temperature={self.temperature} must be 0 (greedy) or above")
        if self.top_k is not None and self.top_k < 1:
            raise BadRequest(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0.0 < self.top_p <= 1.0:
            raise BadRequest(f"top_p={self.top_p} must be above 0 and at most 1")
        if self.temperature == 0 and (self.top_k or self.top_p):
            raise BadRequest("top_k and top_p need a temperature above 0; temperature=0 takes the likeliest token")
        if self.seed is not None and self.seed < 0:
            raise BadRequest(f"seed={self.seed} must not be negative")

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)

    def choose(self, logits: Array, random: np.random.Generator) -> int:  # [V] -> id
        if self.temperature == 0:
            return int(np.argmax(logits))
        ids, p = self.distribution(logits)
        return int(ids[np.searchsorted(np.cumsum(p), random.random() * p.sum(), side="right").clip(max=len(p) - 1)])

    def distribution(self, logits: Array) -> tuple[Array, Array]:  # [V] -> ids [C], probabilities [C]
        """The candidates and their probabilities, likeliest first."""
        z = logits.astype(np.float64) / self.temperature
        if self.top_k is not None and self.top_k < len(z):
            ids = np.argpartition(z, -self.top_k)[-self.top_k :]
        else:
            ids = np.arange(len(z))
        ids = ids[np.argsort(-z[ids], kind="stable")]
        p = softmax(z[ids])
        if self.top_p is not None:
            keep = int(np.searchsorted(np.cumsum(p), self.top_p)) + 1  # the fewest whose sum reaches top_p
            ids, p = ids[:keep], p[:keep]
        return ids, p / p.sum()
