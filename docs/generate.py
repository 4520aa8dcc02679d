"""Generate the pages that come from the code: cli.md and findings/. A test checks that they are up to date.

python docs/generate.py
"""

from __future__ import annotations

from pathlib import Path

import click

from tiebeam.cli import VERBS, tiebeam
from tiebeam.doctor import RULES

HERE = Path(__file__).parent


def cli_reference() -> str:
    """The help of every verb, as `tiebeam VERB --help` prints it at 100 columns."""
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
    # With -h as in the program: click keeps the help option that is created first.
    settings = {**tiebeam.context_settings, "terminal_width": 100}
    context = click.Context(command, info_name=name, parent=parent, **settings)
    return f"```text\n{command.get_help(context)}\n```\n"


def findings_index() -> str:
    """Every finding in one table."""
    lines = [
        "# Findings",
        "",
        "Every finding of `tiebeam doctor`. `tiebeam doctor --explain CODE` prints the same pages.",
        "",
    ]
    lines += ["| code | severity | what |", "|---|---|---|"]
    lines += [f"| [{r.code}]({r.code}.md) | {r.severity} | {r.title} |" for r in RULES.values()]
    return "\n".join(lines) + "\n"


PAGES = {
    "cli.md": cli_reference,
    "findings/README.md": findings_index,
    **{f"findings/{code}.md": rule.page for code, rule in RULES.items()},
}

if __name__ == "__main__":
    (HERE / "findings").mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (HERE / name).write_text(make())
