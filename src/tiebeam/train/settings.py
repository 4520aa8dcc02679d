"""The settings of a run: model shape, batch, learning rates, length. One frozen dataclass, saved in run.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from tiebeam.errors import BadRequest
from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.learning_rates import LearningRates, Preset, Role
from tiebeam.train.schedule import Budget

CHECKPOINT_SECONDS = 60.0
VALIDATION_TOKENS = 1 << 15  # enough for a curve; a few seconds on one core
BackendName = Literal["torch", "mlx"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a run. The defaults train for a few minutes on two cores. Give either `steps` or `minutes`.

    >>> settings = Settings(steps=100, batch_tokens=4096, context=256)
    >>> settings.batch  # windows of 256 tokens per micro-batch
    16
    """

    arch: str = "standard"
    layers: int = 4
    dim: int = 256
    heads: int = 8
    kv_heads: int = 4
    mlp_dim: int = 512
    context: int = 256
    softcap: float | None = None
    """Cap of the logits. A standard model with one is written in our own format, which transformers does not open."""
    tie: bool | float = True
    """True, False, or the fraction of the run after which the pair is untied."""
    embed_dim: int | None = None
    bridge: bool = False
    input_grad_scale: float = 1.0
    """Factor on the lookup's part of a tied embedding's gradient."""
    zero_head: bool = False
    """An untied head starts at zero."""
    embed_norm: bool = False
    """RMSNorm after the embedding. The checkpoint is written in our own format."""
    bigram_rows: int = 0
    """Rows of a hashed bigram table at the input. The checkpoint is written in our own format."""
    pseudo_inverse: bool = False
    """Pseudo-inverse tying: an orthonormal table, and one positive definite map for both ends."""
    batch_tokens: int = 2048
    accumulate: int = 1
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    optimizer: Preset = "muon"
    coupled_adam: bool = False
    """One second moment, averaged over the vocabulary, for embedding and head."""
    rates: LearningRates | None = None
    """Peak learning rates; None takes the defaults of the architecture and width."""
    warmup_steps: int = 20
    decay_from: float = 0.5
    z_loss: float = 0.0
    validate_every: float = 0.1
    """Fraction of the run between held-out checks."""
    validation_tokens: int = VALIDATION_TOKENS
    """Held-out tokens of every check, the same ones each time. The full split is measured once, after the last step."""
    log_every: int = 10
    save_every: float = CHECKPOINT_SECONDS
    """Seconds between saved states."""
    device: str = "auto"
    threads: int | None = None
    compile: bool = False
    backend: BackendName = "torch"

    def __post_init__(self) -> None:
        if self.backend not in ("torch", "mlx"):
            raise BadRequest(f"`backend={self.backend!r}` is not supported; use 'torch' or 'mlx'")
        if self.backend == "mlx" and self.compile:
            raise BadRequest("`compile=True` is not supported by the MLX backend; drop it or use `backend='torch'`")
        if self.backend == "mlx" and self.threads is not None:
            raise BadRequest(f"`threads={self.threads}` is not supported by the MLX backend; drop it")
        self._check_variants()
        if (self.steps is None) == (self.minutes is None):
            raise BadRequest("give the length of the run as either `steps` or `minutes`")
        if self.steps is not None and self.steps < 1:
            raise BadRequest(f"`steps` must be at least 1, not {self.steps}")
        if self.minutes is not None and self.minutes <= 0:
            raise BadRequest(f"`minutes` must be above 0, not {self.minutes}")
        if self.batch_tokens < self.context * self.accumulate:
            raise BadRequest(
                f"`batch_tokens={self.batch_tokens}` is less than {self.accumulate} x {self.context} tokens "
                "(micro-batches x context); raise `batch_tokens` or lower `context`"
            )
        if self.validation_tokens < 1:
            raise BadRequest(f"`validation_tokens` must be at least 1, not {self.validation_tokens}")
        if not self.save_every > 0:
            raise BadRequest(f"`save_every` must be above 0 seconds, not {self.save_every}")

    def _check_variants(self) -> None:
        if self.backend == "mlx":
            for name in ("zero_head", "embed_norm", "bigram_rows", "pseudo_inverse", "coupled_adam"):
                if value := getattr(self, name):
                    raise BadRequest(
                        f"`{name}={value}` is not supported by the MLX backend; drop it or use `backend='torch'`"
                    )
        if self.coupled_adam and self.optimizer != "muon":
            raise BadRequest("`coupled_adam=True` is not supported by `optimizer='adamw'`; use `optimizer='muon'`")
        if not 0 <= self.z_loss < float("inf"):
            raise BadRequest(f"`z_loss={self.z_loss}` must be a finite number of at least 0")

    @property
    def batch(self) -> int:
        """Windows in one micro-batch."""
        return self.batch_tokens // (self.context * self.accumulate)

    @property
    def step_tokens(self) -> int:
        """Tokens per step: full windows, so at most `batch_tokens`."""
        return self.batch * self.accumulate * self.context

    def model(self, vocab: int) -> GPTConfig:
        """The model configuration for a vocabulary size."""
        return GPTConfig(
            vocab=vocab, dim=self.dim, layers=self.layers, heads=self.heads, arch=self.arch,  # type: ignore[arg-type]
            kv_heads=self.kv_heads, mlp_dim=self.mlp_dim, context=self.context, softcap=self.softcap, tie=self.tie,
            embed_dim=self.embed_dim, bridge=self.bridge, input_grad_scale=self.input_grad_scale,
            zero_head=self.zero_head, embed_norm=self.embed_norm, bigram_rows=self.bigram_rows,
            pseudo_inverse=self.pseudo_inverse,
        )  # fmt: skip

    @property
    def learning_rates(self) -> LearningRates:
        """The peak learning rates of this run."""
        return self.rates or LearningRates.of(self.arch, self.dim)

    @property
    def peak_rates(self) -> str:
        """The peak learning rates that this run uses, in words.

        >>> Settings(steps=1, dim=256, tie=False).peak_rates
        'embedding 0.15, head 0.00391, matrices 0.03, scalars 0.03'
        """
        if self.optimizer == "adamw":
            return f"{self.learning_rates.single:.3g} for all"
        tied = self.tie is not False  # a pair that is untied later keeps the learning rate of the tied one
        peaks = self.learning_rates.by_role(self.optimizer, tied)
        names: dict[Role, str] = {"table": "embedding", "head": "head", "matrices": "matrices", "scalars": "scalars"}
        return ", ".join(f"{name} {peaks[role]:.3g}" for role, name in names.items() if role != "head" or not tied)

    @property
    def budget(self) -> Budget:
        """The length of this run."""
        return Budget(self.steps, 60 * self.minutes if self.minutes is not None else None)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rates": self.learning_rates.to_dict()}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Settings:
        """Read `to_dict`'s document; keys of other versions are ignored."""
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        if isinstance(values.get("rates"), dict):
            values["rates"] = LearningRates(**{**values["rates"], "betas": tuple(values["rates"]["betas"])})
        return cls(**values)

    def longer(self, steps: int | None, minutes: float | None) -> Settings:
        """The same settings with another length, to resume a finished run."""
        return replace(self, steps=steps, minutes=minutes)
