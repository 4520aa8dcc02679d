"""Split one Parameter into two, or merge two into one, together with their optimizer state.

Adam's moments are averages of the gradient and of its square. The gradient of a tied matrix is the sum of the
gradients of embedding and head. So `merge_parameters` adds the first moments; it adds the second moments too, which is
right as far as the two gradients are uncorrelated. `split_parameter` gives both a copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    Optimizers = Optimizer | Iterable[Optimizer] | None

_SUMMED = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "sum")


def split_parameter(parameter: nn.Parameter, optimizer: Optimizers = None, *, own_group: bool = False) -> nn.Parameter:
    """A second Parameter with the values, the pending gradient and the optimizer state of the first.

    Until the next backward pass both are updated as the one would have been. The new parameter joins the group of the
    old one, so that existing schedulers cover it. `own_group=True` gives it a group with the same settings, for a
    learning rate of its own; a scheduler made before the split does not know that group.
    """
    from torch import nn

    new = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    if parameter.grad is not None:
        new.grad = parameter.grad.detach().clone()
    for holder, group in holding_groups(parameter, optimizer):
        if own_group:
            holder.add_param_group({**{k: v for k, v in group.items() if k != "params"}, "params": [new]})
        else:
            group["params"].append(new)
        if parameter in holder.state:
            holder.state[new] = {key: _copied(value) for key, value in holder.state[parameter].items()}
    return new


def merge_parameters(gone: nn.Parameter, stays: nn.Parameter, optimizer: Optimizers = None) -> None:
    """Remove `gone` from the optimizer and add its gradient and moments to those of `stays`."""
    import torch

    if gone is stays:
        return
    if gone.grad is not None:
        stays.grad = gone.grad if stays.grad is None else stays.grad + gone.grad
    for holder in _list(optimizer):
        for group in holder.param_groups:
            group["params"] = [parameter for parameter in group["params"] if parameter is not gone]
        moments = holder.state.pop(gone, None) or {}
        state = holder.state[stays] if moments else {}
        for key, value in moments.items():
            if key not in state:
                state[key] = _copied(value)
            elif key in _SUMMED:
                state[key] = state[key] + value
            elif key == "step":
                state[key] = torch.maximum(state[key], value) if torch.is_tensor(value) else max(state[key], value)


def holding_groups(
    parameter: nn.Parameter, optimizer: Optimizers, name: str = "the parameter"
) -> list[tuple[Optimizer, dict[str, Any]]]:
    """The optimizers and groups that hold `parameter`; refuses if there are optimizers and none of them does."""
    optimizers = _list(optimizer)
    found = [(o, group) for o in optimizers for group in o.param_groups if any(p is parameter for p in group["params"])]
    if optimizers and not found:
        raise BadRequest(f"the optimizer does not hold {name}; pass the one that trains it, or optimizer=None")
    return found


def _list(optimizer: Optimizers) -> list[Optimizer]:
    from torch.optim import Optimizer

    return [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())


def _copied(value: Any) -> Any:
    import torch

    return value.detach().clone() if torch.is_tensor(value) else value
