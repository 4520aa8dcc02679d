"""Where we and a reference reader differ on purpose: format, what happens (a pattern), why.

The pattern is searched in one line that the worker writes:

    refused: OUR MESSAGE | accepted by the reference
    accepted | refused by the reference: TYPE in FUNCTION: MESSAGE
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
    also: str = ""
    """A second format."""


OURS = r"^refused: .*"
THEIRS = r"^accepted \| refused by the reference: "
ZIP = "the two descriptions of a member in an archive must agree, and members may not overlap"
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
    # torch 2.13, torch.load(weights_only=True). What it refuses and we read needs no entry: each tensor that we return
    # must then be what torch makes of it alone (one_by_one.py).
    *(
        Allowed("torch_zip", f"{OURS}({pattern})", reason, "torch_legacy")
        for pattern, reason in (
            ("its pickle names protocol", "torch does not check the protocol's number"),
            ("sets the state of a tensor", "torch takes the numbers of a tensor's state"),
            ("has two element types", "torch takes the first type for both"),
            ("written on a big-endian machine", "torch swaps the bytes, or ignores it (legacy files)"),
            ("holds no (plain )?tensors", "optimizer state and tensors that are no plain bytes are no model"),
            ("holds two tensors that are both called", "one dotted name"),
            ("the storage of .* should have", "the two sizes of a storage must agree"),
            ("strides or offset that no tensor can have", "a number above 2**48, or no tuple"),
            ("refusing to read", "a limit of limits.py"),
        )
    ),
    *(
        Allowed("torch_legacy", f"{OURS}({pattern})", reason)
        for pattern, reason in (
            ("its storages are invalid at byte", "torch takes anything with a dtype for the type of a storage"),
            ("is not a PyTorch file", "a pickle starts with its protocol"),
            ("it does not list its storages|but not its first fields", "fields that torch ignores"),
            ("is truncated: its storages need", "a storage that is larger than the file"),
            ("is a plain Python pickle", "the magic number is the first pickle, in 64 bytes"),
            ("refers to a storage that is missing", "torch leaves its numbers uninitialised"),
        )
    ),
    *(
        Allowed("torch_zip", f"{OURS}({pattern})", reason)
        for pattern, reason in (
            ("refers to the storage .* missing", "torch finds members in upper or lower case"),
            ("does not match the local header|does not fit into|overlaps what", ZIP),
            ("twice, and readers|is encrypted|marked as|claims .* bytes but stores|claims to inflate", ZIP),
            ("cannot be inflated past", "torch leaves what a cut stream lacks uninitialised"),
            ("its checksum is wrong", "the checksum of a deflated member is checked"),
        )
    ),
    # NumPy 2.4, numpy.load(allow_pickle=False)
    Allowed("npz", THEIRS + ".*Bad CRC-32", "checksums of stored members are not checked: they are read by range"),
    Allowed(
        "npz", OURS + "(which takes .* bytes; it has|cannot be inflated past)", "an array that does not fill its member"
    ),
    Allowed("npz", OURS + "holds no tensors", "an array is a member whose name ends in .npy"),
    Allowed("npz", OURS + "holds no arrays of numbers", "texts, records and types without a name are skipped"),
    Allowed("npz", OURS + "is big-endian", "everything behind the readers is little-endian"),
    Allowed("npz", THEIRS + "NotImplementedError", "flags of a member that change nothing in how it is stored"),
    Allowed("npz", OURS + "(does not match the local header|does not fit into|overlaps what)", ZIP),
    Allowed(
        "npz",
        OURS + "(and readers disagree|is encrypted|marked as|claims .* bytes but stores|claims to inflate)",
        ZIP,
    ),
]


def allowed(format: str, line: str) -> Allowed | None:
    return next((a for a in ALLOWED if format in (a.format, a.also) and re.search(a.pattern, line, re.DOTALL)), None)
