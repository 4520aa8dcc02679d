"""From a corpus to a run directory that is an ordinary checkpoint."""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader
from tiebeam.train.learning_rates import Rates
from tiebeam.train.result import Evaluation, Result
from tiebeam.train.run_directory import RunDirectory
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import Settings

if TYPE_CHECKING:
    from tiebeam.train.distribution import Distribution
    from tiebeam.train.evaluation import evaluate
    from tiebeam.train.loop import train
    from tiebeam.train.optimizers import Optimizers, make_optimizers

# Loaded on first use: a run on MLX shares everything above with one on torch, and needs no torch.
_HOME = {
    "Distribution": "tiebeam.train.distribution",
    "Optimizers": "tiebeam.train.optimizers",
    "evaluate": "tiebeam.train.evaluation",
    "make_optimizers": "tiebeam.train.optimizers",
    "train": "tiebeam.train.loop",
}

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

__getattr__ = loader("tiebeam.train", _HOME, torch_for="training")
