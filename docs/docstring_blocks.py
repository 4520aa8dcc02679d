"""A griffe extension for the reference: examples (>>>) become code blocks, and aligned arguments become a list."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*)(?:\n*^ *>>> .*\n?(?:^ *\S.*\n?)*)*", re.MULTILINE)
_ARGUMENTS = re.compile(r"(?:^[a-z_]\w*(?:, [a-z_]\w*)* {2,}\S.*\n?(?:^ {4,}\S.*\n?)*)+", re.MULTILINE)
_ARGUMENT = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*) {2,}(\S.*(?:\n {4,}\S.*)*)", re.MULTILINE)


def rendered(text: str) -> str:
    """A docstring as Markdown.

    >>> rendered("One.\\n\\n>>> 1 + 1\\n2")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    >>> rendered("keep   which one\\nrank   how many")
    '- `keep`: which one\\n- `rank`: how many\\n'
    """
    text = _EXAMPLE.sub(lambda match: f"```pycon\n{dedent(match[0]).strip()}\n```\n", text)
    return _ARGUMENTS.sub(_list, text)


def _list(found: re.Match[str]) -> str:
    items = ((names, " ".join(words.split())) for names, words in _ARGUMENT.findall(found[0]))
    return "".join(f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {words}\n" for names, words in items)


class Docstrings(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = rendered(obj.docstring.value)
