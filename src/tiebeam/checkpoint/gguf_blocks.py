"""Dequantise GGUF's common block types to float32, several times faster than the package `gguf`, to the same bits.

A block is a few bytes of scales and the codes of 32 or 256 weights. Codes are unpacked eight at a time in 64-bit
words, by shift and mask, into an array of bytes; the bytes are converted to float32 in one pass and scaled per group.
The work is done in pieces that stay in the cache. NumPy releases the interpreter lock inside each step, so that
several threads can dequantise different rows at the same time (decode/numpy/load_weights.py does). In smaller pieces
the threads would wait for each other's lock more than they gain from a faster cache.

The IQ types are look-ups: for each index the table has eight weights as the bytes of one word.

Every decoder takes `raw` [n, bytes per block] and fills `out` [n, weights per block]. The multiplications are done in
the order of the reference, so that rounding is the same. The rows of bench/dequantize have the speed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_PIECE = 1 << 19  # weights dequantised at a time
_LOW4, _LOW2, _LOW1 = (np.uint64(0x0101010101010101 * mask) for mask in (15, 3, 1))


def can_dequantize(dtype: str) -> bool:
    return dtype in _DECODERS


def dequantize(dtype: str, raw: bytes, out: Floats | None = None) -> Floats:
    """The weights of whole blocks, flat; in `out` if given (contiguous, of the right size).

    >>> dequantize("Q8_0", np.float16(0.5).tobytes() + bytes(range(32)))[:4]
    array([0. , 0.5, 1. , 1.5], dtype=float32)
    """
    weights, size, decode = _DECODERS[dtype]
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, size)
    flat = np.empty(len(blocks) * weights, np.float32) if out is None else out.reshape(-1)
    rows = flat.reshape(len(blocks), weights)
    step = _PIECE // weights
    with np.errstate(all="ignore"):  # a file may have infinite scales
        for start in range(0, len(blocks), step):
            decode(blocks[start : start + step], rows[start : start + step])
    return flat


def _field(raw: Bytes, begin: int, end: int | None = None) -> Bytes:  # [n, size] -> [n, end - begin]
    """Bytes begin:end of every block, in an array of their own; one copy per block is much faster than one per byte."""
    n, size = raw.shape
    end = size if end is None else end
    return np.ndarray((n,), f"V{end - begin}", raw, begin, (size,)).copy().view(np.uint8).reshape(n, end - begin)


def _halves(raw: Bytes, begin: int, end: int | None = None) -> Floats:
    """The float16 numbers in bytes begin:end of every block."""
    return _field(raw, begin, end).view(np.float16).astype(np.float32)


def _words(raw: Bytes, begin: int, end: int | None = None) -> NDArray[np.uint64]:
    return _field(raw, begin, end).view(np.uint64)


def _nibbles(raw: Bytes, begin: int, end: int | None, group: int) -> Bytes:  # k bytes per block -> [n, 2k]
    """Each group of `group` bytes gives its low nibbles, then its high nibbles."""
    words = _words(raw, begin, end)
    n, k = words.shape
    codes = np.empty((n, 16 * k), np.uint8)
    both = codes.view(f"V{group}").reshape(n, -1, 2)
    both[:, :, 0] = (words & _LOW4).view(both.dtype)
    words >>= np.uint64(4)
    words &= _LOW4
    both[:, :, 1] = words.view(both.dtype)
    return codes


def _pairs_of_bits(raw: Bytes, begin: int, end: int) -> Bytes:  # k bytes per block -> [n, 4k]
    """Each group of 32 bytes gives its lowest two bits, then the next two, and so on."""
    words = _words(raw, begin, end)
    n, k = words.shape
    codes = np.empty((n, 32 * k), np.uint8)
    four = codes.view("V32").reshape(n, -1, 4)
    for shift in range(4):
        four[:, :, shift] = ((words >> np.uint64(2 * shift)) & _LOW2).view("V32")
    return codes


def _single_bits(raw: Bytes, begin: int, end: int, place: int) -> NDArray[np.uint64]:  # 32 bytes -> words [n, 32]
    """The lowest bit of 32 bytes, then the next one, and so on, each as a byte shifted left by `place`."""
    words = _words(raw, begin, end)
    codes = np.empty((len(raw), 32), np.uint64)
    eight = codes.view("V32")
    for shift in range(8):
        eight[:, shift] = (((words >> np.uint64(shift)) & _LOW1) << np.uint64(place)).view("V32")[:, 0]
    return codes


@cache
def _bits_as_bytes() -> NDArray[np.uint64]:  # [256]
    """For each byte a word whose eight bytes are 16 where the bit is set: the fifth bit of eight codes."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") * np.uint8(16)
    return bits.view(np.uint64)[:, 0]


