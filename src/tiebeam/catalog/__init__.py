"""Who ties: known models, each with its source, how sure that is, and what speaks against it."""

from tiebeam.catalog.models import KnownModel, find, known_models, matching, named
from tiebeam.catalog.verdict import BANDS, Band, Verdict, neighbours, verdict

__all__ = [
    "BANDS",
    "Band",
    "KnownModel",
    "Verdict",
    "find",
    "known_models",
    "matching",
    "named",
    "neighbours",
    "verdict",
]
