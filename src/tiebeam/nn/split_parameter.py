"""Split one parameter into two that go on as the one would have: same numbers, same optimizer moments."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn
from torch.optim import Optimizer

from tiebeam.errors import BadRequest

Optimizers = Optimizer | Iterable[Optimizer] | None


def split_parameter(parameter: nn.Parameter, optimizer: Optimizers = None, *, own_group: bool = False) -> nn.Parameter:
    """A second parameter with the first one's values, pending gradient and optimizer state.

    Until the next backward pass both move exactly as the one would have moved. The new parameter joins the old one's
    group, so that schedulers go on working; `own_group=True` gives it a group of its own with the same settings,
    for a rate of its own (a scheduler made before the split does not know that group).
    """
    twin = nn.Parameter(parameter.detach().clone(), requires_grad=parameter.requires_grad)
    if parameter.grad is not None:
        twin.grad = parameter.grad.detach().clone()
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else list(optimizer or ())
    homes = [(o, group) for o in optimizers for group in o.param_groups if any(p is parameter for p in group["params"])]
    if optimizers and not homes:
        raise BadRequest("the optimizer does not hold the table; pass the one that does, or None to carry no moments")
    for holder, group in homes:
        if own_group:
            holder.add_param_group({**{k: v for k, v in group.items() if k != "params"}, "params": [twin]})
        else:
            group["params"].append(twin)
        if parameter in holder.state:
            holder.state[twin] = {
                key: value.detach().clone() if isinstance(value, Tensor) else value
                for key, value in holder.state[parameter].items()
            }
    return twin