def _scale(out: Floats, codes: NDArray[Any], scales: Floats, minima: Floats | None = None) -> None:
    """out = scales * codes - minima, per group: `scales` [n, groups]."""
    n, groups = scales.shape
    out[:] = codes
    grouped = out.reshape(n, groups, -1)
    grouped *= scales[:, :, None]
    if minima is not None:
        grouped -= minima[:, :, None]


def _q8_0(raw: Bytes, out: Floats) -> None:
    _scale(out, _field(raw, 2).view(np.int8), _halves(raw, 0, 2))


def _q4_0(raw: Bytes, out: Floats) -> None:
    codes = _nibbles(raw, 2, None, 16)
    codes -= np.uint8(8)
    _scale(out, codes.view(np.int8), _halves(raw, 0, 2))


def _q4_1(raw: Bytes, out: Floats) -> None:
    scales = _halves(raw, 0, 4)
    _scale(out, _nibbles(raw, 4, None, 16), scales[:, :1], -scales[:, 1:])


def _five_bits(raw: Bytes, high: int, low: int) -> Bytes:  # 4 bytes from `high`, 16 bytes from `low` -> [n, 32]
    codes = _nibbles(raw, low, None, 16)
    codes.view(np.uint64)[:] |= _bits_as_bytes()[_field(raw, high, high + 4)]
    return codes


def _q5_0(raw: Bytes, out: Floats) -> None:
    codes = _five_bits(raw, 2, 6)
    codes -= np.uint8(16)
    _scale(out, codes.view(np.int8), _halves(raw, 0, 2))


def _q5_1(raw: Bytes, out: Floats) -> None:
    scales = _halves(raw, 0, 4)
    _scale(out, _five_bits(raw, 4, 8), scales[:, :1], -scales[:, 1:])


def _q2_k(raw: Bytes, out: Floats) -> None:
    both, packed = _halves(raw, 80), _field(raw, 0, 16)
    scales, minima = (packed & 15).astype(np.float32), (packed >> 4).astype(np.float32)
    _scale(out, _pairs_of_bits(raw, 16, 80), both[:, :1] * scales, both[:, 1:] * minima)


def _q3_k(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    codes = _pairs_of_bits(raw, 32, 96)
    codes.view(np.uint64)[:] |= _single_bits(raw, 0, 32, 2)
    codes -= np.uint8(4)  # a clear bit subtracts 4
    low = (raw[:, None, 96:104] >> np.array([[0], [4]], np.uint8)) & 15
    top = (raw[:, None, 104:108] >> np.array([[0], [2], [4], [6]], np.uint8)) & 3
    scales = (low.reshape(n, 16) | (top.reshape(n, 16) << 4)).astype(np.int8) - np.int8(32)
    _scale(out, codes.view(np.int8), _halves(raw, 108) * scales.astype(np.float32))


def _k_scales(raw: Bytes) -> tuple[Floats, Floats]:  # -> scales [n, 8], minima [n, 8]
    """Of Q4_K and Q5_K, whose first 16 bytes are two float16 and 16 numbers of 6 bits."""
    first, second, rest = raw[:, 4:8], raw[:, 8:12], raw[:, 12:16]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 2) & 0x30)], axis=1).astype(np.float32)
    minima = np.concatenate([second & 63, (rest >> 4) | ((second >> 2) & 0x30)], axis=1).astype(np.float32)
    both = _halves(raw, 0, 4)
    return both[:, :1] * scales, both[:, 1:] * minima


def _q4_k(raw: Bytes, out: Floats) -> None:
    _scale(out, _nibbles(raw, 16, None, 32), *_k_scales(raw))


