"""Initial weights, from the same distributions as in tiebeam.nn.

NumPy draws them, so a seed gives the same weights on every device. torch draws other numbers from the same seed.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tiebeam.nn.gpt_config import GPTConfig

Q_GAIN = 1.5
_STD = 0.02
Array = npt.NDArray[np.float32]


def initial_weights(config: GPTConfig, shapes: dict[str, tuple[int, ...]], table: str, seed: int) -> dict[str, Array]:
    """Every tensor by its name in the checkpoint; `table` is the name of the embedding."""
    rng = np.random.default_rng(seed)
    weights = {name: _initial(config, name, shape, name == table, rng) for name, shape in sorted(shapes.items())}
    if "embed_proj.weight" in weights:
        # An isometry and its inverse: the factorized pair starts as a tied pair of that rank.
        weights["embed_proj.weight"] = _orthogonal(shapes["embed_proj.weight"], rng)
        weights["head_proj.weight"] = np.ascontiguousarray(weights["embed_proj.weight"].T)
    return weights


def _initial(config: GPTConfig, name: str, shape: tuple[int, ...], is_table: bool, rng: np.random.Generator) -> Array:
    def normal(std: float) -> Array:
        return rng.standard_normal(shape, np.float32) * np.float32(std)

    if is_table:
        assert config.init_std is not None
        return normal(config.init_std)
    if name == "bridge.weight":
        return np.eye(*shape, dtype=np.float32)
    if config.arch == "standard":
        if len(shape) == 1:
            return np.ones(shape, np.float32)
        # The residual stream sums 2 L branches.
        return normal(
            _STD / (2 * config.layers) ** 0.5 if name.endswith(("o_proj.weight", "down_proj.weight")) else _STD
        )
    if name == "lm_head.weight" or name.endswith(".proj.weight"):
        return np.zeros(shape, np.float32)
    if name.endswith("q_gain"):
        return np.full(shape, Q_GAIN, np.float32)
    if name.endswith("resid_mix"):
        return np.repeat(np.array([[1.0], [0.0]], np.float32), shape[1], axis=1)
    if name.endswith(".weight"):
        bound = shape[1] ** -0.5  # the default of nn.Linear
        return rng.uniform(-bound, bound, shape).astype(np.float32)
    return np.ones(shape, np.float32)


def _orthogonal(shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    rows, columns = shape
    q, r = np.linalg.qr(rng.standard_normal((max(shape), min(shape))))
    q = q * np.sign(np.diag(r))
    return np.ascontiguousarray(q if rows >= columns else q.T, np.float32)
