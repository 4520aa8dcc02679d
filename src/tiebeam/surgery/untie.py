"""`untie`: store the head as a tensor of its own. The logits do not change."""

from __future__ import annotations

import os
from collections.abc import Callable

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest
from tiebeam.families.gguf_output import output_weight
from tiebeam.inspection import Report
from tiebeam.pair import Tie
from tiebeam.surgery.execute import execute
from tiebeam.surgery.pair_edits import drop_aliases, set_flag, write_embed, write_followers, write_head
from tiebeam.surgery.plan import Outcome, Plan, Progress
from tiebeam.surgery.source import Source, open_source

_EQUAL_UNTIL_TRAINED = (
    "the two matrices are equal until one of them is trained; the final norm may now be folded into the head, as "
    "rotation-based quantizers do (in a tied matrix that would corrupt the embedding)"
)


def untie(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    embed: str | None = None,
    head: str | None = None,
    dtype: str = "F32",
    force: bool = False,
    link: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write `target`: `source` with the head as its own tensor and every config level declaring it untied.

        >>> import tiebeam
        >>> outcome = tiebeam.untie("tied", "tied-untied")
        >>> print(outcome.before.tie, outcome.after.declared, outcome.proof.largest)
        shared False 0.0

    embed, head   tensor names, for an architecture that tiebeam does not know
    dtype         what a GGUF is dequantized to when `target` is a directory: "F32", "F16" or "BF16"
    force, link, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    Raises BadRequest if the model is untied already or cannot be untied in a file, ProofFailed if the written model
    differs from the source. `source` is never changed; `target` appears complete or not at all.
    """
    plan = plan_untie(open_source(source, embed=embed, head=head, target=target, dtype=dtype))
    return execute(
        plan, target, force=force, link=link, proof=proof, durable=durable, progress=progress, engine=engine,
        device=device,
    )  # fmt: skip


def plan_untie(source: Source) -> Plan:
    """Plan to store the head as a copy of the embedding and to set every tie flag to false. Exact."""
    report, tie = source.report, source.report.tie
    refuse_always_tied(source)
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no embedding and head to untie")
    declare = set_flag(source, False) | write_followers(source)
    notes, nothing_to_do = [], ""
    if source.head is None:
        edit = write_head(source) | declare
    elif source.embed is None:
        edit = write_embed(source) | drop_aliases(source) | declare
    else:
        edit = declare  # both are stored (two names of one PyTorch storage become two tensors when written)
        if tie is Tie.TORN:
            notes.append("both matrices were stored and differ; both are kept, and the flag is now false")
        elif not edit and not source.converted:
            declares = "" if source.layout.config is None else ", and config.json says untied"
            nothing_to_do = f"{report.model} is already untied: two tensors are stored{declares}"
    if tie not in (Tie.TORN, Tie.UNTIED):
        notes.append(_EQUAL_UNTIL_TRAINED)
    return Plan(
        "untie", source, edit, is_untied(source), exact=tie is not Tie.HEADLESS, notes=tuple(notes),
        nothing_to_do=nothing_to_do,
    )  # fmt: skip


def is_untied(source: Source) -> Callable[[Report], str | None]:
    """A check for `Plan.expect`: both matrices are stored, and the config says untied."""

    def expect(report: Report) -> str | None:
        if report.pair.head is None or report.pair.embed is None:
            return "it does not store both matrices"
        if report.pair.declared is not False and source.layout.config is not None:
            return f"its config does not say untied ({report.pair.declared_by})"
        return None

    return expect


def refuse_always_tied(source: Source) -> None:
    """Refuse a type of which no file can be untied."""
    architecture = source.architecture
    if source.is_gguf and output_weight(source.checkpoint.architecture) == "never":
        raise BadRequest(
            f"llama.cpp always uses the embedding of {source.checkpoint.architecture} as its head and refuses a file "
            "with output.weight, so this GGUF cannot be untied; untie it as a directory: name a target without .gguf"
        )
    if architecture is not None and architecture.flag == "forced" and not source.is_gguf:
        raise BadRequest(
            f"transformers ties {architecture.model_type} whatever its config says, so it cannot be untied in a file; "
            "untie it in memory with tiebeam.untie_(model)"
        )
    if architecture is not None and architecture.flag_scales_logits and not source.is_gguf:
        raise BadRequest(
            f"in {architecture.model_type} the flag also decides whether the decoder output is scaled, so a file with "
            "the flag false has other logits; untie it in memory with tiebeam.untie_(model)"
        )
