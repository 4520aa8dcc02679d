"""GGUF, against the reader of the gguf package. ggml itself judges handmade files: tests/peers/test_ggml_reader.py."""

from __future__ import annotations

import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from cases import Case
from mutations import mutate_bytes, pick_count

FILE = "model.gguf"
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # value type -> bytes
NUMBERS = (0, 1, 2, 3, 31, 32, 33, 63, 64, 255, 256, 4096, 2**31 - 1, 2**31, 2**32 - 1, 2**48, 2**62, 2**63, 2**64 - 1)
NAMES = (
    b"", b"a", b"token_embd.weight", b"output.weight", b"a\0b", b"\xff", b"n" * 63, b"n" * 64, b"\x1b[2J",
    b"general.alignment", b"general.architecture", b"llama.block_count",
)  # fmt: skip


class Parts(NamedTuple):
    """A GGUF file in its parts, so that one of them can be damaged and the rest stays valid."""

    head: list[int]  # version, number of tensors and of keys, as the file claims
    pairs: list[list[Any]]  # key, value type, raw value
    tensors: list[list[Any]]  # name, dimensions, tensor type, offset
    data: bytes


def seeds() -> list[Case]:
    import gguf
    import numpy as np
    from gguf.quants import quantize

    def written(arch: str, fill: Any) -> Case:
        with tempfile.TemporaryDirectory() as where:
            writer = gguf.GGUFWriter(Path(where) / FILE, arch)
            fill(writer)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            return {FILE: (Path(where) / FILE).read_bytes()}

    packed = gguf.GGMLQuantizationType.Q8_0
    table = np.arange(512, dtype=np.float32).reshape(8, 64) / 100

    def llama(writer: Any) -> None:
        writer.add_block_count(1)
        writer.add_context_length(64)
        writer.add_embedding_length(64)
        writer.add_vocab_size(8)
        writer.add_rope_freq_base(10000.0)
        writer.add_token_list([f"t{i}" for i in range(8)])
        writer.add_token_types([1] * 8)
        writer.add_tokenizer_model("gpt2")
        writer.add_bool("llama.flag", True)
        writer.add_tensor("token_embd.weight", table)
        writer.add_tensor("output.weight", quantize(table, packed), raw_dtype=packed)
        writer.add_tensor("output_norm.weight", table[0])

    def aligned(writer: Any) -> None:
        writer.add_custom_alignment(64)
        writer.add_array("words", ["a", "é", ""])
        writer.add_float64("x", 0.1)
        writer.add_int64("y", -5)
        writer.add_tensor("token_embd.weight", table.astype(np.float16))
        writer.add_tensor("small", np.arange(3, dtype=np.int8))

    return [written("llama", llama), written("gemma2", aligned)]


