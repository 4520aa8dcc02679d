"""Damage to pickles by their instructions, and to zip archives by their members and the fields of their tables."""

from __future__ import annotations

import io
import pickletools
import struct
import zipfile
import zlib
from contextlib import suppress
from random import Random

from mutations import mutate_bytes, pick_count

INTEGERS = (0, 1, 2, 3, 4, 6, 7, 255, 256, 2**31 - 1, 2**31, 2**40, 2**48, 2**48 + 1, 2**63, 2**64, 10**40, -1, -2)
GLOBALS = (
    b"torch._utils\n_rebuild_tensor_v2", b"torch._utils\n_rebuild_tensor_v3", b"torch._utils\n_rebuild_parameter",
    b"torch._utils\n_rebuild_sparse_tensor", b"torch._utils\n_rebuild_qtensor",
    b"torch._utils\n_rebuild_meta_tensor_no_storage",
    b"torch._tensor\n_rebuild_from_type_v2", b"torch._utils\n_rebuild_wrapper_subclass", b"torch\nSize",
    b"torch\nbfloat16",
    b"torch\nFloatStorage", b"torch\nIntStorage", b"torch\nLongStorage", b"torch\nBFloat16Storage",
    b"torch\nByteStorage", b"torch\nuint16",
    b"torch.storage\nUntypedStorage", b"collections\nOrderedDict", b"collections\ndefaultdict", b"builtins\nset",
    b"copyreg\n_reconstructor", b"os\nsystem", b"builtins\neval",
    b"torch.distributed.checkpoint.metadata\nMetadataIndex",
)  # fmt: skip
BLOCKS = (
    b"N", b"\x88", b"\x89", b"}", b"]", b")", b"(", b"0", b"1", b"2", b"t", b"l", b"d", b"u", b"s", b"e", b"a",
    b"R", b"b",
    b"Q", b".", b"\x81", b"\x85", b"\x86", b"\x87", b"\x93", b"\x94", b"\x97", b"\x98", b"h\0", b"h\1", b"q\0",
    b"q\1",
    b"j\xff\xff\xff\xff", b"r\xff\xff\xff\xff", b"\x80\2", b"\x80\5", b"\x95" + b"\xff" * 8, b"\x82\1", b"Pa\n",
    b"C\3abc",
    b"G" + b"\x7f\xf0" + bytes(6), b"G" + b"\xff" * 8, b"X\4\0\0\0" + "\U0001f600".encode(),
    b"X\3\0\0\0\xed\xa0\x80",
    b"X\7\0\0\0storage", b"X\xff\xff\xff\x7fa", b"X\0\0\0\0", b"X\4\0\0\0a.\n\x1b", b"\x8e" + b"\xff" * 8,
    b"I01\n", b"F1e999\n",
    b"L99999999999999999999L\n", b"\x8b\xff\xff\xff\x7f", b"}" * 60, b"](" * 40, b")" + b"\x85" * 200, b"]2a2a2a",
)  # fmt: skip


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(raw)]) + raw


def instructions(raw: bytes) -> list[bytes]:
    """The pickle cut into its instructions; what cannot be parsed is the last item."""
    starts: list[int] = []
    with suppress(Exception):  # damaged before: what was parsed is enough
        for _, _, at in pickletools.genops(raw):
            starts.append(at or 0)
    if not starts:
        return [raw]
    return [raw[a:b] for a, b in zip(starts, [*starts[1:], len(raw)], strict=True)]


def mutate_pickle(raw: bytes, rng: Random) -> bytes:
    """Damage one pickle: nine times in ten by its instructions, else as bytes."""
    listed = instructions(raw)
    if len(listed) < 2 or rng.random() < 0.1:
        return mutate_bytes(raw, rng)
    for _ in range(pick_count(rng)):
        at = rng.randrange(len(listed))
        numbers = [i for i, op in enumerate(listed) if op[:1] in (b"K", b"M", b"J", b"\x8a")]
        globals_ = [i for i, op in enumerate(listed) if op[:1] == b"c"]
        match rng.randrange(10):
            case 0:
                del listed[at]
            case 1:
                listed.insert(at, rng.choice(BLOCKS))
            case 2:
                listed[at] = rng.choice(BLOCKS)
            case 3:
                listed.insert(at, rng.choice(listed))
            case 4:
                other = rng.randrange(len(listed))
                listed[at], listed[other] = listed[other], listed[at]
            case 5 | 6 if numbers:
                listed[rng.choice(numbers)] = integer(rng.choice(INTEGERS))
            case 7 if globals_:
                listed[rng.choice(globals_)] = b"c" + rng.choice(GLOBALS) + b"\n"
            case 8:
                end = at + rng.randrange(1, 30)
                listed[at:at] = listed[at:end] * rng.choice((1, 1, 5, 300))
            case _:
                listed[at] = mutate_bytes(listed[at], rng)
        if not listed:
            break
    return b"".join(listed)


def members(raw: bytes) -> dict[str, bytes] | None:
    """The members of a zip archive; None if it is too damaged."""
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return {info.filename: archive.read(info) for info in archive.infolist()}
    except Exception:
        return None


def archive(contents: dict[str, bytes], rng: Random) -> bytes:
    """A zip archive, as a rule stored."""
    out = io.BytesIO()
    method = zipfile.ZIP_STORED if rng.random() < 0.85 else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(out, "w", method) as target:
        for name, data in contents.items():
            info = zipfile.ZipInfo(name)
            info.compress_type = method
            target.writestr(info, data)
    return out.getvalue()


def mutate_directory(raw: bytes, rng: Random) -> bytes:
    """Put an extreme number into a field of a local header, an entry of the table of contents, or its end."""
    data = bytearray(raw)
    magic, fields = rng.choice((
        (b"PK\1\2", ((6, 2), (8, 2), (10, 2), (16, 4), (20, 4), (24, 4), (28, 2), (30, 2), (32, 2), (42, 4))),
        (b"PK\3\4", ((4, 2), (6, 2), (8, 2), (14, 4), (18, 4), (22, 4), (26, 2), (28, 2))),
        (b"PK\5\6", ((4, 2), (8, 2), (10, 2), (12, 4), (16, 4), (20, 2))),
    ))  # fmt: skip
    found = [i for i in range(len(data) - 46) if data[i : i + 4] == magic]
    if not found:
        return mutate_bytes(raw, rng)
    offset, width = rng.choice(fields)
    at = rng.choice(found) + offset
    old = int.from_bytes(data[at : at + width], "little")
    new = rng.choice((0, 1, 8, old + 1, old - 1, old ^ 1 << rng.randrange(8 * width), 2**31, 2**32 - 1, len(data)))
    data[at : at + width] = struct.pack("<Q", new % (1 << 64))[:width]
    return bytes(data)


def bomb(rng: Random) -> bytes:
    """Deflated zeros, far larger than the file: the content of a member or a body."""
    return zlib.compress(bytes(rng.choice((1, 30)) << 20), 9)
