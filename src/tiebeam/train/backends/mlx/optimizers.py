"""Optimizers by parameter role, as in tiebeam.train.optimizers, with MLX's own Adam, AdamW and Muon.

MLX's Muon equals ours (same coefficients, Nesterov momentum and scale) without weight decay, and its Adam equals
torch's with bias correction; the tests compare both with torch step by step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.optimizers as optim
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten, tree_unflatten

from tiebeam.errors import UnreadableInput
from tiebeam.train.backends.mlx.gpt import GPT, HEAD
from tiebeam.train.learning_rates import ROLES, LearningRates, Preset, Role


class Optimizers:
    """One optimizer for each role that the model has, used as one."""

    def __init__(self, model: GPT, rates: LearningRates | None = None, preset: Preset = "muon") -> None:
        rates = rates or LearningRates()
        self.model, self.preset = model, preset
        self._roles = model.roles()
        self._started_tied = model.tied
        self.peaks = rates.by_role(preset, model.tied)
        present = [role for role in ROLES if role in self._roles.values()]
        self.parts = {role: self._make(role, rates) for role in present}
        # The last optimizer takes what no filter took, and needs no filter.
        filters = [lambda name, _, role=role: self._role(name) == role for role in present[:-1]]
        self._all = optim.MultiOptimizer(list(self.parts.values()), filters)
        self._all.init(model.trainable_parameters())

    def _make(self, role: Role, rates: LearningRates) -> optim.Optimizer:
        betas = list(rates.betas)
        if self.preset == "adamw":
            decay = 0.0 if role == "scalars" else rates.weight_decay
            return optim.AdamW(rates.single, betas, 1e-8, decay, bias_correction=True)
        if role == "matrices":
            return optim.Muon(rates.matrices, weight_decay=0.0)
        return optim.Adam(self.peaks[role], betas, 1e-8, bias_correction=True)

    def _role(self, name: str) -> Role:
        # A head that was split from the table stays in the table's optimizer, at its learning rate, as with torch.
        return "table" if name == HEAD and self._started_tied else self._roles[name]

    def set(self, multiplier: float, momentum: float | None = None) -> None:
        """Set every learning rate to `multiplier` times its peak, and Muon's momentum."""
        for role, part in self.parts.items():
            part.learning_rate = self.peaks[role] * multiplier
            if momentum is not None and isinstance(part, optim.Muon):
                part.momentum = momentum

    def step(self, gradients: dict[str, Any]) -> None:
        self._all.update(self.model, gradients)
        mx.eval(self.model.parameters(), self._all.state)

    def untie(self) -> None:
        """Untie the model, and copy the table's optimizer state for the head."""
        self.model.untie()
        state = self.parts["table"].state
        names = self.model.table_name.split(".")
        moments: Any = state
        for name in names:
            moments = moments[name]
        state["lm_head"] = {"weight": dict(moments)}

    def state(self) -> dict[str, npt.NDArray[Any]]:
        """The moments and step counts by name, without the learning rates that `set` sets."""
        flat = dict(tree_flatten(self._all.state))
        return {name: np.array(value) for name, value in flat.items() if not name.endswith(".learning_rate")}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load what `state` gave; the model is untied if the saved one was."""
        here = {name: value.shape for name, value in self.state().items()}
        there = {name: value.shape for name, value in state.items()}
        if here != there:
            odd = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
            raise UnreadableInput(f"the saved state does not fit this run: {odd[0]} and {len(odd) - 1} more differ")
        rates = [(f"states.{i}.learning_rate", part.learning_rate) for i, part in enumerate(self.parts.values())]
        self._all.state = tree_unflatten([(name, mx.array(value)) for name, value in state.items()] + rates)
