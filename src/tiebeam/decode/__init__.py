"""Run a checkpoint with NumPy: hidden states, logits, text, perplexity."""

from tiebeam.decode.engine import ENGINES, engine_name, open_engine
from tiebeam.decode.numpy.blocks import Cache
from tiebeam.decode.numpy.decoder import Decoder, Token
from tiebeam.decode.numpy.vocab_tables import Table
from tiebeam.decode.perplexity import Divergence, Perplexity, divergence, perplexity
from tiebeam.decode.sampling import Sampling
from tiebeam.decode.spec_fields import RUNNABLE

__all__ = [
    "ENGINES",
    "RUNNABLE",
    "Cache",
    "Decoder",
    "Divergence",
    "Perplexity",
    "Sampling",
    "Table",
    "Token",
    "divergence",
    "engine_name",
    "open_engine",
    "perplexity",
]
