"""`tiebeam quantize`: what each precision of the vocabulary matrices costs; write a GGUF with other types."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import human_bytes
from tiebeam.cli import render
from tiebeam.cli.progress import Progress
from tiebeam.cli.surgical import print_nothing_to_do, print_outcome, print_plan, running_options
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.surgery.quantize import Cost, CostTable

_TITLES = {
    "lookup": "lookup alone: only the embedding is rounded",
    "head": "head alone: only the LM head is rounded",
    "both": "both",
}


@click.command(short_help="Measure what fewer bits cost in embedding and LM head; write a GGUF.")
@click.argument("model", metavar="MODEL")
@click.argument("target", metavar="[DST]", required=False)
@click.option(
    "--text", "texts", multiple=True, metavar="FILE",
    help="UTF-8 text to measure on, as close as possible to what the model will read. Repeatable.",
)  # fmt: skip
@click.option("--tokens", type=click.IntRange(min=256), default=1536, show_default=True, metavar="N",
              help="Tokens of the text that the head is measured on; the lookup on half.")  # fmt: skip
@click.option("--tolerance", type=click.FloatRange(min=0, min_open=True), default=0.01, show_default=True,
              metavar="NATS", help="Recommend what costs less per token, its interval included.")  # fmt: skip
@click.option("--embed", metavar="TYPE", help="GGUF type of token_embd.weight in DST: F16, Q8_0, Q5_0, Q4_0, ...")
@click.option("--head", metavar="TYPE", help="GGUF type of output.weight in DST.")
@click.option(
    "--rounding", type=click.Choice(["nearest", "compensated"]), default="nearest", show_default=True,
    help="compensated: choose the head's codes so that the logits on --text change least (Q8_0, Q5_0, Q4_0).",
)  # fmt: skip
@click.option("--yes", is_flag=True, help="Write DST although it changes the model.")
@click.option("--dry-run", is_flag=True, help="Show every change that DST would have and write nothing.")
@click.option("--force", is_flag=True, help="Replace DST if tiebeam wrote it; anything else there is refused.")
@click.option("--no-proof", is_flag=True, help="Do not run the result to compare its logits.")
@running_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def command(
    model: str, target: str | None, texts: tuple[str, ...], tokens: int, tolerance: float, embed: str | None,
    head: str | None, rounding: str, yes: bool, dry_run: bool, force: bool, no_proof: bool, engine: str,
    device: str | None, as_json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Measure what each precision of the embedding and the LM head costs on your text; with DST, write one of them.

    Without DST: nats per token (with the 95% interval), KL, share of equal next tokens and bytes, for f16 and 8 to 3
    bits, per row and per block of 32, rounded to nearest and error-compensated. It ends in a recommendation.

    With DST: the GGUF file MODEL with token_embd and output of the types that you name; every other byte is copied.
    The types of a tied model may differ: its file is then untied. One matrix that a converter stored under two types
    becomes one again. What changes the model is measured first and needs --yes.

    \b
    tiebeam quantize model.gguf --text my.txt
    tiebeam quantize model.gguf small.gguf --embed Q5_0 --head Q5_0 --text my.txt --yes
    tiebeam quantize model.gguf small.gguf --head Q4_0 --rounding compensated --text my.txt --yes
    tiebeam quantize twin.gguf one.gguf

    DST appears complete or not at all. MODEL is never changed.
    """
    from tiebeam.surgery.loss_effect import read_texts

    text = read_texts(texts) if texts else None
    running: dict[str, Any] = {"engine": engine, "device": device}
    with closing(Progress(quiet or as_json)) as progress:
        if target is not None or dry_run:
            options = {"force": force, "proof": not no_proof, "progress": progress, **running}
            _write(model, None if dry_run else target, embed, head, rounding, text, yes, as_json, options)
            return
        if embed or head:
            raise click.UsageError("name DST, the GGUF file to write with these types, or pass --dry-run")
        if text is None:
            raise click.UsageError("--text FILE is missing: the cost depends on what the model reads")
        from tiebeam.surgery.quantize import measure_costs, write_commands

        table = measure_costs(model, text, tokens=tokens, tolerance=tolerance, progress=progress, **running)
        progress.close()
        commands = write_commands(table, texts)
        if as_json:
            render.emit_json({**table.to_dict(), "commands": commands})
        else:
            _print_table(table, commands)


