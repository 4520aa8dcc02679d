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
    # torch 2.13, torch.load(weights_only=True). We read a pickle as data, so that what is wrong beside the tensors
    # (a class that is not allowed, a call with wrong arguments) does not hide them.
    *(
        Allowed("torch_zip", pattern, reason, "torch_legacy")
        for pattern, reason in (
            (
                THEIRS + r"UnpicklingError in load: .*WeightsUnpickler error: \s*(Unsupported (global|operand|class)|"
                r"persistent_load id|Only persistent_load|Can only (build|create|SETITEM|append|extend)|"
                r"Trying to (call|instantiate)|Encountered unrecognized)|"
                + THEIRS
                + r"UnpicklingError in load: .*Trying to load unsupported GLOBAL .* is blocked",
                "a class, call or instruction that it does not allow; for us its result is unknown",
            ),
            (
                THEIRS
                + r"(TypeError|ValueError) in load: .*(missing \d+ required positional|takes .* positional argument|"
                r"expected at (most|least) \d+ argument|is not callable|"
                r"is not a type object|argument after \*|invalid combination of arguments|value to unpack)|"
                + THEIRS
                + r"RuntimeError in load: torch.UntypedStorage\(\): tried to construct",
                "a call with wrong arguments; for us its result is unknown",
            ),
            (
                THEIRS + r"(AssertionError|IndexError|ValueError|AttributeError) in persistent_load: (saved_id must be|"
                r"tuple index|not enough values|too many values|(?!.*UntypedStorage').*has no attribute 'dtype')",
                "a persistent id that is no storage; tensors in it are left out",
            ),
            (THEIRS + "RecursionError in load: .*repr", "torch prints a nested value in the message of an error"),
            (THEIRS + "TypeError in load: unhashable type", "an entry whose key is not a text is left out"),
            (
                THEIRS + r"(RuntimeError|ValueError|TypeError) in (load_tensor|persistent_load): .*(record size|"
                r"invalid header or archive|unhashable type|tried to construct a storage|unsupported operand|"
                r"can't allocate|called with negative number|"
                r"Overflow when unpacking|get_storage_from_record\(\): incompatible)",
                "the storage of a tensor that is left out is not checked",
            ),
            (OURS + "its pickle names protocol", "torch does not check the protocol's number"),
            (
                THEIRS + r"AttributeError in _rebuild_tensor\w*: .*attribute '(dtype|_untyped_storage)'",
                "a tensor without storage is left out",
            ),
            (THEIRS + r"TypeError in _rebuild_tensor_v3: .*argument 'dtype'", "a tensor of unknown type is left out"),
            (
                THEIRS + r"(TypeError|RuntimeError) in \w+: .*(requires?_grad|require gradients)",
                "requires_grad is not used",
            ),
            (
                THEIRS
                + r"\w+ in _rebuild_(sparse_tensor|qtensor|meta_tensor_no_storage|wrapper_subclass|from_type_v2): ",
                "a tensor of a kind that is left out is not built",
            ),
            (THEIRS + r"AssertionError in set_tensor_metadata: expected dict", "only conj and neg are used"),
            (THEIRS + r"UnicodeDecodeError in (load|_read_global_instruction)", "text that is not UTF-8 is escaped"),
            (
                THEIRS + r"(TypeError|RuntimeError|ValueError) in _rebuild_tensor(_v\d)?: .*(Overflow when|"
                r"set_\(\)|resize storage|"
                r"multiplication overflow|can't allocate|out of bounds|invalid storage offset|"
                r"size calculation overflowed)",
                "a tensor that is left out is not checked",
            ),
            (OURS + "holds no tensors", "optimizer state is no model"),
            (OURS + "the storage of .* should have", "the two sizes of a storage must agree"),
            (OURS + "strides or offset that no tensor can have", "empty, but a number is above 2**48"),
        )
    ),
    Allowed(
        "torch_legacy",
        THEIRS + r"AttributeError in persistent_load: .*UntypedStorage' has no attribute 'dtype'",
        "torch writes the newer types so and cannot load them",
    ),
    Allowed(
        "torch_legacy",
        THEIRS + r"RuntimeError in _legacy_load: storage has wrong byte size",
        "the storage of a tensor that is left out is not checked",
    ),
    Allowed(
        "torch_legacy",
        OURS + "its storages are invalid at byte",
        "torch takes anything with a dtype, such as a tensor, for the type of a storage",
    ),
    Allowed(
        "torch_legacy",
        OURS + "written on a big-endian machine",
        "torch ignores what the file says about its byte order",
    ),
    Allowed("torch_legacy", OURS + "is not a PyTorch file", "a pickle starts with its protocol"),
    Allowed(
        "torch_legacy", OURS + "it does not list its storages|but not its first fields", "fields that torch ignores"
    ),
    Allowed("torch_legacy", OURS + "is truncated: its storages need", "a storage that is larger than the file"),
    Allowed("torch_legacy", OURS + "is a plain Python pickle", "the magic number is the first pickle, in 64 bytes"),
    Allowed("torch_legacy", OURS + "refers to a storage that is missing", "torch leaves its numbers uninitialised"),
    Allowed(
        "torch_zip",
        THEIRS + r"RuntimeError in \w+: .*(parse the version|hasRecord\(.version.\)|file with version|"
        r"failed \w+ file (meta-data for )?(version|byteorder|\.data/serialization_id|\.storage_alignment|"
        r"\.format_version):)",
        "a record that is not used",
    ),
    Allowed(
        "torch_zip",
        THEIRS + r"UnicodeDecodeError in (_load|__init__|_is_torchscript_zip)",
        "a record that is not used, or its name",
    ),
    Allowed(
        "torch_zip",
        THEIRS + r"(IndexError in __init__: stoull|RuntimeError in (_load|__init__): .*can't allocate)",
        "a record that is not used",
    ),
    Allowed("torch_zip", THEIRS + r"ValueError in _load: invalid literal for int", "the record .storage_alignment"),
    Allowed("torch_zip", OURS + "refers to the storage .* missing", "torch finds members in upper or lower case"),
    Allowed("torch_zip", THEIRS + r".*not in a subdirectory", "a member that is not used"),
    Allowed("torch_zip", THEIRS + r".*failed locating file data/", "the storage of a tensor that is left out"),
    Allowed(
        "torch_zip",
        THEIRS
        + r".*failed reading zip archive: (not a ZIP|unsupported multidisk|unsupported encryption|invalid header)",
        "miniz checks fields of the table of contents that are not used",
    ),
    Allowed("torch_zip", OURS + "(does not match the local header|does not fit into|overlaps what)", ZIP),
    Allowed(
        "torch_zip",
        OURS + "(twice, and readers|is encrypted|marked as|claims .* bytes but stores|claims to inflate)",
        ZIP,
    ),
    Allowed(
        "torch_zip",
        OURS + "cannot be inflated past",
        "torch leaves what a cut stream lacks uninitialised: two reads of one member give two contents",
    ),
    Allowed(
        "torch_zip",
        THEIRS + "(.*zip archive: too many files|.*archive does not contain any files)",
        "miniz believes the number of entries in the end of the archive; we count those of the table of contents",
    ),
    Allowed("torch_zip", OURS + "its checksum is wrong", "the checksum of a deflated member is checked"),
    Allowed("torch_zip", OURS + r"\(zip file version", "a member says that it needs a later version of zip"),
    Allowed("torch_zip", OURS + r"\('utf-8' codec can't decode", "a name that is marked as UTF-8 and is not"),
    Allowed(
        "torch_zip", OURS + r"\(zipfiles that span multiple disks", "miniz ignores the number of disks in the zip64 end"
    ),
    Allowed("torch_zip", OURS + r"\(bad magic number for central", "the table of contents is not where its end says"),
    Allowed("torch_zip", OURS + r"\(truncated central directory", "an entry is longer than the table of contents"),
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
