"""From a corpus to a run directory that is an ordinary checkpoint."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebeam.errors import MissingExtra
from tiebeam.train.rates import Rates
from tiebeam.train.result import Evaluation, Result
from tiebeam.train.rundir import RunDirectory
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


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiebeam.train' has no attribute {name!r}")
    try:
        value = getattr(import_module(_HOME[name]), name)
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise MissingExtra("training", "train") from missing
    globals()[name] = value
    return value