def _write(
    model: str, target: str | None, embed: str | None, head: str | None, rounding: str, text: str | None, yes: bool,
    as_json: bool, options: dict[str, Any],
) -> None:  # fmt: skip
    from tiebeam.surgery import checked_target, execute
    from tiebeam.surgery.quantize import open_gguf, plan_quantize

    progress, force = options["progress"], options.pop("force")
    opened = open_gguf(model, target)
    where = None if target is None else checked_target(opened, target, force)
    running = {name: options[name] for name in ("engine", "device")}
    with progress.waiting("reading the matrices"):
        planned = plan_quantize(opened, embed=embed, head=head, rounding=rounding, text=text, **running)
    if planned.plan.nothing_to_do:
        progress.close()
        print_nothing_to_do(planned.plan, as_json, where is None)
        return
    effect = None
    if not planned.lossless:
        progress("measuring the effect on loss", 0, 1)
        effect = planned.effect(text, **running)
        progress("measuring the effect on loss", 1, 1)
    sentence = f"{effect.sentence}; " if effect else ""
    if where is None:
        progress.close()
        damage = {"damage": effect.to_dict()} if effect else {}
        print_plan(planned.plan, as_json, effect.sentence if effect else "", damage, planned.saved)
        return
    if effect and not yes:
        raise BadRequest(f"this changes the model: {effect.sentence}; pass --yes to write it anyway")
    outcome = execute(planned.plan, where, **options)
    progress.close()
    outcome = replace(outcome, measured=effect.to_dict()) if effect else outcome
    print_outcome(outcome, as_json, sentence + planned.saved)


def _print_table(table: CostTable, commands: list[str]) -> None:
    console = render.console()
    pair = table.report.pair
    types = " and ".join(dict.fromkeys(m.dtype for m in (pair.embed, pair.head) if m is not None))
    stored = f"{'one matrix' if table.tied else 'two matrices'}, {types}, {human_bytes(table.bytes)}"
    console.print(render.styled((table.report.model, "bold"), f" · {stored} · {table.nats:.3f} nats per token"))
    measured = (
        f"change in nats per token ± its 95% interval, on {table.tokens:,} tokens for the head and "
        f"{table.lookup_tokens:,} for lookup and both; compensated for {table.calibrated_tokens:,} others"
    )
    console.print(render.wrapped(measured, console.width))
    head = ["", "bytes", "nearest: nats", "KL", "same", "compensated: nats", "KL", "same"]
    lines = [head]
    sections = {}
    for which, title in _TITLES.items():
        sections[len(lines)] = title
        lines += _lines([row for row in table.rows if row.which == which])
    for i, line in enumerate(render.columns(lines, "<>>>>>>>")):
        if i in sections:
            console.print(render.styled((f"  {sections[i]}", "bold")))
        console.print(line)
    for note in table.notes:
        console.print(render.wrapped(f"note: {note}", console.width))
    _print_recommendation(table, commands)


def _lines(rows: list[Cost]) -> Iterator[list[str]]:
    """One line per precision: rounded to nearest on the left, compensated on the right."""
    found: dict[Any, dict[str, Cost]] = {}
    for row in rows:
        found.setdefault((row.embed, row.head), {})[row.rounding] = row
    for by_rounding in found.values():
        any_row = next(iter(by_rounding.values()))
        name = any_row.precision.name
        if any_row.embed and any_row.head and any_row.embed != any_row.head:
            name = f"{any_row.embed.name} + {any_row.head.name}"
        cells = [_cells(by_rounding.get(rounding)) for rounding in ("nearest", "compensated")]
        yield [name, human_bytes(any_row.bytes), *cells[0], *cells[1]]


def _cells(row: Cost | None) -> list[str]:
    if row is None:
        return ["", "", ""]
    return [_change(row), f"{row.kl:.4f}", f"{row.same:.1%}"]


def _change(row: Cost) -> str:
    """The change of the loss, never without its interval."""
    if max(abs(row.low), abs(row.high)) < 5e-5:
        return "0.0000 ± 0.0000"
    return f"{row.nats:+.4f} ± {row.high - row.nats:.4f}"


def _print_recommendation(table: CostTable, commands: list[str]) -> None:
    console, best, writable = render.console(), table.recommended, table.recommended_gguf
    if best is None:
        console.print(f"● nothing smaller costs less than {table.tolerance:g} nats per token: keep it as it is")
        return
    console.print(render.styled(("● smallest below the tolerance: ", "bold"), _sentence(table, best)))
    if writable is not None and writable != best:
        console.print(f"  smallest that GGUF can store: {_sentence(table, writable)}")
    for line in commands or ["no GGUF type that the gguf package writes is below the tolerance"]:
        console.print(f"  {line}")


def _sentence(table: CostTable, row: Cost) -> str:
    saved = 1 - row.bytes / table.bytes
    return f"{row.name}: {human_bytes(row.bytes)} ({saved:.0%} less), {_change(row)} nats, KL {row.kl:.4f}"
