"""Optimizers by parameter role: Muon for the matrices, Adam for the embedding, the head and the scalars.

Do not optimize embeddings with Muon: the embedding is a matrix only by shape. Its rows are tokens with very different
frequencies, and Adam keeps a scale for each. An assertion checks that it never reaches Muon. `preset="adamw"` is the
baseline: one AdamW with one learning rate and weight decay on everything but the scalars, as nanoGPT trains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from tiebeam.nn.collectives import local_part
from tiebeam.train.coupled_adam import CoupledAdam
from tiebeam.train.distributed_muon import Spread
from tiebeam.train.learning_rates import ROLES, LearningRates, Preset
from tiebeam.train.muon import Muon


def make_optimizers(
    roles: Mapping[str, Sequence[nn.Parameter]],
    rates: LearningRates | None = None,
    preset: Preset = "muon",
    spread: Spread | None = None,
    coupled: bool = False,
) -> Optimizers:
    """The optimizers for a model.

    Args:
        roles: parameters by role, as `GPT.roles()` gives them; an empty "head" means that the pair is tied.
        rates: peak learning rates.
        preset: "muon" or "adamw".
        spread: distributes Muon's Newton-Schulz steps over ranks; None computes them on this rank.
        coupled: embedding and head get one second moment averaged over the vocabulary, see `coupled_adam`.

    >>> from tiebeam.nn import GPT, GPTConfig
    >>> model = GPT(GPTConfig(vocab=32, dim=16, layers=1, heads=2))
    >>> [type(optimizer).__name__ for optimizer in make_optimizers(model.roles())]
    ['Adam', 'Muon']
    """
    rates = rates or LearningRates()
    _check(roles)
    peaks = rates.by_role(preset, tied=not roles["head"])
    groups = {
        role: {"params": list(roles[role]), "role": role, "lr": peaks[role], "peak_lr": peaks[role]}
        for role in ROLES
        if roles[role]
    }
    device = next((parameter.device for name in ROLES for parameter in roles[name]), torch.device("cpu"))
    fused = device.type in ("cpu", "cuda", "mps")
    if preset == "adamw":
        for role, group in groups.items():
            group["weight_decay"] = 0.0 if role == "scalars" else rates.weight_decay
        return Optimizers([AdamW(list(groups.values()), betas=rates.betas, fused=fused)])
    matrices = groups.pop("matrices", None)
    made: list[Optimizer] = []
    if coupled:
        pair = [groups.pop(role) for role in ("table", "head") if role in groups]
        made.append(CoupledAdam(pair, betas=rates.betas))
    if groups:
        made.append(Adam(list(groups.values()), betas=rates.betas, eps=1e-8, fused=fused))
    if matrices:
        made.append(Muon([matrices], spread=spread))
    return Optimizers(made)


class Optimizers:
    """Several torch optimizers used as one; iterating gives the optimizers themselves."""

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
        """Set every learning rate to `multiplier` times its peak, and Muon's momentum."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak_lr"] * multiplier
                if momentum is not None and isinstance(part, Muon):
                    group["momentum"] = momentum

    def learning_rates(self) -> dict[str, float]:
        """The current learning rate of each role."""
        return {group["role"]: float(group["lr"]) for part in self.parts for group in part.param_groups}


def _check(roles: Mapping[str, Sequence[nn.Parameter]]) -> None:
    """Every parameter has one role, and no vocabulary matrix is among the matrices, under any name or view."""
    assert set(roles) == set(ROLES), f"the roles are {sorted(roles)}, expected {sorted(ROLES)}"
    seen: dict[int, str] = {}
    for role in ROLES:
        for parameter in roles[role]:
            before = seen.setdefault(id(parameter), role)
            assert before == role, f"a parameter {list(parameter.shape)} is both {before} and {role}"
    vocabulary = {_storage(parameter): role for role in ("table", "head") for parameter in roles[role]}
    for parameter in roles["matrices"]:
        found = vocabulary.get(_storage(parameter))
        assert found is None, f"the {found} {list(parameter.shape)} reached Muon; do not optimize embeddings with Muon"


def _storage(tensor: Tensor) -> int:
    return local_part(tensor).untyped_storage().data_ptr() or id(tensor)  # an empty shard has no storage address
