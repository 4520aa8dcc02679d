"""The bigram study of a corpus: counts, reference models, five fitted forms, bounds, and conclusions.

The test text is the corpus's held-out split. Early stopping uses documents taken from the training split, so nothing
is tuned on the test text. The conclusions follow from the numbers of this study.
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
MOST_TOKENS = 1 << 26  # of the training split; more would not change the results
DENSE_VOCAB = 8192  # the fits need a few [V, V] matrices
_DEV_EVERY = 20  # every twentieth document


@dataclass(frozen=True, slots=True)
class ZeroLayer:
    """The results of one study. `fits` is in the order of the forms."""

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
            "bought_back": self.gap_closed,
            "says": self.conclusions,
        }

    def rows(self) -> list[Fit]:
        """All rows of the table: the forms between the two references."""
        return [self.unigram, *self.fits.values(), self.smoothed]

    @property
    def unconverged(self) -> list[str]:
        """Forms that are worse than the unigram: the fit needs more steps."""
        return [form for form, found in self.fits.items() if found.bits > self.unigram.bits]

    @property
    def gap_closed(self) -> float | None:
        """The share of the gap between E.E^T and E.W that one d x d map closes; None without a gap."""
        if not {"EE", "EME", "EW"} <= set(self.fits):
            return None
        gap = self.fits["EE"].bits - self.fits["EW"].bits
        return (self.fits["EE"].bits - self.fits["EME"].bits) / gap if gap > 0.01 else None

    @property
    def conclusions(self) -> list[str]:
        """Sentences that follow from the numbers of this study. Fits that did not converge get none."""
        return [self._bounds_sentence(), *self._fit_sentences()]

    def _bounds_sentence(self) -> str:
        b = self.bounds
        definite, symmetric = b.semidefinite - b.symmetric, b.symmetric - b.any
        verdict = "costs more than" if definite > symmetric else "does not cost more than"
        return (
            f"Definiteness {verdict} symmetry: at rank {b.dim} a symmetric matrix loses {100 * symmetric:.0f}% more of "
            f"the table's energy than any matrix, and a positive semidefinite one a further {100 * definite:.0f}%."
        )

    def _fit_sentences(self) -> list[str]:
        fits, sentences = self.fits, []
        if set(self.unconverged) & {"EE", "EDE", "EME", "EW"}:
            return []
        if {"EE", "EDE", "EW"} <= set(fits):
            for form in ("EDE", "EW"):
                difference = fits[form].bits - fits["EE"].bits
                sentences.append(
                    f"{NAMES[form]} reaches {fits[form].bits:.2f} bits per token, {difference:+.2f} against "
                    f"{NAMES['EE']} ({fits['EE'].bits:.2f})."
                )
        if self.gap_closed is not None:
            map_size, table = (fits[form].params - fits["EE"].params for form in ("EME", "EW"))
            closes = "nothing" if self.gap_closed <= 0 else f"{100 * min(1.0, self.gap_closed):.0f}%"
            sentences.append(
                f"One d x d map ({map_size:,} parameters) closes {closes} of the gap between {NAMES['EE']} and "
                f"{NAMES['EW']}; a second table has {table:,}."
            )
        elif {"EE", "EME", "EW"} <= set(fits):
            sentences.append(f"{NAMES['EW']} is no better than {NAMES['EE']} here, so a map has no gap to close.")
        return sentences


def study(
    corpus: Corpus, *, dim: int = 64, steps: int = 400, forms: Sequence[str] = FORMS, top: int | None = None,
    seed: int = 0, progress: Progress | None = None,
) -> ZeroLayer:  # fmt: skip
    """Count the bigrams of a corpus, fit the forms, compute the bounds.

    `top` keeps the most frequent tokens and maps all others to one.

        study(build_corpus(["book.txt"]), dim=32).conclusions
    """
    report = progress or (lambda stage, done, total: None)
    unknown = [form for form in forms if form not in FORMS]
    if unknown:
        raise BadRequest(f"{unknown[0]!r} is not a form; the forms are {', '.join(FORMS)}")
    if dim < 1 or steps < 1:
        raise BadRequest(f"dim={dim} and steps={steps} must both be at least 1")
    train, dev, test = count_splits(corpus, report)
    if top is None and corpus.vocab > DENSE_VOCAB:
        top = DENSE_VOCAB - 1
    if top is not None and top < corpus.vocab:
        kept = most_frequent(train, top)
        train, dev, test = (counts.keep(kept) for counts in (train, dev, test))
    if not train.total or not dev.total or not test.total:
        raise BadRequest("the text is too short to hold out documents; give more text")
    if dim > train.vocab:
        raise BadRequest(f"dim={dim} exceeds the vocabulary of {train.vocab:,}")
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


def count_splits(corpus: Corpus, report: Progress | None = None) -> tuple[Bigrams, Bigrams, Bigrams]:
    """Bigrams of the train, dev and test splits; no document is in two of them."""
    if report:
        report("counting bigrams", 0, 0)
    tokens = np.asarray(corpus.train[:MOST_TOKENS])
    dev = dev_mask(tokens, corpus.boundary)
    splits = np.where(dev, corpus.boundary, tokens), np.where(dev, tokens, corpus.boundary), corpus.val[:MOST_TOKENS]
    train, stop, test = (count_bigrams(np.asarray(split), corpus.vocab, corpus.boundary) for split in splits)
    return train, stop, test


def dev_mask(tokens: NDArray[Any], boundary: int) -> NDArray[np.bool_]:  # [N] -> [N]
    """True in every twentieth document; with fewer than forty documents, at the end of the text."""
    document = np.cumsum(tokens == boundary)
    if len(tokens) and document[-1] >= 2 * _DEV_EVERY:
        return np.asarray(document % _DEV_EVERY == _DEV_EVERY - 1)
    return np.arange(len(tokens)) >= len(tokens) - len(tokens) // _DEV_EVERY


def most_frequent(counts: Bigrams, count: int) -> NDArray[np.int64]:
    """The tokens that start most pairs, most frequent first; only tokens that occur."""
    if count < 1:
        raise BadRequest(f"top={count} must be at least 1")
    seen = np.bincount(counts.first, weights=counts.count, minlength=counts.vocab)
    order = np.argsort(-seen, kind="stable")[:count]
    return order[seen[order] > 0]
