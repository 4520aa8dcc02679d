"""The shape of a GPT, and its two foreign spellings: Qwen3's config.json and parameter-golf's.

`arch="standard"` is Qwen3, tensor for tensor. Three options have no word in a Qwen3 config: a softcap, a bridge and
a factorised table. The first can't be written at all. The other two can be multiplied out into an ordinary untied
head (and table), which `GPT.export(fold=True)` does when asked; it is never done unasked, because it changes the tie.

`arch="golf"` is ours to name, so every option has its key.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tiebeam.errors import BadRequest

Arch = Literal["standard", "golf"]
GOLF_NORM_EPS = 2.0**-23  # float32's epsilon: what F.rms_norm takes when none is given, as parameter-golf does
_ARCHITECTURES = {"standard": ("qwen3", "Qwen3ForCausalLM"), "golf": ("tiebeam_golf", "TiebeamGolfForCausalLM")}


def tied_init_std(dim: int) -> float:
    """min(0.02, 2.5 / dim): a token's own logit starts at dim * std, and from about 3 up the first loss suffers."""
    return min(0.02, 2.5 / dim)


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Shape and tie. A field left at 0 (or None, for init_std) is filled in with the architecture's usual.

    tie  True: one table. False: two from the start. A fraction f in (0, 1): one until f of the run, then two;
         the model starts tied and whoever trains it calls `untie` (see `untie_at`).
    """

    vocab: int
    dim: int
    layers: int
    heads: int
    arch: Arch = "standard"
    kv_heads: int = 0
    head_dim: int = 0
    mlp_dim: int = 0
    context: int = 1024
    rope_theta: float = 10000.0
    norm_eps: float = 0.0
    softcap: float | None = None
    tie: bool | float = True
    embed_dim: int | None = None
    bridge: bool = False
    init_std: float | None = None
    input_grad_scale: float = 1.0

    def __post_init__(self) -> None:
        fill = object.__setattr__
        if self.arch not in _ARCHITECTURES:
            raise BadRequest(f"arch is {self.arch!r}; it is 'standard' or 'golf'")
        for name in ("vocab", "dim", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} is {getattr(self, name)}; it is at least 1")
        golf = self.arch == "golf"
        if not self.kv_heads:
            fill(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.dim % self.heads:
                raise BadRequest(f"dim {self.dim} does not divide among {self.heads} heads; give head_dim")
            fill(self, "head_dim", self.dim // self.heads)
        if not self.mlp_dim:
            # SwiGLU has three matrices: 8/3 of the width costs what 4 cost a plain MLP. Golf takes 2.
            fill(self, "mlp_dim", 2 * self.dim if golf else -(-8 * self.dim // 3 // 32) * 32)
        if not self.norm_eps:
            fill(self, "norm_eps", GOLF_NORM_EPS if golf else 1e-6)
        self._check()
        if self.init_std is None:
            fill(self, "init_std", self._default_std())

    def _check(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise BadRequest(f"{self.heads} heads do not divide among {self.kv_heads} kv heads")
        if self.head_dim % 2:
            raise BadRequest(f"head_dim is {self.head_dim}; rotary positions need an even one")
        if self.arch == "golf" and self.head_dim * self.heads != self.dim:
            raise BadRequest(f"golf's {self.heads} heads of {self.head_dim} do not make dim {self.dim}")
        if not isinstance(self.tie, bool) and not 0.0 < self.tie < 1.0:
            raise BadRequest(f"tie is {self.tie}; it is True, False or a fraction between 0 and 1")
        if self.embed_dim is not None and self.embed_dim < 1:
            raise BadRequest(
                f"embed_dim is {self.embed_dim}; it is at least 1, or None for a table as wide as the model"
            )
        if self.embed_dim is not None and self.bridge:
            raise BadRequest("embed_dim already puts a map of its own before the head; leave bridge off")
        if self.softcap is not None and self.softcap <= 0:
            raise BadRequest(f"softcap is {self.softcap}; it is a positive number, or None for no cap")

    def _default_std(self) -> float:
        if not self.tie:
            # Only the lookup reads it. parameter-golf takes N(0, 1) there (a norm follows at once); Qwen3 0.02.
            return 1.0 if self.arch == "golf" else 0.02
        if self.embed_dim is not None:
            return tied_init_std(max(1, round((self.embed_dim * self.dim) ** 0.5)))
        return min(0.005, 2.56 / self.dim) if self.arch == "golf" else tied_init_std(self.dim)

    @property
    def untie_at(self) -> float | None:
        """The fraction of the run at which the tie ends; None when it never does, or never was."""
        return None if isinstance(self.tie, bool) else self.tie

    @property
    def starts_tied(self) -> bool:
        return self.tie is not False

    @property
    def foldable(self) -> bool:
        """Whether a standard model has parts that Qwen3 lacks but that multiply out."""
        return self.arch == "standard" and (self.bridge or self.embed_dim is not None)

    def to_hf(self, *, tied: bool | None = None, fold: bool = False) -> dict[str, Any]:
        """config.json. `tied` is the state at saving, for a run that unties on the way; by default the first one."""
        if tied is None:
            tied = self.starts_tied
        if self.arch == "standard" and self.softcap is not None:
            raise BadRequest(
                f"a Qwen3 checkpoint has no word for softcap={self.softcap}; train with softcap=None, or arch='golf'"
            )
        if self.foldable and not fold:
            what = "a bridge" if self.bridge else f"embed_dim={self.embed_dim}"
            raise BadRequest(
                f"a Qwen3 checkpoint has no word for {what}; export(fold=True) multiplies it out into an untied pair"
            )
        model_type, architecture = _ARCHITECTURES[self.arch]
        common: dict[str, Any] = {
            "architectures": [architecture],
            "model_type": model_type,
            "vocab_size": self.vocab,
            "hidden_size": self.dim,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp_dim,
            "max_position_embeddings": self.context,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": tied and not self.foldable,
            "initializer_range": 0.02,
        }
        if self.arch == "standard":
            return {
                **common,
                "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},  # where newer loaders look
                "hidden_act": "silu",
                "attention_bias": False,
                "attention_dropout": 0.0,
                "use_cache": True,
                "use_sliding_window": False,
            }
        return {**common, "logit_softcap": self.softcap, "embed_dim": self.embed_dim, "bridge": self.bridge}

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> GPTConfig:
        """The config back from config.json, for loading what `to_hf` wrote (or any plain Qwen3)."""
        known = {model_type: arch for arch, (model_type, _) in _ARCHITECTURES.items()}
        arch = known.get(str(config.get("model_type")))
        if arch is None:
            raise BadRequest(f"model_type is {config.get('model_type')!r}; this GPT reads {' and '.join(known)}")
        rope = config.get("rope_parameters") or {}
        try:
            return cls(
                vocab=config["vocab_size"],
                dim=config["hidden_size"],
                layers=config["num_hidden_layers"],
                heads=config["num_attention_heads"],
                arch="golf" if arch == "golf" else "standard",
                kv_heads=config.get("num_key_value_heads") or 0,
                head_dim=config.get("head_dim") or 0,
                mlp_dim=config["intermediate_size"],
                context=config["max_position_embeddings"],
                rope_theta=config.get("rope_theta", rope.get("rope_theta", 10000.0)),
                norm_eps=config.get("rms_norm_eps") or 0.0,
                softcap=config.get("logit_softcap"),
                tie=bool(config.get("tie_word_embeddings", arch == "golf")),
                embed_dim=config.get("embed_dim"),
                bridge=bool(config.get("bridge", False)),
            )
        except KeyError as missing:
            raise BadRequest(
                f"config.json has no {missing.args[0]!r}; without it the model's shape is unknown"
            ) from None
