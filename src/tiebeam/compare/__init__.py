"""Tied against untied, side by side on one text, with a report that claims no more than the runs show."""

from tiebeam.compare.comparison import Comparison, compare
from tiebeam.compare.train_runs import Interrupted
from tiebeam.compare.variants import VARIANTS, parse_variants

__all__ = ["VARIANTS", "Comparison", "Interrupted", "compare", "parse_variants"]
