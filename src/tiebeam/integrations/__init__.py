"""Checks of the tie inside other people's training loops.

`tiebeam.integrations.transformers` has `TiebeamCallback` for transformers' Trainer and TRL's, `.lightning` has one for
Lightning, `.accelerate` has `watch` for Accelerate loops. What they check is in `tie_checks`. A module here imports its
library only when it is used, so `import tiebeam.integrations` needs none of them.
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.integrations.tie_checks import TieChecks
    from tiebeam.integrations.transformers import TiebeamCallback

__all__ = ["TieChecks", "TiebeamCallback"]

__getattr__ = loader(
    __name__,
    {"TiebeamCallback": "tiebeam.integrations.transformers", "TieChecks": "tiebeam.integrations.tie_checks"},
)
