"""A griffe extension for the reference: examples in docstrings (>>>) become code blocks."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?:^ *>>> .*\n?(?:^ *\S.*\n?)*\n?(?=^ *>>> |))+", re.MULTILINE)


def fenced(text: str) -> str:
    """The docstring with every run of doctest lines in a fence.

    >>> fenced("One.\\n\\n>>> 1 + 1\\n2")
    'One.\\n\\n```pycon\\n>>> 1 + 1\\n2\\n```\\n'
    """
    return _EXAMPLE.sub(lambda match: f"```pycon\n{dedent(match[0]).strip()}\n```\n", text)


class Doctests(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring and ">>> " in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)
