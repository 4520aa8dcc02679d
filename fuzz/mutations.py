"""Damage that several harnesses use: to bytes, and to JSON by its structure."""

from __future__ import annotations

import json
from random import Random
from typing import Any

# Values that JSON can hold and readers forget. A text `@name` stands for raw JSON that Python's json cannot write.
RAW = {
    "@deep": "[" * 3000 + "]" * 3000,
    "@digits": "9" * 5000,
    "@1e999": "1e999",
    "@-1e999": "-1e999",
    "@NaN": "NaN",
    "@Infinity": "Infinity",
    "@surrogate": '"\\ud800"',
    "@nul": '"\\u0000"',
}
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2, 3, 7, 8, 31, 32, 255, 65_536, 2**31 - 1, 2**31, 2**32, 2**53, 2**63 - 1, 2**63,
    2**64, 10**30, -(2**63), 0.0, -0.0, 0.5, -1.5, 1e-320, 1e308, "", "a", "0", "1", "auto", "true", "\x1b[2J",
    "\n::error::x", "é" * 40, "../../etc/passwd", "/etc/passwd", "a/b", [], {}, [[]], [0], [None], [[0], 268435456],
    ["a"], [1, 2, 3], {"a": None}, {"a": {"a": 1}}, [True], [-1], [2**40, 2**40], [0, 2**48], *RAW,
]  # fmt: skip


def pick_count(rng: Random) -> int:
    """How many mutations: mostly one."""
    return rng.choice((1, 1, 1, 2, 3))


def mutate_bytes(raw: bytes, rng: Random) -> bytes:
    """Flip, overwrite, cut, remove, repeat, or put an extreme number somewhere."""
    data = bytearray(raw or b"\0")
    for _ in range(pick_count(rng)):
        at = rng.randrange(len(data) or 1)
        match rng.randrange(6):
            case 0 if data:
                data[at] ^= 1 << rng.randrange(8)
            case 1 if data:
                data[at] = rng.randrange(256)
            case 2:
                del data[at:]
            case 3:
                del data[at : at + rng.randrange(1, 40)]
            case 4:
                source = rng.randrange(len(data) or 1)
                data[at:at] = data[source : source + rng.randrange(1, 60)]
            case _:
                width = rng.choice((1, 2, 4, 8))
                number = rng.choice((0, 1, 2**7, 2**8 - 1, 2**31, 2**31 - 1, 2**32 - 1, 2**63, 2**63 - 1, 2**64 - 1))
                data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    return bytes(data)


def mutate_json(raw: bytes, rng: Random) -> bytes:
    """Damage a JSON document: nine times in ten by its structure, else as bytes."""
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        return mutate_bytes(raw, rng)
    if rng.random() < 0.1:
        return mutate_bytes(raw, rng)
    for _ in range(pick_count(rng)):
        document = mutate_value(document, rng)
    return write_json(document, rng)


def write_json(document: Any, rng: Random) -> bytes:
    text = json.dumps(document, ensure_ascii=rng.random() < 0.5, allow_nan=True)
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    if rng.random() < 0.03:
        text = rng.choice((" ", "\n", "\ufeff", "\t ")) + text
    if rng.random() < 0.03:
        text += rng.choice((" ", "\n", "{}", "\0", "x"))
    return text.encode("utf-8", "surrogatepass")


def mutate_value(document: Any, rng: Random) -> Any:
    """The document with one node replaced, removed, added, renamed, moved or repeated."""
    spots = list(_spots(document))
    if not spots or rng.random() < 0.01:
        return rng.choice(VALUES)
    holder, key = rng.choice(spots)
    match rng.randrange(8):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice(("", "a", "__metadata__", "model_type", "\0", "x" * 300, key + key))] = holder.pop(key)
        case 2 if isinstance(holder, list):
            holder.insert(rng.randrange(len(holder) + 1), rng.choice(VALUES))
        case 3:
            other, place = rng.choice(spots)
            holder[key] = json.loads(json.dumps(other[place])) if place in _keys(other) else None
        case 4 if type(holder[key]) in (int, float):
            holder[key] = rng.choice(
                (-holder[key], holder[key] + 1, holder[key] - 1, holder[key] * 2, float(holder[key]))
            )
        case _:
            holder[key] = rng.choice(VALUES)
    return document


def _keys(holder: Any) -> Any:
    return holder if isinstance(holder, dict) else range(len(holder))


def _spots(document: Any, depth: int = 0) -> Any:
    """Every (container, key); of a long list only the first items."""
    if depth > 30:
        return
    pairs = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in list(pairs)[:200]:
        yield document, key
        yield from _spots(value, depth + 1)
