"""A torch nn.Module as a table of tensors, so that `inspect` treats it like an opened checkpoint.

A parameter's byte range is its storage in memory: two names for one Parameter, and two Parameters over one storage,
have one range, as in a PyTorch file. Parameters without memory of their own (meta device, DTensor) are distinguished by
identity.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.equality import Difference, Equality
from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    import torch
    from torch import nn

_WRAPPERS = re.compile(r"(module|_orig_mod|_fsdp_wrapped_module)\.")  # DDP, torch.compile, FSDP1
_DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int8": "I8", "uint8": "U8"}
_CHUNK = 4096  # rows compared at a time


class _Memory:
    """The `Files` of a module: it has sizes, and no bytes to read."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def names(self) -> list[str]:
        return sorted(self._sizes)

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return self._sizes[name]

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        raise BadRequest("a module in memory has no files to read")

    def read(self, name: str, begin: int, end: int) -> bytes:
        raise BadRequest("a module in memory has no files to read")


def open_module(model: nn.Module) -> Checkpoint:
    """The tensors and the config of a module. Names are those of the unwrapped model."""
    tensors = {name: _info(name, parameter) for name, parameter in _named(model)}
    sizes: dict[str, int] = {}
    for t in {t.storage: t for t in tensors.values()}.values():
        sizes[t.file] = sizes.get(t.file, 0) + t.nbytes
    config = _config(model)
    return Checkpoint(
        source=type(model).__name__,
        format="module",
        files=_Memory(sizes),
        tensors=tensors,
        config=config,
        config_name="config",
        architecture=(config or {}).get("model_type"),
    )


def compare_parameters(model: nn.Module, embed: str, head: str) -> Equality:
    """Compare two parameters of the module number by number."""
    parameters = dict(_named(model))
    E, W = parameters[embed], parameters[head]
    if _info("", E) == _info("", W):
        return Equality(True, "both names are one storage")
    for name, parameter in ((embed, E), (head, W)):
        if parameter.is_meta or hasattr(parameter, "device_mesh"):
            where = "is on the meta device" if parameter.is_meta else "is sharded"
            raise BadRequest(f"{name} {where}, so it cannot be compared with the other; inspect the checkpoint instead")
    if E.shape != W.shape:
        return Equality(False, f"the shapes differ: embed is {list(E.shape)}, head is {list(W.shape)}")
    difference = _difference(E.detach(), W.detach())
    if difference.rows_differing == 0:
        return Equality(True, "every number was compared")
    return Equality(False, f"{difference.rows_differing:,} of {difference.rows:,} rows differ", difference)


def _difference(E: torch.Tensor, W: torch.Tensor) -> Difference:  # [V, D], [V, D]
    import torch

    differing, largest, cosines = 0, 0.0, [torch.empty(0)]
    for start in range(0, E.shape[0], _CHUNK):
        a, b = (side[start : start + _CHUNK].float().cpu() for side in (E, W))
        rows = (a != b).any(dim=1)
        if rows.any():
            differing += int(rows.sum())
            largest = max(largest, float((a - b).abs().max()))
        cosines.append(torch.nn.functional.cosine_similarity(a, b, dim=1))
    together = torch.cat(cosines)
    median = float(together.median()) if len(together) else 1.0
    return Difference(E.shape[0], differing, largest, median, sampled=False)


def _named(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in model.named_parameters(remove_duplicate=False):
        yield _WRAPPERS.sub("", name) if _wrapped(model) else name, parameter


def _wrapped(model: nn.Module) -> bool:
    names = list(model._modules)
    return len(names) == 1 and bool(_WRAPPERS.fullmatch(f"{names[0]}."))


def _config(model: Any) -> dict[str, Any] | None:
    while _wrapped(model):
        (model,) = model._modules.values()
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        config = config.to_dict()
    return dict(config) if isinstance(config, Mapping) else None


def _info(name: str, parameter: torch.Tensor) -> TensorInfo:
    shape, kind = tuple(parameter.shape), str(parameter.dtype).removeprefix("torch.")
    dtype, itemsize = _DTYPES.get(kind, kind.upper()), parameter.element_size()
    place, begin = f"memory {id(parameter)}", 0
    if not parameter.is_meta and not hasattr(parameter, "device_mesh"):
        place, begin = str(parameter.device), int(parameter.data_ptr())
    dense = parameter.is_contiguous() or not parameter.numel()
    strides = None if dense else tuple(parameter.stride())
    span = parameter.numel() if strides is None else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
    return TensorInfo(name, shape, dtype, place, begin, begin + span * itemsize, strides)
