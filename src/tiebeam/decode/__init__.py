"""Run a checkpoint with NumPy: hidden states, logits, text, perplexity."""

from tiebeam.decode.numpy.blocks import Cache
from tiebeam.decode.numpy.decoder import Decoder, Token
from tiebeam.decode.numpy.runnable import RUNNABLE
from tiebeam.decode.numpy.vocab_tables import Table
from tiebeam.decode.perplexity import Divergence, Perplexity, divergence, perplexity
from tiebeam.decode.sampling import Sampling

__all__ = [
    "RUNNABLE",
    "Cache",
    "Decoder",
    "Divergence",
    "Perplexity",
    "Sampling",
    "Table",
    "Token",
    "divergence",
    "perplexity",
]
