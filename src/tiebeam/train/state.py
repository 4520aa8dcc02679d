"""Weights and optimizer states as named tensors and plain facts: what resume.safetensors holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from tiebeam.errors import UnreadableInput


def state_of(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Tensors by name, and the numbers that are not tensors."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
    scalars: list[dict[str, dict[str, Any]]] = []
    for number, optimizer in enumerate(optimizers):
        plain: dict[str, dict[str, Any]] = {}
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if isinstance(value, torch.Tensor):
                    tensors[f"optimizer.{number}.{index}.{key}"] = value
                else:
                    plain.setdefault(str(index), {})[key] = value
        scalars.append(plain)
    return tensors, {"scalars": scalars}


def load_into(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, torch.Tensor],
    facts: Mapping[str, Any],
) -> None:
    """The way back, into a model and optimizers built the same way."""
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(weights)
        for number, optimizer in enumerate(optimizers):
            state: dict[int, dict[str, Any]] = {
                int(index): dict(values) for index, values in facts["scalars"][number].items()
            }
            for name, tensor in tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "optimizer" and rest.startswith(f"{number}."):
                    _, index, key = rest.split(".", 2)
                    state.setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, KeyError, ValueError, IndexError) as error:
        raise UnreadableInput(f"the saved state does not fit this run: {str(error).splitlines()[0]}") from None
