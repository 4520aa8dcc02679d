"""Plan a merge: which tensors get new values, and whether embedding and LM head stay one matrix.

The result computes what the base with the adapter computed (PEFT's live model, not its merge). On a tied base an
adapter can change the two uses of the one matrix differently; the result is then untied, with both matrices stored and
every flag saying so. `pair="embed"` or `pair="head"` keeps it tied with one of the two, at a measured cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest
from tiebeam.inspection import Report
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.merge.adapter_parts import AdapterParts
from tiebeam.surgery.merge.adapter_targets import Targets, is_same_model
from tiebeam.surgery.merge.collect_changes import (
    FLOATS,
    Collected,
    EndChange,
    check_combination,
    collect,
    joined,
    shape_of,
)
from tiebeam.surgery.merge.grow_base import grown_vocabulary
from tiebeam.surgery.merge.merge_proof import MergeProof
from tiebeam.surgery.merge.stored_rows import CheckpointRows, EntryRows, StoredRows
from tiebeam.surgery.merge.tensor_update import FullCopy, check_finite
from tiebeam.surgery.pair_edits import drop_aliases, set_flag, write_followers
from tiebeam.surgery.plan import Plan
from tiebeam.surgery.source import Source
from tiebeam.surgery.tie import is_tied
from tiebeam.surgery.untie import is_untied, refuse_always_tied

if TYPE_CHECKING:
    pass

PAIR = ("embed", "head")
_TIED = (Tie.SHARED, Tie.TWIN)


@dataclass(frozen=True, eq=False)
class PairDecision:
    """What becomes of the pair. `embed` and `head` are the changes of each; `tied`: the result has one matrix."""

    embed: EndChange
    head: EndChange
    tied: bool
    why: str = ""
    keeps: str | None = None
    """The end whose change both get although they differ (`pair=`)."""


def plan_merge(source: Source, adapters: Sequence[AdapterParts], *, pair: str | None = None) -> Plan:
    """Plan to merge `adapters` into `source`. Refuses, before anything is written, what cannot be merged."""
    if pair is not None and pair not in PAIR:
        raise BadRequest(f'pair must be "embed" or "head", not {pair!r}')
    if not adapters:
        raise BadRequest("there is no adapter to merge; name at least one")
    for parts in adapters:
        check_finite(parts)
    base = source.checkpoint.source
    entries = {entry.name: entry for shard in source.layout.shards for entry in shard.entries}
    unrounded = _unrounded(source) or entries
    found = collect(adapters, Targets.of_layout(source), lambda name: EntryRows(unrounded[name]), base)
    decision = decide_pair(source, adapters, found, pair)
    vocabulary = grown_vocabulary(source, adapters, max(decision.embed.needs_rows, decision.head.needs_rows))
    entries |= vocabulary.edit.rewrite
    unrounded = {**unrounded, **vocabulary.edit.rewrite}
    edit = Edit(rewrite={name: update.entry(entries[name]) for name, update in found.updates.items()})
    edit = edit | _pair_edit(source, decision, entries, unrounded)
    grown = {name: entry for name, entry in vocabulary.edit.rewrite.items() if name not in edit.rewrite}
    edit = replace(vocabulary.edit, rewrite=grown) | edit
    notes = [*([decision.why] if decision.why else []), *vocabulary.notes]
    notes += [
        f"{parts.adapter.source} was trained on {parts.adapter.base}; names and shapes fit {base}"
        for parts in adapters
        if not is_same_model(source.checkpoint, parts.adapter.base)
    ]
    proof = MergeProof(source, tuple(adapters), decision.keeps)
    return Plan(
        "merge", source, edit, _expectation(source, decision), exact=False, notes=tuple(notes),
        measure=proof.measure if decision.keeps else None, prove=proof.prove,
        inputs=tuple(path for parts in adapters for path in parts.adapter.paths),
    )  # fmt: skip


def decide_pair(
    source: Source, adapters: Sequence[AdapterParts], found: Collected, pair: str | None = None
) -> PairDecision:
    """What becomes of the pair, and why."""
    tied = is_one_matrix(source.report)
    ends = joined(_both_ends(each, parts) if tied else each for each, parts in zip(found.ends, adapters, strict=True))
    embed, head = ends["embed"], ends["head"]
    touched = embed.touched or head.touched or embed.base or head.base
    if touched:
        _check_ends(source, ends)
    if touched and source.report.tie in (Tie.TORN, Tie.HEADLESS, Tie.SWAPPED, Tie.NONE):
        raise BadRequest(
            f"the adapter changes the embedding or the head, and the base is {source.report.tie}; repair it first: "
            f"tiebeam doctor {source.checkpoint.source} --fix --out DST"
        )
    if not tied:
        if pair:
            raise BadRequest(f'{source.report.model} is untied, so pair="{pair}" has nothing to keep; leave it out')
        return PairDecision(embed, head, tied=False)
    if embed.same_as(head):
        why = "the adapter changes embedding and head alike, so the result stays tied" if embed.touched else ""
        return PairDecision(embed, head, tied=True, why=why)
    what = _what_differs(embed, head)
    if pair:
        chosen = ends[pair]
        kept, other = ("embedding", "head") if pair == "embed" else ("head", "embedding")
        why = f"{what}; it stays tied with the matrix of the {kept}, so the {other} is not what was trained"
        return PairDecision(chosen, chosen, tied=True, why=why, keeps=pair)
    try:
        refuse_always_tied(source)
    except BadRequest as error:
        raise BadRequest(f'{what}, and {error}; or keep one matrix: pair="embed" or pair="head"') from None
    return PairDecision(embed, head, tied=False, why=f"{what}, so the result is untied: both matrices are stored")


def is_one_matrix(report: Report) -> bool:
    """Whether the base loads with one matrix for both uses; two equal ones that are declared untied load as two."""
    return report.tie in _TIED and not (report.tie is Tie.TWIN and report.pair.declared is False)


def _both_ends(ends: dict[str, EndChange], parts: AdapterParts) -> dict[str, EndChange]:
    """One adapter's changes to a tied pair, as PEFT runs it: the embedding's trained rows are the head's too, and
    with ensure_weight_tying so are factors and copies of either. A saved weight of the base is that of both."""
    embed, head = ends["embed"], ends["head"]
    base = embed.base or head.base
    embed, head = (EndChange(end.low_rank, end.copies, end.rows, base) for end in (embed, head))
    if embed.rows and not head.touched:
        head = EndChange(head.low_rank, head.copies, embed.rows, base)
    if parts.keeps_tie and embed.touched != head.touched and not head.rows:
        embed = head = embed if embed.touched else head
    return {"embed": embed, "head": head}


def _what_differs(embed: EndChange, head: EndChange) -> str:
    if embed.touched and head.touched:
        return "the adapter changes embedding and head of a tied base differently"
    return f"the adapter changes only the {'embedding' if embed.touched else 'head'} of a tied base"


def _check_ends(source: Source, ends: dict[str, EndChange]) -> None:
    matrix = source.report.pair.embed or source.report.pair.head
    assert matrix is not None
    rows, width = matrix.shape
    for role, end in ends.items():
        check_combination(f"the {role}", end.low_rank, end.copies)
        shapes: list[tuple[str, tuple[int, ...]]] = [(part.lora.a, shape_of(part)) for part in end.low_rank]
        shapes += [(copy.tensor, copy.parts.adapter.weights.tensors[copy.tensor].shape) for copy in end.copies]
        shapes += [(end.base.tensor, end.base.parts.adapter.weights.tensors[end.base.tensor].shape)] if end.base else []
        for name, shape in shapes:
            if len(shape) != 2 or shape[1] != width:
                raise BadRequest(
                    f"{name} is for a matrix {list(shape)} but the base has [{rows}, {width}]; the adapter was "
                    "trained on another base"
                )
            if shape[0] < rows:
                raise BadRequest(
                    f"{name} has {shape[0]:,} rows and the base {rows:,}: it was trained on a smaller vocabulary; "
                    "merge it into the base that it was trained on"
                )
        for part in end.rows:
            shape = part.parts.adapter.weights.tensors[part.trained.tensor].shape
            if shape[1] != width:
                raise BadRequest(f"{part.trained.tensor} has rows of {shape[1]:,} numbers, the base of {width:,}")
        if len({shape[0] for _, shape in shapes}) > 1:
            raise BadRequest(
                f"the adapters change the {role} with different numbers of rows; merge one after the other"
            )


def _unrounded(source: Source) -> dict[str, Entry] | None:
    """The tensors of a GGUF that is being converted, in float32: rounded once, after the merge."""
    if not (source.converted and source.checkpoint.format == "gguf"):
        return None
    from tiebeam.surgery.gguf_to_hf import convert

    return {entry.name: entry for shard in convert(source.checkpoint, "F32")[0].shards for entry in shard.entries}


def _pair_edit(source: Source, decision: PairDecision, entries: dict[str, Entry], unrounded: dict[str, Entry]) -> Edit:
    """New values of embedding and head, the head as a tensor of its own where the result is untied, and the flags."""
    one = is_one_matrix(source.report)
    stored = {"embed": source.embed, "head": source.head}
    edit, added = Edit(), []
    for role, end in (("embed", decision.embed), ("head", decision.head)):
        name = stored[role]
        if name is None and not one:
            continue
        like = entries[name or source.tensor_name("embed" if role == "head" else "head")]
        replaced = _differs(end.base, unrounded[like.name])
        if name is not None and not (end.touched or replaced):
            continue
        if name is None and decision.tied:
            continue  # the one stored matrix has the change
        if like.dtype not in FLOATS:
            raise BadRequest(
                f"{like.name} is stored as {like.dtype}, which a merge would have to round again; "
                + ("name a directory as the target (the GGUF is then dequantized)" if source.is_gguf
                   else "merge into the model before it was quantized, and quantize the result")
            )  # fmt: skip
        rows: StoredRows = EntryRows(unrounded[like.name])
        if replaced and end.base:
            rows = CheckpointRows(end.base.parts.adapter.weights, end.base.tensor)
        update = end.update(name or source.tensor_name(role), rows)
        if name is None:
            added.append(update.entry(like))
        else:
            edit = edit | Edit(rewrite={name: update.entry(like)})
    edit = edit | Edit(add=tuple(added))
    if one and not decision.tied:
        edit = edit | set_flag(source, False) | write_followers(source) | drop_aliases(source)
    return edit


def _differs(copy: FullCopy | None, like: Entry) -> bool:
    """Whether the weight that an adapter saved for its base has other values than the base."""
    import numpy as np

    if copy is None:
        return False
    shape = copy.parts.adapter.weights.tensors[copy.tensor].shape
    stored, step = EntryRows(like), max(1, (1 << 20) // shape[1])
    return shape != like.shape or any(
        not np.array_equal(copy.rows(at, at + step), stored.rows(at, min(at + step, shape[0])))
        for at in range(0, shape[0], step)
    )


def _expectation(source: Source, decision: PairDecision) -> Callable[[Report], str | None]:
    before = source.report.tie
    if before is Tie.NONE:
        return lambda report: None
    if is_one_matrix(source.report) and not decision.tied:
        return is_untied(source)
    if before is Tie.SHARED:
        return is_tied(source)

    def unchanged(report: Report) -> str | None:
        kept = report.tie is before or (before is Tie.TWIN and report.tie is Tie.UNTIED)
        return None if kept else f"its pair is {report.tie}, not {before}"

    return unchanged
