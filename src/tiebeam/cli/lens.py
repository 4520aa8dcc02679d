"""`tiebeam lens`: the direct path of a model."""

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

    from tiebeam.lens import Lens

_MOST_TEXT = 16 << 20
_BLOCKS = "▁▂▃▄▅▆▇█"


@click.command(short_help="Show the direct path of a model.")
@click.argument("model")
@click.argument("more", nargs=-1, metavar="")
@click.option("--tokens", multiple=True, metavar="A [B ...]", help='Tokens to show: " New" " York", or ids: #123.')
@click.option("--text", type=click.Path(), metavar="FILE", help="Count the tokens of FILE: row norms by frequency.")
@click.option("--no-norm", is_flag=True, help="Leave out the final norm.")
@click.option("--no-scales", is_flag=True, help="Leave out the embedding scale.")
@click.option(
    "--top", type=int, default=10, show_default=True, metavar="N", help="Neighbours and frequent tokens to show."
)
@click.option("--embed", metavar="NAME", help="The embedding's tensor, if it cannot be found.")
@click.option("--head", metavar="NAME", help="The LM head's tensor, if it cannot be found.")
@click.option("--exact", is_flag=True, help="Solve for every eigenvalue, which takes minutes from a width of 4,096 on.")
@click.option("--quiet", is_flag=True, help="No progress.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    model: str, more: tuple[str, ...], tokens: tuple[str, ...], text: str | None, no_norm: bool, no_scales: bool,
    top: int, embed: str | None, head: str | None, exact: bool, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Show the direct path of MODEL, token -> embedding -> LM head -> logits, without its layers.

    Symmetry, definiteness and rank over the whole vocabulary; the logits between chosen tokens; their nearest rows in
    both tables. Rows are streamed, so a model of any size fits in memory, and no layer is run. From a width of 2,049 on
    two figures are estimates; their error follows them in brackets, in percentage points.

    \b
    tiebeam lens run --tokens " import" " return" "self"
    tiebeam lens org/model --text book.txt --top 8
    """
    from tiebeam.lens import Lens
    from tiebeam.lens.lens_report import report_of

    if top < 1:
        raise BadRequest(f"--top is {top}; it must be at least 1")
    progress = Progress(quiet or as_json)
    lens = Lens.open(
        model, norm=not no_norm, scales=not no_scales, embed=embed, head=head, progress=progress, exact=exact or None
    )
    chosen = [lens.find(token) for token in (*tokens, *more)]
    counts = _counts(lens, text) if text else None
    if counts is not None and not chosen:
        chosen = [int(i) for i in (-counts).argsort(kind="stable")[:top] if counts[i]]
    found = {"model": model, **report_of(lens, chosen, counts, top)}
    progress.close()
    if as_json:
        render.emit_json(found)
    else:
        _print(found)


def _counts(lens: Lens, text: str) -> NDArray[np.int64]:  # -> [V]
    import numpy as np

    try:
        raw = Path(text).read_bytes()[:_MOST_TEXT]
    except OSError as error:
        raise UnreadableInput(f"{text} cannot be read: {error.strerror or error}") from None
    if lens.tables.tokenizer is None:
        raise BadRequest("this model has no tokenizer, so --text cannot be counted; leave it out")
    ids = np.asarray(lens.tables.tokenizer.encode(raw.decode(errors="replace")), np.int64)
    return np.bincount(ids[ids < lens.vocab], minlength=lens.vocab).astype(np.int64)


def _print(found: dict[str, Any]) -> None:
    from tiebeam.lens.lens_report import figures, headline

    console = render.console()
    mark = ("● ", render.TIED) if found["one_table"] else ("○ ", render.UNTIED)
    console.print(render.styled((found["model"], "bold"), " · ", mark, headline(found)))
    for note in found["notes"]:
        console.print(render.wrapped(f"note: {note}", console.width))
    rows = [list(row) for row in figures(found)]
    rows[2][2] += f"  {_spark(found['spectrum'])}"
    for line in render.columns(rows, "<><"):
        console.print(line)
    if "norms" in found:
        _print_norms(console, found["norms"])
    if "chosen" in found:
        _print_chosen(console, found)
    else:
        console.print('  choose tokens with --tokens " New" " York", or --text FILE for its most frequent tokens')


def _print_norms(console: Any, norms: dict[str, Any]) -> None:
    spread = norms["spearman"]
    both = ", ".join(f"{end} {value:+.2f}" for end, value in spread.items() if value is not None)
    console.print(f"  rank correlation of row norm and frequency: {both or 'no token occurs'}")
    rows = [["count", "tokens", "embed", "head"]]
    rows += [[f"{r['count']:,.0f}", f"{r['tokens']:,}", f"{r['embed']:.3f}", f"{r['head']:.3f}"] for r in norms["rows"]]
    if norms["unseen"]["tokens"]:
        unseen = norms["unseen"]
        rows.append(["0", f"{unseen['tokens']:,}", f"{unseen['embed']:.3f}", f"{unseen['head']:.3f}"])
    for line in render.columns(rows, ">>>>", indent=4):
        console.print(line)


def _print_chosen(console: Any, found: dict[str, Any]) -> None:
    chosen = found["chosen"]
    labels = [_label(label) for label in chosen["labels"]]
    fits = max(1, (console.width - max(map(len, labels)) - 4) // max(10, 2 + max(map(len, labels))))
    console.print()
    console.print(render.styled(("direct-path logit of the column token after the row token", "bold")))
    grid = [["", *labels[:fits]]]
    grid += [[a, *(f"{x:.2f}" for x in row[:fits])] for a, row in zip(labels, chosen["matrix"], strict=True)]
    for line in render.columns(grid, "<" + ">" * fits):
        console.print(line)
    if fits < len(labels):
        console.print(f"  … {len(labels) - fits} more columns in --json")
    energy = chosen["energy"]
    console.print(
        f"  of this matrix {100 * energy['antisymmetric']:.1f}% is antisymmetric; {100 * energy['negative']:.1f}% of "
        "the symmetric part is negative"
    )
    console.print()
    kinds = {"next": "likeliest next", "embed": "nearest rows"}
    if not found["one_table"]:
        kinds |= {"embed": "nearest in embed", "head": "nearest in head"}
    rows = [["", *kinds.values()]]
    for token in found["tokens"]:
        cells = [" ".join(_label(near["label"]) for near in token[kind][:4]) for kind in kinds]
        rows.append([_label(token["label"]), *cells])
    for line in render.columns(rows, "<<<<"):
        console.print(line)


def _label(text: str) -> str:
    """A token with visible spaces, cut to the width of a column."""
    shown = "".join("·" if c == " " else c if c.isprintable() else repr(c)[1:-1] for c in text) or "''"
    return shown if len(shown) <= 14 else shown[:13] + "…"


def _spark(values: list[float], width: int = 32) -> str:
    """A sparkline of decreasing values."""
    if not values or not values[0]:
        return ""
    picks = [values[i * (len(values) - 1) // max(1, width - 1)] for i in range(min(width, len(values)))]
    return "".join(_BLOCKS[min(7, int(8 * v / values[0]))] for v in picks)
