"""TB805: quantized by MLX; transformers refuses it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import DIM, VOCAB, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.quantizer == "mlx":
        quantization = (model.checkpoint.config or {})["quantization"]
        yield Evidence(f"config.json has quantization with {quantization['bits']} bits, and packed weights are stored")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("With mlx-lm, nothing needs a fix"),
        Step("For other programs, use the model that it was made from, or undo it: mlx_lm.convert --dequantize"),
    )


def example(directory: Path) -> Path:
    """A tied pair as mlx-lm stores it in 4 bits, in groups of 8."""
    import numpy as np

    packed = {
        "model.embed_tokens.weight": np.zeros((VOCAB, DIM // 8), np.uint32),
        "model.embed_tokens.scales": np.ones((VOCAB, 1), np.float32),
        "model.embed_tokens.biases": np.zeros((VOCAB, 1), np.float32),
    }
    quantization = {"group_size": 8, "bits": 4, "mode": "affine"}
    return write_llama(directory, packed, tie_word_embeddings=True, quantization=quantization,
                       quantization_config=quantization)  # fmt: skip


RULE = Rule(
    code="TB805",
    severity=Severity.NOTE,
    title="quantized by MLX: only MLX programs load it",
    symptoms="transformers 4 and 5: the model's quantization config has no quant_method attribute. llama.cpp's "
    "converter: KeyError: 'U32'.",
    cause="mlx-lm packs weights in its own format and notes it in config.json under quantization, which transformers "
    "does not read.",
    detection="config.json has quantization with bits, and tensors called *.scales are stored.",
    check=check,
    steps=steps,
    example=example,
)
