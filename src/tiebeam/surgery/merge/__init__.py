"""`merge`: write a base with PEFT adapters merged into it. Streaming, verified, atomic; neither peft nor torch
needed."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.adapter_files import open_adapter
from tiebeam.errors import BadRequest
from tiebeam.surgery.execute import execute
from tiebeam.surgery.merge.adapter_parts import AdapterParts, read_parts
from tiebeam.surgery.merge.merge_plan import plan_merge
from tiebeam.surgery.plan import Outcome, Progress
from tiebeam.surgery.source import open_source

__all__ = ["AdapterParts", "merge", "open_adapters", "plan_merge", "read_parts"]

Path = str | os.PathLike[str]


def merge(
    base: Path | Checkpoint,
    adapters: Path | Sequence[Path],
    target: Path,
    *,
    weight: float | Sequence[float] | None = None,
    pair: str | None = None,
    dtype: str = "F32",
    force: bool = False,
    link: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write `target`: `base` with PEFT `adapters` merged into it. It computes what the base with the adapter computed.

        >>> import tiebeam
        >>> outcome = tiebeam.merge("tied", "adapter", "tied-with-adapter")
        >>> print(outcome.after.tie, outcome.proof.largest < 1e-5)
        shared True

        tiebeam.merge("./base", ["./style", "./facts"], "./merged", weight=[0.7, 0.3])

    weight   one number per adapter, to scale its change; 1 without it
    pair     "embed" or "head": keep a tied base tied with that end's matrix, where the adapter changes the two
             differently. By default the result is then untied
    dtype    what a GGUF is dequantized to when `target` is a directory: "F32", "F16" or "BF16"
    force, link, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    Raises BadRequest for an adapter that does not fit the base or is of an unknown kind, UnreadableInput for a damaged
    one, ProofFailed if the written model differs from the base with the adapter by more than rounding. Neither `base`
    nor an adapter is changed; `target` appears complete or not at all.
    """
    parts = open_adapters(adapters, weight)
    plan = plan_merge(open_source(base, target=target, dtype=dtype), parts, pair=pair)
    return execute(
        plan, target, force=force, link=link, proof=proof, durable=durable, progress=progress, engine=engine,
        device=device,
    )  # fmt: skip


def open_adapters(adapters: Path | Sequence[Path], weight: float | Sequence[float] | None = None) -> list[AdapterParts]:
    """Open adapter directories for a merge; `weight` is one number for each of them."""
    paths = [adapters] if isinstance(adapters, str | os.PathLike) else list(adapters)
    weights = [1.0] * len(paths) if weight is None else [weight] if isinstance(weight, int | float) else list(weight)
    if len(weights) != len(paths):
        raise BadRequest(
            f"there are {len(paths)} adapters and {len(weights)} weights; give one weight for each adapter"
        )
    return [read_parts(open_adapter(path), float(w)) for path, w in zip(paths, weights, strict=True)]
