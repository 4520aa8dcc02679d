"""tiebeam: the toolkit for the two vocabulary matrices of a language model.

The public names load on first use, so that importing the package costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebeam._version import __version__

if TYPE_CHECKING:
    from tiebeam.budget import Budget, price
    from tiebeam.checkpoint import Checkpoint, open_checkpoint
    from tiebeam.decode import Decoder
    from tiebeam.doctor import Diagnosis, Finding, examine
    from tiebeam.doctor.guard import assert_saved, guard
    from tiebeam.errors import TiebeamError
    from tiebeam.inspection import Report, inspect
    from tiebeam.pair import Matrix, Pair, Tie
    from tiebeam.surgery.module import count_parameters, is_tied, tie_, untie_
    from tiebeam.surgery.tie import tie
    from tiebeam.surgery.untie import untie

_HOME = {
    "Budget": "tiebeam.budget",
    "Checkpoint": "tiebeam.checkpoint",
    "Decoder": "tiebeam.decode",
    "Diagnosis": "tiebeam.doctor",
    "Finding": "tiebeam.doctor",
    "Matrix": "tiebeam.pair",
    "Pair": "tiebeam.pair",
    "Report": "tiebeam.inspection",
    "Tie": "tiebeam.pair",
    "TiebeamError": "tiebeam.errors",
    "assert_saved": "tiebeam.doctor.guard",
    "count_parameters": "tiebeam.surgery.module",
    "examine": "tiebeam.doctor",
    "guard": "tiebeam.doctor.guard",
    "inspect": "tiebeam.inspection",
    "is_tied": "tiebeam.surgery.module",
    "open_checkpoint": "tiebeam.checkpoint",
    "price": "tiebeam.budget",
    "tie": "tiebeam.surgery.tie",
    "tie_": "tiebeam.surgery.module",
    "untie": "tiebeam.surgery.untie",
    "untie_": "tiebeam.surgery.module",
}

__all__ = [
    "Budget",
    "Checkpoint",
    "Decoder",
    "Diagnosis",
    "Finding",
    "Matrix",
    "Pair",
    "Report",
    "Tie",
    "TiebeamError",
    "__version__",
    "assert_saved",
    "count_parameters",
    "examine",
    "guard",
    "inspect",
    "is_tied",
    "open_checkpoint",
    "price",
    "tie",
    "tie_",
    "untie",
    "untie_",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'tiebeam' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
