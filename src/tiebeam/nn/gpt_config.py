"""The configuration of a GPT, and its two forms of config.json: Qwen3's and parameter-golf's.

`arch="standard"` is Qwen3, tensor for tensor. Some options do not exist in a Qwen3 config. A bridge, a factorized
embedding and a pseudo-inverse pair can be multiplied into an ordinary untied embedding and head, which
`GPT.export(fold=True)` does on request only, because it changes the tie. A softcap, a norm after the embedding and a
bigram table cannot: with one of them the checkpoint has our own `model_type` "tiebeam_gpt", which is Qwen3 and a key
for each option, and which the NumPy decoder runs.

`arch="golf"` has its own config.json with a key for every option, and is written folded only for a pseudo-inverse pair.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from tiebeam.errors import BadRequest

Arch = Literal["standard", "golf"]
GOLF_NORM_EPS = 2.0**-23  # float32's epsilon, the default of F.rms_norm, as in parameter-golf
_ARCHITECTURES = {"standard": ("qwen3", "Qwen3ForCausalLM"), "golf": ("tiebeam_golf", "TiebeamGolfForCausalLM")}
_OWN = ("tiebeam_gpt", "TiebeamForCausalLM")  # standard with options that Qwen3 does not have


def tied_init_std(dim: int) -> float:
    """The initial standard deviation of a tied embedding: min(0.02, 2.5 / dim).

    A token's own logit starts at about dim * std, and from about 3 the initial loss suffers.

    >>> tied_init_std(768)
    0.0032552083333333335
    """
    return min(0.02, 2.5 / dim)


@dataclass(frozen=True, slots=True)
class GPTConfig:
    """Shape and tie of a GPT. A field left at 0 (None for init_std) gets the default of the architecture.

    Args:
        tie: True, False, or a fraction f in (0, 1): the model starts tied, and the training loop calls `untie` after
            f of the run (see `untie_at`).
        embed_dim: width of a factorized embedding; None for the width of the model.
        bridge: a dim x dim matrix before a tied head.
        input_grad_scale: factor on the lookup's part of a tied embedding's gradient.
        zero_head: an untied head starts at zero, as it always does in golf.
        embed_norm: RMSNorm without weights after the embedding, as golf always has.
        bigram_rows: rows of a hashed bigram table at the input; 0 for none.
        pseudo_inverse: pseudo-inverse tying, see `tiebeam.nn.pseudo_inverse`.

    Raises:
        BadRequest: the fields do not fit together.

    >>> config = GPTConfig(vocab=2048, dim=256, layers=4, heads=8)
    >>> config.head_dim, config.mlp_dim, config.starts_tied
    (32, 704, True)
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
    zero_head: bool = False
    embed_norm: bool = False
    bigram_rows: int = 0
    pseudo_inverse: bool = False

    def __post_init__(self) -> None:
        fill = object.__setattr__
        if self.arch not in _ARCHITECTURES:
            raise BadRequest(f"arch={self.arch!r} is not supported; use 'standard' or 'golf'")
        for name in ("vocab", "dim", "layers", "heads", "context"):
            if getattr(self, name) < 1:
                raise BadRequest(f"{name} must be at least 1, not {getattr(self, name)}")
        golf = self.arch == "golf"
        if not self.kv_heads:
            fill(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.dim % self.heads:
                raise BadRequest(f"dim={self.dim} is not divisible by heads={self.heads}; choose other sizes")
            fill(self, "head_dim", self.dim // self.heads)
        if not self.mlp_dim:
            # SwiGLU has three matrices: 8/3 of the width costs as much as 4 in a plain MLP. Golf uses 2.
            fill(self, "mlp_dim", 2 * self.dim if golf else -(-8 * self.dim // 3 // 32) * 32)
        if not self.norm_eps:
            fill(self, "norm_eps", GOLF_NORM_EPS if golf else 1e-6)
        self._check()
        if self.init_std is None:
            fill(self, "init_std", self._default_std())

    def _check(self) -> None:
        if self.kv_heads < 1 or self.heads % self.kv_heads:
            raise BadRequest(f"heads={self.heads} is not divisible by kv_heads={self.kv_heads}")
        if self.head_dim % 2:
            raise BadRequest(f"head_dim={self.head_dim} must be even for rotary positions")
        if self.arch == "golf" and self.head_dim * self.heads != self.dim:
            raise BadRequest(
                f"arch='golf' needs heads x head_dim = dim, not {self.heads} x {self.head_dim} for dim={self.dim}"
            )
        if not isinstance(self.tie, bool) and not 0.0 < self.tie < 1.0:
            raise BadRequest(f"tie={self.tie} must be True, False or a fraction between 0 and 1")
        if self.embed_dim is not None and self.embed_dim < 1:
            raise BadRequest(
                f"embed_dim={self.embed_dim} must be at least 1, or None for an embedding as wide as the model"
            )
        if self.embed_dim is not None and self.bridge:
            raise BadRequest("embed_dim already adds a matrix before the head; drop bridge")
        if self.softcap is not None and self.softcap <= 0:
            raise BadRequest(f"softcap={self.softcap} must be a positive number, or None for no cap")
        self._check_variants()

    def _check_variants(self) -> None:
        if not 0 <= self.input_grad_scale < float("inf"):
            raise BadRequest(f"input_grad_scale={self.input_grad_scale} must be a finite number of at least 0")
        if self.input_grad_scale != 1.0 and not self.starts_tied:
            raise BadRequest(
                f"input_grad_scale={self.input_grad_scale} is for a tied embedding; an untied one has its own "
                "learning rate"
            )
        if self.zero_head and self.tie is not False:
            raise BadRequest("zero_head=True is for an untied head, and this one starts tied; drop one of them")
        if self.embed_norm and self.arch == "golf":
            raise BadRequest("embed_norm=True is already part of arch='golf'; drop it")
        if self.bigram_rows < 0 or self.bigram_rows == 1:
            raise BadRequest(f"bigram_rows={self.bigram_rows} must be at least 2, or 0 for no bigram table")
        if self.pseudo_inverse:
            if self.tie is not True or self.bridge or self.embed_dim is not None:
                raise BadRequest("pseudo_inverse=True is a tie of its own; use tie=True without bridge and embed_dim")
            if self.vocab < self.dim:
                raise BadRequest(f"pseudo_inverse=True needs a vocabulary of at least dim={self.dim}, not {self.vocab}")

    def _default_std(self) -> float:
        if not self.tie:
            # Only the lookup uses it. parameter-golf takes N(0, 1), because a norm follows; Qwen3 takes 0.02.
            return 1.0 if self.arch == "golf" else 0.02
        if self.embed_dim is not None:
            return tied_init_std(max(1, round((self.embed_dim * self.dim) ** 0.5)))
        return min(0.005, 2.56 / self.dim) if self.arch == "golf" else tied_init_std(self.dim)

    @property
    def untie_at(self) -> float | None:
        """The fraction of the run after which the pair is untied; None if it is never untied during the run."""
        return None if isinstance(self.tie, bool) else self.tie

    @property
    def starts_tied(self) -> bool:
        return self.tie is not False

    @property
    def own_format(self) -> bool:
        """Whether a standard model has an option that no Qwen3 checkpoint can express."""
        beyond = self.softcap is not None or self.embed_norm or self.bigram_rows > 0
        return self.arch == "standard" and beyond

    @property
    def foldable(self) -> bool:
        """Whether matrices that the checkpoint's format lacks are multiplied into an untied embedding and head."""
        maps = self.bridge or self.embed_dim is not None
        return self.pseudo_inverse or (self.arch == "standard" and maps and not self.own_format)

    def to_hf(self, *, tied: bool | None = None, fold: bool = False) -> dict[str, Any]:
        """config.json. `tied` is the state when saving, for a run that unties; by default the initial state."""
        if tied is None:
            tied = self.starts_tied
        if self.foldable and not fold:
            what = "bridge=True" if self.bridge else f"embed_dim={self.embed_dim}"
            if self.pseudo_inverse:
                what = "pseudo_inverse=True"
            raise BadRequest(
                f"{what} is not supported by {self._format} checkpoints; "
                "export(fold=True) multiplies it into an untied pair"
            )
        model_type, architecture = _OWN if self.own_format else _ARCHITECTURES[self.arch]
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
        options = {
            "logit_softcap": self.softcap,
            "embed_dim": self.embed_dim,
            "bridge": self.bridge,
            "bigram_rows": self.bigram_rows or None,
        }
        if self.arch == "standard":
            options = {**options, "embed_norm": self.embed_norm} if self.own_format else {}
            return {
                **common,
                **options,
                "rope_parameters": {"rope_type": "default", "rope_theta": self.rope_theta},  # for newer loaders
                "hidden_act": "silu",
                "attention_bias": False,
                "attention_dropout": 0.0,
                "use_cache": True,
                "use_sliding_window": False,
            }
        return {**common, **options}

    @property
    def _format(self) -> str:
        return "tiebeam" if self.own_format or self.arch == "golf" else "Qwen3"

    @classmethod
    def from_hf(cls, config: dict[str, Any]) -> GPTConfig:
        """Read config.json, as written by `to_hf` or of any plain Qwen3."""
        known = {model_type: arch for arch, (model_type, _) in _ARCHITECTURES.items()} | {_OWN[0]: "standard"}
        arch = known.get(str(config.get("model_type")))
        if arch is None:
            raise BadRequest(f"model_type={config.get('model_type')!r} is not supported; expected {' or '.join(known)}")
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
                embed_norm=bool(config.get("embed_norm", False)),
                bigram_rows=config.get("bigram_rows") or 0,
            )
        except KeyError as missing:
            raise BadRequest(f"config.json has no {missing.args[0]!r}, which the model's shape needs") from None
