"""tiebeam: the toolkit for the two vocabulary matrices of a language model.

The public names load on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebeam._version import __version__

if TYPE_CHECKING:
    from tiebeam.budget import Budget, price
    from tiebeam.checkpoint import Checkpoint, open_checkpoint
    from tiebeam.errors import TiebeamError
    from tiebeam.inspection import Report, inspect
    from tiebeam.pair import Matrix, Pair, Tie

_HOME = {
    "Budget": "tiebeam.budget",
    "Checkpoint": "tiebeam.checkpoint",
    "Matrix": "tiebeam.pair",
    "Pair": "tiebeam.pair",
    "Report": "tiebeam.inspection",
    "Tie": "tiebeam.pair",
    "TiebeamError": "tiebeam.errors",
    "inspect": "tiebeam.inspection",
    "open_checkpoint": "tiebeam.checkpoint",
    "price": "tiebeam.budget",
}

__all__ = [
    "Budget",
    "Checkpoint",
    "Matrix",
    "Pair",
    "Report",
    "Tie",
    "TiebeamError",
    "__version__",
    "inspect",
    "open_checkpoint",
    "price",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiebeam' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
