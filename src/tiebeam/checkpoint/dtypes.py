"""Element types: their size in bits, and decoding of bytes to numbers.

NumPy has no bfloat16, no 8-bit floats and nothing below a byte; these decode to float32, exactly. The package `gguf`
decodes GGUF's block types.
"""

from __future__ import annotations

from functools import cache
from math import prod
from typing import TYPE_CHECKING

from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Every element type of the safetensors format, in bits.
BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8,
    "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
    "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64, "C128": 128,
}  # fmt: skip

_NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "I16": "<i2", "U16": "<u2", "F16": "<f2", "I32": "<i4", "U32": "<u4",
    "F32": "<f4", "C64": "<c8", "F64": "<f8", "I64": "<i8", "U64": "<u8", "C128": "<c16",
}  # fmt: skip

# name: exponent bits, mantissa bits, bias, has infinities, "fnuz" (no negative zero: 0x80 is the only NaN)
_SMALL_FLOATS = {
    "F4": (2, 1, 1, False, False),
    "F6_E2M3": (2, 3, 1, False, False),
    "F6_E3M2": (3, 2, 3, False, False),
    "F8_E4M3": (4, 3, 7, False, False),
    "F8_E5M2": (5, 2, 15, True, False),
    "F8_E4M3FNUZ": (4, 3, 8, False, True),
    "F8_E5M2FNUZ": (5, 2, 16, False, True),
}

FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E8M0", *_SMALL_FLOATS})


def nbytes(dtype: str, shape: tuple[int, ...]) -> int | None:
    """Size of a dense tensor in bytes; None if it is not a whole number of bytes (or blocks).

    >>> nbytes("BF16", (32000, 4096)), nbytes("F4", (3,))
    (262144000, None)
    """
    bits = BITS.get(dtype)
    if bits is not None:
        total = prod(shape) * bits
        return total // 8 if total % 8 == 0 else None
    block, block_bytes = _gguf_block(dtype)
    if shape and shape[-1] % block:
        return None
    return prod(shape) // block * block_bytes


def row_range(dtype: str, shape: tuple[int, ...], start: int, stop: int) -> tuple[int, int]:
    """Byte range of rows start:stop inside a dense tensor."""
    total, rows = nbytes(dtype, shape), shape[0]
    if total is not None and (start, stop) == (0, rows):
        return 0, total
    if total is None or (rows and total % rows):
        raise UnreadableInput(f"rows of a {dtype} tensor of shape {list(shape)} do not start on whole bytes")
    per_row = total // rows if rows else 0
    return start * per_row, stop * per_row


