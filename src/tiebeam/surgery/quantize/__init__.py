"""`quantize`: what fewer bits cost in the embedding and the LM head, and a GGUF with other types for them."""

from __future__ import annotations

import os

from tiebeam.checkpoint import Checkpoint
from tiebeam.surgery.execute import checked_target, execute
from tiebeam.surgery.plan import Outcome, Progress
from tiebeam.surgery.quantize.cost_table import NEAREST, Cost, CostTable, measure_costs
from tiebeam.surgery.quantize.plan_quantize import Quantization, open_gguf, plan_quantize
from tiebeam.surgery.quantize.write_command import write_commands

__all__ = [
    "Cost",
    "CostTable",
    "Quantization",
    "measure_costs",
    "open_gguf",
    "plan_quantize",
    "quantize",
    "write_commands",
]


def quantize(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    rounding: str = NEAREST,
    text: str | None = None,
    force: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write `target`: the GGUF file `source` with other types for the embedding and the LM head.

        outcome = tiebeam.quantize("model.gguf", "small.gguf", embed="Q5_0", head="Q5_0")
        outcome.facts["types"], outcome.proof.largest

    embed, head   GGUF types, such as "F16", "Q8_0", "Q4_0"; None keeps the type. With neither, one matrix that is
                  stored under two types becomes one
    rounding      "nearest", or "compensated": the head's codes are chosen so that its logits on `text` change least
    text          what the model will read
    force, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    What a precision costs: `measure_costs`. Raises BadRequest for a type that the gguf package cannot write and for a
    source that is not GGUF, ProofFailed if the written file differs from the planned matrices.
    """
    opened = open_gguf(source, target)
    where = checked_target(opened, target, force)
    planned = plan_quantize(opened, embed=embed, head=head, rounding=rounding, text=text, engine=engine, device=device)
    return execute(planned.plan, where, proof=proof, durable=durable, progress=progress, engine=engine, device=device)
