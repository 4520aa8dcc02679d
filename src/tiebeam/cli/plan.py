"""`tiebeam plan`: what tying saves, for a vocabulary size, a width and a number of non-embedding parameters."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import (
    TOKENS,
    Budget,
    CommunicationVolume,
    KVCache,
    communication_volume,
    human,
    human_bytes,
    logits_peak,
    parse_count,
    percent,
    price,
)
from tiebeam.catalog import KnownModel, find, named, neighbours, verdict, verdict_by_size, within_sizes
from tiebeam.cli import render
from tiebeam.cli.progress import Progress
from tiebeam.errors import BadRequest, reader

if TYPE_CHECKING:
    from tiebeam._text import Line
    from tiebeam.checkpoint import Checkpoint
    from tiebeam.families.further_tables import FurtherTable


def _count(ctx: click.Context, param: click.Parameter, value: str | None) -> int | None:
    """Option callback: a number like 50,257 or 3.2B."""
    try:
        return None if value is None else parse_count(value)
    except BadRequest as error:
        raise BadRequest(f"{param.opts[0]}: {error}") from None


@dataclass(frozen=True, slots=True)
class Plan:
    """A budget and what is known about its model. `tied` is None if the model does not exist yet."""

    budget: Budget
    title: str
    tied: bool | None = None
    remark: str = ""
    known: KnownModel | None = None
    further: tuple[FurtherTable, ...] = ()
    """Tables beside the pair that have the vocabulary as a dimension."""
    cache: KVCache | None = None

    @property
    def verdict(self) -> str:
        share = self.budget.head_share
        return verdict(share).sentence if share is not None else verdict_by_size(self.budget)


@click.command()
@click.option("--vocab", callback=_count, metavar="N", help="Vocabulary size: rows of the matrix.")
@click.option("--dim", callback=_count, metavar="N", help="Hidden size: columns of the matrix.")
@click.option("--trunk", callback=_count, metavar="N", help="Number of non-embedding parameters.")
@click.option("--config", metavar="FILE", help="Count from a config.json alone, without weights.")
@click.option("--model", metavar="NAME", help="A known model (see `tiebeam models`) or any MODEL.")
@click.option("--ranks", callback=_count, metavar="N", help="Add the communication volume of N data-parallel ranks.")
@click.option("--tokens", callback=_count, metavar="N", help=f"Tokens per rank and step.  [default: {TOKENS}]")
@click.option("--context", callback=_count, metavar="N", help="Add the KV cache and the logits of N tokens.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    vocab: int | None, dim: int | None, trunk: int | None, config: str | None, model: str | None, ranks: int | None,
    tokens: int | None, context: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Calculate what tying the embedding and the LM head saves: parameters, bytes, optimizer memory.

    Give a vocabulary size and a width, and the number of non-embedding parameters if you know it; or a config.json;
    or a model. Numbers may be written 50257, 50,257, 50k, 135M or 3.2B.

    \b
    Examples:
      tiebeam plan --vocab 50k --dim 4096        in a 1B, a 7B and a 70B model
      tiebeam plan --vocab 32k --dim 2048 --trunk 969M
      tiebeam plan --config my-model/config.json
      tiebeam plan --model phi-4-mini            a known model, or its Hub id
      tiebeam plan --model ./my-model --json     any checkpoint
      tiebeam plan --vocab 200k --dim 4096 --ranks 8
      tiebeam plan --config my-model/config.json --context 32k

    The head share is one matrix over the untied model. The sizes 1B, 7B and 70B count both matrices.
    JSON: bytes and optimizer_bytes (Adam's two fp32 moments) are of one matrix, which tying saves.
    With --ranks, exchanged is the bytes that each rank sends per step. With --context, kv_cache is in bf16 for one
    sequence, and logits_peak is N x vocabulary x 4 bytes: what a loss over N tokens holds at once.
    """
    if tokens is not None and ranks is None:
        raise BadRequest("--tokens is the number of tokens per rank; give --ranks too")
    plan = _chosen(vocab, dim, trunk, config, model)
    budget, volume = plan.budget, None
    if ranks is not None:
        volume = communication_volume(budget.vocab, budget.dim, ranks, TOKENS if tokens is None else tokens)
    if as_json:
        more: dict[str, Any] = {} if volume is None else {"exchanged": volume.to_dict()}
        more["further_vocabulary"] = [table.to_dict() for table in plan.further]
        more["kv_cache"] = plan.cache.to_dict(context) if plan.cache else None
        more["logits_peak"] = _logits(budget.vocab, context)
        render.emit_json({**budget.to_dict(), "verdict": plan.verdict, **more})
        return
    console = render.console()
    _show(plan, console)
    for line in _serving(plan, context):
        console.print(line)
    if volume is not None:
        _show_volume(volume, console)