def decode(dtype: str, raw: bytes, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Bytes -> numbers of that shape."""
    import numpy as np

    if dtype in _NUMPY:
        return np.frombuffer(raw, _NUMPY[dtype]).reshape(shape)
    if dtype == "BF16":
        bits = np.frombuffer(raw, "<u2").astype(np.uint32)
        bits <<= np.uint32(16)
        return bits.view(np.float32).reshape(shape)
    if dtype == "F8_E8M0":
        powers = np.ldexp(1.0, np.arange(-127, 129))  # exp2 in float32 gets the largest power wrong by one bit
        powers[255] = np.nan
        return powers.astype(np.float32)[np.frombuffer(raw, np.uint8)].reshape(shape)
    if dtype in _SMALL_FLOATS:
        return _small_float_values(dtype)[_unpack(np.frombuffer(raw, np.uint8), BITS[dtype])].reshape(shape)
    return _decode_gguf(dtype, raw, shape)


def decode_strided(dtype: str, raw: bytes, shape: tuple[int, ...], strides: tuple[int, ...]) -> NDArray[np.generic]:
    """Bytes -> numbers for a view with element strides; `raw` must include the last element of the view."""
    import numpy as np

    flat = decode(dtype, raw, (len(raw) * 8 // BITS[dtype],))
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1 if prod(shape) else 0
    if reach > flat.size or min(strides, default=0) < 0:
        raise UnreadableInput(f"a tensor of shape {list(shape)} and strides {list(strides)} reaches past its storage")
    return np.lib.stride_tricks.as_strided(flat, shape, tuple(s * flat.itemsize for s in strides), writeable=False)


def encode(dtype: str, values: NDArray[np.floating]) -> bytes:
    """Numbers -> bytes of F64, F32, F16 or BF16, rounded to nearest (ties to even), or of a GGUF block type that the
    gguf package can write."""
    import numpy as np

    if dtype == "BF16":
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = bits >> np.uint32(16)
        rounded &= np.uint32(1)
        rounded += np.uint32(0x7FFF)
        rounded += bits
        rounded >>= np.uint32(16)
        nan = np.isnan(values)
        if nan.any():
            rounded[nan] = 0x7FC0
        return rounded.astype("<u2").tobytes()
    if dtype in BITS and dtype not in ("F16", "F32", "F64"):
        raise BadRequest(f"numbers cannot be written as {dtype}; choose F32, F16 or BF16")
    if dtype not in BITS:
        return _encode_gguf(dtype, values)
    with np.errstate(over="ignore"):
        return values.astype(_NUMPY[dtype]).tobytes()


def _unpack(raw: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Split bytes into `bits`-wide codes, lowest bits first."""
    import numpy as np

    if bits == 8:
        return raw
    flat = np.unpackbits(raw, bitorder="little").reshape(-1, bits)
    return np.packbits(flat, axis=1, bitorder="little").reshape(-1)


@cache
def _small_float_values(dtype: str) -> NDArray[np.float32]:
    """The value of every code of a small float type, at most 256."""
    import numpy as np

    exponent_bits, mantissa_bits, bias, infinities, fnuz = _SMALL_FLOATS[dtype]
    codes = np.arange(1 << (1 + exponent_bits + mantissa_bits))
    exponent = (codes >> mantissa_bits) & ((1 << exponent_bits) - 1)
    mantissa = codes & ((1 << mantissa_bits) - 1)
    sign = np.where(codes >> (exponent_bits + mantissa_bits), -1.0, 1.0)
    fraction = mantissa / (1 << mantissa_bits)
    values = sign * np.where(exponent, (1 + fraction) * 2.0 ** (exponent - bias), fraction * 2.0 ** (1 - bias))
    top = (1 << exponent_bits) - 1
    if infinities:
        values = np.where(exponent == top, np.where(mantissa == 0, sign * np.inf, np.nan), values)
    elif fnuz:
        values[1 << (exponent_bits + mantissa_bits)] = np.nan
    elif dtype == "F8_E4M3":  # without infinities; one mantissa is NaN
        values = np.where((exponent == top) & (mantissa == 7), np.nan, values)
    return values.astype(np.float32)


def _gguf_block(dtype: str) -> tuple[int, int]:
    """(elements, bytes) of one block of a GGUF type."""
    try:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
    except ImportError:
        raise MissingExtra(f"the element type {dtype}", "gguf") from None
    try:
        block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[dtype]]
    except KeyError:
        raise UnreadableInput(
            f"the element type {dtype!r} is not known; this version reads {', '.join(BITS)} and GGUF's types"
        ) from None
    return block, block_bytes


def _decode_gguf(dtype: str, raw: bytes, shape: tuple[int, ...]) -> NDArray[np.float32]:
    import numpy as np

    _gguf_block(dtype)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import dequantize

    if not raw:
        return np.zeros(shape, np.float32)
    try:
        with np.errstate(all="ignore"):  # a file may have infinite scales
            values = dequantize(np.frombuffer(raw, np.uint8), GGMLQuantizationType[dtype])
    except NotImplementedError:
        raise UnreadableInput(
            f"the installed gguf package cannot decode {dtype}; update it: pip install -U gguf"
        ) from None
    return np.asarray(values, np.float32).reshape(shape)


def _encode_gguf(dtype: str, values: NDArray[np.floating]) -> bytes:
    import numpy as np

    _gguf_block(dtype)
    from gguf.constants import GGMLQuantizationType
    from gguf.quants import quantize

    try:
        packed = quantize(np.ascontiguousarray(values, np.float32), GGMLQuantizationType[dtype])
    except NotImplementedError:
        raise BadRequest(
            f"the gguf package cannot write {dtype}; change the model before it is quantized, or quantize it with a "
            "type such as Q8_0 for this tensor (llama-quantize --token-embedding-type q8_0 --output-tensor-type q8_0)"
        ) from None
    return np.asarray(packed).tobytes()
