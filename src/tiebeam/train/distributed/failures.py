"""Detect that another rank died or hangs, and report it once.

A collective fails on every surviving rank, each with its own low-level error. The survivors use torchrun's key-value
store to find out who is missing and which of them prints the message.
"""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING

from tiebeam.errors import TiebeamError

if TYPE_CHECKING:
    from tiebeam.train.distributed.environment import Distribution
    from tiebeam.train.run_directory import RunDirectory

_ROLL_CALL_SECONDS = 1.0
_SIGNS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "processgroup")


class RankLost(TiebeamError):
    """Another rank of the run exited or hangs."""


def is_peer_failure(error: BaseException, distribution: Distribution) -> bool:
    """Whether an error means that another rank is gone, rather than that this rank has a problem."""
    if distribution.world_size == 1 or isinstance(error, TiebeamError):
        return False
    import torch.distributed as dist

    if isinstance(error, dist.DistError):
        return True
    text = f"{error}".lower()
    return type(error).__name__ in ("RuntimeError", "CheckpointException") and any(sign in text for sign in _SIGNS)


def rank_lost(error: BaseException, run: RunDirectory, distribution: Distribution) -> RankLost:
    """The message: which ranks are gone, which step is saved, and how to resume."""
    missing = _missing_ranks(distribution)
    if missing:
        who = f"rank {', '.join(map(str, missing))} of {distribution.world_size} is gone"
    else:  # every rank answers, but one may still hang: all that is known is the error of the collective
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
        who = f"a rank does not respond ({first_line})"
    try:
        step = int(run.read_facts()["step"])
    except TiebeamError:
        return RankLost(f"{who}; no state was saved yet, start the run again")
    return RankLost(
        f"{who}; the state of step {step:,} is saved, resume with: "
        f"{distribution.command} --resume --out {shlex.quote(str(run.path))}"
    )


def _missing_ranks(distribution: Distribution) -> list[int]:
    """The ranks that no longer answer, as far as the store knows."""
    store = distribution.store
    if store is None:
        return []
    try:
        store.set(f"tiebeam/here/{distribution.rank}", b"1")
        absent, before = list(range(distribution.world_size)), 0
        while len(absent) != before:  # a rank has answered since: wait as long again for the next
            time.sleep(_ROLL_CALL_SECONDS)
            before = len(absent)
            absent = [rank for rank in absent if not store.check([f"tiebeam/here/{rank}"])]
    except (RuntimeError, OSError):
        return []
    return absent


def reports_first(distribution: Distribution) -> bool:
    """True on the first rank that asks, so that an error is printed once."""
    if distribution.store is None:
        return True
    try:
        return bool(distribution.store.add("tiebeam/reported", 1) == 1)
    except (RuntimeError, OSError):
        return True
