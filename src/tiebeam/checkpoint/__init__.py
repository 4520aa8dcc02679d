"""Open a model from a directory, a file or the Hub: read the headers, and rows only when they are asked for."""

from tiebeam.checkpoint.open import open_checkpoint
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]
