"""Write the pages that are made from the code: cli.md and findings/. A test checks that they are up to date.

python docs/generate.py
"""

from __future__ import annotations

from pathlib import Path

import click

from tiebeam.cli import VERBS, tiebeam
from tiebeam.doctor.codes import CODES

HERE = Path(__file__).parent


def cli_reference() -> str:
    """Every verb's help, as `tiebeam VERB --help` prints it at 100 columns."""
    parts = [
        "# The command line\n",
        "Made from the program by `make docs`; `tiebeam VERB --help` prints the same.\n",
        "Exit codes: 0 fine · 1 a finding of severity error or a failed proof · 2 wrong usage · 3 unreadable input.\n",
        _help(tiebeam, "tiebeam"),
    ]
    root = click.Context(tiebeam, info_name="tiebeam", **tiebeam.context_settings)
    for verb in VERBS:
        command = tiebeam.get_command(root, verb)
        assert command is not None
        parts.append(f"## tiebeam {verb}\n")
        parts.append(_help(command, verb, root))
    return "\n".join(parts)


def _help(command: click.Command, name: str, parent: click.Context | None = None) -> str:
    # With -h as in the program: click keeps the first help option that is made, whoever makes it.
    settings = {**tiebeam.context_settings, "terminal_width": 100}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    return f"```text\n{command.get_help(context)}\n```\n"


def findings_index() -> str:
    """Every finding in one table."""
    lines = [
        "# Findings",
        "",
        "What `tiebeam doctor` can find; `tiebeam doctor --explain CODE` prints the same pages.",
        "",
    ]
    lines += ["| code | severity | what |", "|---|---|---|"]
    lines += [f"| [{c.code}]({c.code}.md) | {c.severity} | {c.title} |" for c in CODES.values()]
    return "\n".join(lines) + "\n"


PAGES = {
    "cli.md": cli_reference,
    "findings/README.md": findings_index,
    **{f"findings/{code}.md": about.page for code, about in CODES.items()},
}

if __name__ == "__main__":
    (HERE / "findings").mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (HERE / name).write_text(make())