def parse(raw: bytes) -> Parts:
    """Only for what `build` wrote; anything else raises."""
    at = 24

    def take(layout: str) -> Any:
        nonlocal at
        value = struct.unpack_from(f"<{layout}", raw, at)[0]
        at += struct.calcsize(layout)
        return value

    def text() -> bytes:
        nonlocal at
        length = take("Q")
        at += length
        if at > len(raw):
            raise ValueError
        return raw[at - length : at]

    def skip(kind: int) -> None:
        nonlocal at
        if kind == 8:
            text()
        elif kind == 9:
            inner, count = take("I"), take("Q")
            for _ in range(count):
                skip(inner)
        else:
            at += SIZES[kind]
            if at > len(raw):
                raise ValueError

    version, tensor_count, pair_count = struct.unpack_from("<IQQ", raw, 4)
    pairs: list[list[Any]] = []
    for _ in range(pair_count):
        key, kind = text(), take("I")
        begin = at
        skip(kind)
        pairs.append([key, kind, raw[begin:at]])
    tensors: list[list[Any]] = []
    for _ in range(tensor_count):
        name = text()
        dimensions = [take("Q") for _ in range(take("I"))]
        tensors.append([name, dimensions, take("I"), take("Q")])
    alignment = _alignment(pairs)
    return Parts([version, tensor_count, pair_count], pairs, tensors, raw[-(-at // alignment) * alignment :])


def _alignment(pairs: list[list[Any]]) -> int:
    values = [raw for key, kind, raw in pairs if key == b"general.alignment" and kind == 4 and len(raw) == 4]
    return (struct.unpack("<I", values[0])[0] or 32) if values else 32


def build(parts: Parts, alignment: int) -> bytes:
    raw = b"GGUF" + struct.pack("<IQQ", *parts.head)
    for key, kind, value in parts.pairs:
        raw += struct.pack("<Q", len(key)) + key + struct.pack("<I", kind) + value
    for name, dimensions, kind, offset in parts.tensors:
        raw += struct.pack("<Q", len(name)) + name + struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        raw += struct.pack("<IQ", kind, offset)
    return raw + bytes(-len(raw) % min(alignment, 1 << 16)) + parts.data


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    try:
        parts = parse(raw)
    except (struct.error, ValueError, KeyError, MemoryError):
        return {FILE: mutate_bytes(raw, rng)}
    if rng.random() < 0.2:
        header = len(raw) - len(parts.data)  # damage the header more often than the numbers
        return {FILE: mutate_bytes(raw[:header], rng) + raw[header:]}
    for _ in range(pick_count(rng)):
        parts = _mutate(parts, rng)
    return {FILE: build(parts, _alignment(parts.pairs))}


def _mutate(parts: Parts, rng: Random) -> Parts:
    head, pairs, tensors, data = parts
    pair, tensor = rng.choice(pairs or [[b"", 4, bytes(4)]]), rng.choice(tensors or [[b"", [1], 0, 0]])
    match rng.randrange(13):
        case 0:
            head[rng.randrange(3)] = rng.choice(NUMBERS) % (1 << 32)
        case 1:
            pair[0] = rng.choice(NAMES)
        case 2:
            pair[1] = rng.choice((*range(14), 99))
        case 3:
            pair[2] = mutate_bytes(pair[2], rng)
        case 4:  # another value of a valid type
            pair[1:] = rng.choice((
                [4, struct.pack("<I", rng.choice(NUMBERS) % (1 << 32))], [5, struct.pack("<i", -1)], [7, b"\2"],
                [6, struct.pack("<f", rng.choice((0, -1, 1e38, float("nan"), float("inf"))))], [12, bytes(8)],
                [8, struct.pack("<Q", 3) + b"abc"], [9, struct.pack("<IQ", 4, 0)],
                [9, struct.pack("<IQII", 4, 2, 1, 2)], [9, struct.pack("<IQIQI", 9, 1, 4, 1, 7)],
                [9, struct.pack("<IQQ", 8, 1, 0)], [10, b"\xff" * 8], [11, b"\xff" * 8],
            ))  # fmt: skip
        case 5:
            pairs.insert(rng.randrange(len(pairs) + 1), list(pair))
            head[2] = len(pairs)
        case 6 if pair in pairs:
            pairs.remove(pair)
            head[2] = len(pairs)
        case 7:
            tensor[0] = rng.choice(NAMES)
        case 8:
            dimensions = tensor[1]
            dimensions.insert(rng.randrange(len(dimensions) + 1), rng.choice((1, 1, 1, 0, *NUMBERS)))
        case 9 if tensor[1]:
            tensor[1][rng.randrange(len(tensor[1]))] = rng.choice(NUMBERS)
        case 10:
            tensor[2] = rng.choice((*range(42), 1000))
        case 11:
            tensor[3] = rng.choice((*NUMBERS, tensor[3] + 32, tensor[3] + 1)) % (1 << 64)
        case _:
            data = rng.choice((data[:-1], data[:16], b"", data + b"\0" * 40))
            if rng.random() < 0.5:
                rng.shuffle(tensors)
    return Parts(head, pairs, tensors, data)


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.checkpoint.files import LocalFiles
    from tiebeam.checkpoint.formats.gguf import read_header
    from tiebeam.decode import Decoder
    from tiebeam.doctor import diagnose
    from tiebeam.errors import TiebeamError

    files = LocalFiles(directory)
    header = read_header(files, FILE)
    for question in (diagnose, Decoder.open):
        with suppress(TiebeamError):
            question(directory / FILE)
    with suppress(TiebeamError):
        checkpoint = open_checkpoint(directory / FILE)
        for name, info in checkpoint.tensors.items():
            with suppress(TiebeamError):
                assert checkpoint.tensor(name).shape == info.shape
    tensors = [(t.name, t.dtype, list(t.shape), files.read(FILE, t.begin, t.end)) for t in header.tensors.values()]
    return tensors, {key: _plain(value) for key, value in header.metadata.items()}


def _plain(value: Any) -> Any:
    """Values that == compares: floats as text because of NaN, arrays flattened as the gguf package reads them."""
    if isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return repr(value)
    return [leaf for item in value for leaf in (_plain(item) if isinstance(item, list) else [_plain(item)])]


def reference(directory: Path) -> object:
    import gguf
    import numpy as np

    gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType.Q8_1] = (32, 36)  # as in ggml; gguf-py 0.19 has 40
    with np.errstate(all="ignore"):
        reader = gguf.GGUFReader(directory / FILE)
    fields = {}
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") and field.offset < 24:
            continue
        text = field.types[-1] == gguf.GGUFValueType.STRING
        values = [
            bytes(field.parts[i]).decode("utf-8", "replace") if text else _plain(field.parts[i][0].item())
            for i in field.data
        ]
        fields[key] = values if field.types[0] == gguf.GGUFValueType.ARRAY else values[0]
    tensors = [
        (t.name, t.tensor_type.name, [int(n) for n in reversed(t.shape.tolist())], t.data.tobytes())
        for t in reader.tensors
    ]
    return tensors, fields
