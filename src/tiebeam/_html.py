"""HTML tables for notebooks (`_repr_html_`), and the escaping of every page that Python writes.

Names and texts come from untrusted files.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tiebeam._visible import visible


def table(rows: Iterable[Sequence[object]], *, header: Sequence[object] = (), title: str = "") -> str:
    """Rows of cells -> one <table>, its first column as row headers, with a caption if `title` is given.

    >>> table([["a", "<b>"]])
    '<table><tbody><tr><th>a</th><td>&lt;b&gt;</td></tr></tbody></table>'
    """
    caption = f"<caption>{escape(title)}</caption>" if title else ""
    head = f"<thead>{_row(header, 'th')}</thead>" if header else ""
    body = "".join(_row(row, "td") for row in rows)
    return f"<table>{caption}{head}<tbody>{body}</tbody></table>"


def escape(text: str) -> str:
    """Text for a page, of one line or several: no markup, no control characters, no change of writing direction."""
    from html import escape as escape_markup

    return escape_markup(visible(text, keep="\n\t"))


def _row(cells: Sequence[object], kind: str) -> str:
    tags = ["th", *[kind] * (len(cells) - 1)]
    return (
        "<tr>"
        + "".join(f"<{tag}>{escape(str(cell))}</{tag}>" for tag, cell in zip(tags, cells, strict=False))
        + "</tr>"
    )
