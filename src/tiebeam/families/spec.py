"""What a decoder has to run: sizes, and which option is used at each place. Every family's config becomes a Spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tiebeam.errors import UnreadableInput


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors at the embedding and at the LM head.

    x = input * E[token]          logits = softcap * tanh(logits * (h @ W.T) / softcap)

    A tied pair is one matrix, but not one function: Gemma multiplies by sqrt(dim) at the embedding and not at
    the head. `softcap` is None without one.
    """

    input: float = 1.0
    logits: float = 1.0
    softcap: float | None = None

    def to_dict(self) -> dict[str, float | None]:
        return asdict(self)


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary positions on the first `dim` numbers of a head; `scaling` as in config.json, with its `rope_type`."""

    dim: int
    theta: float
    kind: str = "default"
    scaling: Mapping[str, Any] = field(default_factory=dict)
    backwards: bool = False
    """parameter-golf rotates by -angle, which with given weights is another function."""


@dataclass(frozen=True, slots=True)
class Experts:
    """A mixture of experts in place of the MLP: softmax over `count` router logits, the top `per_token` are summed."""

    count: int
    per_token: int
    mlp: int
    """Inner width of one expert."""
    normalize: bool = True
    """The weights of the chosen experts are divided by their sum."""

    def __post_init__(self) -> None:
        if self.per_token > self.count:
            raise UnreadableInput(f"{self.per_token} experts per token cannot be chosen from {self.count}")


@dataclass(frozen=True, slots=True)
class Layer:
    """What may differ from one layer to the next."""

    window: int | None = None
    """How many positions back, itself included, a token can attend to; None: all."""
    rope: Rope | None = None
    """None: no rotary positions in this layer."""
    scale: float = 1.0
    """Attention scores are multiplied by this; usually head_dim ** -0.5."""
    experts: Experts | None = None


@dataclass(frozen=True, slots=True)
class Spec:
    """A decoder-only transformer. The defaults are llama's choices; a family states how it differs."""

    family: str
    vocab: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    context: int
    layers: tuple[Layer, ...]
    norm: Literal["rms", "layer"] = "rms"
    norm_bias: bool = False
    eps: float = 1e-6
    pre_norms: bool = True
    """A norm before attention and before the MLP."""
    post_norms: bool = False
    """A norm after attention and after the MLP, before the residual sum."""
    qk_norm: Literal["head", "projection"] | None = None
    """RMSNorm of queries and keys: of each head, or of the whole projection before it is split into heads."""
    activation: str = "silu"
    gated: bool = True
    qkv_bias: bool | None = False
    """True: must be stored. False: none. None: used where stored."""
    out_bias: bool | None = False
    mlp_bias: bool | None = False
    parallel: bool = False
    """Attention and MLP read the same input and are summed."""
    one_norm: bool = False
    """A parallel block with one norm for attention and MLP."""
    positions: bool = False
    """A learned vector for each position."""
    residual_scale: float = 1.0
    """What attention and MLP add to the residual stream is multiplied by this."""
    attention_cap: float | None = None
    """Softcap of the attention scores."""
    scales: Scales = Scales()
    table_maps: bool = False
    """Our own formats: the table may be narrower than the model, with a map at each end, and have a bridge."""
    embed_norm: bool = False
    """RMSNorm without weights after the embedding."""
    bigram_rows: int = 0
    """Rows of a hashed bigram table that is added to the embedding; 0: none."""
    golf: bool = False
    """parameter-golf's block: norms without weights, residual mix, U-Net skips."""

    def __post_init__(self) -> None:
        if self.heads % self.kv_heads:
            raise UnreadableInput(f"{self.heads} attention heads are not a multiple of {self.kv_heads} key/value heads")