def _chosen(vocab: int | None, dim: int | None, trunk: int | None, config: str | None, model: str | None) -> Plan:
    sizes = [f"--{name}" for name, value in (("vocab", vocab), ("dim", dim), ("trunk", trunk)) if value is not None]
    ways = [*(["--config"] if config is not None else []), *(["--model"] if model is not None else [])]
    if len(ways) == 2:
        raise BadRequest("--config and --model each name a model; give only one of them")
    if ways and sizes:
        raise BadRequest(f"{ways[0]} already fixes the sizes; leave out {' and '.join(sizes)}, or {ways[0]}")
    if config is not None:
        return _from_config(config)
    if model is not None:
        return _from_model(model)
    if vocab is None or dim is None:
        missing = " and ".join(f"--{name}" for name, value in (("vocab", vocab), ("dim", dim)) if value is None)
        if sizes:
            raise BadRequest(f"{' and '.join(sizes)} alone is not enough; add {missing}")
        raise BadRequest("nothing to calculate; give --vocab and --dim, --config FILE or --model NAME")
    rest = "" if trunk is None else f" with {human(trunk)} non-embedding parameters"
    return Plan(price(vocab, dim, trunk), f"new model{rest}")


@reader
def _from_config(path: str) -> Plan:
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.json_files import read_json
    from tiebeam.families import count_from_config
    from tiebeam.families.further_tables import further_tables
    from tiebeam.families.kv_cache import kv_cache_of

    file = Path(path)
    if file.is_dir():
        file /= "config.json"
    config = read_json(LocalFiles(file.parent), file.name, str(file.parent))
    count = count_from_config(config)
    further = further_tables(config)
    title = f"{path} · {config.get('model_type')}"
    if count is None and further and (sizes := _sizes(config)):
        remark = "Its non-embedding parameters cannot be counted from its config alone."
        return Plan(price(*sizes), title, remark=remark, further=further)
    if count is None:
        kind = config.get("model_type")
        raise BadRequest(
            f"the parameters of {path} (model_type {kind!r}) cannot be counted from its config alone; "
            "give --vocab, --dim and --trunk, or --model with the checkpoint"
        )
    return Plan(price(count.vocab, count.dim, count.trunk), title, further=further, cache=kv_cache_of(config))


