"""`tiebeam trim`: keep the tokens that a text uses; see what each size costs first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import human, human_bytes
from tiebeam.cli import render
from tiebeam.cli.inspect import title
from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import common_options, print_nothing_to_do, print_outcome, print_plan

if TYPE_CHECKING:
    from tiebeam.surgery.trim import Ladder, Trimming

_AUTO, _NONE = "auto", "none"


@click.command(short_help="Drop the rows of tokens that your text does not use.")
@common_options
@click.option(
    "--text", "texts", multiple=True, required=True, metavar="FILE",
    help="UTF-8 text like what the model will read; a directory stands for all files in it. Repeatable. A tenth is "
    "held out and measured.",
)  # fmt: skip
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="Keep N rows.")
@click.option(
    "--coverage", type=click.FloatRange(0, 1, min_open=True), metavar="SHARE",
    help="Keep the fewest rows whose tokens are SHARE of the text's tokens, such as 0.9999.",
)  # fmt: skip
@click.option(
    "--keep-tokens", "file", metavar="FILE",
    help="Keep the tokens of the texts in FILE in any case: UTF-8, one text per line.",
)  # fmt: skip
@click.option(
    "--pad-to-multiple-of", type=click.IntRange(min=1), metavar="M",
    help="The number of rows is a multiple of M; more tokens stay, no empty rows are added.",
)  # fmt: skip
@click.option(
    "--hot-rows", metavar="FILE",
    help="Write the kept ids of SRC, the most frequent first, as SGLang's --speculative-token-map reads them.",
)  # fmt: skip
@click.option(
    "--ladder", default=_AUTO, show_default=True, metavar="N,N,...",
    help="Sizes in the table: auto takes powers of two; none measures nothing.",
)  # fmt: skip
@click.option(
    "--tokens", type=click.IntRange(min=0), default=4096, show_default=True, metavar="N",
    help="Tokens of held-out text that the model runs on, once for each size. 0: bits per byte are not measured.",
)  # fmt: skip
def command(
    source: str, target: str | None, dry_run: bool, force: bool, link: bool, no_proof: bool, engine: str,
    device: str | None, embed: str | None, head: str | None, dtype: str, as_json: bool, quiet: bool,
    texts: tuple[str, ...], keep: int | None, coverage: float | None, file: str | None,
    pad_to_multiple_of: int | None, hot_rows: str | None, ladder: str, tokens: int,
) -> None:  # fmt: skip
    """Write DST: the model SRC with only the tokens that a text uses. Without DST, show what each size costs.

    Always kept: special, added and byte tokens, the pieces that a kept BPE token is built from, and what --keep-tokens
    names. So no text becomes unknown: other words are split into more tokens. Every tensor with a vocabulary dimension,
    the tokenizer, and all token ids in config.json, generation_config.json and the tokenizer's files change together.
    id_map.json has the old id of each new one (in a GGUF, the key tiebeam.id_map).

    \b
    tiebeam trim ./smollm2 --text prose.txt                        the table of sizes
    tiebeam trim ./smollm2 ./small --text prose.txt --keep 16384
    tiebeam trim ./smollm2 ./small --text prose.txt --coverage 0.9999 --pad-to-multiple-of 64
    tiebeam trim model.gguf small.gguf --text prose.txt --keep 16384
    tiebeam trim ./target --text chats.txt --keep 32768 --ladder none --hot-rows map.pt

    The table is measured on held-out text. Compare bits per byte: a smaller vocabulary makes more tokens of a text, so
    losses per token say nothing. DST appears complete or not at all. SRC is never changed.
    """
    from tiebeam.surgery import checked_target, execute, open_source
    from tiebeam.surgery.extend.requested_tokens import read_token_file
    from tiebeam.surgery.trim import check_hot_rows, plan_trim, prepare, write_hot_rows

    chosen = keep is not None or coverage is not None
    if keep is not None and coverage is not None:
        raise click.UsageError("--keep and --coverage exclude each other")
    if not chosen and (target is not None or dry_run or hot_rows):
        raise click.UsageError("choose --keep N or --coverage SHARE; without DST the table of sizes helps to choose")
    sizes = _sizes(ladder)
    wanted = read_token_file(file) if file else []
    opened = open_source(source, embed=embed, head=head, target=target or source, dtype=dtype)
    where = None if dry_run or target is None else checked_target(opened, target, force)
    if hot_rows is not None:
        check_hot_rows(hot_rows, force)
    running: dict[str, Any] = {"engine": engine, "device": device}
    with closing(Progress(quiet or as_json)) as progress:
        trimming = prepare(opened, texts, keep_tokens=wanted, progress=progress)
        selection = trimming.select(keep, coverage, pad_to_multiple_of) if chosen else None
        table = None
        if ladder != _NONE:
            table = trimming.ladder(
                [selection] if selection else [], sizes, tokens=tokens, progress=progress, **running
            )
            if not as_json:
                progress.close()
                _print_ladder(trimming, table, selection.rows if selection else None)
        if selection is None:
            _print_choice(trimming, table, source, texts, as_json)
            return
        plan = plan_trim(trimming, selection, table)
        if hot_rows is not None and (where is None or plan.nothing_to_do):
            write_hot_rows(hot_rows, trimming.hot_ids(selection))
        if plan.nothing_to_do or where is None:
            progress.close()
            print_nothing_to_do(plan, as_json, dry_run) if plan.nothing_to_do else print_plan(plan, as_json)
            return
        with closing(Progress(quiet or as_json)) as writing:
            outcome = execute(plan, where, link=link, proof=not no_proof, progress=writing, **running)
        if hot_rows is not None:
            write_hot_rows(hot_rows, trimming.hot_ids(selection))
    print_outcome(outcome, as_json, _proved(outcome.measured))


def _proved(measured: Mapping[str, Any]) -> str:
    if not measured:
        return ""
    return (
        f"{measured['same_tokens']:,} tokens of kept text have the same ids; {measured['other_texts']:,} other texts "
        "decode to the same characters, none became unknown"
    )


def _sizes(ladder: str) -> list[int] | None:
    if ladder in (_AUTO, _NONE):
        return None
    parts = ladder.replace("_", "").split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise click.UsageError(f"--ladder must be auto, none or numbers of rows with commas, not {ladder!r}")
    return [int(part) for part in parts]


def _print_ladder(trimming: Trimming, table: Ladder, chosen: int | None) -> None:
    console, text = render.console(), trimming.text
    report = trimming.source.report
    console.print(render.styled((f"{title(report)} · {trimming.pieces.kind} tokenizer", "bold")))
    counted = f"counted {text.tokens:,} tokens in {human_bytes(text.nbytes)} of text"
    console.print(f"  {counted}; {human_bytes(table.held_out_bytes)} held out")
    first = table.rungs[0].bits_per_byte
    rows = [["rows", "parameters", "saved", "text covered", "tokens/byte", "bits/byte", ""]]
    for i, rung in enumerate(table.rungs):
        bits = "-" if rung.bits_per_byte is None else f"{rung.bits_per_byte:.4f}"
        if i and first and rung.bits_per_byte is not None:
            bits += f" ({100 * (rung.bits_per_byte / first - 1):+.1f}%)"
        saved = f"{human(rung.parameters_saved)}, {human_bytes(rung.bytes_saved)}" if i else "-"
        said = "now" if not i else "chosen" if rung.rows == chosen else ""
        rows.append([f"{rung.rows:,}", human(rung.parameters), saved, f"{rung.coverage:.2%}",
                     f"{rung.tokens_per_byte:.4f}", bits, said])  # fmt: skip
    for line in render.columns(rows, ">>>>>><"):
        console.print(line)
    if table.why:
        console.print(render.wrapped(f"bits per byte were not measured: {table.why}", console.width))
    elif table.measured_bytes:
        console.print(f"  bits per byte on {human_bytes(table.measured_bytes)} of held-out text")


def _print_choice(trimming: Trimming, table: Ladder | None, source: str, texts: tuple[str, ...], as_json: bool) -> None:
    if as_json:
        text = trimming.text
        render.emit_json({
            "verb": "trim",
            "source": source,
            "rows": trimming.rows,
            "fewest_rows": len(trimming.chooser.always),
            "tokenizer": trimming.pieces.kind,
            "text": {"bytes": text.nbytes, "tokens": text.tokens, "held_out_bytes": text.held_out_bytes},
            "ladder": table.to_dict() if table else None,
            "written": False,
        })  # fmt: skip
        return
    given = " ".join(f"--text {shlex.quote(text)}" for text in texts)
    render.echo(f"  nothing was written; next: tiebeam trim {shlex.quote(source)} DST {given} --keep N")
