"""`tiebeam lens`: the direct path of a real model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tiebeam.cli import render
from tiebeam.cli.progress import Progress
from tiebeam.errors import BadRequest, UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tiebeam.lens.direct_path import Lens

_MOST_TEXT = 16 << 20
_BLOCKS = "▁▂▃▄▅▆▇█"


@click.command(short_help="The direct path of a real model.")
@click.argument("model")
@click.argument("more", nargs=-1, metavar="")
@click.option("--tokens", multiple=True, metavar="A [B ...]", help='Tokens to look at: " New" " York", or ids: #123.')
@click.option("--text", type=click.Path(), metavar="FILE", help="Count tokens here: norms against frequency.")
@click.option("--no-norm", is_flag=True, help="Leave the final norm out.")
@click.option("--no-scales", is_flag=True, help="Leave the embedding's scale out.")
@click.option("--top", type=int, default=10, show_default=True, metavar="N", help="Neighbours, and frequent tokens.")
@click.option("--embed", metavar="NAME", help="The embedding's tensor, where it cannot be found.")
@click.option("--head", metavar="NAME", help="The head's tensor, where it cannot be found.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str, more: tuple[str, ...], tokens: tuple[str, ...], text: str | None, no_norm: bool, no_scales: bool,
    top: int, embed: str | None, head: str | None, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """What MODEL would say if its layers said nothing: token -> embedding -> head -> logits.

    Its symmetry, definiteness and rank over the whole vocabulary in closed form, without a V x V matrix; the path
    between chosen tokens; their neighbours by either table. Rows are streamed, so any size fits in memory.

    \b
    tiebeam lens run --tokens " import" " return" "self"
    tiebeam lens org/model --text book.txt --top 8
    """
    from tiebeam.lens.direct_path import Lens
    from tiebeam.lens.survey import survey

    if top < 1:
        raise BadRequest(f"--top is {top}; ask for at least 1")
    progress = Progress(quiet or as_json)
    lens = Lens.open(model, norm=not no_norm, scales=not no_scales, embed=embed, head=head, progress=progress)
    chosen = [lens.find(token) for token in (*tokens, *more)]
    counts = _counts(lens, text) if text else None
    if counts is not None and not chosen:
        chosen = [int(i) for i in (-counts).argsort(kind="stable")[:top] if counts[i]]
    found = {"model": model, **survey(lens, chosen, counts, top)}
    progress.close()
    if as_json:
        render.emit_json(found)
    else:
        _tell(found)


def _counts(lens: Lens, text: str) -> NDArray[np.int64]:  # -> [V]
    import numpy as np

    try:
        raw = Path(text).read_bytes()[:_MOST_TEXT]
    except OSError as error:
        raise UnreadableInput(f"{text} cannot be read: {error.strerror or error}") from None
    if lens.ends.tokenizer is None:
        raise BadRequest("this model carries no tokenizer, so a text cannot be counted; leave --text out")
    ids = np.asarray(lens.ends.tokenizer.encode(raw.decode(errors="replace")), np.int64)
    return np.bincount(ids[ids < lens.vocab], minlength=lens.vocab).astype(np.int64)


def _tell(found: dict[str, Any]) -> None:
    console = render.console()
    one = found["one_table"]
    through = " · ".join(
        [
            "through the final norm" if found["norm"] else "without the final norm",
            *([] if found["scales"] else ["without scales"]),
        ]
    )
    mark = ("● one table", render.TIED) if one else ("○ two tables", render.UNTIED)
    console.print(
        render.styled((found["model"], "bold"), " · ", mark, f" · {found['vocab']:,} x {found['dim']:,} · {through}")
    )
    for note in found["notes"]:
        console.print(render.wrapped(f"note: {note}", console.width))
    path, own, angles = found["path"], found["self_logits"], found["angles"]
    joint = ", ".join(f"{row['rank']:,}: {100 * row['kept']:.1f}%" for row in found["joint"][2:])
    rows = [
        ["symmetric", f"{100 * path['symmetric']:.1f}%", "of the path's energy; the rest is antisymmetric"],
        ["negative", f"{100 * path['negative']:.1f}%", "of the symmetric part; E.Eᵀ alone would have none"],
        ["rank", f"{path['rank']:,}", f"effective {found['effective_rank']:,.0f}  {_spark(found['spectrum'])}"],
        ["self-logits", f"{own['median']:.2f}", f"median, {own['least']:.2f} to {own['most']:.2f}; "
                                                f"{100 * own['negative']:.0f}% below zero"],
    ]  # fmt: skip
    if not one:
        wide = f"median between the two tables, up to {angles['largest']:.1f}°"
        rows.append(["angles", f"{angles['median']:.1f}°", wide])
        rows.append(["joint", "", f"one shared table of rank {joint} would keep that much of both"])
    for line in render.columns(rows, "<><"):
        console.print(line)
    if "norms" in found:
        _tell_norms(console, found["norms"])
    if "chosen" in found:
        _tell_chosen(console, found)
    else:
        console.print('  name some: --tokens " New" " York", or --text FILE for its most frequent')


def _tell_norms(console: Any, norms: dict[str, Any]) -> None:
    spread = norms["spearman"]
    both = ", ".join(f"{end} {value:+.2f}" for end, value in spread.items() if value is not None)
    console.print(f"  norms against frequency, by rank: {both or 'nothing to compare'}")
    rows = [["seen about", "tokens", "embed", "head"]]
    rows += [
        [f"{r['count']:,.0f}x", f"{r['tokens']:,}", f"{r['embed']:.3f}", f"{r['head']:.3f}"] for r in norms["rows"]
    ]
    if norms["unseen"]["tokens"]:
        gone = norms["unseen"]
        rows.append(["never", f"{gone['tokens']:,}", f"{gone['embed']:.3f}", f"{gone['head']:.3f}"])
    for line in render.columns(rows, ">>>>", indent=4):
        console.print(line)


def _tell_chosen(console: Any, found: dict[str, Any]) -> None:
    chosen = found["chosen"]
    labels = [_label(label) for label in chosen["labels"]]
    fits = max(1, (console.width - max(map(len, labels)) - 4) // max(10, 2 + max(map(len, labels))))
    console.print()
    console.print(render.styled(("each row says of each column: logits of the direct path", "bold")))
    grid = [["", *labels[:fits]]]
    grid += [[a, *(f"{x:.2f}" for x in row[:fits])] for a, row in zip(labels, chosen["matrix"], strict=True)]
    for line in render.columns(grid, "<" + ">" * fits):
        console.print(line)
    if fits < len(labels):
        console.print(f"  … and {len(labels) - fits} more columns: --json has them all")
    energy = chosen["energy"]
    console.print(
        f"  between these: {100 * energy['antisymmetric']:.1f}% antisymmetric, {100 * energy['negative']:.1f}% of the "
        "symmetric part negative"
    )
    console.print()
    kinds = {"next": "would say", "embed": "nearest"}
    if not found["one_table"]:
        kinds |= {"embed": "near by embed", "head": "near by head"}
    rows = [["", *kinds.values()]]
    for token in found["tokens"]:
        cells = [" ".join(_label(near["label"]) for near in token[kind][:4]) for kind in kinds]
        rows.append([_label(token["label"]), *cells])
    for line in render.columns(rows, "<<<<"):
        console.print(line)


def _label(text: str) -> str:
    """A token with its blanks visible, cut to a column's width."""
    shown = "".join("·" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text) or "''"
    return shown if len(shown) <= 14 else shown[:13] + "…"


def _spark(values: list[float], width: int = 32) -> str:
    """A falling curve in a line of blocks."""
    if not values or not values[0]:
        return ""
    picks = [values[i * (len(values) - 1) // max(1, width - 1)] for i in range(min(width, len(values)))]
    return "".join(_BLOCKS[min(7, int(8 * v / values[0]))] for v in picks)
