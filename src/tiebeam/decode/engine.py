"""Open a checkpoint to run it."""

from __future__ import annotations

import os

from tiebeam.checkpoint import Checkpoint
from tiebeam.decode.numpy.decoder import Decoder
from tiebeam.errors import BadRequest

ENGINES = ("auto", "numpy", "transformers")


def open_engine(
    source: str | os.PathLike[str] | Checkpoint,
    *,
    engine: str = "auto",
    device: str | None = None,
    embed: str | None = None,
    head: str | None = None,
    dtype: str = "float32",
) -> Decoder:
    """Open a model to run it with the numpy engine."""
    if engine not in ENGINES:
        raise BadRequest(f"engine={engine!r} is not one of {', '.join(ENGINES)}")
    if engine == "transformers" or device not in (None, "cpu"):
        raise BadRequest("only the numpy engine on the CPU is available")
    return Decoder.open(source, embed=embed, head=head, dtype=dtype)


def engine_name(engine: Decoder) -> str:
    return "numpy"
