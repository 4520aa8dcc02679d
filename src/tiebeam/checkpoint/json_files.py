"""JSON files of a model: bounded, and forgiving of nothing."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from typing import Any

from tiebeam.checkpoint.files import Files
from tiebeam.errors import UnreadableInput

LIMIT = 64 << 20  # the index of a model with half a million tensors; configs are far smaller
_VALUES = 4_000_000  # a few bytes of JSON can ask for a hundred of memory: what a file may unfold to is bounded too
_CHECKED_FROM = 1 << 20


def read_json(files: Files, name: str, where: str = "") -> dict[str, Any]:
    """A JSON object from the file `name`; `where` is what a person calls the model."""
    label = f"{where}/{name}" if where else name
    size, raw = files.head(name, 1 << 16)
    if size > LIMIT:
        raise UnreadableInput(f"{label} is {size:,} bytes; a JSON file above {LIMIT:,} is not believed")
    if len(raw) < size:
        raw += files.read(name, len(raw), size)
    return parse_json(raw, label)


def parse_json(raw: bytes, label: str) -> dict[str, Any]:
    """A JSON object from bytes, every failure one sentence."""
    text = decode_json(raw, label)
    try:
        document = json.loads(text)
        if "\\" in text or text.count('"') != 2 * _strings(document):
            document = json.loads(text, object_pairs_hook=_unique)  # a third slower, and finds the key given twice
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise UnreadableInput(f"{label} nests its JSON too deeply to be believed") from None
    except _Twice as error:
        raise UnreadableInput(f"{label} defines {error.args[0]!r} twice") from None
    except UnicodeEncodeError:  # half of a surrogate pair can be escaped, but is no character and cannot be printed
        raise UnreadableInput(f"{label} holds half a character (an unpaired surrogate)") from None
    except ValueError as error:
        raise UnreadableInput(f"{label} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableInput(f"{label} holds a JSON {type(document).__name__}, not an object")
    return document


class _Twice(Exception):
    """A key is given twice in one object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        names = [name for name, _ in pairs]
        raise _Twice(next(name for name in built if names.count(name) > 1))
    return built


def _strings(document: Any) -> int:
    """How many strings a document holds, keys too: fewer than its text, when a key was given twice and one was lost."""
    if isinstance(document, str):
        return 1
    if not isinstance(document, dict | list):
        return 0
    keys, values = (len(document), document.values()) if isinstance(document, dict) else (0, document)
    if set(map(type, values)) == {str}:  # an index: a million names in one step
        return keys + len(document)
    return keys + sum(map(_strings, values))


def decode_json(raw: bytes, label: str) -> str:
    """The text of a JSON file, when it is UTF-8 and does not unfold to more than a model could need."""
    if len(raw) > _CHECKED_FROM and raw.count(b",") + raw.count(b"[") + raw.count(b"{") > _VALUES:
        raise UnreadableInput(f"{label} holds more than {_VALUES:,} values; no model's does")
    try:
        return raw.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{label} is not UTF-8 (byte {error.start:,})") from None
