"""Fit models without layers to the bigrams of a text: token -> E -> (a map) -> W -> logits.

Every form predicts the next token from the current one alone, so all are compared by the same held-out bits per
token, next to the unigram and a smoothed bigram table. The forms differ in what the direct path can be: E.E^T is
symmetric and positive semidefinite, E.diag(+-1).E^T is symmetric, E.M.E^T has rank d within the span of E, E.W has
rank d. The fit is full-batch Adam on the counts with early stopping on a dev split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.lens.bigram_counts import Bigrams

Array = NDArray[np.float32]
FORMS = ("EE", "EDE", "EME", "EMLPE", "EW")
NAMES = {"EE": "E.Eᵀ", "EDE": "E.diag(±1).Eᵀ", "EME": "E.M.Eᵀ", "EMLPE": "E.MLP.Eᵀ", "EW": "E.W"}


@dataclass(frozen=True, slots=True)
class Fit:
    """One fitted form: held-out bits per token, parameters, and the step that was best on the dev split."""

    name: str
    bits: float
    params: int
    steps: int = 0

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def fit(
    form: str, train: Bigrams, dev: Bigrams, test: Bigrams, dim: int, steps: int = 400, seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> Fit:  # fmt: skip
    """Fit one form at width `dim` on `train`, stop on `dev`, measure on `test`."""
    assert form in FORMS, form
    weights = _start(form, train.vocab, dim, np.random.default_rng(seed))
    counts = train.dense()
    moments = {k: (np.zeros_like(w), np.zeros_like(w)) for k, w in weights.items()}
    best, best_weights, best_step = float("inf"), weights, 0
    for step in range(1, steps + 1):
        learning_rate = 0.03 * min(1.0, step / 20) * (1 - step / (steps + 1))
        for key, gradient in _gradients(form, weights, counts).items():
            first, second = moments[key]
            first += 0.1 * (gradient - first)
            second += 0.01 * (gradient * gradient - second)
            scale = learning_rate * np.sqrt(1 - 0.99**step) / (1 - 0.9**step)
            weights[key] -= np.float32(scale) * first / (np.sqrt(second) + np.float32(1e-12))
        if step % 20 == 0 or step == steps:
            loss = bits(dev, _log_probabilities(form, weights))
            if progress:
                progress(step, loss)
            if loss < best:
                best, best_weights, best_step = loss, {k: w.copy() for k, w in weights.items()}, step
    params = sum(w.size for w in weights.values())
    return Fit(NAMES[form], bits(test, _log_probabilities(form, best_weights)), params, best_step)


def bits(counts: Bigrams, log_probabilities: Array) -> float:  # [V, V] -> bits per token
    """Cross-entropy of the counted pairs, in float64."""
    nats = -np.dot(counts.count.astype(np.float64), log_probabilities[counts.first, counts.second].astype(np.float64))
    return float(nats / max(1, counts.total) / np.log(2))


def _start(form: str, vocab: int, dim: int, random: np.random.Generator) -> dict[str, Array]:
    def normal(*shape: int, std: float) -> Array:
        return (std * random.standard_normal(shape)).astype(np.float32)

    weights = {"E": normal(vocab, dim, std=0.5 / dim**0.5)}
    if form == "EME":
        weights["M"] = normal(dim, dim, std=dim**-0.5)
    elif form == "EMLPE":
        weights |= {"A": normal(dim, 2 * dim, std=dim**-0.5), "B": normal(2 * dim, dim, std=(2 * dim) ** -0.5)}
    elif form == "EW":
        weights["W"] = normal(vocab, dim, std=0.5 / dim**0.5)
    return weights


def _signs(dim: int) -> Array:
    return np.where(np.arange(dim) % 2, -1, 1).astype(np.float32)


def _hidden(form: str, w: dict[str, Array]) -> Array:  # -> [V, D], the input of the output table
    if form == "EDE":
        return w["E"] * _signs(w["E"].shape[1])
    hidden: Array = w["E"]
    if form == "EME":
        hidden = w["E"] @ w["M"]
    elif form == "EMLPE":
        hidden = np.maximum(w["E"] @ w["A"], 0) @ w["B"]
    return hidden


def _log_probabilities(form: str, w: dict[str, Array]) -> Array:  # -> [V, V]
    z = _hidden(form, w) @ w.get("W", w["E"]).T
    z -= z.max(axis=1, keepdims=True)
    z -= np.log(np.exp(z).sum(axis=1, keepdims=True))
    return z


def _gradients(form: str, w: dict[str, Array], counts: Array) -> dict[str, Array]:
    """Gradients of the mean cross-entropy over all pairs."""
    E, H = w["E"], _hidden(form, w)  # [V, D], [V, D]
    W = w.get("W", E)
    z: Array = H @ W.T  # [V, V]
    z -= z.max(axis=1, keepdims=True)
    np.exp(z, out=z)
    rows = counts.sum(axis=1, keepdims=True)
    z *= rows / z.sum(axis=1, keepdims=True)
    z -= counts
    z /= rows.sum()
    dH: Array = np.matmul(z, W)
    dW: Array = np.matmul(z.T, H)
    if form == "EW":
        return {"E": dH, "W": dW}
    if form == "EE":
        return {"E": dH + dW}
    if form == "EDE":
        return {"E": dH * _signs(E.shape[1]) + dW}
    if form == "EME":
        return {"E": dH @ w["M"].T + dW, "M": E.T @ dH}
    inner = np.maximum(E @ w["A"], 0)  # [V, 2D]
    d_inner = (dH @ w["B"].T) * (inner > 0)
    return {"E": d_inner @ w["A"].T + dW, "A": E.T @ d_inner, "B": inner.T @ dH}


def unigram(train: Bigrams, test: Bigrams) -> Fit:
    """The baseline without context: token frequencies, with add-half smoothing."""
    counts = np.bincount(train.second, weights=train.count, minlength=train.vocab) + 0.5
    log_p = np.log(counts / counts.sum())
    return Fit("unigram", float(-(test.count * log_p[test.second]).sum() / max(1, test.total) / np.log(2)), train.vocab)


def smoothed_bigram(train: Bigrams, dev: Bigrams, test: Bigrams) -> Fit:
    """The reference for all forms: the bigram table with Kneser-Ney smoothing, its discount chosen on `dev`."""
    table = train.dense().astype(np.float64)
    rows = table.sum(axis=1, keepdims=True)
    kinds = (table > 0).sum(axis=1, keepdims=True)
    followers = (table > 0).sum(axis=0) + 0.5
    fallback = (followers / followers.sum())[None]  # continuation counts: in how many contexts a token occurs

    def log_table(discount: float) -> Array:
        known = np.where(
            rows > 0, (np.maximum(table - discount, 0) + discount * kinds * fallback) / np.maximum(rows, 1), fallback
        )
        return np.asarray(np.log(np.maximum(known, 1e-12)), np.float32)

    discount = min((d / 20 for d in range(4, 20)), key=lambda d: bits(dev, log_table(d)))
    return Fit("smoothed bigram", bits(test, log_table(discount)), len(train.count))
