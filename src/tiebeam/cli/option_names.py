"""Turn Python arguments in an error message into command-line options.

The library's errors name Python arguments (`keep="head"`, `steps=0`); people at the command line know options
(`--keep head`, `--steps 0`). Only what is an option of the command is rewritten.
"""

from __future__ import annotations

import re

import click

from tiebeam._pattern import pattern

_ARGUMENT = pattern(
    r"""\b(?P<name>[a-z_]+)=(?:(?P<flag>True|False)\b|(?P<quote>["'])(?P<text>[^"']*)(?P=quote)"""
    r"""|(?P<plain>-?\d[\d._]*\b|[A-Z]+\b|None\b))"""
)
_QUOTED = pattern(r"`(?P<text>(?P<name>[a-z_]+)(?:=[^`]*)?)`")
_METHODS = {"LearningRates.scaled": "lr_scale"}  # a call that the command line has as an option


def to_options(message: str, command: click.Command | None) -> str:
    """Rewrite the Python arguments in a message as options of `command`.

    >>> command = click.Command("x", params=[click.Option(["--keep"]), click.Option(["--force"], is_flag=True)])
    >>> to_options('keep="head" drops the embedding; pass `force=True`', command)
    '--keep head drops the embedding; pass --force'
    """
    known = {option for param in (command.params if command else ()) for option in (*param.opts, *param.secondary_opts)}

    def option(found: re.Match[str]) -> str:
        name = found["name"].strip("_").replace("_", "-")
        if found["flag"]:
            written = f"--{name}" if found["flag"] == "True" else f"--no-{name}"
            return written if written in known else found[0]
        value = found["text"] if found["quote"] else found["plain"]
        shown = f'"{value}"' if " " in value or not value else value
        return f"--{name} {shown}" if f"--{name}" in known else found[0]

    def unquoted(found: re.Match[str]) -> str:
        name = f"--{found['name'].replace('_', '-')}"
        bare = name if "=" not in found["text"] else found["text"]
        return bare if name in known else found[0]

    for method, argument in _METHODS.items():
        message = re.sub(rf"`{re.escape(method)}\((.*?)\)`", rf"`{argument}=\1`", message)
    subject = message.split(" must be ", 1)[0].replace("_", "-")
    if f"--{subject}" in known:
        message = f"--{subject}{message[len(subject) :]}"
    message = _ARGUMENT.sub(option, _QUOTED.sub(unquoted, message))
    for name in known:
        if "-" in name[2:]:  # top_k can only be an argument; a single word may be a plain word
            message = re.sub(rf"\b{name[2:].replace('-', '_')}\b", name, message)
    return message
