"""What a training backend provides. The loop (tiebeam.train.loop) owns everything else.

The loop owns batches, schedule, clock, metrics, validation, saving and resuming. A backend owns the model, the
optimizers, the arithmetic of one step and of one evaluation batch, and its state tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from numpy.typing import NDArray

from tiebeam.errors import MissingExtra

if TYPE_CHECKING:
    from tiebeam.corpus.batches import Batch
    from tiebeam.nn import GPTConfig
    from tiebeam.train.cpu_threads import ThreadChoice
    from tiebeam.train.distributed.environment import Distribution
    from tiebeam.train.run_directory import RunDirectory
    from tiebeam.train.settings import Settings


class Backend(Protocol):
    """A model with its optimizers, on torch or on MLX."""

    @property
    def tied(self) -> bool:
        """Whether embedding and head are one parameter now."""

    @property
    def parameter_count(self) -> int:
        """Parameters of the full model, each once."""

    def running(self) -> AbstractContextManager[object]:
        """Entered around the whole run, for example to select the device."""

    def untie(self) -> None:
        """Give the head its own parameter: a copy of the embedding, with its optimizer state."""

    def set_schedule(self, multiplier: float, momentum: float) -> None:
        """Set every learning rate to `multiplier` times its peak, and Muon's momentum."""

    def forward_backward(self, batches: Iterator[Batch], measure: bool) -> float:
        """Accumulate the gradients of one step; returns this rank's mean loss. `measure` prepares gradient_metrics."""

    def gradient_metrics(self) -> dict[str, float]:
        """Where the embedding's gradient comes from, lookup or head; after `forward_backward(..., measure=True)`."""

    def optimizer_step(self) -> None:
        """Update the parameters and clear the gradients."""

    def evaluating(self) -> AbstractContextManager[object]:
        """Entered around the calls of `loss_sum`."""

    def loss_sum(self, batch: Batch) -> float:  # x, y: [B, T]
        """This rank's summed loss of one batch, in nats, without gradients."""

    def target_losses(self, batch: Batch) -> NDArray[Any]:  # x, y: [B, T] -> [B, T]
        """The loss of every target in nats, without gradients, on a rank that holds the full model."""

    def adjust_threads(self) -> ThreadChoice | None:
        """Correct the number of CPU threads to the cores that are free now; the choice if it changed."""

    def synchronize(self) -> None:
        """Wait until the device has finished what it was given, so that a clock can be read."""

    def save_state(self, run: RunDirectory, facts: Mapping[str, Any]) -> None:
        """Write model and optimizer states, with the loop's facts beside them. Called by all ranks."""

    def load_state(self, saved: Path, facts: Mapping[str, Any]) -> None:
        """Read what `save_state` wrote. Called by all ranks, on a backend that is untied if the saved one was."""

    def export(self) -> tuple[dict[str, Any], bytes] | None:
        """config.json and the bytes of model.safetensors; None on ranks other than 0. Called by all ranks."""


def check_installed(name: str) -> None:
    """Raise MissingExtra if the backend's library is not installed."""
    if name == "mlx":
        import_module("tiebeam.train.backends.mlx")
        return
    try:
        import_module("torch")
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        raise MissingExtra("training", "train") from missing


def make_backend(settings: Settings, config: GPTConfig, distribution: Distribution, model: Any = None) -> Backend:
    """The backend that `settings.backend` names, with a new model or with `model`."""
    check_installed(settings.backend)
    if settings.backend == "mlx":
        from tiebeam.train.backends.mlx.backend import MLXBackend

        return MLXBackend(settings, config, model)
    from tiebeam.train.backends.torch import TorchBackend

    return TorchBackend(settings, config, distribution, model)
