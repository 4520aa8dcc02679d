"""Run both models on a probe batch and compare their logits.

Bytes already prove that the trunk is untouched; the logits prove that the whole still is the same model: the
right matrix at the right end, under names and flags that a loader reads as meant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import ProofFailed, TiebeamError

PROBE = 16


@dataclass(frozen=True, slots=True)
class Proof:
    """`ran` is False when the decoder cannot run this model; `why` then says why. `largest` is the largest
    difference between any two logits."""

    ran: bool
    tokens: int = 0
    largest: float = 0.0
    why: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def prove(source: Checkpoint, target: Checkpoint, tolerance: float = 0.0) -> Proof:
    """The logits of both on the same tokens; ProofFailed when they differ by more than `tolerance`."""
    import numpy as np

    from tiebeam.decode import Decoder

    try:
        before = Decoder.open(source)
    except TiebeamError as error:
        return Proof(False, why=str(error))
    tokens = probe_tokens(before.vocab)
    expected = before.logits(tokens)
    del before
    try:
        found = Decoder.open(target).logits(tokens)
    except TiebeamError as error:
        raise ProofFailed(f"the source runs and the result does not ({error}); nothing was put in place") from None
    if expected.shape != found.shape:
        raise ProofFailed(f"the logits went from {expected.shape} to {found.shape}; nothing was put in place")
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    largest = 0.0 if same.all() else float(np.nanmax(np.abs(expected[~same] - found[~same])))
    if not largest <= tolerance:
        raise ProofFailed(f"the logits moved by up to {largest:.3g} on a probe batch; nothing was put in place")
    return Proof(True, len(tokens), largest)


def probe_tokens(vocab: int) -> list[int]:
    """A few tokens from all over the vocabulary, its first and last rows among them."""
    import numpy as np

    spread = np.linspace(0, vocab - 1, PROBE).astype(int)
    return [int(token) for token in np.random.default_rng(0).permutation(spread)]
