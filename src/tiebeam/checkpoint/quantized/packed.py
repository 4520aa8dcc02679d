"""A matrix that a quantiser stored in parts (codes, scales, zero points): its method, bits, logical shape and parts.

Layouts, for a linear layer X of logical shape [V, D]. Read from the quantisers' source unless a test makes the file.

    mlx                 X.weight U32 [V, D*bits/32]      X.scales [V, D/group]  X.biases
    gptq                X.qweight I32 [D*bits/32, V]     X.scales [D/group, V]  X.qzeros  X.g_idx
    awq                 X.qweight I32 [D, V*bits/32]     X.scales [D/group, V]  X.qzeros
    compressed-tensors  X.weight_packed I32 [V, D*bits/32] or U8 [V, D/2]       X.weight_scale  X.weight_shape
    bitsandbytes        X.weight U8 [V*D/2, 1]  X.weight.absmax ...   or   X.weight I8 [V, D]  X.SCB
    fp8, int8           X.weight F8_E4M3 or I8 [V, D]    X.weight_scale or X.weight_scale_inv
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo
from tiebeam.errors import TiebeamError
from tiebeam.limits import MAX_QUANT_STATE

_MLX = ("scales", "biases")
_GPTQ = ("scales", "qzeros", "g_idx")
_COMPRESSED = ("weight_scale", "weight_global_scale", "weight_zero_point", "weight_g_idx", "weight_shape")
_BNB4 = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
_BNB4_STATE = ("quant_state.bitsandbytes__nf4", "quant_state.bitsandbytes__fp4")
_BNB8 = ("SCB", "weight_format")
_SCALED = ("weight_scale", "weight_scale_inv", "weight_zero_point")
_ACTIVATION = ("input_scale", "input_zero_point", "input_global_scale")
_CODES = ("weight", "qweight", "weight_packed")
HELPERS = (
    *dict.fromkeys((*_MLX, *_GPTQ, *_COMPRESSED, *_SCALED, *_BNB8, *_ACTIVATION)),
    *(f"weight.{part}" for part in (*_BNB4, *_BNB4_STATE)),
)
"""The names of the parts beside the codes, relative to the layer."""
_HELPER_ENDS = tuple(f".{part}" for part in HELPERS)
_ENDS = (*(f".{part}" for part in _CODES), *_HELPER_ENDS)


class PackedMatrix(NamedTuple):
    """`shape` is the logical one, [V, D]. `codes` is the name of the tensor with the values, `parts` has every name."""

    method: str
    bits: int
    shape: tuple[int, int]
    codes: str
    parts: tuple[str, ...]

    @property
    def params(self) -> int:
        return prod(self.shape)

    def to_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "shape": list(self.shape), "parts": list(self.parts)}


def packed_matrix(checkpoint: Checkpoint, name: str) -> PackedMatrix | None:
    """The packed matrix that the tensor `name` is a part of; None for a plain tensor, or a layout that is not known."""
    layer = layer_of(name)
    if layer is None:
        return None
    tensors = checkpoint.tensors
    found = _renamed(checkpoint, layer) or _under_weight(checkpoint, layer)
    if found is None:
        return None
    method, bits, shape, codes, helpers = found
    if min(shape) < 1 or bits < 1:
        return None
    parts = tuple(part for helper in (*helpers, *_ACTIVATION) if (part := f"{layer}.{helper}") in tensors)
    return PackedMatrix(method, bits, shape, codes, (codes, *parts))


def layer_of(name: str) -> str | None:
    """The layer that a tensor belongs to: `lm_head` for `lm_head.qweight` and `lm_head.weight.absmax`."""
    end = next((end for end in _ENDS if name.endswith(end)), None)
    return None if end is None else name[: -len(end)]


def is_helper(name: str, names: Mapping[str, Any]) -> bool:
    """Whether `name` holds scales or other parts of a packed matrix, not weights of its own."""
    if not name.endswith(_HELPER_ENDS):  # as nearly all names
        return False
    layer = next(name[: -len(end)] for end in _HELPER_ENDS if name.endswith(end))
    return any(f"{layer}.{codes}" in names for codes in _CODES)


_Layout = tuple[str, int, tuple[int, int], str, tuple[str, ...]]


def _renamed(checkpoint: Checkpoint, layer: str) -> _Layout | None:
    """Codes under a name of their own: GPTQ, AWQ, compressed-tensors."""
    tensors = checkpoint.tensors
    codes, scales = tensors.get(f"{layer}.qweight"), tensors.get(f"{layer}.scales")
    if codes is not None and scales is not None and len(codes.shape) == len(scales.shape) == 2:
        V = scales.shape[1]
        if codes.shape[1] == V:
            zeros, order = tensors.get(f"{layer}.qzeros"), tensors.get(f"{layer}.g_idx")
            bits = _bits(checkpoint)
            if zeros is not None and len(zeros.shape) == 2 and V:
                bits = 32 * zeros.shape[1] // V
            elif order is not None and order.shape and order.shape[0]:
                bits = 32 * codes.shape[0] // order.shape[0]
            return ("gptq", bits, (V, codes.shape[0] * 32 // bits), codes.name, _GPTQ) if bits else None
        bits = 32 * codes.shape[1] // V if V else 0
        return "awq", bits, (V, codes.shape[0]), codes.name, _GPTQ
    codes = tensors.get(f"{layer}.weight_packed")
    if codes is None or len(codes.shape) != 2:
        return None
    V, words = codes.shape
    width = 8 if codes.dtype in ("U8", "I8") else 32
    bits = 4 if width == 8 else _bits(checkpoint)
    logical = None if width == 8 else _stored_shape(checkpoint, f"{layer}.weight_shape")
    if logical is not None and logical[1]:
        bits = width * words // logical[1] or bits
    if logical is None and bits:
        logical = V, words * width // bits
    return ("compressed-tensors", bits, logical, codes.name, _COMPRESSED) if logical else None


def _under_weight(checkpoint: Checkpoint, layer: str) -> _Layout | None:
    """Codes under the plain name, with helper tensors: MLX, bitsandbytes, fp8 and int8 with scales."""
    tensors = checkpoint.tensors
    codes = tensors.get(f"{layer}.weight")
    if codes is None:
        return None
    scales = tensors.get(f"{layer}.scales")
    if codes.dtype == "U32" and scales is not None and len(codes.shape) == len(scales.shape) == 2:
        bits, D = _mlx(checkpoint, layer, codes, scales)
        return ("mlx", bits, (codes.shape[0], D), codes.name, _MLX) if D else None
    if f"{layer}.weight.absmax" in tensors:
        state = next((s for s in (f"{layer}.weight.{part}" for part in _BNB4_STATE) if s in tensors), None)
        logical = _quant_state_shape(checkpoint, state) if state else None
        helpers = tuple(f"weight.{part}" for part in (*_BNB4, *_BNB4_STATE))
        return ("bitsandbytes", 4, logical, codes.name, helpers) if logical else None
    if len(codes.shape) != 2:
        return None
    shape = (codes.shape[0], codes.shape[1])
    if f"{layer}.SCB" in tensors:
        return "bitsandbytes", 8, shape, codes.name, _BNB8
    if any(f"{layer}.{part}" in tensors for part in _SCALED):
        if codes.dtype.startswith("F8_"):
            return "fp8", 8, shape, codes.name, _SCALED
        if codes.dtype == "I8":
            return "int8", 8, shape, codes.name, _SCALED
    return None


def _mlx(checkpoint: Checkpoint, layer: str, codes: TensorInfo, scales: TensorInfo) -> tuple[int, int]:
    """Bits and width. The config has the group size, for all layers or for this one; 64 is mlx's default."""
    config = checkpoint.config or {}
    settings = config.get("quantization") or config.get("quantization_config")
    settings = settings if isinstance(settings, Mapping) else {}
    own = settings.get(layer)
    group = own.get("group_size") if isinstance(own, Mapping) else None
    group = group or settings.get("group_size") or 64
    if type(group) is not int or group < 1:
        return 0, 0
    D = scales.shape[1] * group
    return (32 * codes.shape[1] // D if D else 0), D


def _bits(checkpoint: Checkpoint) -> int:
    """The bits that quantization_config names; 0 where it names none."""
    settings = (checkpoint.config or {}).get("quantization_config")
    if not isinstance(settings, Mapping):
        return 0
    found = [settings.get("bits"), settings.get("w_bit")]
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        weights = group.get("weights") if isinstance(group, Mapping) else None
        found.append(weights.get("num_bits") if isinstance(weights, Mapping) else None)
    return next((bits for bits in found if type(bits) is int and 0 < bits <= 32), 0)


def _stored_shape(checkpoint: Checkpoint, name: str) -> tuple[int, int] | None:
    """The two numbers in a `weight_shape` tensor."""
    info = checkpoint.tensors.get(name)
    if info is None or info.shape != (2,):
        return None
    try:
        rows, dim = (int(n) for n in checkpoint.tensor(name))
    except (TiebeamError, ValueError):
        return None
    return rows, dim


def _quant_state_shape(checkpoint: Checkpoint, name: str) -> tuple[int, int] | None:
    """The shape in the JSON that bitsandbytes stores as a tensor of bytes."""
    if checkpoint.tensors[name].nbytes > MAX_QUANT_STATE:
        return None
    try:
        rows, dim = json.loads(checkpoint.read_bytes(name)).get("shape")
    except (TiebeamError, ValueError, TypeError, AttributeError):
        return None
    return (rows, dim) if type(rows) is int and type(dim) is int else None


_LEAVES = frozenset(part.rpartition(".")[2] for part in HELPERS) | {"qweight", "weight_packed"}


def is_quantized(checkpoint: Checkpoint) -> bool:
    """Whether any tensor is part of a packed matrix, by the last level of its name."""
    return any(name.rpartition(".")[2] in _LEAVES or name.endswith("_blocks") for name in checkpoint.tensors)


def unpacked_size(checkpoint: Checkpoint, info: TensorInfo) -> int:
    """How many parameters a tensor stands for: unpacked if it holds codes, 0 if it holds scales. Reads no values."""
    name, tensors = info.name, checkpoint.tensors
    if is_helper(name, tensors) or (name.endswith("_scales") and f"{name[:-7]}_blocks" in tensors):
        return 0
    if name.endswith("_blocks") and f"{name[:-7]}_scales" in tensors:  # MXFP4 of gpt-oss: two codes in a byte
        return 2 * info.size
    layer = layer_of(name)
    if layer is None:
        return info.size
    if name.endswith(".weight") and f"{name}.absmax" in tensors:
        return 2 * info.size
    if name.endswith(".weight_packed"):
        bits = 4 if info.dtype in ("U8", "I8") else _bits(checkpoint) or 4
        return info.nbytes * 8 // bits
    packed = packed_matrix(checkpoint, name)
    return packed.params if packed else info.size
