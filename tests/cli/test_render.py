"""Console, columns, bars, JSON and colours of the CLI."""

import json

import pytest

from tiebeam._visible import visible
from tiebeam.cli import render


def plain(line):
    return line.plain


def test_columns_align_and_leave_no_trailing_blanks():
    rows = [["a", "1", "x"], ["bbb", "22", ""], ["c"]]
    assert [plain(line) for line in render.columns(rows, "<><", indent=1, gap=2)] == [" a     1  x", " bbb  22", " c"]


@pytest.mark.parametrize(("parts", "cells"), [((79, 21), "########.."), ((100, 0), "##########"), ((0, 50), ".....")])
def test_bar_is_to_scale(parts, cells):
    drawn = render.bar([(parts[0], "#", ""), (parts[1], ".", "")], 100, 10)
    assert plain(drawn) == cells


def test_bars_of_one_whole_line_up():
    parts = [(614, "#", ""), (193, ".", ""), (193, ":", "")]
    assert plain(render.bar(parts, 1000)).startswith(plain(render.bar(parts[:2], 1000)))
    assert len(plain(render.bar(parts, 1000))) == render.BAR_WIDTH


def test_json_is_one_ascii_document(capsys):
    render.emit_json({"name": "weights\udcff·", "share": None})
    out = capsys.readouterr().out
    assert out.isascii()
    assert json.loads(out) == {"name": "weights\udcff·", "share": None}


def test_json_rejects_infinity():
    with pytest.raises(ValueError, match="not JSON compliant"):
        render.emit_json({"difference": float("inf")})


def test_colours_follow_the_environment_variables(monkeypatch, capsys):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    render.console().print(render.styled(("tied", render.TIED)))
    assert "\x1b[" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    render.console().print(render.styled(("tied", render.TIED)))
    assert "\x1b[3" not in capsys.readouterr().out
    monkeypatch.delenv("FORCE_COLOR")
    render.console().print(render.styled(("tied", render.TIED)))
    assert capsys.readouterr().out == "tied\n"


def test_pipe_width_is_columns_or_100(monkeypatch):
    monkeypatch.setenv("COLUMNS", "72")
    assert render.console().width == 72
    monkeypatch.delenv("COLUMNS")
    assert render.console().width == 100


TEXTS = ["plain", "ärger", "日本語 words", "e\u0301 combined", "● tied · 12 × 3 …", "█▒░", "\u200dzero", "🙂 emoji", ""]


@pytest.mark.parametrize("text", TEXTS)
def test_a_line_is_as_wide_and_as_long_as_the_text_of_rich(text):
    from rich.text import Text

    theirs = Text.assemble((text, "bold"), "  ", text)
    line = render.styled((text, "bold"), "  ", text)
    shown = Text.assemble((visible(text), "bold"), "  ", visible(text))
    assert line.cell_len == shown.cell_len
    assert line.plain == shown.plain
    assert line.__rich__() == shown
    assert line.rstrip().plain == shown.plain.rstrip()
    assert visible(text) != text or line.plain == theirs.plain


@pytest.mark.parametrize("text", TEXTS)
def test_the_plain_console_prints_what_rich_prints(text, capsys, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    printed = [
        render.styled((text, "bold"), " \x1b[31mred", render.styled(" nested")),
        f"a string {text}\nin one line",
        render.wrapped(f"note: {text} " * 20, 60),
        *render.columns([[text, "1"], ["b", render.styled((text, render.TIED))]], "<>"),
        render.bar([(3, "#", "red"), (4, ".", "")], 7, 10),
    ]
    for console in (render.PlainConsole(100), render._rich_console(100)):
        for one in printed:
            console.print(one, style="bold")
        console.print()
    out = capsys.readouterr().out
    assert out[: len(out) // 2] == out[len(out) // 2 :]


def test_a_pipe_is_printed_without_rich_and_colour_needs_it(monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert isinstance(render.console(), render.PlainConsole)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not isinstance(render.console(), render.PlainConsole)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("width", [1, 2, 5, 8, 9, 10, 40])
def test_a_line_is_cut_as_rich_cuts_it(text, width):
    shown = render.styled((f"ab {text}", "bold"), " · ", text).__rich__()
    ours = render.styled((f"ab {text}", "bold"), " · ", text).truncated(width)
    shown.truncate(width, overflow="ellipsis")
    assert ours.plain == shown.plain
    assert ours.cell_len <= width
