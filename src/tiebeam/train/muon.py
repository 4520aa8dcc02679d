"""Muon: momentum, made orthogonal by a few Newton-Schulz steps, for the matrices inside the trunk.

torch.optim.Muon's update and its state (older torch has none), in the arithmetic that is quick on this machine: torch
always takes bfloat16, which a CPU without instructions for it multiplies several times slower than float32. All
matrices of one shape, transposes included, go through the steps as one stack. bench/muon.py holds the ratios.
With several processes the steps are shared out (sharing.py); momentum and parameters stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebeam.train.distributed_muon import Spread, local_part

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

    dtype   of the Newton-Schulz steps; None takes `fast_dtype`. It is part of the state, so that a run that goes on
            elsewhere goes on with the same arithmetic.
    spread  how the steps are shared out over processes; None does them here.
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
        spread: Spread | None = None,
    ) -> None:
        self.spread = spread
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
            held = [parameter for parameter in group["params"] if parameter.grad is not None]
            # Alone, one shape after the other, which holds fewer of the directions at a time.
            for parameters in _alike(held) if self.spread is None else [held] if held else []:
                self._update(group, parameters)
        return loss

    def _update(self, group: dict[str, Any], parameters: list[Tensor]) -> None:
        directions = [self._direction(group, parameter) for parameter in parameters]

        def work(matrices: list[Tensor]) -> list[Tensor]:
            return _orthogonal(matrices, group["steps"], group["dtype"])

        updates = self.spread(directions, work) if self.spread is not None else work(directions)
        lr = group["lr"]
        for parameter, update in zip(parameters, updates, strict=True):
            rows, columns = parameter.shape
            local = local_part(parameter)
            if group["weight_decay"]:
                local.mul_(1 - lr * group["weight_decay"])
            local.add_(update.to(local.dtype), alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _direction(self, group: dict[str, Any], parameter: Tensor) -> Tensor:  # [R, C] -> [R, C], sharded alike
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        buffer: Tensor = state["momentum_buffer"]
        return gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer


def _orthogonal(matrices: list[Tensor], steps: int, dtype: torch.dtype) -> list[Tensor]:  # each [R, C] -> [R, C]
    """Each made orthogonal, those of one shape together."""
    found: list[Tensor] = list(matrices)
    for numbers in _by_shape(matrices):
        wide = [matrices[i].mT if _tall(matrices[i]) else matrices[i] for i in numbers]
        stack = orthogonalise(torch.stack(wide).to(dtype), steps)
        for i, update in zip(numbers, stack, strict=True):
            found[i] = update.mT if _tall(matrices[i]) else update
    return found


def _by_shape(matrices: list[Tensor]) -> list[list[int]]:
    alike: dict[tuple[int, int, torch.device], list[int]] = {}
    for number, matrix in enumerate(matrices):
        rows, columns = sorted(matrix.shape)
        alike.setdefault((rows, columns, matrix.device), []).append(number)
    return list(alike.values())


def _alike(parameters: list[Tensor]) -> list[list[Tensor]]:
    return [[parameters[i] for i in numbers] for numbers in _by_shape(parameters)]


def _tall(matrix: Tensor) -> bool:
    return matrix.shape[0] > matrix.shape[1]
