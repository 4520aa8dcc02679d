"""Coupled Adam (arXiv 2502.08441): Adam for a vocabulary matrix with one second moment for all tokens.

Adam divides the step of every row by that row's own second moment, so rare tokens, whose gradients are small, move as
fast as frequent ones, and all in one direction: away from the hidden states. Coupled Adam divides by the second moment
averaged over the vocabulary. The average is linear, so averaging before the exponential moving average is the same, and
the state is a vector [D] in place of a matrix [V, D].
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim import Optimizer


class CoupledAdam(Optimizer):
    """Adam for matrices [V, D], with the second moment averaged over the rows.

    >>> W = torch.nn.Parameter(torch.ones(100, 8))
    >>> optimizer = CoupledAdam([W], lr=0.1)
    >>> W.square().sum().backward()
    >>> optimizer.step()
    >>> optimizer.state[W]["exp_avg_sq"].shape
    torch.Size([8])
    """

    def __init__(
        self, params: Iterable[Any], lr: float = 1e-3, betas: tuple[float, float] = (0.9, 0.95), eps: float = 1e-8
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state["exp_avg"] = torch.zeros_like(parameter)  # [V, D]
                    state["exp_avg_sq"] = torch.zeros_like(parameter[0])  # [D]
                state["step"] += 1
                t = float(state["step"])
                state["exp_avg"].lerp_(gradient, 1 - beta1)
                state["exp_avg_sq"].lerp_(gradient.square().mean(0), 1 - beta2)
                scale = (state["exp_avg_sq"] / (1 - beta2**t)).sqrt_().add_(group["eps"])  # [D]
                parameter.addcdiv_(state["exp_avg"], scale.expand_as(parameter), value=-group["lr"] / (1 - beta1**t))
