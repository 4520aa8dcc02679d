"""JSON files of a model, parsed strictly and with limits."""

from __future__ import annotations

import json
import math
from codecs import BOM_UTF8
from typing import Any

from tiebeam.checkpoint.files import Files
from tiebeam.checkpoint.not_a_model import is_lfs_pointer, lfs_sentence
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_JSON, MAX_JSON_VALUES

CHECKED_FROM = 1 << 20  # bytes; a shorter text cannot hold too many values


def read_json(files: Files, name: str, where: str = "") -> dict[str, Any]:
    """The JSON object in the file `name`; `where` is the model's name for messages."""
    label = f"{where}/{name}" if where else name
    size, raw = files.head(name, 1 << 16)
    if size > MAX_JSON:
        raise UnreadableInput(f"{label} has {size:,} bytes, which exceeds the limit of {MAX_JSON:,}; refusing to read")
    if len(raw) < size:
        raw += files.read(name, len(raw), size)
    return parse_json(raw, label)


def parse_json(raw: bytes, label: str, numbers_are_finite: bool = False) -> dict[str, Any]:
    """The JSON object in `raw`. Duplicate keys and unpaired surrogates are errors.

    Python's json reads NaN and Infinity, and configs of Mamba 2 have them. `numbers_are_finite` refuses them.
    """
    if is_lfs_pointer(raw):
        raise UnreadableInput(lfs_sentence(label))
    text = decode_json(raw, label)
    try:
        document = _FINITE.decode(text) if numbers_are_finite else json.loads(text)
        if "\\" in text or text.count('"') != 2 * _strings(document):
            document = json.loads(text, object_pairs_hook=_unique)  # a third slower; finds duplicate keys
            json.dumps(document, ensure_ascii=False).encode()
    except RecursionError:
        raise UnreadableInput(f"{label} nests its JSON too deeply; refusing to read") from None
    except _DuplicateKey as error:
        raise UnreadableInput(f"{label} defines {error.args[0]!r} twice") from None
    except UnicodeEncodeError:  # an escaped unpaired surrogate is not a character and cannot be printed
        raise UnreadableInput(f"{label} holds an unpaired surrogate, which is not a character") from None
    except ValueError as error:
        raise UnreadableInput(f"{label} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableInput(f"{label} holds a JSON {type(document).__name__}, not an object")
    return document


def _finite(number: str) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number[:20]} is not a finite number")
    return value


_FINITE = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


class _DuplicateKey(Exception):
    """A key appears twice in one object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    built = dict(pairs)
    if len(built) < len(pairs):
        names = [name for name, _ in pairs]
        raise _DuplicateKey(next(name for name in built if names.count(name) > 1))
    return built


def _strings(document: Any) -> int:
    """Number of strings in a document, with keys. It is lower than in the text if a key was duplicated."""
    if isinstance(document, str):
        return 1
    if not isinstance(document, dict | list):
        return 0
    keys, values = (len(document), document.values()) if isinstance(document, dict) else (0, document)
    if set(map(type, values)) == {str}:  # an index: a million names in one step
        return keys + len(document)
    return keys + sum(map(_strings, values))


def decode_json(raw: bytes, label: str) -> str:
    """The text of a JSON file, if it is UTF-8 and within the limit on the number of values."""
    if len(raw) > CHECKED_FROM and raw.count(b",") + raw.count(b"[") + raw.count(b"{") > MAX_JSON_VALUES:
        raise UnreadableInput(f"{label} holds more values than the limit of {MAX_JSON_VALUES:,}; refusing to read")
    try:
        return raw.removeprefix(BOM_UTF8).decode()
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{label} is not UTF-8 (byte {error.start:,})") from None
