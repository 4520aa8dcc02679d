"""Muon: momentum orthogonalized by a few Newton-Schulz steps, for the weight matrices of the layers.

The update and the state are those of torch.optim.Muon (which older torch lacks), in the dtype that is fast on this
machine: torch always uses bfloat16, which a CPU without bf16 instructions multiplies slower than float32. All
matrices of one shape go through the steps as one stack; the rows of bench/muon have both.
With several ranks the steps are distributed (distributed_muon.py); momentum and parameters stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from tiebeam.nn.collectives import local_part
from tiebeam.train.distributed_muon import Spread

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # steepest at zero; singular values converge to between 0.68 and 1.2
_TINY = 1e-7


def fast_dtype(device: torch.device) -> torch.dtype:
    """The dtype that a device multiplies fastest: bfloat16 where it has instructions for it, else float32."""
    if device.type != "cpu":
        return torch.bfloat16
    probes = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, name)() for name in probes if hasattr(torch.cpu, name))
    return torch.bfloat16 if native else torch.float32


def orthogonalize(X: Tensor, steps: int = 5) -> Tensor:  # [N, R, C] -> the same, singular values near 1
    """The quintic Newton-Schulz iteration on a stack of matrices; X is overwritten."""
    a, b, c = COEFFICIENTS
    tall = X.shape[1] > X.shape[2]
    X.div_(X.norm(dim=(1, 2), keepdim=True).clamp(min=_TINY))
    for _ in range(steps):
        A = X.mT @ X if tall else X @ X.mT  # the smaller of the two products
        B = torch.baddbmm(A, A, A, beta=b, alpha=c)
        X = torch.baddbmm(X, X, B, beta=a) if tall else torch.baddbmm(X, B, X, beta=a)
    return X


class Muon(Optimizer):
    """Muon for weight matrices; never for embeddings, where orthogonal rows would give every token equal weight.

    Args:
        dtype: of the Newton-Schulz steps; None takes `fast_dtype`. It is part of the optimizer state, so that a run
            resumed on another machine keeps the same arithmetic.
        spread: distributes the steps over ranks; None computes them on this rank.
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
                assert parameter.ndim == 2, f"Muon takes matrices, not a parameter of shape {list(parameter.shape)}"
                group["dtype"] = group["dtype"] or fast_dtype(parameter.device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            present = [parameter for parameter in group["params"] if parameter.grad is not None]
            # On one rank, one shape after the other: fewer directions exist at a time.
            if self.spread is None:
                for indices in _by_shape(present):
                    self._update(group, [present[i] for i in indices])
            elif present:
                self._update(group, present)
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
            local.add_(update, alpha=-lr * max(1.0, rows / columns) ** 0.5)

    def _direction(self, group: dict[str, Any], parameter: Tensor) -> Tensor:  # [R, C] -> [R, C], same sharding
        gradient = parameter.grad
        assert gradient is not None
        state = self.state[parameter]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        buffer: Tensor = state["momentum_buffer"]
        return gradient.lerp(buffer, group["momentum"]) if group["nesterov"] else buffer


def _orthogonal(matrices: list[Tensor], steps: int, dtype: torch.dtype) -> list[Tensor]:  # each [R, C] -> [R, C]
    """Orthogonalize each; matrices of one shape go together."""
    found: list[Tensor] = list(matrices)
    for indices in _by_shape(matrices):
        first = matrices[indices[0]]
        stack = torch.empty((len(indices), *first.shape), dtype=dtype, device=first.device)
        for slot, i in zip(stack, indices, strict=True):  # one pass; torch.stack and a cast are two
            slot.copy_(matrices[i])
        for i, update in zip(indices, orthogonalize(stack, steps), strict=True):
            found[i] = update
    return found


def _by_shape(matrices: list[Tensor]) -> list[list[int]]:
    """Indices of the matrices, grouped by shape."""
    groups: dict[tuple[torch.Size, torch.device], list[int]] = {}
    for index, matrix in enumerate(matrices):
        groups.setdefault((matrix.shape, matrix.device), []).append(index)
    return list(groups.values())
