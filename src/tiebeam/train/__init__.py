"""From a corpus to a run directory that is an ordinary checkpoint."""

from tiebeam.train.distribution import Distribution
from tiebeam.train.evaluation import Evaluation, evaluate
from tiebeam.train.loop import Result, train
from tiebeam.train.optimizers import Optimizers, Rates, make_optimizers
from tiebeam.train.rundir import RunDirectory
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import Settings

__all__ = [
    "Budget",
    "Distribution",
    "Evaluation",
    "Optimizers",
    "Rates",
    "Result",
    "RunDirectory",
    "Schedule",
    "Settings",
    "evaluate",
    "make_optimizers",
    "train",
]
