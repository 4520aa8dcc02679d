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
    from tiebeam.lens import Lens
    from tiebeam.pair import Matrix, Pair, Tie
    from tiebeam.surgery import tie, untie
    from tiebeam.surgery.module import count, share_storage, tie_, untie_

_HOME = {
    "Budget": "tiebeam.budget",
    "Checkpoint": "tiebeam.checkpoint",
    "Decoder": "tiebeam.decode",
    "Diagnosis": "tiebeam.doctor",
    "Finding": "tiebeam.doctor",
    "Lens": "tiebeam.lens",
    "Matrix": "tiebeam.pair",
    "Pair": "tiebeam.pair",
    "Report": "tiebeam.inspection",
    "Tie": "tiebeam.pair",
    "TiebeamError": "tiebeam.errors",
    "assert_saved": "tiebeam.doctor.guard",
    "count": "tiebeam.surgery.module",
    "examine": "tiebeam.doctor",
    "guard": "tiebeam.doctor.guard",
    "inspect": "tiebeam.inspection",
    "open_checkpoint": "tiebeam.checkpoint",
    "price": "tiebeam.budget",
    "share_storage": "tiebeam.surgery.module",
    "tie": "tiebeam.surgery",
    "tie_": "tiebeam.surgery.module",
    "untie": "tiebeam.surgery",
    "untie_": "tiebeam.surgery.module",
}

__all__ = [
    "Budget",
    "Checkpoint",
    "Decoder",
    "Diagnosis",
    "Finding",
    "Lens",
    "Matrix",
    "Pair",
    "Report",
    "Tie",
    "TiebeamError",
    "__version__",
    "assert_saved",
    "count",
    "examine",
    "guard",
    "inspect",
    "open_checkpoint",
    "price",
    "share_storage",
    "tie",
    "tie_",
    "untie",
    "untie_",
]


def __getattr__(name: str) -> Any:
    if name == "lens":  # a submodule as an attribute, imported on first use
        return import_module("tiebeam.lens")
    if name not in _HOME:
        raise AttributeError(f"module 'tiebeam' has no attribute {name!r}")
    value = getattr(import_module(_HOME[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
