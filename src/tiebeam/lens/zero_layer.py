"""The whole bigram study of one corpus: counts, references, five fits, bounds, and what may be said of them.

The test text is the corpus's held-out split. Where a fit stops is decided by documents carved from the training
split, so nothing is tuned on what it is judged by. What the study says in words follows from its own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.errors import BadRequest
from tiebeam.lens.bigram_counts import Bigrams, count_bigrams
from tiebeam.lens.bigrams import FORMS, NAMES, Fit, fit, smoothed_bigram, unigram
from tiebeam.lens.rank_bounds import Bounds, bounds, pmi

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus

Progress = Callable[[str, int, int], None]
MOST_TOKENS = 1 << 26  # of the training split; counts of more change no digit of the table
DENSE_VOCAB = 8192  # the fits hold a few [V, V] matrices
_DEV_PART = 20  # one document in this many


@dataclass(frozen=True, slots=True)
class ZeroLayer:
    """One study. `fits` is in the order of the forms; the references stand apart."""

    vocab: int
    dim: int
    pairs: dict[str, int]
    unigram: Fit
    smoothed: Fit
    fits: dict[str, Fit]
    bounds: Bounds
    top: int | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "vocab": self.vocab,
            "dim": self.dim,
            "top": self.top,
            "pairs": dict(self.pairs),
            "unigram": self.unigram.to_dict(),
            "smoothed_bigram": self.smoothed.to_dict(),
            "forms": {form: found.to_dict() for form, found in self.fits.items()},
            "bounds": self.bounds.to_dict(),
            "bought_back": self.bought_back,
            "says": self.says,
        }

    def rows(self) -> list[Fit]:
        """The table, worst first as the forms are listed, between its two references."""
        return [self.unigram, *self.fits.values(), self.smoothed]

    @property
    def bought_back(self) -> float | None:
        """The share of the gap between E.E^T and E.W that one d x d map closes; None where there is no gap."""
        if not {"EE", "EME", "EW"} <= set(self.fits):
            return None
        gap = self.fits["EE"].bits - self.fits["EW"].bits
        return (self.fits["EE"].bits - self.fits["EME"].bits) / gap if gap > 0.01 else None

    @property
    def says(self) -> list[str]:
        """Sentences, each backed by this run's figures and none by anyone else's."""
        said = []
        definite = self.bounds.semidefinite - self.bounds.symmetric
        symmetric = self.bounds.symmetric - self.bounds.any
        costs = (
            f"at rank {self.bounds.dim} being symmetric leaves out {100 * symmetric:.0f}% more of the table's energy, "
            f"and being positive semidefinite a further {100 * definite:.0f}%"
        )
        if definite > symmetric:
            said.append(f"In closed form definiteness costs more than symmetry: {costs}.")
        else:
            said.append(f"Here definiteness does not cost more than symmetry: {costs}.")
        if {"EE", "EDE", "EW"} <= set(self.fits):
            bits = {form: found.bits for form, found in self.fits.items()}
            freed, rest = bits["EE"] - bits["EDE"], bits["EDE"] - bits["EW"]
            said.append(
                f"In fitted bits, signs on the diagonal win {freed:.2f} of the {freed + rest:.2f} that E.Eᵀ "
                f"loses to E.W; the other {rest:.2f} come with a path that need not be symmetric."
            )
        if self.bought_back is not None:
            share = self.bought_back
            if share > 0:
                extra = self.fits["EME"].params - self.fits["EE"].params
                bought = f"{100 * share:.0f}%" if share < 0.995 else "all"
                said.append(
                    f"One d x d map ({extra:,} parameters) buys back {bought} of that gap; a second "
                    f"table costs {self.fits['EW'].params - self.fits['EE'].params:,}."
                )
            else:
                said.append("A d x d map bought nothing back in this run.")
        elif {"EE", "EME", "EW"} <= set(self.fits):
            said.append("In this run E.W was no better than E.Eᵀ, so there was no gap for a map to close.")
        return said


def study(
    corpus: Corpus, *, dim: int = 64, steps: int = 400, forms: Sequence[str] = FORMS, top: int | None = None,
    seed: int = 0, progress: Progress | None = None,
) -> ZeroLayer:  # fmt: skip
    """Count, fit and bound. `top` keeps the most frequent tokens and folds the others into one."""
    report = progress or (lambda stage, done, total: None)
    unknown = [form for form in forms if form not in FORMS]
    if unknown:
        raise BadRequest(f"{unknown[0]!r} is not a form; take any of {', '.join(FORMS)}")
    if dim < 1 or steps < 1:
        raise BadRequest(f"a fit of width {dim} over {steps} steps says nothing; both are at least 1")
    train, dev, test = counted(corpus, report)
    if top is None and corpus.vocab > DENSE_VOCAB:
        top = DENSE_VOCAB - 1
    if top is not None and top < corpus.vocab:
        kept = most_frequent(train, top)
        train, dev, test = (counts.keep(kept) for counts in (train, dev, test))
    if not train.total or not dev.total or not test.total:
        raise BadRequest("this text is too short to hold out documents of it; give more")
    if dim > train.vocab:
        raise BadRequest(f"--dim is {dim}, wider than the vocabulary of {train.vocab:,}; take less")
    fits = {}
    for form in forms:
        report(f"fitting {NAMES[form]}", 0, steps)
        fits[form] = fit(form, train, dev, test, dim, steps, seed, partial(_fitting, report, NAMES[form], steps))
    report("bounds", 0, 0)
    return ZeroLayer(
        vocab=train.vocab,
        dim=dim,
        pairs={"train": train.total, "dev": dev.total, "test": test.total},
        unigram=unigram(train, test),
        smoothed=smoothed_bigram(train, dev, test),
        fits=fits,
        bounds=bounds(pmi(train), dim),
        top=top,
    )


def _fitting(report: Progress, name: str, steps: int, step: int, loss: float) -> None:
    report(f"fitting {name}", step, steps)


def counted(corpus: Corpus, report: Progress | None = None) -> tuple[Bigrams, Bigrams, Bigrams]:
    """Bigrams to learn from, to stop by and to judge by; no document is in two of them."""
    if report:
        report("counting", 0, 0)
    tokens = np.asarray(corpus.train[:MOST_TOKENS])
    held = held_back(tokens, corpus.boundary)
    learn, stop = (np.where(held, *sides) for sides in ((corpus.boundary, tokens), (tokens, corpus.boundary)))
    judge = np.asarray(corpus.val[:MOST_TOKENS])
    one, two, three = (count_bigrams(t, corpus.vocab, corpus.boundary) for t in (learn, stop, judge))
    return one, two, three


def held_back(tokens: NDArray[Any], boundary: int) -> NDArray[np.bool_]:  # [N] -> [N]
    """Every twentieth document; of fewer than forty documents, the end of the text."""
    document = np.cumsum(tokens == boundary)
    if len(tokens) and document[-1] >= 2 * _DEV_PART:
        return np.asarray(document % _DEV_PART == _DEV_PART - 1)
    return np.arange(len(tokens)) >= len(tokens) - len(tokens) // _DEV_PART


def most_frequent(counts: Bigrams, count: int) -> NDArray[np.int64]:
    """Tokens by how often they begin a pair, most frequent first; only tokens that occur."""
    if count < 1:
        raise BadRequest(f"--top is {count}; keep at least one token")
    seen = np.bincount(counts.first, weights=counts.count, minlength=counts.vocab)
    order = np.argsort(-seen, kind="stable")[:count]
    return order[seen[order] > 0]
