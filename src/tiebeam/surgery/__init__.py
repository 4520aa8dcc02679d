"""Change the pair of a checkpoint: streaming, atomic, proved."""

from __future__ import annotations

import os
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.surgery.cases import Case, case_of, open_case
from tiebeam.surgery.deciding import plan_keep, plan_tie, plan_untie
from tiebeam.surgery.execute import DEFAULT, How, Outcome, Plan, carry_out

__all__ = [
    "Case",
    "How",
    "Outcome",
    "Plan",
    "carry_out",
    "case_of",
    "open_case",
    "plan_keep",
    "plan_tie",
    "plan_untie",
    "tie",
    "untie",
]


def untie(
    source: str | os.PathLike[str] | Checkpoint, target: str | os.PathLike[str], how: How = DEFAULT, **options: Any
) -> Outcome:
    """Write `target`: the head its own tensor, every logit as before. `options` are those of `open_case`."""
    return carry_out(plan_untie(open_case(source, target=target, **options)), target, how)


def tie(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    how: How = DEFAULT,
    *,
    keep: str | None = None,
    **options: Any,
) -> Outcome:
    """Write `target`: one matrix for both ends. Without `keep` ("embed", "head" or "mean") only where it is exact."""
    case = open_case(source, target=target, **options)
    return carry_out(plan_tie(case) if keep is None else plan_keep(case, keep), target, how)
