"""Generate the pages that come from the code: cli.md, findings/ and api/. A test checks that they are up to date.

python docs/generate.py
"""

from __future__ import annotations

import inspect
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


def api_reference() -> str:
    """Every public name of the package, from its docstring."""
    import tiebeam as package

    lines = ["# API", "", "Made from the docstrings. [Python](../python.md) has an example of each, in context.", ""]
    modules = [name for name in package.__all__ if inspect.ismodule(getattr(package, name))]
    lines += [f"Submodules: {', '.join(f'[{name}](submodules.md#{name})' for name in modules)}", ""]
    names = [name for name in package.__all__ if name not in modules and name != "__version__"]
    for title, wanted in (("Functions", inspect.isfunction), ("Classes", inspect.isclass)):
        lines += [f"## {title}", ""]
        for name in names:
            found = getattr(package, name)
            if wanted(found) and found.__name__ == name:
                lines += _entry(f"{found.__module__}.{found.__qualname__}", f"tiebeam.{name}")
    return "\n".join(lines) + "\n"


def submodule_reference() -> str:
    """Every public name of every submodule."""
    import tiebeam as package

    lines = ["# Submodules", "", "`import tiebeam` is enough: `tiebeam.nn` and the others load on first use.", ""]
    for name in package.__all__:
        module = getattr(package, name)
        if not inspect.ismodule(module):
            continue
        summary = (module.__doc__ or "").strip().split("\n\n")[0]
        lines += [f"## {name}", "", summary, ""]
        listed = [item for item in getattr(module, "__all__", ()) if item not in package.__all__]
        for item in sorted(listed, key=str.lower):
            found = getattr(module, item)
            if (inspect.isfunction(found) or inspect.isclass(found)) and found.__module__.startswith("tiebeam."):
                lines += _entry(f"{found.__module__}.{found.__qualname__}", f"tiebeam.{name}.{item}")
    return "\n".join(lines) + "\n"


def _entry(path: str, heading: str) -> list[str]:
    return [f"::: {path}", "    options:", f"      heading: {heading}", "      heading_level: 3", ""]


PAGES = {
    "cli.md": cli_reference,
    "api/tiebeam.md": api_reference,
    "api/submodules.md": submodule_reference,
    "findings/README.md": findings_index,
    **{f"findings/{code}.md": rule.page for code, rule in RULES.items()},
}

if __name__ == "__main__":
    for folder in ("api", "findings"):
        (HERE / folder).mkdir(exist_ok=True)
    for name, make in PAGES.items():
        (HERE / name).write_text(make())
