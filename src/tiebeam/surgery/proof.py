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
_DTYPES = {"F32": "float32", "F64": "float32", "F16": "float16", "BF16": "bfloat16"}


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


def prove(source: Checkpoint, target: Checkpoint, *, exact: bool = True, rounded: str = "F32") -> Proof:
    """The logits of both on the same tokens; ProofFailed when they differ.

    `exact` asks for the same bits. Without it (another format lays the numbers out differently, and sums come out
    in another order) a millionth of the largest logit is allowed. `rounded` is the type that the target's weights
    were rounded to; the source is then run rounded alike.
    """
    import numpy as np

    from tiebeam.decode import Decoder

    needed, free = 4 * sum(info.size for info in target.tensors.values()), _free_memory()
    if needed > 0.8 * free:
        return Proof(False, why=f"running it takes {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} are free")
    try:
        before = Decoder.open(source, dtype=_DTYPES[rounded])
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
    tolerance = 0.0 if exact else 1e-6 * max(1.0, float(np.nanmax(np.abs(expected))))
    if not largest <= tolerance:
        raise ProofFailed(f"the logits moved by up to {largest:.3g} on a probe batch; nothing was put in place")
    return Proof(True, len(tokens), largest)


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")  # not Linux: let it try


def probe_tokens(vocab: int) -> list[int]:
    """A few tokens from all over the vocabulary, its first and last rows among them."""
    import numpy as np

    spread = np.linspace(0, vocab - 1, PROBE).astype(int)
    return [int(token) for token in np.random.default_rng(0).permutation(spread)]