def _q5_k(raw: Bytes, out: Floats) -> None:
    codes = _nibbles(raw, 48, None, 32)
    codes.view(np.uint64)[:] |= _single_bits(raw, 16, 48, 4)
    _scale(out, codes, *_k_scales(raw))


def _q6_k(raw: Bytes, out: Floats) -> None:
    codes = _nibbles(raw, 0, 128, 64)
    high = _pairs_of_bits(raw, 128, 192).view(np.uint64)
    high <<= np.uint64(4)
    codes.view(np.uint64)[:] |= high
    codes -= np.uint8(32)
    _scale(out, codes.view(np.int8), _halves(raw, 208) * _field(raw, 192, 208).view(np.int8).astype(np.float32))


def _grid(name: str) -> NDArray[np.int8]:  # [entries, 8 or 4]
    """The table of weights of a type, from the gguf package."""
    from gguf import quants

    kind = getattr(quants, name)
    kind.init_grid()
    return np.ascontiguousarray(np.asarray(kind.grid).reshape(kind.grid_shape).astype(np.int8))


@cache
def _sign_words(bits: int) -> NDArray[np.uint64]:  # [2**bits]
    """For 7 bits (the eighth is their parity) or 8 bits of signs, 0xFF in each byte of a word that is negative."""
    from gguf.quants import IQ2_XXS

    codes = np.frombuffer(IQ2_XXS.ksigns, np.uint8) if bits == 7 else np.arange(256, dtype=np.uint8)
    negative = np.unpackbits(codes[:, None], axis=1, bitorder="little") * np.uint8(255)
    return negative.view(np.uint64)[:, 0]


@cache
def _grid_words(name: str) -> NDArray[Any]:  # [entries] uint64 or uint32
    grid = _grid(name)
    return grid.view(np.uint64 if grid.shape[1] == 8 else np.uint32)[:, 0]


def _signed(words: NDArray[np.uint64], signs: NDArray[np.uint64]) -> NDArray[np.int8]:
    """Eight weights per word, negated where the byte of `signs` is 0xFF: -x = (x ^ 0xFF) + 1, and no weight is 0."""
    codes = (words ^ signs).view(np.int8)
    codes -= signs.view(np.int8)
    return codes


@cache
def _iq2_xxs_values() -> NDArray[np.uint64]:  # [128 * 256]
    """For 7 bits of signs and 8 bits of grid index, the eight weights as int8 in one word."""
    return _signed(np.tile(_grid_words("IQ2_XXS"), 128), np.repeat(_sign_words(7), 256)).view(np.uint64)


@cache
def _iq2_xs_values() -> NDArray[np.uint64]:  # [65536]
    """For the 16 bits of eight weights (9 bits of grid index, 7 bits of signs), the weights as int8 in one word."""
    return _signed(np.tile(_grid_words("IQ2_XS"), 128), np.repeat(_sign_words(7), 512)).view(np.uint64)


