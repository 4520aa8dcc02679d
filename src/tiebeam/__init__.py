"""tiebeam: the toolkit for the embedding and the LM head of a language model.

    import tiebeam

    report = tiebeam.inspect("path/or/org/name")   # also a torch nn.Module
    report.tied, report.declared, report.params.total
    tiebeam.diagnose("merged").findings            # what is wrong, and the fix
    tiebeam.untie("tied", "untied")                # write a changed checkpoint, verified
    tiebeam.extend("base", "think", tokens=["<think>"])  # new tokens at both ends
    tiebeam.trim("base", "small", text=["prose.txt"], keep=16384)  # only the tokens that a text uses
    tiebeam.guard(model).check()                   # is the tie intact in this training code?

Functions and classes are listed in `__all__`; the submodules (`tiebeam.nn`, `tiebeam.lens`, ...) are attributes too.
Everything loads on first use: `import tiebeam` imports neither NumPy nor torch. docs/python.md has an example of each.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tiebeam._version import __version__

if TYPE_CHECKING:
    from tiebeam import budget, catalog, checkpoint, compare, corpus, doctor, lens, nn, surgery, train
    from tiebeam.budget import Budget, price
    from tiebeam.checkpoint import Checkpoint, open_checkpoint
    from tiebeam.decode import Decoder, load
    from tiebeam.doctor import Diagnosis, Finding, diagnose, examine
    from tiebeam.doctor.guard import assert_saved, assert_synced, guard
    from tiebeam.errors import TiebeamError
    from tiebeam.inspection import Report, inspect
    from tiebeam.lens import Lens
    from tiebeam.pair import Matrix, Pair, Tie
    from tiebeam.surgery.extend import extend
    from tiebeam.surgery.extend.module_rows import extend_
    from tiebeam.surgery.merge import merge
    from tiebeam.surgery.module import count_parameters, is_tied, tie_, untie_
    from tiebeam.surgery.quantize import quantize
    from tiebeam.surgery.tie import tie
    from tiebeam.surgery.trim import trim
    from tiebeam.surgery.untie import untie

# public name -> module, or module:name where it has another name there
_SOURCES = {
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
    "assert_synced": "tiebeam.doctor.guard",
    "count_parameters": "tiebeam.surgery.module",
    "diagnose": "tiebeam.doctor",
    "examine": "tiebeam.doctor",
    "extend": "tiebeam.surgery.extend",
    "extend_": "tiebeam.surgery.extend.module_rows",
    "guard": "tiebeam.doctor.guard",
    "inspect": "tiebeam.inspection",
    "is_tied": "tiebeam.surgery.module",
    "load": "tiebeam.decode",
    "merge": "tiebeam.surgery.merge",
    "open_checkpoint": "tiebeam.checkpoint",
    "price": "tiebeam.budget",
    "quantize": "tiebeam.surgery.quantize",
    "tie": "tiebeam.surgery.tie",
    "tie_": "tiebeam.surgery.module",
    "trim": "tiebeam.surgery.trim",
    "untie": "tiebeam.surgery.untie",
    "untie_": "tiebeam.surgery.module",
}
_SUBMODULES = (
    "budget",
    "catalog",
    "checkpoint",
    "compare",
    "corpus",
    "doctor",
    "integrations",
    "lens",
    "nn",
    "surgery",
    "train",
)

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
    "assert_synced",
    "budget",
    "catalog",
    "checkpoint",
    "compare",
    "corpus",
    "count_parameters",
    "diagnose",
    "doctor",
    "examine",
    "extend",
    "extend_",
    "guard",
    "inspect",
    "integrations",
    "is_tied",
    "lens",
    "load",
    "merge",
    "nn",
    "open_checkpoint",
    "price",
    "quantize",
    "surgery",
    "tie",
    "tie_",
    "train",
    "trim",
    "untie",
    "untie_",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return import_module(f"tiebeam.{name}")  # importing a submodule sets the attribute
    if name not in _SOURCES:
        raise AttributeError(f"module 'tiebeam' has no attribute {name!r}")
    module, _, attribute = _SOURCES[name].partition(":")
    value = globals()[name] = getattr(import_module(module), attribute or name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
