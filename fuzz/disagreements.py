"""Where we and a reference reader differ on purpose: format, what happens (a pattern), why.

The pattern is searched in one line that the worker writes:

    refused: OUR MESSAGE | accepted by the reference
    accepted | refused by the reference: TYPE: MESSAGE
    differ: OURS | REFERENCE

Each entry is explained in docs/reliability.md. What matches none is a bug, here or there.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Allowed(NamedTuple):
    format: str
    pattern: str
    reason: str


OURS = r"^refused: .*"
THEIRS = r"^accepted \| refused by the reference: "
ALLOWED: list[Allowed] = [
    # safetensors 0.8
    Allowed("safetensors", OURS + "which no tensor can have", "empty, but another dimension is above 2**48"),
    Allowed("safetensors", OURS + "defines .* twice", "of a key given twice the reference takes one"),
    Allowed(
        "safetensors",
        THEIRS + ".*recursion limit",
        "unread fields nested more than 128 deep",
    ),
    # gguf-py 0.19; tests/peers/test_ggml_reader.py says what ggml does with each
    Allowed("gguf", OURS + "with a NUL in it", "ggml ends the name at the NUL"),
    Allowed("gguf", OURS + "has an empty key", "ggml refuses it"),
    Allowed("gguf", OURS + "a tensor name of .* exceeds the limit of 63", "ggml refuses it"),
    Allowed("gguf", OURS + "dimensions, which exceeds the limit of 4", "ggml refuses it"),
    Allowed("gguf", OURS + "starts at byte", "ggml refuses tensors that do not follow each other"),
    Allowed("gguf", OURS + "has the impossible shape", "empty, but another dimension is above 2**48"),
    Allowed("gguf", OURS + "is truncated", "gguf-py cuts off what a truncated file lacks"),
]


def allowed(format: str, line: str) -> Allowed | None:
    return next((a for a in ALLOWED if a.format == format and re.search(a.pattern, line, re.DOTALL)), None)
