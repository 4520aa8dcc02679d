"""Open a model from anywhere, header first."""

from tiebeam.checkpoint.open import open_checkpoint
from tiebeam.checkpoint.tensors import Checkpoint, TensorInfo

__all__ = ["Checkpoint", "TensorInfo", "open_checkpoint"]
