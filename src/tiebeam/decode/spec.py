"""What to run: sizes, and which part is chosen at each place. Every format's configuration ends in a Spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tiebeam.decode.numpy.ops import ACTIVATIONS
from tiebeam.errors import UnreadableInput


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary positions on the first `dim` numbers of a head; `scaling` as in config.json, with its `rope_type`."""

    dim: int
    theta: float
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    backwards: bool = False
    """parameter-golf turns by -angle, which with given weights is another function."""


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from one block to the next."""

    window: int | None = None
    """How many positions back, itself included, a token may look; None: all."""
    rope: Rope | None = None
    scale: float = 1.0
    """Queries times this."""


@dataclass(frozen=True, slots=True)
class Spec:
    family: str
    vocab: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    context: int
    layers: tuple[Layer, ...]
    norm: str = "rms"
    eps: float = 1e-6
    norm_offset: float = 0.0
    """Added to every stored norm weight: Gemma stores w - 1."""
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool | None = False
    """True: must be stored. False: none. None: used where stored."""
    out_bias: bool | None = False
    mlp_bias: bool | None = False
    qk_norm: bool = False
    post_norms: bool = False
    """A second norm after attention and after the MLP, before the residual sum."""
    parallel: bool = False
    """Attention and MLP read the same input and are summed."""
    positions: bool = False
    """A learned vector for each position."""
    embed_scale: float = 1.0
    attention_cap: float | None = None
    logit_cap: float | None = None
    golf: bool = False
    """parameter-golf's block: weightless norms, residual mix, U-Net skips."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UnreadableInput(f"{self.heads} attention heads cannot share {self.kv_heads} key/value heads evenly")
        if self.activation not in ACTIVATIONS:
            raise UnreadableInput(
                f"the activation {self.activation!r} is not one the decoder has ({', '.join(ACTIVATIONS)})"
            )
