"""The same model and training step on MLX: for Apple silicon, and on Linux for the tests against torch.

    model = GPT(GPTConfig(...), seed=0)
    model(ids)  # logits [B, T, V]
    loss, gradients = loss_and_gradients(model, ids, targets)

`tiebeam.train.train(Settings(backend="mlx", ...), corpus, out)` trains with it. Configuration, settings, schedule,
batches, loop and run directory are those of the torch backend; torch itself is not needed.
"""

try:
    import mlx.core as _mx  # noqa: F401
except ImportError as missing:  # also when the package is there but its native library is not
    from tiebeam.errors import MissingExtra

    raise MissingExtra("training on MLX", "mlx") from missing

from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.backends.mlx.backend import evaluate
from tiebeam.train.backends.mlx.gpt import GPT
from tiebeam.train.backends.mlx.gradients import loss_and_gradients
from tiebeam.train.backends.mlx.loss import tied_cross_entropy
from tiebeam.train.backends.mlx.optimizers import Optimizers

__all__ = ["GPT", "GPTConfig", "Optimizers", "evaluate", "loss_and_gradients", "tied_cross_entropy"]
