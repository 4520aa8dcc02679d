"""`tiebeam extend`: add tokens and rows, or repair untrained rows."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import click

from tiebeam.cli import render
from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import (
    common_options_of_one_format,
    needs_target,
    print_nothing_to_do,
    print_outcome,
    print_plan,
)

_SHOWN = 8


@click.command(short_help="Add tokens and rows to embedding, LM head and tokenizer.")
@common_options_of_one_format
@click.option("--token", "tokens", multiple=True, metavar="TEXT", help="A token to add. Repeatable.")
@click.option(
    "--tokens", "file", metavar="FILE",
    help="Add the tokens in FILE: UTF-8, one per line. Every character but the line break belongs to the token; an "
    "empty or repeated line is an error.",
)  # fmt: skip
@click.option("--special", is_flag=True, help="The tokens are special (control) tokens: decoding can leave them out.")
@click.option("--chat", type=click.Choice(["chatml"]), help="Add the two special tokens of this chat template.")
@click.option("--rows", type=click.IntRange(min=1), metavar="N", help="The tables have at least N rows.")
@click.option(
    "--pad-to-multiple-of", type=click.IntRange(min=1), metavar="M", help="The number of rows is a multiple of M."
)
@click.option(
    "--init", default="mean", show_default=True, metavar="HOW",
    help="Values of new rows: mean (of all trained rows), subwords (mean of the pieces of the token's text), "
    'like:TOKEN, or describe:"some words". The norm is the median of the trained rows.',
)  # fmt: skip
@click.option(
    "--repair", is_flag=True, help="Fill rows that hold nothing learned (zero, NaN, never moved); change nothing else."
)
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, engine: str,
    device: str | None, embed: str | None, head: str | None, as_json: bool, quiet: bool,
    tokens: tuple[str, ...], file: str | None, special: bool, chat: str | None, rows: int | None,
    pad_to_multiple_of: int | None, init: str, repair: bool,
) -> None:  # fmt: skip
    """Write DST: the model SRC with more tokens. Everything with a vocabulary dimension grows together.

    Embedding, LM head, biases and further tables, vocab_size at every config level, and the tokenizer's files (in a
    GGUF, its list of tokens) change in one step. Rows that no token uses (padding) are taken before new ones are made.
    The logits of the old tokens stay the same to the bit, and old text keeps its ids. The report says how much
    probability the new rows take from the old, and prints the lines that train them with PEFT.

    \b
    tiebeam extend ./smollm2 ./think --token '<think>' --token '</think>'
    tiebeam extend ./base ./chat --chat chatml --init subwords
    tiebeam extend ./base ./domain --tokens words.txt --pad-to-multiple-of 64
    tiebeam extend model.gguf think.gguf --token '<think>'
    tiebeam extend ./broken ./repaired --repair

    DST appears complete or not at all. SRC is never changed.
    """
    from tiebeam.surgery import checked_target, execute, open_source
    from tiebeam.surgery.extend import plan_of
    from tiebeam.surgery.extend.requested_tokens import read_token_file

    needs_target(target, dry_run)
    wanted = [*tokens, *(read_token_file(file) if file else ())]
    opened = open_source(source, embed=embed, head=head, target=target or source)
    where = None if dry_run or target is None else checked_target(opened, target, force)
    with closing(Progress(quiet or as_json)) as progress:
        running: dict[str, Any] = {"engine": engine, "device": device}
        with progress.waiting("reading the rows"):
            plan = plan_of(
                opened, tokens=wanted, special=special, chat=chat, rows=rows, pad_to_multiple_of=pad_to_multiple_of,
                init=init, repair=repair, **running,
            )  # fmt: skip
        if plan.nothing_to_do or where is None:
            progress.close()
            print_nothing_to_do(plan, as_json, dry_run) if plan.nothing_to_do else print_plan(plan, as_json)
            return
        outcome = execute(plan, where, link=link, proof=not no_proof, progress=progress, **running)
    untold = outcome.proof is not None and not outcome.proof.ran  # the line above says why it was not run
    effect = "" if untold else _effect(outcome.measured, "repaired" if repair else "new")
    print_outcome(outcome, as_json, effect)
    if not as_json:
        _print_tokens(outcome.facts, outcome.measured)


def _effect(measured: Mapping[str, Any], which: str) -> str:
    if not measured:
        return ""
    if "why" in measured:
        return f"the effect of the {which} rows was not measured: {measured['why']}"
    return (
        f"the {which} rows take {measured['probability']:.2%} of the probability on {measured['on']} "
        f"({measured['tokens']:,} tokens), KL {measured['kl']:.2g}"
    )


def _print_tokens(facts: Mapping[str, Any], measured: Mapping[str, Any]) -> None:
    from tiebeam.surgery.extend.extend_proof import WARN_ABOVE

    console = render.console()
    if measured.get("probability", 0) > WARN_ABOVE:
        advice = "train them before you use the model" if facts["init"] == "mean" else "--init mean takes less"
        words = "warning: these rows take more than 1% of the probability although they are not trained"
        console.print(render.wrapped(f"{words}; {advice}", console.width))
    listed = facts.get("tokens") or ()
    table = [[repr(t["text"]), f"id {t['id']}", f"in a {t['row']} row"] for t in listed[:_SHOWN]]
    for line in render.columns(table, "<<<") if table else ():
        console.print(line)
    if len(listed) > _SHOWN:
        console.print(f"  and {len(listed) - _SHOWN:,} more tokens")
    repaired = facts.get("repaired")
    if repaired:
        shown = ", ".join(f"{row:,}" for row in repaired[:_SHOWN]) + (", ..." if len(repaired) > _SHOWN else "")
        console.print(render.wrapped(f"repaired {len(repaired):,} rows: {shown}", console.width))
    if facts.get("peft"):
        console.print("  train these rows with PEFT, the layers with LoRA:")
        for code in facts["peft"]:
            click.echo(f"    {code}")
