"""Training on MLX. The resume state has MLX's own tensors, so only the MLX backend can load it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.backends.mlx.gpt import GPT
from tiebeam.train.backends.mlx.gradients import Gradients, accumulated, provenance
from tiebeam.train.backends.mlx.optimizers import Optimizers
from tiebeam.train.evaluation import held_out_loss

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.corpus.batches import Batch
    from tiebeam.nn import GPTConfig
    from tiebeam.train.result import Evaluation
    from tiebeam.train.run_directory import RunDirectory
    from tiebeam.train.settings import Settings


class MLXBackend:
    """A GPT and optimizers on MLX. See `tiebeam.train.backends.Backend` for the methods."""

    def __init__(self, settings: Settings, config: GPTConfig, model: GPT | None = None) -> None:
        self.settings = settings
        self.device = choose_device(settings.device)
        with self.running():
            self.model = model or GPT(config, settings.seed)
            self.optimizers = Optimizers(self.model, settings.learning_rates, settings.optimizer)
        self._gradients: Gradients | None = None

    @property
    def tied(self) -> bool:
        return self.model.tied

    @property
    def parameter_count(self) -> int:
        return self.model.size

    def running(self) -> AbstractContextManager[object]:
        stream: AbstractContextManager[object] = mx.stream(self.device)
        return stream

    def untie(self) -> None:
        self.optimizers.untie()

    def set_schedule(self, multiplier: float, momentum: float) -> None:
        self.optimizers.set(multiplier, momentum)

    def forward_backward(self, batches: Iterator[Batch], measure: bool) -> float:
        self._gradients = accumulated(self.model, batches, self.settings.accumulate, z_loss=self.settings.z_loss)
        return self._gradients.loss

    def gradient_metrics(self) -> dict[str, float]:
        assert self._gradients is not None
        return provenance(self.model, self._gradients)

    def optimizer_step(self) -> None:
        assert self._gradients is not None
        self.optimizers.step(self._gradients.tree)
        self._gradients = None

    def evaluating(self) -> AbstractContextManager[object]:
        return nullcontext()

    def loss_sum(self, batch: Batch) -> float:
        return loss_sum(self.model, batch)

    def target_losses(self, batch: Batch) -> NDArray[Any]:
        x, y = (mx.array(part) for part in batch)
        logits = self.model(x)
        return np.array(mx.logsumexp(logits, axis=-1) - mx.take_along_axis(logits, y[..., None], axis=-1)[..., 0])

    def adjust_threads(self) -> None:
        return None

    def synchronize(self) -> None:
        mx.synchronize()

    def save_state(self, run: RunDirectory, facts: Mapping[str, Any]) -> None:
        tensors = {f"model.{name}": np.array(tensor) for name, tensor in self.model.tensors().items()}
        tensors |= {f"optimizer.{name}": value for name, value in self.optimizers.state().items()}
        flat = {name: np.asarray(tensor, order="C") for name, tensor in tensors.items()}
        run.save_state(save(flat, {"facts": json.dumps(facts)}))

    def load_state(self, saved: Path, facts: Mapping[str, Any]) -> None:
        try:
            tensors = load_file(saved)
        except SafetensorError as error:
            raise UnreadableInput(f"{saved} is damaged: {error}") from None
        self.model.load(_under("model.", tensors))
        self.optimizers.restore(_under("optimizer.", tensors))

    def export(self) -> tuple[dict[str, Any], bytes] | None:
        config, tensors = self.model.export(fold=self.model.config.foldable)
        return config, save({name: np.ascontiguousarray(t) for name, t in tensors.items()}, {"format": "pt"})


def choose_device(name: str) -> mx.Device:
    """MLX's device of that name. "auto" is the GPU if there is one; "mps", torch's name, means the GPU too."""
    if name == "auto":
        return mx.default_device()
    if name == "cpu":
        return mx.Device(mx.cpu)
    if name not in ("gpu", "mps"):
        raise BadRequest(f"`device={name!r}` is not supported by the MLX backend; use auto, cpu or gpu")
    if not mx.is_available(mx.gpu):
        raise BadRequest(f"`device={name!r}` is not available on this machine with this MLX; available: cpu")
    return mx.Device(mx.gpu)


def evaluate(model: GPT, corpus: Corpus, *, batch: int = 16, max_tokens: int | None = None) -> Evaluation:
    """`tiebeam.train.evaluate` for a model on MLX."""
    return held_out_loss(
        lambda pair: loss_sum(model, pair), corpus, model.config.context, batch=batch, max_tokens=max_tokens
    )


def loss_sum(model: GPT, batch: Batch) -> float:  # x, y: [B, T]
    """The summed loss of one batch, in nats."""
    x, y = batch
    return float(np.array(model(mx.array(x), mx.array(y), reduction="sum", gradients=False)))


def _under(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
