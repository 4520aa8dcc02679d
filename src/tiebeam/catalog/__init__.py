"""Known models: whether they tie, their sizes, the sources, and how reliable those are."""

from tiebeam.catalog.known_models import KnownModel, find, known_models, matching, named
from tiebeam.catalog.who_ties import BANDS, SIZES, Band, Verdict, neighbours, verdict, verdict_by_size, within_sizes

__all__ = [
    "BANDS",
    "SIZES",
    "Band",
    "KnownModel",
    "Verdict",
    "find",
    "known_models",
    "matching",
    "named",
    "neighbours",
    "verdict",
    "verdict_by_size",
    "within_sizes",
]
