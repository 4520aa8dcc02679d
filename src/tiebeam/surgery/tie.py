"""`tie`: one matrix for the embedding and the LM head.

`plan_tie` is exact: it keeps every logit, and refuses where tying would change the model. `plan_keep` uses one of two
different matrices (or their mean) for both. `joint/` fits one table and two small maps instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest
from tiebeam.families.never_tied import why_never_tied
from tiebeam.inspection import Report
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.execute import checked_target, execute
from tiebeam.surgery.packed_parts import moved
from tiebeam.surgery.pair_edits import (
    drop_aliases,
    drop_followers,
    drop_head,
    drop_matrix,
    rename_head,
    set_flag,
)
from tiebeam.surgery.plan import Outcome, Plan, Progress
from tiebeam.surgery.source import Source, open_source

KEEP = ("embed", "head", "mean")
_BLOCK_ROWS = 2048


def tie(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    keep: str | None = None,
    joint: bool = False,
    text: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    rank: int | None = None,
    exact_rows: int | None = None,
    distill: float = 0.0,
    tokens: int = 16384,
    expand: bool = False,
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
    """Write `target`: `source` with one matrix for the embedding and the head. Exact unless `keep` or `joint` is given.

        >>> import tiebeam
        >>> tiebeam.tie("merged", "merged-tied")
        Traceback (most recent call last):
        tiebeam.errors.BadRequest: ...
        >>> print(tiebeam.tie("merged", "merged-tied", keep="embed").after.tie)
        shared

        tiebeam.tie("./merged", "./tied")                                  # two equal matrices: exact
        tiebeam.tie("./untied", "./tied", keep="mean")                     # two different ones: usually ruins the model
        tiebeam.tie("./untied", "./tied", joint=True, text="wiki.txt")     # one table and two small maps

    keep          "embed", "head" or "mean": the matrix to use for both
    joint         fit one table [V, rank] and two maps [rank, D] to `text` (a file, or several)
    rank          with joint: columns of the table; None: the width of the model
    exact_rows    with joint: embeddings of the most frequent tokens that are stored exactly; None: 30% of the rows
    distill       with joint: minutes of distillation from the original model
    tokens        with joint: how many tokens of `text` are run to calibrate
    expand        with joint: write two ordinary matrices, for loaders other than tiebeam and transformers
    embed, head   tensor names, for an architecture that tiebeam does not know
    dtype         what a GGUF is dequantized to when `target` is a directory: "F32", "F16" or "BF16"
    force, link, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    Raises BadRequest if the matrices differ and neither `keep` nor `joint` is given, or if the model is tied already;
    ProofFailed if the written model is not as planned. `source` is never changed.
    """
    check_tie_arguments(keep, joint, rank, exact_rows, distill, expand)
    opened = open_source(source, embed=embed, head=head, target=target, dtype=dtype)
    where = checked_target(opened, target, force)
    running: dict[str, Any] = {"progress": progress, "engine": engine, "device": device}
    options: dict[str, Any] = {"link": link, "proof": proof, "durable": durable, **running}
    if not joint:
        return execute(plan_tie(opened) if keep is None else plan_keep(opened, keep), where, **options)
    from tiebeam.surgery.joint.joint_tie import fit_joint
    from tiebeam.surgery.loss_effect import read_documents

    files = [os.fspath(text)] if isinstance(text, str | os.PathLike) else [os.fspath(path) for path in text]
    documents = read_documents(files) if files else None
    confirm = bool(distill) or not proof
    fitted = fit_joint(opened, documents, rank=rank, exact_rows=exact_rows, tokens=tokens, confirm=confirm, **running)
    if distill:
        fitted, _ = fitted.distilled(distill, where.path, progress)
    return fitted.write(where, expand=expand, **options)


def check_tie_arguments(
    keep: str | None, joint: bool, rank: int | None, exact_rows: int | None, distill: float, expand: bool
) -> None:
    """Refuse arguments of `tie` that contradict each other."""
    if keep is not None and keep not in KEEP:
        raise BadRequest(f'keep must be "embed", "head" or "mean", not {keep!r}')
    if keep and joint:
        raise BadRequest(f'keep="{keep}" and joint=True are alternatives; choose one')
    for name, value in (("rank", rank), ("exact_rows", exact_rows), ("distill", distill), ("expand", expand)):
        if value and not joint:
            raise BadRequest(f"{name}={value} needs joint=True")


def plan_tie(source: Source) -> Plan:
    """Plan to store one matrix and to set every tie flag to true. Exact; refuses where tying would change the model."""
    report, pair, tie = source.report, source.report.pair, source.report.tie
    if tie is Tie.NONE:
        raise BadRequest(f"{report.model} has no embedding and head to tie")
    _refuse_never_tied(source)
    if tie in (Tie.UNTIED, Tie.TORN):
        raise BadRequest(
            f"the embedding and head of {report.model} differ ({report.how}), so tying them changes the model; choose "
            'how: joint=True with text="FILE" (one table and two small maps), or keep="embed", keep="head" or '
            'keep="mean" (usually ruins the model)'
        )
    if source.flag_is_fixed and pair.declared is not True:
        raise BadRequest(
            f"the flag of {report.architecture} cannot be set to true without changing its logits; tie it in memory "
            "with tiebeam.tie_(model)"
        )
    flags, nothing_to_do = set_flag(source, True), ""
    if source.embed is None:
        edit = rename_head(source) | flags
    elif source.head is not None:
        assert pair.embed
        assert pair.head
        if pair.embed.dtype != pair.head.dtype or "rounding" in report.how:
            raise BadRequest(
                f"the embedding and head of {report.model} are equal only up to rounding ({report.how}); choose which "
                'one to keep: keep="embed" or keep="head"'
            )
        edit = drop_head(source) | drop_followers(source) | flags
    else:
        edit = flags
        if not edit and not source.converted:
            declares = "" if source.layout.config is None else ", and config.json says tied"
            nothing_to_do = f"{report.model} is already tied: one matrix is stored{declares}"
    edit = edit | drop_aliases(source)
    return Plan("tie", source, edit, is_tied(source), exact=tie is not Tie.HEADLESS, nothing_to_do=nothing_to_do)


def plan_keep(source: Source, keep: str) -> Plan:
    """Plan to use one of two different matrices, or their mean, for both. Any loader reads it; it usually ruins the
    model."""
    report, pair = source.report, source.report.pair
    check_tie_arguments(keep, False, None, 0, 0.0, False)
    _refuse_never_tied(source)
    if source.embed is None or source.head is None or pair.one_storage:
        raise BadRequest(f"{report.model} is {report.tie}: there are no two matrices to choose from")
    assert pair.embed
    assert pair.head
    if pair.embed.shape != pair.head.shape:
        shapes = f"embed is {list(pair.embed.shape)} but head is {list(pair.head.shape)}"
        raise BadRequest(f"{shapes}; matrices of different shapes cannot be tied")
    if keep == "embed":
        edit = drop_head(source)
    elif keep == "head":
        edit = drop_matrix(source, source.embed) | Edit(rename=moved(source.head, source.embed, source.dtypes))
    else:
        edit = Edit(drop=frozenset({source.embed, source.head}), add=(_mean(source),))
    edit = edit | drop_followers(source) | set_flag(source, True) | drop_aliases(source)
    return Plan(f"tie --keep {keep}", source, edit, is_tied(source), exact=False)


def is_tied(source: Source) -> Callable[[Report], str | None]:
    """A check for `Plan.expect`: one matrix is stored, and the config says tied."""

    def expect(report: Report) -> str | None:
        if report.tie is not Tie.SHARED:
            return f"its pair is {report.tie}, not shared"
        if report.pair.declared is not True and source.layout.config is not None:
            return f"its config does not say tied ({report.pair.declared_by})"
        return None

    return expect


def _mean(source: Source) -> Entry:
    assert source.report.pair.embed
    assert source.report.pair.head
    names = source.report.pair.embed.name, source.report.pair.head.name
    stored = next(entry for shard in source.layout.shards for entry in shard.entries if entry.name == source.embed)
    if stored.dtype not in ("F64", "F32", "F16", "BF16"):
        raise BadRequest(
            f'a mean cannot be stored as {stored.dtype}; use keep="embed" or keep="head", or a directory as the target'
        )
    content = Made(stored.nbytes, lambda: _mean_blocks(source.checkpoint, *names, stored.dtype))
    return Entry(stored.name, stored.dtype, stored.shape, content)


def _mean_blocks(checkpoint: Checkpoint, embed: str, head: str, dtype: str) -> Iterator[bytes]:
    import numpy as np

    rows = checkpoint.tensors[embed].shape[0]
    for start in range(0, rows, _BLOCK_ROWS):
        e, w = (checkpoint.rows(n, start, start + _BLOCK_ROWS).astype(np.float64) for n in (embed, head))
        yield dtypes.encode(dtype, (e + w) / 2)


def _refuse_never_tied(source: Source) -> None:
    why = why_never_tied(source.architecture, source.checkpoint.architecture, source.is_gguf)
    if why:
        raise BadRequest(why)
