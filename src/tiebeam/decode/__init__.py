"""Run a checkpoint with NumPy: hidden states, logits, text, perplexity."""

from tiebeam.decode.config import RUNNABLE
from tiebeam.decode.decoder import Decoder, Token
from tiebeam.decode.measure import Divergence, Perplexity, divergence, perplexity
from tiebeam.decode.sampling import Sampling
from tiebeam.decode.trunk import Cache
from tiebeam.decode.vocabulary import Table

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
