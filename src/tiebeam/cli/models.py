"""`tiebeam models`: known models, whether they tie, and the sources."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from tiebeam.budget import human, percent
from tiebeam.catalog import BANDS, KnownModel, known_models, matching, verdict
from tiebeam.cli import render
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam._text import Line

FEW = 8  # up to this many models, sources, doubts and notes are shown by default
DOUBT = {"high": "", "medium": " ?", "low": " ??"}


@click.command()
@click.argument("query", nargs=-1)
@click.option("--tied/--untied", default=None, help="Only tied or only untied models.")
@click.option("--family", metavar="TYPE", help="Only architectures (model_type) that start with TYPE: qwen.")
@click.option("--min-share", type=click.FloatRange(0, 100), metavar="PCT", help="Minimum head share, in percent.")
@click.option("--max-share", type=click.FloatRange(0, 100), metavar="PCT", help="Maximum head share, in percent.")
@click.option(
    "--sort",
    type=click.Choice(["share", "size", "name"]),
    default="share",
    show_default=True,
    help="Largest head share first, largest model first, or by name.",
)
@click.option("--sources", is_flag=True, help=f"Show sources, doubts and notes in full (default up to {FEW} models).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    query: tuple[str, ...],
    tied: bool | None,
    family: str | None,
    min_share: float | None,
    max_share: float | None,
    sort: str,
    sources: bool,
    as_json: bool,
) -> None:
    """List known models: whether they tie, how large the vocabulary matrices are, and the sources.

    QUERY is part of a name, Hub id or architecture; with several words, all must match. "head" is the head share: one
    matrix over the untied model. "?" marks a tie known from indirect evidence, "??" a doubtful one, "~" a total that
    was not recomputed from the model's config.

    \b
    Examples:
      tiebeam models                          all models, largest head share first
      tiebeam models phi                      a few, with sources and doubts
      tiebeam models --untied --min-share 10  large heads that are not tied
      tiebeam models --family qwen --sort size
      tiebeam models llama 3.2 --json
    """
    models = matching(" ".join(query)) if query else list(known_models())
    if family is not None:
        models = _of_family(models, family)
    if tied is not None:
        models = [model for model in models if model.tied is tied]
    if min_share is not None or max_share is not None:
        low, high = (min_share or 0) / 100, (100 if max_share is None else max_share) / 100
        models = [model for model in models if model.head_share is not None and low <= model.head_share <= high]
    models.sort(key=_ORDERS[sort])
    if as_json:
        ties = sum(model.tied for model in models)
        rows = [model.to_dict() for model in models]
        render.emit_json({"count": len(models), "tied": ties, "untied": len(models) - ties, "models": rows})
    elif models:
        all_models = len(models) == len(known_models())
        _show(models, render.console(), details=sources or len(models) <= FEW, summary=all_models)
    else:
        render.echo(_nothing(" ".join(query)))


def _of_family(models: list[KnownModel], family: str) -> list[KnownModel]:
    wanted = re.sub("[-.]", "_", family.lower())
    families = {model.architecture: model.architecture.replace("-", "_") for model in known_models()}
    chosen = {name for name, plain in families.items() if plain.startswith(wanted)}
    if not chosen:
        near = difflib.get_close_matches(wanted, families, n=3) or ["llama", "qwen2", "gpt_neox", "many more"]
        raise BadRequest(f"no known model is of the family '{family}'; similar: {', '.join(near)}")
    return [model for model in models if model.architecture in chosen]


def _by_name(model: KnownModel) -> list[tuple[int, float, str]]:
    """Sort key with numbers compared as numbers: 1.5B before 14B."""
    parts = re.findall(r"\d+(?:\.\d+)?|[^\d]+", model.name.lower())
    return [(0, float(part), "") if part[0].isdigit() else (1, 0.0, part) for part in parts]


_ORDERS: dict[str, Callable[[KnownModel], Any]] = {
    "share": lambda model: (1 if model.head_share is None else -model.head_share, model.name),
    "size": lambda model: (-model.total, model.name),
    "name": _by_name,
}


def _nothing(query: str) -> str:
    names = {model.slug: model.name for model in known_models()}
    near = difflib.get_close_matches(query.lower().replace(" ", "-"), names, n=3, cutoff=0.5) if query else []
    hint = f" Similar: {', '.join(near)}." if near else " `tiebeam models` lists them all."
    return f"No known model matches{f' {query!r}' if query else ' these filters'}.{hint}"


def _show(models: list[KnownModel], console: render.AnyConsole, details: bool, summary: bool) -> None:
    ties = sum(model.tied for model in models)
    s = "" if len(models) == 1 else "s"
    console.print(
        render.styled(
            (f"{len(models)} known model{s}", "bold"),
            ": ",
            (f"{ties} tie{'s' if ties == 1 else ''}", render.accent(True)),
            ", ",
            (f"{len(models) - ties} {'does' if len(models) - ties == 1 else 'do'} not", render.accent(False)),
        )
    )
    header, *lines = _rows(models, console.width, with_sources=not details)
    console.print(header, style=render.FAINT)
    for model, line in zip(models, lines, strict=True):
        console.print(line)
        for label, text in _details(model) if details else ():
            console.print(_detail(label, text, console.width), style=render.FAINT)
    if summary:
        console.print()
        _summary(console)
    doubts = sum(model.confidence != "high" for model in models)
    if doubts and not details:
        known = "1 is known" if doubts == 1 else f"{doubts} are known"
        remark = f"? {known} from indirect or doubtful evidence; --sources shows every source and doubt."
        console.print()
        console.print(render.wrapped(remark, console.width), style=render.FAINT)


def _rows(models: Iterable[KnownModel], width: int, with_sources: bool) -> Iterator[Line]:
    """A header and one line per model. Narrow terminals omit the sources first, then the shape."""
    with_shape, with_sources = width >= 76, with_sources and width >= 92
    rows: list[list[str | Line]] = [["", "", *(["vocab x width"] if with_shape else []), "total", "head"]]
    if with_sources:
        rows[0].append("sources")
    for model in models:
        share = "-" if model.head_share is None else percent(model.head_share)
        word = f"{'● tied' if model.tied else '○ untied'}{DOUBT[model.confidence]}"
        row: list[str | Line] = [model.name, render.styled((word, render.accent(model.tied)))]
        if with_shape:
            row.append(f"{model.vocab:,} x {model.dim:>6,}")
        row += [("" if model.audit else "~") + human(model.total), share]
        if with_sources:
            row.append(render.styled((", ".join(model.sources), render.FAINT)))
        rows.append(row)
    for line in render.columns(rows, "<<" + (">" if with_shape else "") + ">>" + ("<" if with_sources else "")):
        yield line.truncated(width)


def _details(model: KnownModel) -> Iterator[tuple[str, str]]:
    yield "hub", model.hf_id
    yield "source", model.source
    if model.doubt:
        yield "doubt", model.doubt
    if model.published != model.total:
        yield "published", f"{model.published:,}; counted here {model.total:,}"
    if model.note:
        yield "note", model.note


def _detail(label: str, text: str, width: int) -> str:
    folded = render.wrapped(text, width, indent=16)
    return render.Paragraph(f"{label:>14}  {folded.lstrip()}")


def _summary(console: render.AnyConsole) -> None:
    """How many models tie in each band of head share, one cell per model."""
    rows: list[tuple[str | Line, ...]] = [("head share", "", "")]
    counted = 0
    for band in reversed(BANDS):
        found = verdict(band.low / 100)
        counted += found.models
        tied, untied = render.TABLE * found.tied, render.SECOND_TABLE * (found.models - found.tied)
        rows.append((str(band), found.short, render.styled((tied, render.TIED), (untied, render.UNTIED))))
    for line in render.columns(rows, "<><"):
        console.print(line)
    left = len(known_models()) - counted
    console.print(f"  {left} not counted: doubtful (??), or two widths", style=render.FAINT)
