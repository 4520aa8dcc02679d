"""What a family's file states: a `Family` for each model type. See llama.py for the shortest complete example.

A module in this package is a family's file when it has a tuple `FAMILIES`; the registry finds it by that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tiebeam.families.config_fields import Fields
from tiebeam.families.spec import Scales, Spec


@dataclass(frozen=True, slots=True)
class TensorNames:
    """Tensor names of a decoder, without `.weight` and `.bias` except for embedding, head and positions.

    Roles of a layer: attn_norm, q k v (or qkv), o, q_norm k_norm, attn_post_norm, mlp_norm, gate up (or gate_up),
    down, mlp_post_norm; router, expert_gate, expert_up, expert_down. parameter-golf's layer adds attn_scale,
    mlp_scale, resid_mix, q_gain.
    """

    prefix: str
    embed: str
    head: str
    """Not behind the prefix."""
    final_norm: str
    layer: str
    """Precedes a role's own name; {i} is the layer number."""
    roles: Mapping[str, str]
    """{j} is the number of the expert; an expert role without it is one tensor [experts, out, in]."""
    positions: str = ""
    transposed: bool = False
    """Matrices of the layers are stored [in, out]: GPT-2's Conv1D."""
    qkv_by_head: bool = False
    """The fused qkv is ordered by head (q, k, v of head 0, then of head 1, ...), not q, then k, then v."""
    paired_rotary: bool = False
    """Rotary pairs are neighbouring rows of q and k (2i, 2i + 1), not half a head apart (i, i + N/2)."""
    norm_offset: float = 0.0
    """Added to every stored norm weight: Gemma stores w - 1."""

    def of(self, role: str, i: int, j: int = 0) -> str:
        return self.prefix + self.layer.format(i=i) + self.roles[role].format(j=j)


@dataclass(frozen=True, slots=True)
class Gguf:
    """How llama.cpp's converter writes the family."""

    architecture: str
    """general.architecture"""
    names: TensorNames
    keys: Mapping[str, str]
    """config.json key -> metadata key without the architecture; the usual ones are `gguf.KEYS`."""
    biases: tuple[str, ...] = ("attention_bias", "mlp_bias")
    """Config keys that the stored tensors decide, because the metadata does not contain them."""
    experts: bool = False
    """A mixture of experts. llama.cpp calls both Llama and Mixtral "llama"."""
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda config: {}
    """Config keys for facts that llama.cpp has in its code and not in the file."""


def no_scales(f: Fields) -> Scales:
    return Scales()


@dataclass(frozen=True, slots=True)
class Family:
    """Everything known about one model type."""

    model_type: str
    architecture: str = ""
    """The transformers class, as config.json's `architectures` names it."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Of the config class, for the keys that are read here."""
    names: TensorNames | None = None
    """In Hugging Face files."""
    gguf: Gguf | None = None
    spec: Callable[[Fields], Spec] | None = None
    """None: the NumPy decoder cannot run it."""
    scales: Callable[[Fields], Scales] | None = None
    """None: by the table in architectures.json."""
    non_embedding: Callable[[Fields], int] | None = None
    """Non-embedding parameters, where there is no `spec` to count them from."""
