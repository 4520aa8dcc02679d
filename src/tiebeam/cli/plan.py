"""`tiebeam plan`: the calculator. What tying saves for a vocabulary, a width and a trunk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import Budget, Memory, human, human_bytes, parse_count, percent, price
from tiebeam.catalog import KnownModel, find, named, neighbours, verdict, verdict_by_size, within_sizes
from tiebeam.cli import render
from tiebeam.errors import BadRequest
from tiebeam.traffic import TOKENS, Traffic, exchanged

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """A number as people write them: 50,257 or 3.2B."""
    try:
        return None if value is None else parse_count(value)
    except BadRequest as error:
        raise BadRequest(f"{param.opts[0]}: {error}") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """What is priced, and what is known about it. `tied` is None where nobody has decided yet."""

    budget: Budget
    title: str
    tied: bool | None = None
    remark: str = ""
    known: KnownModel | None = None

    @property
    def verdict(self) -> str:
        share = self.budget.head_share
        return verdict(share).sentence if share is not None else verdict_by_size(self.budget)


@click.command(short_help="The calculator: what tying saves.")
@click.option("--vocab", callback=_count, metavar="N", help="Tokens in the vocabulary: rows of the matrix.")
@click.option("--dim", callback=_count, metavar="N", help="Width of the matrix: the model's hidden size.")
@click.option("--trunk", callback=_count, metavar="N", help="Parameters of everything but the two matrices.")
@click.option("--config", metavar="FILE", help="Count from a config.json alone, without weights.")
@click.option("--model", metavar="NAME", help="A known model (see `tiebeam models`) or any MODEL.")
@click.option("--ranks", callback=_count, metavar="N", help="Also: what N data-parallel ranks exchange per step.")
@click.option("--tokens", callback=_count, metavar="N", help=f"Tokens of each rank per step.  [default: {TOKENS}]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    vocab: int | None, dim: int | None, trunk: int | None, config: str | None, model: str | None, ranks: int | None,
    tokens: int | None, as_json: bool,
) -> None:  # fmt: skip
    """What tying the embedding and the head saves: parameters, bytes, optimizer memory.

    Give a vocabulary and a width, with the trunk between them if you know it; or a config.json; or a model.
    Numbers may be written 50257, 50,257, 50k, 135M or 3.2B.

    \b
    Examples:
      tiebeam plan --vocab 50k --dim 4096        in a 1B, a 7B and a 70B model
      tiebeam plan --vocab 32k --dim 2048 --trunk 969M
      tiebeam plan --config my-model/config.json
      tiebeam plan --model phi-4-mini            a known model, or its Hub id
      tiebeam plan --model ./my-model --json     any checkpoint
      tiebeam plan --vocab 200k --dim 4096 --ranks 8

    The share is one matrix over the model with both. At 1B, 7B and 70B the given size is that model's.
    JSON: bytes and optimizer_bytes (Adam's two fp32 moments) are those of one matrix: what tying saves.
    With --ranks, exchanged is what each rank sends per step, in bytes.
    """
    if tokens is not None and ranks is None:
        raise BadRequest("--tokens counts what each of several ranks brings to a step; give --ranks too")
    plan = _chosen(vocab, dim, trunk, config, model)
    budget = plan.budget
    traffic = (
        None if ranks is None else exchanged(budget.vocab, budget.dim, ranks, TOKENS if tokens is None else tokens)
    )
    if as_json:
        more = {} if traffic is None else {"exchanged": traffic.to_dict()}
        render.emit_json({**budget.to_dict(), "verdict": plan.verdict, **more})
        return
    console = render.console()
    _show(plan, console)
    if traffic is not None:
        _show_traffic(traffic, console)


def _chosen(vocab: int | None, dim: int | None, trunk: int | None, config: str | None, model: str | None) -> Plan:
    sizes = [f"--{name}" for name, value in (("vocab", vocab), ("dim", dim), ("trunk", trunk)) if value is not None]
    ways = [*(["--config"] if config is not None else []), *(["--model"] if model is not None else [])]
    if len(ways) == 2:
        raise BadRequest("--config and --model each name a model; give one of them")
    if ways and sizes:
        raise BadRequest(f"{ways[0]} already fixes the sizes; leave out {' and '.join(sizes)}, or {ways[0]}")
    if config is not None:
        return _from_config(config)
    if model is not None:
        return _from_model(model)
    if vocab is None or dim is None:
        missing = " and ".join(f"--{name}" for name, value in (("vocab", vocab), ("dim", dim)) if value is None)
        given = f"{' and '.join(sizes)} alone cannot be priced; add {missing}" if sizes else "nothing to price"
        raise BadRequest(given + ("" if sizes else "; give --vocab and --dim, --config FILE or --model NAME"))
    around = "" if trunk is None else f" around a trunk of {human(trunk)}"
    return Plan(price(vocab, dim, trunk), f"{vocab:,} x {dim:,}{around}")


def _from_config(path: str) -> Plan:
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.json_files import read_json
    from tiebeam.families import count_from_config

    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    config = read_json(LocalFiles(file.parent), file.name, str(file.parent))
    count = count_from_config(config)
    if count is None:
        kind = config.get("model_type")
        raise BadRequest(
            f"{path} (model_type {kind!r}) does not fix the trunk's parameters by itself; "
            "give --vocab, --dim and --trunk, or --model with the checkpoint"
        )
    return Plan(price(count.vocab, count.dim, count.trunk), f"{path} · {config.get('model_type')}")


def _from_model(name: str) -> Plan:
    """A known model by its name; else the checkpoint at that path or Hub id; else a known model by part of its name."""
    is_path = name.startswith((".", "~", "/", "hf://"))
    known = None if is_path else named(name)
    if known is None:
        if is_path or "/" in name or Path(name).exists():
            return _from_checkpoint(name)
        known = find(name)
    remarks = [f"Published as {known.published:,}."] if known.published != known.total else []
    if known.audit is None:
        remarks.append("Its total was not recomputed; take the numbers as approximate.")
    if known.note:
        remarks.append(f"Note: {known.note}.")
    if known.doubt:
        remarks.append(f"Doubt: {known.doubt}.")
    title = f"{known.name} · {known.hf_id} · {known.architecture}"
    return Plan(known.budget, title, known.tied, " ".join(remarks), known)


def _from_checkpoint(source: str) -> Plan:
    from tiebeam.inspection import inspect

    report = inspect(os.path.expanduser(source))  # noqa: PTH111 - hf://org/name is no Path
    embed, head = report.pair.embed, report.pair.head
    table = embed or head
    if table is None:
        raise BadRequest(f"{source} has no vocabulary pair to price")
    if embed and head and embed.shape != head.shape:
        raise BadRequest(
            f"{source} cannot be tied as it is: embed is {list(embed.shape)} but head is {list(head.shape)}"
        )
    tied = {"shared": True, "untied": False}.get(report.tie)
    remark = f"Its pair is {report.tie}: {report.tie.meaning}." if tied is None else ""
    budget = price(table.rows, table.dim, report.params.trunk)
    return Plan(budget, f"{report.model} · {report.architecture or report.format}", tied, remark)


def _show(plan: Plan, console: Console) -> None:
    budget = plan.budget
    console.print(plan.title, style="bold")
    console.print(_state(plan))
    if (share := budget.head_share) is not None:
        near = (f"{m.name} {percent(m.head_share or 0)} {_word(m.tied)}" for m in neighbours(share, besides=plan.known))
        console.print(render.wrapped(plan.verdict, console.width))
        console.print(render.wrapped(f"Nearest: {', '.join(near)}.", console.width), style=render.FAINT)
    if plan.remark:
        console.print(render.wrapped(plan.remark, console.width), style=render.FAINT)
    wide = console.width >= 72
    table = _table(budget, exact=wide)
    for block in (
        (_by_size(budget, 24 if wide else 12), table) if budget.trunk is None else (table, _bars(budget, budget.trunk))
    ):
        console.print()
        for line in block:
            console.print(line)
    console.print()
    one = budget.tied_table
    console.print(
        render.wrapped(
            f"Training in bf16 adds an fp32 master copy, {human_bytes(one.master)} a matrix. Muon would keep "
            f"{human_bytes(one.muon)} instead of Adam's {human_bytes(one.adam)}, but a table should not go to Muon.",
            console.width,
        ),
        style=render.FAINT,
    )


def _show_traffic(traffic: Traffic, console: Console) -> None:
    """What each rank sends per step because of the vocabulary."""
    console.print()
    console.print(f"{traffic.ranks:,} ranks of {traffic.tokens:,} tokens: each sends per step, in fp32", style="bold")
    rows: list[tuple[Any, ...]] = [("", ("tied", render.TIED), ("untied", render.UNTIED))]
    for name, sent in (("DDP", traffic.ddp), ("--shard", traffic.fsdp), ("--shard-vocab", traffic.shard_vocab)):
        rows.append((name, human_bytes(sent.tied), human_bytes(sent.untied)))
    for line in render.columns([[render.styled(cell) for cell in row] for row in rows], "<>>", gap=3):
        console.print(line)


def _state(plan: Plan) -> Text:
    one = f"{plan.budget.vocab:,} x {plan.budget.dim:,} = {plan.budget.matrix:,}"
    if plan.tied is None:
        return render.styled("  ", ("●", "bold"), f" one matrix is {one}")
    what = f"one matrix of {one}" if plan.tied else f"two matrices of {one} each"
    return render.styled("  ", (f"● {_word(plan.tied)}", render.accent(plan.tied)), f"  {what}")


def _word(tied: bool) -> str:
    return "tied" if tied else "untied"


def _table(budget: Budget, exact: bool) -> Iterator[Text]:
    """Tied against untied: parameters, then bytes, then what training the table takes."""
    one, two = budget.tied_table, budget.untied_table
    weighed, columns = "table", (one, two, one)
    rows: list[tuple[Any, ...]] = [("", ("tied", render.TIED), ("untied", render.UNTIED), "tying saves")]
    if budget.trunk is not None:
        rows.append(("trunk", human(budget.trunk), human(budget.trunk), ""))
    rows.append(("vocabulary", *(human(column.params) for column in columns)))
    if budget.tied_total and budget.untied_total and budget.head_share:
        weighed, columns = "model", (Memory(budget.tied_total), Memory(budget.untied_total), one)
        totals = (f"{total.params:,}" if exact else human(total.params) for total in columns[:2])
        rows.append(("total", *totals, percent(budget.head_share)))
    for dtype in ("fp32", "bf16", "int8"):
        rows.append((f"{weighed} {dtype}", *(human_bytes(getattr(column, dtype)) for column in columns)))
    rows.append(("table gradient", *(human_bytes(column.gradient) for column in (one, two, one))))
    rows.append(("table Adam", *(human_bytes(column.adam) for column in (one, two, one))))
    return render.columns([[render.styled(cell) for cell in row] for row in rows], "<>>>", gap=3)


def _bars(budget: Budget, trunk: int) -> Iterator[Text]:
    """The tied and the untied model to one scale."""
    whole = trunk + 2 * budget.matrix
    body, embed = (trunk, render.TRUNK, ""), (budget.matrix, render.TABLE, render.TIED)
    head = (budget.matrix, render.SECOND_TABLE, render.UNTIED)
    legend = f"{render.TRUNK} trunk  {render.TABLE} embedding  {render.SECOND_TABLE} head of its own"
    rows: list[tuple[str | Text, Text]] = [
        (render.styled(("tied", render.TIED)), render.bar([body, embed], whole)),
        (render.styled(("untied", render.UNTIED)), render.bar([body, embed, head], whole)),
        ("", render.styled((legend, render.FAINT))),
    ]
    return render.columns(rows, "<<")


def _by_size(budget: Budget, cells: int) -> Iterator[Text]:
    """The pair in models of the usual sizes, both matrices counted, and what known models do there."""
    rows: list[tuple[str | Text, ...]] = [("in a model of", "head", "tied", "", "known models")]
    for name, inside in within_sizes(budget):
        if inside is None or inside.trunk is None or inside.head_share is None:
            rows.append((name, "-", "-", "", f"pair is {human(2 * budget.matrix)}"))
            continue
        share, tied = inside.head_share, inside.trunk + budget.matrix
        parts = [(tied, render.TRUNK, ""), (budget.matrix, render.SECOND_TABLE, render.UNTIED)]
        bar = render.bar(parts, tied + budget.matrix, cells)
        rows.append((name, percent(share), human(tied), bar, verdict(share).short))
    return render.columns(rows, "<>><<")
