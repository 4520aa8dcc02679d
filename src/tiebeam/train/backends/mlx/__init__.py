"""The same model and training step on MLX: for Apple silicon, and on Linux for the tests that hold it to torch.

    model = GPT(GPTConfig(...), seed=0)
    model(ids)  # logits [B, T, V]
    loss, gradients = loss_and_gradients(model, ids, targets)

`train(Settings(backend="mlx", ...), corpus, out)` is `tiebeam train --backend mlx`. The configuration, the settings,
the schedule, the batches and the run directory are the ones torch uses; torch itself is not needed.
"""

try:
    import mlx.core as _mx  # noqa: F401
except ImportError as missing:  # also where the package is there and its library is not
    from tiebeam.errors import MissingExtra

    raise MissingExtra("tiebeam.train.backends.mlx", "mlx") from missing

from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.backends.mlx.gpt import GPT
from tiebeam.train.backends.mlx.gradients import loss_and_gradients
from tiebeam.train.backends.mlx.loop import train
from tiebeam.train.backends.mlx.loss import tied_cross_entropy
from tiebeam.train.backends.mlx.optimizers import Optimizers

__all__ = ["GPT", "GPTConfig", "Optimizers", "loss_and_gradients", "tied_cross_entropy", "train"]
