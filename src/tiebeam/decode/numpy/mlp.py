"""The MLP of a layer: dense, or a mixture of experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tiebeam.decode.numpy.load_weights import Linear, Weights
from tiebeam.decode.numpy.ops import ACTIVATIONS, Array, row_blocks, softmax
from tiebeam.families.family import TensorNames
from tiebeam.families.spec import Experts, Spec


@dataclass(frozen=True, slots=True)
class Mlp:
    up: Linear  # [2M, D] when gated (gate, then up), else [M, D]
    down: Linear  # [D, M]
    activation: Callable[[Array], Array]
    gated: bool

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        u = self.up(x)  # [T, M] or [T, 2M]
        M = self.down.shape[1]
        for rows in row_blocks(u):
            y = self.activation(u[rows, :M])
            if self.gated:
                y *= u[rows, M:]
            u[rows, :M] = y
        return self.down(u[:, :M])


@dataclass(frozen=True, slots=True)
class MixtureOfExperts:
    router: Linear  # [E, D]
    experts: list[Mlp]
    per_token: int
    normalize: bool

    def __call__(self, x: Array) -> Array:  # [T, D] -> [T, D]
        probabilities = softmax(self.router(x))  # [T, E]
        chosen = np.argsort(-probabilities, axis=-1, kind="stable")[:, : self.per_token]  # [T, top]
        weights = np.take_along_axis(probabilities, chosen, axis=-1)  # [T, top]
        if self.normalize:
            weights = weights / weights.sum(axis=-1, keepdims=True)
        y = np.zeros_like(x)
        for e in np.unique(chosen):
            rows, place = np.nonzero(chosen == e)  # the tokens that chose expert e, and as which of their choices
            y[rows] += self.experts[e](x[rows]) * weights[rows, place, None]
        return y


def load_mlp(weights: Weights, spec: Spec, names: TensorNames, i: int) -> Mlp | MixtureOfExperts:
    """The MLP of layer `i`."""
    experts = spec.layers[i].experts
    if experts is not None:
        return _load_experts(weights, spec, names, i, experts)
    D, M = spec.dim, spec.mlp
    down = weights.linear([names.of("down", i)], [(D, M)], spec.mlp_bias, names.transposed)
    if "gate_up" in names.roles:
        up = weights.linear([names.of("gate_up", i)], [(2 * M, D)], spec.mlp_bias)
    else:
        roles = ["gate", "up"] if spec.gated else ["up"]
        parts = [names.of(role, i) for role in roles]
        up = weights.linear(parts, [(M, D)] * len(roles), spec.mlp_bias, names.transposed)
    return Mlp(up, down, ACTIVATIONS[spec.activation], spec.gated)


def _load_experts(weights: Weights, spec: Spec, names: TensorNames, i: int, experts: Experts) -> MixtureOfExperts:
    D, M, E = spec.dim, experts.mlp, experts.count
    activation = ACTIVATIONS[spec.activation]
    router = weights.linear([names.of("router", i)], [(E, D)])
    if "{j}" in names.roles["expert_up"]:  # one tensor per expert
        mlps = []
        for j in range(E):
            up = weights.linear([names.of("expert_gate", i, j), names.of("expert_up", i, j)], [(M, D)] * 2)
            mlps.append(Mlp(up, weights.linear([names.of("expert_down", i, j)], [(D, M)]), activation, gated=True))
    else:  # one tensor [E, out, in] for all
        gate, up3 = (weights.stack(names.of(role, i) + ".weight", (E, M, D)) for role in ("expert_gate", "expert_up"))
        down = weights.stack(names.of("expert_down", i) + ".weight", (E, D, M))
        mlps = [Mlp(Linear([gate[j], up3[j]]), Linear([down[j]]), activation, gated=True) for j in range(E)]
    return MixtureOfExperts(router, mlps, experts.per_token, experts.normalize)
