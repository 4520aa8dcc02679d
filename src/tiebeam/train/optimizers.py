"""Who moves which parameter: Muon the matrices, Adam the table, the head and the scalars, each at its own rate.

The table is a matrix only by shape: its rows are tokens, seen with very different frequencies, and Adam keeps a
scale for each. It must never reach Muon, and an assertion sees to that. `preset="adamw"` is the control: one AdamW,
one rate, weight decay on everything but the scalars, as nanoGPT trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from tiebeam.errors import BadRequest
from tiebeam.train.muon import Muon
from tiebeam.train.sharing import Spread, local_part

ROLES = ("table", "head", "matrices", "scalars")
Preset = Literal["muon", "adamw"]


@dataclass(frozen=True)
class Rates:
    """Learning rates at the height of the schedule.

    table     a tied table: parameter-golf starts at 0.05, where the loss spikes at the second step; 0.02 does not.
    embed     the lookup of an untied pair: thirty times the tied one, since no logits hang on it; good for tables drawn
              from N(0, 1) and from N(0, 0.02) alike.
    head      the other end of an untied pair.
    single    the one rate of the "adamw" preset.
    """

    matrices: float = 0.03
    table: float = 0.02
    embed: float = 0.6
    head: float = 0.008
    scalars: float = 0.03
    single: float = 3e-3
    weight_decay: float = 0.1  # of the "adamw" preset
    betas: tuple[float, float] = (0.9, 0.95)

    def __post_init__(self) -> None:
        for name in ("matrices", "table", "embed", "head", "scalars", "single", "weight_decay"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise BadRequest(f"the rate {name} is {value}; it is a number from 0 up")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise BadRequest(f"Adam's betas are {self.betas}; each is at least 0 and below 1")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


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
