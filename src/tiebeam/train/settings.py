"""What a run is: the model's shape, the data, the rates, the length. One frozen record, saved in run.json."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from tiebeam.errors import BadRequest
from tiebeam.nn import GPTConfig
from tiebeam.train.learning_rates import Preset, Rates

CHECKPOINT_SECONDS = 60.0
GLANCE_TOKENS = 1 << 15  # targets of a validation on the way: enough for a curve, a few seconds on one core
Backend = Literal["torch", "mlx"]


@dataclass(frozen=True, slots=True)
class Settings:
    """Defaults are the recipe for two cores and a few minutes. Either `steps` or `minutes` sets the length."""

    arch: str = "standard"
    layers: int = 4
    dim: int = 256
    heads: int = 8
    kv_heads: int = 4
    mlp_dim: int = 512
    context: int = 256
    softcap: float | None = None
    tie: bool | float = True
    embed_dim: int | None = None
    bridge: bool = False
    batch_tokens: int = 2048
    accumulate: int = 1
    steps: int | None = None
    minutes: float | None = None
    seed: int = 0
    optimizer: Preset = "muon"
    rates: Rates | None = None
    """None takes the architecture's own."""
    warmup_steps: int = 20
    decay_from: float = 0.5
    z_loss: float = 0.0
    validate_every: float = 0.1
    """Fraction of the run between validations; the last is always whole, those on the way see part of the split."""
    log_every: int = 10
    save_every: float = CHECKPOINT_SECONDS
    """Seconds between saved states."""
    device: str = "auto"
    threads: int | None = None
    compile: bool = False
    backend: Backend = "torch"

    def __post_init__(self) -> None:
        if self.backend not in ("torch", "mlx"):
            raise BadRequest(f"the backend is {self.backend!r}; it is 'torch' or 'mlx'")
        if self.backend == "mlx" and self.compile:
            raise BadRequest("--compile is torch's; on MLX the loss is evaluated chunk by chunk, so leave it off")
        if self.backend == "mlx" and self.threads is not None:
            raise BadRequest(f"--threads {self.threads} is for torch; MLX sees to its own threads, so leave it off")
        if self.arch == "standard" and self.softcap is not None:  # before the training, not at its end
            raise BadRequest(
                f"--softcap {self.softcap} has no word in a Qwen3 checkpoint; leave it off, or --arch golf"
            )
        if (self.steps is None) == (self.minutes is None):
            raise BadRequest("say how long to train: either --steps N or --minutes M")
        if (self.steps is not None and self.steps < 1) or (self.minutes is not None and self.minutes <= 0):
            raise BadRequest(f"a run of {self.steps or self.minutes} is over before it starts; ask for more")
        if self.batch_tokens < self.context * self.accumulate:
            raise BadRequest(
                f"{self.batch_tokens:,} tokens a step are fewer than {self.accumulate} windows of {self.context}; "
                "raise --batch-tokens or lower --context"
            )

        if not self.save_every > 0:
            raise BadRequest(f"the state is saved every {self.save_every} seconds; give --save-every more than 0")

    @property
    def batch(self) -> int:
        """Windows in one micro-batch."""
        return self.batch_tokens // (self.context * self.accumulate)

    @property
    def step_tokens(self) -> int:
        """Tokens that a step sees: whole windows, so no more than `batch_tokens`."""
        return self.batch * self.accumulate * self.context

    def model(self, vocab: int) -> GPTConfig:
        return GPTConfig(
            vocab=vocab, dim=self.dim, layers=self.layers, heads=self.heads, arch=self.arch,  # type: ignore[arg-type]
            kv_heads=self.kv_heads, mlp_dim=self.mlp_dim, context=self.context, softcap=self.softcap, tie=self.tie,
            embed_dim=self.embed_dim, bridge=self.bridge,
        )  # fmt: skip

    @property
    def heights(self) -> Rates:
        """The rates of this run."""
        return self.rates or Rates.of(self.arch)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "rates": self.heights.to_dict()}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Settings:
        known = {f.name for f in fields(cls)}
        values = {key: value for key, value in document.items() if key in known}
        if isinstance(values.get("rates"), dict):
            values["rates"] = Rates(**{**values["rates"], "betas": tuple(values["rates"]["betas"])})
        return cls(**values)

    def longer(self, steps: int | None, minutes: float | None) -> Settings:
        """The same run with another length, for going on."""
        return replace(self, steps=steps, minutes=minutes)


def scaled(rates: Rates, factor: float) -> Rates:
    """Every rate times `factor`."""
    names = ("matrices", "table", "embed", "head", "scalars", "single")
    return replace(rates, **{name: getattr(rates, name) * factor for name in names})
