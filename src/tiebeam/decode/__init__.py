"""Run a checkpoint: hidden states, logits, text, perplexity. See `tiebeam.decode.engine`."""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader

if TYPE_CHECKING:
    from tiebeam.decode.engine import ENGINES, Engine, engine_name, open_engine
    from tiebeam.decode.numpy.blocks import Cache
    from tiebeam.decode.numpy.decoder import Decoder, Token
    from tiebeam.decode.numpy.runnable import RUNNABLE
    from tiebeam.decode.numpy.vocab_tables import Table
    from tiebeam.decode.perplexity import Divergence, Perplexity, divergence
    from tiebeam.decode.sampling import Sampling
    from tiebeam.decode.transformers import load

__all__ = [
    "ENGINES",
    "RUNNABLE",
    "Cache",
    "Decoder",
    "Divergence",
    "Engine",
    "Perplexity",
    "Sampling",
    "Table",
    "Token",
    "divergence",
    "engine_name",
    "load",
    "open_engine",
]

__getattr__ = loader(
    __name__,
    {
        **dict.fromkeys(("ENGINES", "Engine", "engine_name", "open_engine"), "tiebeam.decode.engine"),
        **dict.fromkeys(("Decoder", "Token"), "tiebeam.decode.numpy.decoder"),
        **dict.fromkeys(("Divergence", "Perplexity", "divergence"), "tiebeam.decode.perplexity"),
        "Cache": "tiebeam.decode.numpy.blocks",
        "RUNNABLE": "tiebeam.decode.numpy.runnable",
        "Sampling": "tiebeam.decode.sampling",
        "load": "tiebeam.decode.transformers",
        "Table": "tiebeam.decode.numpy.vocab_tables",
    },
)
