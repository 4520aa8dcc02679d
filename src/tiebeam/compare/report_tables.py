"""Tables of report.html: cells are HTML, headings are text; on a phone each row becomes a card."""

from __future__ import annotations

from collections.abc import Sequence

from tiebeam._html import escape


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, caption: str = "") -> str:
    """Build a table whose first column names the row. `heads` are text, cells are HTML.

    >>> '<td data-name="bits">2.1</td>' in table(["", "bits"], [["tied", "2.1"]])
    True
    """
    top = "".join(f'<th scope="col">{escape(head)}</th>' if head else "<td></td>" for head in heads)
    body = "".join(_row(heads, row) for row in rows)
    title = f"<caption>{escape(caption)}</caption>" if caption else ""
    head = f"{title}<thead><tr>{top}</tr></thead>"
    return f'<div class="wide"><table class="cards">{head}<tbody>{body}</tbody></table></div>'


def _row(heads: Sequence[str], row: Sequence[str]) -> str:
    first, *cells = row
    named = "".join(
        cell if cell.startswith("<td") else f'<td data-name="{escape(head)}">{cell}</td>'
        for head, cell in zip(heads[1:], cells, strict=True)
    )
    return f'<tr><th scope="row">{first}</th>{named}</tr>'


def dot(colour: str) -> str:
    """The colour of a variant before its name."""
    return f'<span class="dot" style="background:{escape(colour)}"></span>'


def plus_minus(value: float, error: float | None) -> str:
    return f"{value:.4f}" + (f" ± {error:.4f}" if error is not None else "")


def signed(value: float) -> str:
    """Four decimals with a sign that is as wide as a digit: '+0.0400', '−0.0040'."""
    return f"{value:+.4f}".replace("-", "−")
