"""Prove that a change kept the model: run source and target on probe tokens and compare their logits.

Byte comparison already shows that the other weights did not change. The logits show that the whole is still the same
model: the right matrix in the right place, under names and flags that a loader reads as intended.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import ProofFailed, TiebeamError

if TYPE_CHECKING:
    from tiebeam.decode.engine import Ids

PROBE_TOKENS = 16
ENGINE_DTYPES = {"F32": "float32", "F64": "float32", "F16": "float16", "BF16": "bfloat16"}


@dataclass(frozen=True, slots=True)
class Proof:
    """`ran` is False when no engine can run the model; `why` has the reason. `largest` is the largest difference
    between two logits. `engine` is the engine that ran both models."""

    ran: bool
    tokens: int = 0
    largest: float = 0.0
    why: str = ""
    engine: str = ""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def prove(
    source: Checkpoint,
    target: Checkpoint,
    *,
    exact: bool = True,
    rounded: str = "F32",
    engine: str = "auto",
    device: str | None = None,
    kept: tuple[Ids, Ids] | None = None,
    probed: Sequence[int] = (),
) -> Proof:
    """Compare the logits of two models on the same tokens; raises ProofFailed when they differ.

    `kept` are the rows that both have, (in the source, in the target): only those tokens are run and compared.
    `probed` are the tokens to run, as positions in `kept`; by default some that are spread over the vocabulary.

    `exact` asks for equal bits. Without it a difference of a millionth of the largest logit is allowed, because
    another format stores the weights in another layout and the sums round differently. `rounded` is the dtype that
    the target's weights were rounded to; the source is then run with the same rounding.
    """
    import numpy as np

    from tiebeam.decode import Table, engine_name, open_engine

    why = too_large_to_run(target)
    if why:
        return Proof(False, why=why)
    try:
        before = open_engine(source, dtype=ENGINE_DTYPES[rounded], engine=engine, device=device)
        old, new = kept if kept is not None else (np.arange(before.vocab), np.arange(before.vocab))
        probed = list(probed)[: before.spec.context] or probe_tokens(len(old))
        tokens = old[probed]
        hidden = before.hidden(tokens)
        expected = before.unembed(hidden)
        fewer = Table(before.head.lookup(old)) if len(old) < before.vocab else None
    except TiebeamError as error:
        return Proof(False, why=str(error))
    name = engine_name(before)
    expected = expected if kept is None else expected[:, old]
    del before
    try:
        after = open_engine(target, engine=name, device=device)
        found = after.logits(new[probed])
        found = found if kept is None else found[:, new]
        if kept is not None and not np.array_equal(expected, found, equal_nan=True):
            # The same rows in a table of another size: a matrix product may sum its last columns in another order.
            found = after.with_tables(after.embed, Table(after.head.lookup(new))).logits(new[probed])
            if fewer is not None:
                expected = after.with_tables(after.embed, fewer).unembed(hidden)
    except TiebeamError as error:
        raise ProofFailed(f"the source runs but the result does not ({error}); the target was not written") from None
    if expected.shape != found.shape:
        raise ProofFailed(f"the logits went from {expected.shape} to {found.shape}; the target was not written")
    same = (expected == found) | (np.isnan(expected) & np.isnan(found))
    largest = 0.0 if same.all() else float(np.nanmax(np.abs(expected[~same] - found[~same])))
    tolerance = 0.0 if exact else 1e-6 * max(1.0, float(np.nanmax(np.abs(expected))))
    if not largest <= tolerance:
        raise ProofFailed(f"the logits moved by up to {largest:.3g} on the probe tokens; the target was not written")
    return Proof(True, len(tokens), largest, engine=name)


def too_large_to_run(model: Checkpoint) -> str:
    """Why the memory of this machine is too small to run the model; empty if it is not."""
    needed, free = 4 * sum(info.size for info in model.tensors.values()), _free_memory()
    return (
        f"running it needs {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free"
        if needed > 0.8 * free
        else ""
    )


def _free_memory() -> float:
    try:
        with open("/proc/meminfo") as lines:
            return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return float("inf")  # not Linux: unknown, so try


def probe_tokens(vocab: int) -> list[int]:
    """Token ids spread over the vocabulary, the first and the last row included."""
    import numpy as np

    spread = np.linspace(0, vocab - 1, PROBE_TOKENS).astype(int)
    return [int(token) for token in np.random.default_rng(0).permutation(spread)]