def _iq2_xxs(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    words = _field(raw, 2).view(np.uint32).reshape(n, 8, 2)  # four grid indices; signs and a scale
    index = words[:, :, 0].copy().view(np.uint8).reshape(n, 8, 4).astype(np.intp)
    signs = (words[:, :, 1:] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    index += signs << np.uint32(8)
    codes = _iq2_xxs_values().take(index, mode="clip").view(np.int8).reshape(n, 256)
    scales = np.float32(0.5) + (words[:, :, 1] >> np.uint32(28)).astype(np.float32)
    _scale(out, codes, _halves(raw, 0, 2) * scales * np.float32(0.25))


def _quarters(packed: Bytes) -> Floats:  # [n, k] -> [n, 2k]
    """Two scales of 4 bits per byte, as IQ2_XS and IQ2_S have them."""
    nibbles = (packed[:, :, None] >> np.array([0, 4], np.uint8)) & 15
    return np.float32(0.5) + nibbles.reshape(len(packed), -1).astype(np.float32)


def _iq2_xs(raw: Bytes, out: Floats) -> None:
    codes = _iq2_xs_values().take(_field(raw, 2, 66).view(np.uint16), mode="clip").view(np.int8)
    _scale(out, codes, _halves(raw, 0, 2) * _quarters(_field(raw, 66)) * np.float32(0.25))


def _iq2_s(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    high = (_field(raw, 66, 74)[:, :, None] >> np.array([0, 2, 4, 6], np.uint8)) & 3
    index = _field(raw, 2, 34).astype(np.uint16) | (high.reshape(n, 32).astype(np.uint16) << np.uint16(8))
    codes = _signed(_grid_words("IQ2_S").take(index, mode="clip"), _sign_words(8)[_field(raw, 34, 66)])
    _scale(out, codes, _halves(raw, 0, 2) * _quarters(_field(raw, 74)) * np.float32(0.25))


def _iq3_xxs(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    packed = _field(raw, 66).view(np.uint32)  # [n, 8]: 28 bits of signs and a scale
    signs = ((packed[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127).reshape(n, 32)
    words = _grid_words("IQ3_XXS").take(_field(raw, 2, 66), mode="clip").view(np.uint64)  # two fours are eight
    scales = np.float32(0.5) + (packed >> np.uint32(28)).astype(np.float32)
    _scale(out, _signed(words, _sign_words(7)[signs]), _halves(raw, 0, 2) * scales * np.float32(0.5))


def _iq3_s(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    ninth = np.unpackbits(_field(raw, 66, 74), axis=1, bitorder="little").astype(np.uint16)  # [n, 64]
    index = _field(raw, 2, 66) | (ninth << np.uint16(8))
    words = _grid_words("IQ3_S").take(index, mode="clip").view(np.uint64)
    nibbles = (_field(raw, 106)[:, :, None] >> np.array([0, 4], np.uint8)) & 15
    scales = (1 + 2 * nibbles.reshape(n, 8)).astype(np.float32)
    _scale(out, _signed(words, _sign_words(8)[_field(raw, 74, 106)]), _halves(raw, 0, 2) * scales)


@cache
def _iq4_values() -> NDArray[np.uint16]:  # [0x0F10]
    """For two nibbles in two bytes, their two weights as int8."""
    from gguf.quants import IQ4_NL

    values = np.array(IQ4_NL.kvalues, np.int8)
    pairs = np.arange(0x0F10, dtype=np.uint16).view(np.uint8).reshape(-1, 2)
    return np.ascontiguousarray(values[pairs & 15]).view(np.uint16)[:, 0]


def _iq4(raw: Bytes, begin: int) -> NDArray[np.int8]:  # k bytes per block -> [n, 2k]
    return _iq4_values().take(_nibbles(raw, begin, None, 16).view(np.uint16), mode="clip").view(np.int8)


def _iq4_nl(raw: Bytes, out: Floats) -> None:
    _scale(out, _iq4(raw, 2), _halves(raw, 0, 2))


def _iq4_xs(raw: Bytes, out: Floats) -> None:
    n = len(raw)
    high = _field(raw, 2, 4).view(np.uint16) >> np.arange(0, 16, 2, dtype=np.uint16)
    low = ((raw[:, 4:8, None] >> np.array([0, 4], np.uint8)) & 15).reshape(n, 8)
    scales = (low | ((high & 3) << 4).astype(np.uint8)).astype(np.int8) - np.int8(32)
    _scale(out, _iq4(raw, 8), _halves(raw, 0, 2) * scales.astype(np.float32))


# type: weights per block, bytes per block, decoder
_DECODERS: dict[str, tuple[int, int, Callable[[Bytes, Floats], None]]] = {
    "Q4_0": (32, 18, _q4_0), "Q4_1": (32, 20, _q4_1), "Q5_0": (32, 22, _q5_0), "Q5_1": (32, 24, _q5_1),
    "Q8_0": (32, 34, _q8_0), "IQ4_NL": (32, 18, _iq4_nl),
    "Q2_K": (256, 84, _q2_k), "Q3_K": (256, 110, _q3_k), "Q4_K": (256, 144, _q4_k), "Q5_K": (256, 176, _q5_k),
    "Q6_K": (256, 210, _q6_k), "IQ2_XXS": (256, 66, _iq2_xxs), "IQ2_XS": (256, 74, _iq2_xs),
    "IQ2_S": (256, 82, _iq2_s), "IQ3_XXS": (256, 98, _iq3_xxs), "IQ3_S": (256, 110, _iq3_s),
    "IQ4_XS": (256, 136, _iq4_xs),
}  # fmt: skip
