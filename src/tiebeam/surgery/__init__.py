"""Change the pair of a checkpoint: streaming, atomic, proved."""

from __future__ import annotations

import os

from tiebeam.checkpoint import Checkpoint
from tiebeam.surgery.carrying_out import How, Outcome, Plan, carry_out
from tiebeam.surgery.deciding import plan_tie, plan_untie

__all__ = ["How", "Outcome", "Plan", "carry_out", "plan_tie", "plan_untie", "tie", "untie"]


def untie(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    how: How = How(),
) -> Outcome:
    """Write `target`: the head its own tensor, every logit as before."""
    return carry_out(plan_untie(source, embed=embed, head=head), target, how)


def tie(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    how: How = How(),
) -> Outcome:
    """Write `target`: one matrix for both ends, where that keeps every logit."""
    return carry_out(plan_tie(source, embed=embed, head=head), target, how)
