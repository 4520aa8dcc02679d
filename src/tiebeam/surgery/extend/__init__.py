"""`extend`: add tokens and rows to a model, in everything that has the vocabulary as a dimension."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tiebeam.checkpoint import Checkpoint
from tiebeam.errors import BadRequest
from tiebeam.surgery.execute import checked_target, execute
from tiebeam.surgery.extend.plan_extend import plan_extend, plan_repair
from tiebeam.surgery.plan import Outcome, Plan, Progress
from tiebeam.surgery.source import Source, open_source

__all__ = ["extend", "plan_extend", "plan_of", "plan_repair"]


def extend(
    source: str | os.PathLike[str] | Checkpoint,
    target: str | os.PathLike[str],
    *,
    tokens: Sequence[str] = (),
    special: bool = False,
    chat: str | None = None,
    rows: int | None = None,
    pad_to_multiple_of: int | None = None,
    init: str = "mean",
    repair: bool = False,
    embed: str | None = None,
    head: str | None = None,
    force: bool = False,
    link: bool = False,
    proof: bool = True,
    durable: bool = True,
    progress: Progress | None = None,
    engine: str = "auto",
    device: str | None = None,
) -> Outcome:
    """Write `target`: `source` with more tokens, or more rows, at both ends. The logits of the old ids do not change.

        >>> import tiebeam
        >>> outcome = tiebeam.extend("tied", "tied-padded", pad_to_multiple_of=64)  # this model has no tokenizer
        >>> print(outcome.before.vocabulary.rows, outcome.after.vocabulary.rows)
        96 128

        outcome = tiebeam.extend("./smollm2", "./smollm2-think", tokens=["<think>", "</think>"])
        outcome.facts["tokens"], outcome.measured["probability"]

    tokens               texts of the new tokens; each matches exactly and becomes one id
    special              they are control tokens, which decoding can leave out
    chat                 "chatml": add the two tokens of that template, as special tokens
    rows                 the table has this many rows at least; the rest is padding
    pad_to_multiple_of   the number of rows is a multiple of this
    init                 "mean", "subwords", "like:TOKEN" or "describe:some words"; see `extend.initial_rows`
    repair               fill the rows that hold nothing learned, and change nothing else
    embed, head          tensor names, for an architecture that tiebeam does not know
    force, link, proof, durable, progress, engine, device   see `tiebeam.surgery.execute`

    Raises BadRequest if a token exists or cannot be one, ProofFailed if the written model is not as planned. `source`
    is never changed; `target` appears complete or not at all.
    """
    opened = open_source(source, embed=embed, head=head, target=target)
    where = checked_target(opened, target, force)
    plan = plan_of(
        opened, tokens=tokens, special=special, chat=chat, rows=rows, pad_to_multiple_of=pad_to_multiple_of, init=init,
        repair=repair, engine=engine, device=device,
    )  # fmt: skip
    return execute(
        plan, where, link=link, proof=proof, durable=durable, progress=progress, engine=engine, device=device
    )


def plan_of(
    source: Source,
    *,
    tokens: Sequence[str],
    special: bool,
    chat: str | None,
    rows: int | None,
    pad_to_multiple_of: int | None,
    init: str,
    repair: bool,
    engine: str = "auto",
    device: str | None = None,
) -> Plan:
    """`plan_extend`, or `plan_repair` if `repair`."""
    if not repair:
        return plan_extend(
            source, tokens=tokens, special=special, chat=chat, rows=rows, pad_to_multiple_of=pad_to_multiple_of,
            init=init, engine=engine, device=device,
        )  # fmt: skip
    if tokens or special or chat or rows or pad_to_multiple_of:
        raise BadRequest("repair=True changes untrained rows only; add tokens and rows in a second run")
    return plan_repair(source, init=init, engine=engine, device=device)
