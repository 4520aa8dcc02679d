"""The tensors that a quantiser stores for one matrix: codes, scales, zero points. Surgery moves all of them or none.

Only MLX packs embedding and head alike, so only there can the parts of one become the parts of the other. GPTQ, AWQ,
compressed-tensors, bitsandbytes and fp8 pack linear layers, and their loaders read a head only as their config says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiebeam.errors import BadRequest

# The part with the codes, then the parts beside it, relative to the layer.
_LAYOUTS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "GPTQ or AWQ": (("qweight",), ("scales", "qzeros", "g_idx")),
    "compressed-tensors": (
        ("weight_packed",),
        ("weight_scale", "weight_global_scale", "weight_zero_point", "weight_shape", "weight_g_idx"),
    ),
    "bitsandbytes": (
        ("weight",),
        (
            *("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map"),
            *("weight.quant_state.bitsandbytes__nf4", "weight.quant_state.bitsandbytes__fp4", "SCB", "weight_format"),
        ),
    ),
    "fp8 or int8 scales": (("weight",), ("weight_scale_inv", "weight_scale", "weight_zero_point")),
    "MLX": (("weight",), ("scales", "biases")),
}
_ACTIVATION = ("input_scale", "input_zero_point", "input_global_scale")
_CODES = ("qweight", "weight_packed", "weight")


def layer_of(name: str) -> str:
    """The layer that a matrix belongs to: `lm_head` for `lm_head.qweight`."""
    return next((name.removesuffix(f".{part}") for part in _CODES if name.endswith(f".{part}")), name)


def packed_by(name: str, dtypes: Mapping[str, str]) -> str | None:
    """The quantiser that packed the matrix `name`; None if it is a plain tensor. `dtypes` has every stored tensor."""
    layer = layer_of(name)
    for method, (codes, helpers) in _LAYOUTS.items():
        if any(f"{layer}.{part}" == name for part in codes) and any(f"{layer}.{part}" in dtypes for part in helpers):
            if method == "MLX" and dtypes[name] not in ("U32", "U8"):
                continue
            return method
    return None


def parts_of(name: str, dtypes: Mapping[str, str]) -> list[str]:
    """Every stored tensor of the matrix `name`, the codes first; only `name` for a plain tensor."""
    method = packed_by(name, dtypes)
    if method is None:
        return [name]
    layer = layer_of(name)
    return [name, *(p for part in (*_LAYOUTS[method][1], *_ACTIVATION) if (p := f"{layer}.{part}") in dtypes)]


def moved(name: str, new: str, dtypes: Mapping[str, str]) -> dict[str, str]:
    """part of the matrix `name`: its name once the matrix is called `new`. Refuses where the parts would not fit."""
    method = packed_by(name, dtypes)
    if method is None:
        return {name: new}
    if method != "MLX":
        raise BadRequest(
            f"{name} is packed ({method}), and loaders of that format do not read embedding and head alike; "
            "start from the model before it was quantized, or dequantize it, and quantize the result again"
        )
    old_layer, new_layer = layer_of(name), layer_of(new)
    return {part: f"{new_layer}{part.removeprefix(old_layer)}" for part in parts_of(name, dtypes)}
