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
    # torch 2.13, torch.load(weights_only=True). We read a pickle as data, so that what is wrong beside the tensors
    # (a class that is not allowed, a call with wrong arguments) does not hide them.
    Allowed("torch", THEIRS + r".*(Weights only load failed|WeightsUnpickler)", "it refuses what it would have to run"),
    Allowed(
        "torch",
        THEIRS + r"(TypeError|ValueError|AttributeError|IndexError|KeyError|AssertionError|UnicodeDecodeError)",
        "a call beside the tensors, or an argument that is not used",
    ),
    Allowed(
        "torch",
        THEIRS + r"RuntimeError: .*(version|requires_grad|require gradients|Unrecognized type|quantiz|sparse)",
        "beside the tensors",
    ),
    Allowed(
        "torch",
        THEIRS + r"RuntimeError: .*(resize storage|multiplication overflow|can't allocate|record size|out of bounds)",
        "a tensor that is left out is not checked",
    ),
    Allowed("torch", OURS + "its pickle is invalid", "a storage that is not used must be valid too"),
    Allowed("torch", OURS + "the storage of .* should have", "the two sizes of a storage must agree"),
    Allowed("torch", OURS + "strides or offset that no tensor can have", "empty, but a number is above 2**48"),
    Allowed("torch_legacy", OURS + "is not a PyTorch file", "a pickle starts with its protocol"),
    Allowed(
        "torch_legacy", OURS + "it does not list its storages|but not its first fields", "fields that torch ignores"
    ),
    Allowed("torch_legacy", OURS + "is truncated: its storages need", "a storage that is larger than the file"),
    Allowed("torch_legacy", OURS + "is a plain Python pickle", "the magic number is the first pickle, in 64 bytes"),
    Allowed("torch_legacy", OURS + "refers to a storage that is missing", "torch leaves its numbers uninitialised"),
    Allowed(
        "torch_zip",
        THEIRS + r".*PytorchStreamReader failed .*(serialization_id|storage_alignment|format_version|byteorder)",
        "a record that is not used",
    ),
    Allowed("torch_zip", THEIRS + r".*not in a subdirectory", "a member that is not used"),
    Allowed("torch_zip", THEIRS + r".*failed locating file", "the storage of a tensor that is left out"),
    Allowed("torch_zip", THEIRS + r".*failed reading zip archive", "miniz checks fields that zipfile does not use"),
    Allowed("torch_zip", OURS + "(does not match the local header|does not fit into|overlaps what)", ZIP),
    Allowed(
        "torch_zip",
        OURS
        + "(twice, and readers|is encrypted|marked as|not a complete zip|claims .* bytes but stores|claims to inflate)",
        ZIP,
    ),
    # NumPy 2.4, numpy.load(allow_pickle=False)
    Allowed("npz", THEIRS + ".*Bad CRC-32", "checksums of stored members are not checked: they are read by range"),
    Allowed(
        "npz", OURS + "(which takes .* bytes; it has|cannot be inflated past)", "an array that does not fill its member"
    ),
    Allowed("npz", THEIRS + "TooSlow", "NumPy reads all numbers, we only those that are asked for"),
    Allowed("npz", OURS + "is big-endian", "everything behind the readers is little-endian"),
    Allowed("npz", THEIRS + "NotImplementedError", "flags of a member that change nothing in how it is stored"),
    Allowed("npz", OURS + "(does not match the local header|does not fit into|overlaps what)", ZIP),
    Allowed(
        "npz",
        OURS
        + "(twice, and readers|is encrypted|marked as|not a complete zip|claims .* bytes but stores|claims to inflate)",
        ZIP,
    ),
]


def allowed(format: str, line: str) -> Allowed | None:
    return next((a for a in ALLOWED if format.startswith(a.format) and re.search(a.pattern, line, re.DOTALL)), None)