def _sizes(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Vocabulary and width, where the config has both."""
    from tiebeam.families import lookup, vocabulary, width

    kind = config.get("model_type")
    architecture = lookup(kind if isinstance(kind, str) else None)
    vocab, dim = vocabulary(config, architecture), width(config, architecture)
    return (vocab, dim) if vocab and dim else None


def _kv_cache(checkpoint: Checkpoint) -> KVCache | None:
    """Of a checkpoint with a config, or of a GGUF, whose metadata says the same."""
    from tiebeam.decode.numpy.runnable import model_config
    from tiebeam.errors import UnreadableInput
    from tiebeam.families.kv_cache import kv_cache_of

    try:
        return kv_cache_of(model_config(checkpoint)[0])
    except UnreadableInput:
        return None


def planned_model(text: str) -> tuple[str, Budget]:
    """The name and the budget of a model, or of a shape such as 50257x768x85M (non-embedding parameters last)."""
    parts = text.split("x")
    if len(parts) == 3 and all(part[:1].isdigit() for part in parts):
        return text, price(*(parse_count(part) for part in parts))
    plan = _from_model(text)
    return plan.title, plan.budget


def _from_model(name: str) -> Plan:
    """A known model with this name; else the checkpoint at this path or Hub id; else a known model by partial name."""
    is_path = name.startswith((".", "~", "/", "hf://"))
    known = None if is_path else named(name)
    if known is None:
        if is_path or "/" in name or Path(name).exists():
            return _from_checkpoint(name)
        known = find(name)
    remarks = [f"Published as {known.published:,}."] if known.published != known.total else []
    if known.audit is None:
        remarks.append("Its total was not recomputed from its config; the numbers are approximate.")
    if known.note:
        remarks.append(f"Note: {known.note}.")
    if known.doubt:
        remarks.append(f"Doubt: {known.doubt}.")
    title = f"{known.name} · {known.hf_id} · {known.architecture}"
    return Plan(known.budget, title, known.tied, " ".join(remarks), known)


def _from_checkpoint(source: str) -> Plan:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.families.further_tables import FurtherTable
    from tiebeam.inspection import inspect

    with Progress() as progress, progress.waiting(f"reading {source}"):
        checkpoint = open_checkpoint(os.path.expanduser(source))  # noqa: PTH111 - hf://org/name is not a Path
        report = inspect(checkpoint)
    embed, head = report.pair.embed, report.pair.head
    table = embed or head
    if table is None:
        raise BadRequest(f"{source} has no vocabulary matrices")
    if embed and head and embed.shape != head.shape:
        raise BadRequest(
            f"{source} cannot be tied: its embedding is {list(embed.shape)} but its LM head is {list(head.shape)}"
        )
    tied = {"shared": True, "untied": False}.get(report.tie)
    remark = f"Its state is {report.tie}: {report.tie.meaning}." if tied is None else ""
    budget = price(table.rows, table.dim, report.params.trunk)
    stored = [t for t in report.vocabulary_tensors if t.is_table and len(t.shape) == 2]
    further = tuple(FurtherTable(t.kind, t.shape[0], t.shape[1]) for t in stored)
    title = f"{report.model} · {report.architecture or report.format}"
    return Plan(budget, title, tied, remark, further=further, cache=_kv_cache(checkpoint))


def _show(plan: Plan, console: render.AnyConsole) -> None:
    budget = plan.budget
    style = "" if plan.tied is None else render.accent(plan.tied)
    console.print(render.styled(("● ", style), (budget.verdict, "bold")))
    console.print(render.styled("  ", plan.title, ": ", _matrices(plan)))
    if (share := budget.head_share) is not None:
        near = (f"{m.name} {percent(m.head_share or 0)} {_word(m.tied)}" for m in neighbours(share, besides=plan.known))
        console.print(render.wrapped(plan.verdict, console.width))
        console.print(render.wrapped(f"Nearest: {', '.join(near)}.", console.width), style=render.FAINT)
    if plan.remark:
        console.print(render.wrapped(plan.remark, console.width), style=render.FAINT)
    wide = console.width >= 72
    blocks = [render.columns(_coloured(budget.rows(exact=wide)), "<>>>", gap=3)]
    if budget.trunk is None:
        blocks.insert(0, _by_size(budget, 24 if wide else 12))
    else:
        blocks.append(_bars(budget, budget.trunk))
    for block in blocks:
        console.print()
        for line in block:
            console.print(line)
    console.print()
    one = budget.tied_table
    console.print(
        render.wrapped(
            f"Training in bf16 adds an fp32 master copy: {human_bytes(one.master)} per matrix. Do not optimize "
            "embeddings with Muon.",
            console.width,
        ),
        style=render.FAINT,
    )


def _logits(vocab: int, context: int | None) -> dict[str, int | None]:
    total = None if context is None else logits_peak(context, vocab)
    return {"bytes_per_token": logits_peak(1, vocab), "tokens": context, "bytes": total}


def _serving(plan: Plan, context: int | None) -> Iterator[str]:
    """Further vocabulary tables, KV cache and logits: one line each, only what is known."""
    vocab = plan.budget.vocab
    rows = [[t.kind, f"{t.rows:,} x {t.dim:,}", f"{human(t.params)} parameters, {human_bytes(2 * t.params)} in bf16"]
            for t in plan.further]  # fmt: skip
    if plan.cache is not None:
        total = f"{human_bytes(plan.cache.nbytes(context))} at {context:,} tokens" if context else ""
        rows.append(["KV cache", f"{human_bytes(plan.cache.bytes_per_token)} per token", total or "in bf16"])
    if rows or context:
        total = f"{human_bytes(logits_peak(context, vocab))} at {context:,} tokens" if context else "in fp32"
        rows.append(["logits", f"{human_bytes(logits_peak(1, vocab))} per token", total])
        yield ""
        yield from (line.plain for line in render.columns(rows, "<<<", gap=3))


def _show_volume(volume: CommunicationVolume, console: render.AnyConsole) -> None:
    """Communication volume per rank and step."""
    console.print()
    console.print(f"{volume.ranks:,} ranks of {volume.tokens:,} tokens: each sends per step, in fp32", style="bold")
    rows = [["", "tied", "untied"]]
    for name, sent in (("DDP", volume.ddp), ("--shard", volume.fsdp), ("--shard-vocab", volume.shard_vocab)):
        rows.append([name, human_bytes(sent.tied), human_bytes(sent.untied)])
    for line in render.columns(_coloured(rows), "<>>", gap=3):
        console.print(line)


def _matrices(plan: Plan) -> str:
    one = f"{plan.budget.vocab:,} x {plan.budget.dim:,} = {plan.budget.matrix:,}"
    if plan.tied is None:
        return f"one matrix is {one}"
    return f"tied, one matrix of {one}" if plan.tied else f"untied, two matrices of {one} each"


def _word(tied: bool) -> str:
    return "tied" if tied else "untied"


def _coloured(rows: list[list[str]]) -> Iterator[list[Line]]:
    """Rows with the headings "tied" and "untied" in their colours."""
    styles = {"tied": render.TIED, "untied": render.UNTIED}
    return ([render.styled((cell, styles.get(cell, ""))) for cell in row] for row in rows)


def _bars(budget: Budget, trunk: int) -> Iterator[Line]:
    """The tied and the untied model to one scale."""
    whole = trunk + 2 * budget.matrix
    body, embed = (trunk, render.TRUNK, ""), (budget.matrix, render.TABLE, render.TIED)
    head = (budget.matrix, render.SECOND_TABLE, render.UNTIED)
    legend = f"{render.TRUNK} non-embedding  {render.TABLE} embedding  {render.SECOND_TABLE} separate LM head"
    rows: list[tuple[str | Line, Line]] = [
        (render.styled(("tied", render.TIED)), render.bar([body, embed], whole)),
        (render.styled(("untied", render.UNTIED)), render.bar([body, embed, head], whole)),
        ("", render.styled((legend, render.FAINT))),
    ]
    return render.columns(rows, "<<")


def _by_size(budget: Budget, cells: int) -> Iterator[Line]:
    """The matrices in models of common sizes, both counted, and what known models of that head share do."""
    rows: list[tuple[str | Line, ...]] = [("in a model of", "head", "tied", "", "known models")]
    for name, inside in within_sizes(budget):
        if inside is None or inside.trunk is None or inside.head_share is None:
            rows.append((name, "-", "-", "", f"both are {human(2 * budget.matrix)}"))
            continue
        share, tied = inside.head_share, inside.trunk + budget.matrix
        parts = [(tied, render.TRUNK, ""), (budget.matrix, render.SECOND_TABLE, render.UNTIED)]
        bar = render.bar(parts, tied + budget.matrix, cells)
        rows.append((name, percent(share), human(tied), bar, verdict(share).short))
    return render.columns(rows, "<>><<")
