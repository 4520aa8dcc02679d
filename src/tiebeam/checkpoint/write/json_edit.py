"""Change one value of a JSON text and keep every other byte: key order, indentation, the spelling of 1e-5.

People read config.json and version control compares it; writing it anew through a parser would change other lines.
"""

from __future__ import annotations

import json
import re
from typing import Any

from tiebeam.errors import UnreadableInput

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


def set_value(text: str, path: tuple[str, ...], value: Any) -> str:
    """`text` with the value at `path` replaced. A missing last key is added to its object.

    >>> set_value('{"eps": 1e-5, "tie": true}', ("tie",), False)
    '{"eps": 1e-5, "tie": false}'
    """
    begin = _skip(text, 1 if text.startswith("\ufeff") else 0)
    for depth, key in enumerate(path):
        members = _members(text, begin)
        if key in members:
            begin = members[key][0]
            continue
        if depth + 1 < len(path):
            raise UnreadableInput(f"config.json has no {'.'.join(path[: depth + 1])} to set {path[-1]} in")
        return _add(text, begin, members, key, _dumped(text, value, len(path)))
    end = _DECODER.raw_decode(text, begin)[1]
    return text[:begin] + _dumped(text, value, len(path)) + text[end:]


def _dumped(text: str, value: Any, depth: int) -> str:
    """The value as JSON; a list or an object over several lines where the text is indented."""
    begin = _skip(text, text.index("{")) + 1
    lines = text[begin : _skip(text, begin)].split("\n")
    if len(lines) < 2 or not isinstance(value, list | dict):
        return json.dumps(value, ensure_ascii=False)
    return json.dumps(value, ensure_ascii=False, indent=lines[-1]).replace("\n", "\n" + lines[-1] * depth)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _members(text: str, begin: int) -> dict[str, tuple[int, int]]:
    """key: (begin, end) of its value, for the object that starts at `begin`."""
    if text[begin : begin + 1] != "{":
        raise UnreadableInput("config.json is damaged: a config level is not an object")
    members: dict[str, tuple[int, int]] = {}
    at = _skip(text, begin + 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        at = _skip(text, _skip(text, at) + 1)
        end = _DECODER.raw_decode(text, at)[1]
        members[key] = (at, end)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members


def _add(text: str, begin: int, members: dict[str, tuple[int, int]], key: str, value: str) -> str:
    """Insert in alphabetical order if the object is sorted, else last; on its own line if the others are."""
    written = f"{json.dumps(key, ensure_ascii=False)}: {value}"
    if not members:
        close = _skip(text, begin + 1)
        return text[: begin + 1] + written + text[close:]
    keys = list(members)
    gap = text[begin + 1 : _skip(text, begin + 1)]  # between { and the first key: the indentation
    before = [k for k in keys if k < key] if keys == sorted(keys) else keys
    if not before:
        return text[: begin + 1] + gap + written + "," + (gap or " ") + text[begin + 1 + len(gap) :]
    end = members[before[-1]][1]
    return text[:end] + "," + (gap or " ") + written + text[end:]
