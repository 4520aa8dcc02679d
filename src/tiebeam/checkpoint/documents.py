"""JSON files of a model: bounded, and forgiving of nothing."""

from __future__ import annotations

import json
from typing import Any

from tiebeam.checkpoint.files import Files
from tiebeam.errors import UnreadableInput

LIMIT = 64 << 20  # the index of a model with a million tensors is about 100 bytes each; configs are far smaller


def read_json(files: Files, name: str, where: str = "") -> dict[str, Any]:
    """A JSON object from the file `name`; `where` is what a person calls the model."""
    label = f"{where}/{name}" if where else name
    size = files.size(name)
    if size > LIMIT:
        raise UnreadableInput(f"{label} is {size:,} bytes; a JSON file above {LIMIT:,} is not believed")
    return parse_json(files.read(name, 0, size), label)


def parse_json(raw: bytes, label: str) -> dict[str, Any]:
    """A JSON object from bytes, every failure one sentence."""
    try:
        document = json.loads(raw.decode("utf-8-sig"), object_pairs_hook=_unique(label))
    except UnicodeDecodeError as error:
        raise UnreadableInput(f"{label} is not UTF-8 (byte {error.start:,})") from None
    except RecursionError:
        raise UnreadableInput(f"{label} nests its JSON too deeply to be believed") from None
    except ValueError as error:
        raise UnreadableInput(f"{label} is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        raise UnreadableInput(f"{label} holds a JSON {type(document).__name__}, not an object")
    return document


def _unique(label: str) -> Any:
    def build(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        built = dict(pairs)
        if len(built) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in built if names.count(name) > 1)
            raise UnreadableInput(f"{label} defines {twice!r} twice")
        return built

    return build
