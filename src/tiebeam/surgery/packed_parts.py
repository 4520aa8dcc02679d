"""The tensors that a quantiser stores for one matrix: codes, scales, zero points. Surgery moves all of them or none.

Only MLX packs embedding and head alike, so only there can the parts of one become the parts of the other. GPTQ, AWQ,
compressed-tensors, bitsandbytes and fp8 pack linear layers, and their loaders read a head only as their config says.
"""

from __future__ import annotations

from collections.abc import Mapping

from tiebeam.checkpoint.quantized import packed
from tiebeam.errors import BadRequest


def layer_of(name: str) -> str:
    """The layer that a matrix belongs to: `lm_head` for `lm_head.qweight`."""
    return packed.layer_of(name) or name


def parts_of(name: str, dtypes: Mapping[str, str]) -> list[str]:
    """Every stored tensor of the matrix `name`, the codes first; only `name` for a plain tensor."""
    layer = layer_of(name)
    return [name, *(part for helper in packed.HELPERS if (part := f"{layer}.{helper}") in dtypes)]


def packed_by(name: str, dtypes: Mapping[str, str]) -> str | None:
    """The quantiser that packed the matrix `name`; None if it is a plain tensor. `dtypes` has every stored tensor."""
    layer = layer_of(name)
    helpers = [part.removeprefix(f"{layer}.") for part in parts_of(name, dtypes)[1:]]
    if name.endswith(".qweight"):
        return "GPTQ or AWQ"
    if name.endswith(".weight_packed"):
        return "compressed-tensors"
    if "SCB" in helpers or any(helper.startswith("weight.") for helper in helpers):
        return "bitsandbytes"
    if "scales" in helpers and dtypes.get(name) in ("U32", "U8"):
        return "MLX"
    return "fp8 or int8 scales" if any(helper.startswith("weight_") for helper in helpers) else None


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
