"""Compare tied and untied models: train both on one text and report the difference with its uncertainty.

`compare` trains the runs, collects their metrics and writes report.html, report.json and figures/.
"""

from tiebeam.compare.comparison import Comparison, compare
from tiebeam.compare.train_runs import Interrupted
from tiebeam.compare.variants import VARIANTS, parse_variants, suite

__all__ = ["VARIANTS", "Comparison", "Interrupted", "compare", "parse_variants", "suite"]
