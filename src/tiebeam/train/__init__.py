"""Train a small GPT on a corpus; the run directory is an ordinary checkpoint.

`train(Settings(steps=100), corpus, Path("run"))` runs on torch or MLX, on one rank or several. Importing this package
needs neither.
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.evaluation import evaluate
from tiebeam.train.learning_rates import LearningRates
from tiebeam.train.loop import train
from tiebeam.train.result import Evaluation, Result
from tiebeam.train.run_directory import RunDirectory
from tiebeam.train.schedule import Budget, Schedule
from tiebeam.train.settings import Settings

if TYPE_CHECKING:
    from tiebeam.train.optimizers import Optimizers, make_optimizers

__all__ = [
    "Budget",
    "Distribution",
    "Evaluation",
    "LearningRates",
    "Optimizers",
    "Result",
    "RunDirectory",
    "Schedule",
    "Settings",
    "evaluate",
    "make_optimizers",
    "train",
]

# Loaded on first use, because they need torch.
_HOMES = {"Optimizers": "tiebeam.train.optimizers", "make_optimizers": "tiebeam.train.optimizers"}
__getattr__ = loader("tiebeam.train", _HOMES, torch_for="training")
