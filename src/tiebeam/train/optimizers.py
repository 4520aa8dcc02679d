"""Who moves which parameter: Muon the matrices, Adam the table, the head and the scalars, each at its own rate.

The table is a matrix only by shape: its rows are tokens, seen with very different frequencies, and Adam keeps a
scale for each. It must never reach Muon, and an assertion sees to that. `preset="adamw"` is the control: one AdamW,
one rate, weight decay on everything but the scalars, as nanoGPT trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from tiebeam.errors import BadRequest
from tiebeam.train.distributed_muon import Spread, local_part
from tiebeam.train.learning_rates import Preset, Rates
from tiebeam.train.muon import Muon

ROLES = ("table", "head", "matrices", "scalars")


def make_optimizers(
    roles: Mapping[str, Sequence[nn.Parameter]],
    rates: Rates | None = None,
    preset: Preset = "muon",
    spread: Spread | None = None,
) -> Optimizers:
    """The optimizers for a model's `roles()`; an empty "head" means that the pair is tied. `spread` shares Muon out."""
    rates = rates or Rates()
    _check(roles)
    device = next((parameter.device for name in ROLES for parameter in roles[name]), torch.device("cpu"))
    fused = device.type in ("cpu", "cuda", "mps")
    if preset == "adamw":
        groups = [
            _group(role, roles[role], rates.single, weight_decay=0.0 if role == "scalars" else rates.weight_decay)
            for role in ROLES
        ]
        return Optimizers([AdamW(_present(groups), betas=rates.betas, fused=fused)])
    if preset != "muon":
        raise BadRequest(f"the preset is {preset!r}; it is 'muon' or 'adamw'")
    tied = not roles["head"]
    groups = [
        _group("table", roles["table"], rates.table if tied else rates.embed),
        _group("head", roles["head"], rates.head),
        _group("scalars", roles["scalars"], rates.scalars),
    ]
    made: list[Optimizer] = []
    if present := _present(groups):
        made.append(Adam(present, betas=rates.betas, eps=1e-8, fused=fused))
    if roles["matrices"]:
        made.append(Muon([_group("matrices", roles["matrices"], rates.matrices)], spread=spread))
    return Optimizers(made)


class Optimizers:
    """Several optimizers used as one; iterating gives the torch optimizers themselves."""

    def __init__(self, parts: Sequence[Optimizer]) -> None:
        self.parts = tuple(parts)

    def __iter__(self) -> Iterator[Optimizer]:
        return iter(self.parts)

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero_grad(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def set(self, multiplier: float, momentum: float | None = None) -> None:
        """Every rate at `multiplier` times its height, and Muon's momentum."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["height"] * multiplier
                if momentum is not None and isinstance(part, Muon):
                    group["momentum"] = momentum

    def rates(self) -> dict[str, float]:
        """The rate of each role as it stands."""
        return {group["role"]: float(group["lr"]) for part in self.parts for group in part.param_groups}


def _group(role: str, parameters: Sequence[nn.Parameter], rate: float, **options: Any) -> dict[str, Any]:
    return {"params": list(parameters), "role": role, "lr": rate, "height": rate, **options}


def _present(groups: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return [group for group in groups if group["params"]]


def _check(roles: Mapping[str, Sequence[nn.Parameter]]) -> None:
    """Every parameter in one role, and no vocabulary table among the matrices, under whatever name or view."""
    assert set(roles) == set(ROLES), f"the roles are {sorted(roles)}; they are {sorted(ROLES)}"
    seen: dict[int, str] = {}
    for role in ROLES:
        for parameter in roles[role]:
            before = seen.setdefault(id(parameter), role)
            assert before == role, f"a parameter {list(parameter.shape)} is both {before} and {role}"
    ends = {_storage(parameter): role for role in ("table", "head") for parameter in roles[role]}
    for parameter in roles["matrices"]:
        end = ends.get(_storage(parameter))
        assert end is None, f"the {end} {list(parameter.shape)} reached Muon; it belongs to Adam, at a rate of its own"


def _storage(tensor: Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr() or id(tensor)  # an empty part has no place of its own
