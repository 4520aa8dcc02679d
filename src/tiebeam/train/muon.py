"""Muon: momentum, made orthogonal by a few Newton-Schulz steps, for the matrices inside the trunk.

torch.optim.Muon's update and its state (older torch has none), in the arithmetic that is quick on this machine: torch
always takes bfloat16, which a CPU without instructions for it multiplies several times slower than float32. All
matrices of one shape, transposes included, go through the steps as one stack. bench/muon.py holds the ratios.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steepest at zero; singular values end between 0.68 and 1.2
_TINY = 1e-7


def fast_dtype(device: torch.device) -> torch.dtype:
    """What a device multiplies fastest: bfloat16 where there are instructions for it, else float32."""
    if device.type != "cpu":
        return torch.bfloat16
    asked = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, name)() for name in asked if hasattr(torch.cpu, name))
    return torch.bfloat16 if native else torch.float32


def orthogonalise(X: Tensor, steps: int = 5) -> Tensor:  # [N, R, C], R <= C -> the same, singular values near 1
    """The quintic Newton-Schulz iteration on a stack of matrices."""
    a, b, c = COEFFICIENTS
    X = X / X.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY)
    for _ in range(steps):
        A = X @ X.mT
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, B, X, beta=a)
    return X


class Muon(Optimizer):
    """For matrices only, and never for a vocabulary table: orthogonal rows would make every token equally loud.

    dtype  of the Newton-Schulz steps; None takes `fast_dtype`. It is part of the state, so that a run that goes on
           elsewhere goes on with the same arithmetic.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.03,
        momentum: float = 0.95,
        nesterov: bool = True,
        weight_decay: float = 0.0,
        steps: int = 5,
        dtype: torch.dtype | None = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "steps": steps,
            "dtype": dtype,
        }
        super().__init__(params, defaults)
        for group in self.param_groups:
            for parameter in group["params"]:
                assert parameter.ndim == 2, f"Muon takes matrices, and this parameter is {list(parameter.shape)}"
                group["dtype"] = group["dtype"] or fast_dtype(parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[int, int, torch.device], list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    rows, columns = sorted(parameter.shape)
                    alike.setdefault((rows, columns, parameter.device), []).append(parameter)
            for parameters in alike.values():
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        """One step for matrices of one shape."""
        momentum, lr = group["momentum"], group["lr"]
        directions = []
        for parameter in parameters:
            gradient = parameter.grad
            assert gradient is not None
            state = self.state[parameter]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(gradient)
            buffer = state["momentum_buffer"].lerp_(gradient, 1 - momentum)
            direction = gradient.lerp(buffer, momentum) if group["nesterov"] else buffer
            directions.append(direction.mT if _tall(parameter) else direction)
        updates = orthogonalise(torch.stack(directions).to(group["dtype"]), group["steps"])
        for parameter, update in zip(parameters, updates.to(parameters[0].dtype), strict=True):
            rows, columns = parameter.shape
            if group["weight_decay"]:
                parameter.mul_(1 - lr * group["weight_decay"])
            parameter.add_(update.mT if _tall(parameter) else update, alpha=-lr * max(1.0, rows / columns) ** 0.5)


def _tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]
