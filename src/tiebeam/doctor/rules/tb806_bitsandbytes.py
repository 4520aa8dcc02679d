"""TB806: quantized by bitsandbytes; llama.cpp's converter and mlx-lm refuse it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.examples import EMBED, Tensors, matrix, write_llama
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    if model.quantizer == "bitsandbytes":
        names = model.checkpoint.tensors
        packed = sum(name.endswith((".weight.absmax", ".SCB")) for name in names)
        yield Evidence(f"{packed:,} weights are packed by bitsandbytes")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("With transformers or vLLM, nothing needs a fix"),
        Step("For GGUF or MLX, convert the model that was quantized; or load it, call dequantize(), and save it"),
    )


def example(directory: Path) -> Path:
    """One NF4 layer as transformers saves it."""
    import numpy as np

    layer = "model.layers.0.mlp.down_proj.weight"
    packed: Tensors = {
        layer: np.zeros((64, 1), np.uint8),
        f"{layer}.absmax": np.ones(2, np.float32),
        f"{layer}.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        f"{layer}.quant_state.bitsandbytes__nf4": np.zeros(8, np.uint8),
    }
    quantization = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return write_llama(
        directory, {EMBED: matrix(0), **packed}, tie_word_embeddings=True, quantization_config=quantization
    )


RULE = Rule(
    code="TB806",
    severity=Severity.NOTE,
    title="quantized by bitsandbytes: converters and mlx-lm refuse it",
    symptoms="mlx-lm: parameters not in model, *.weight.absmax. llama.cpp's converter: quant method is not supported.",
    cause="bitsandbytes packs weights for its own kernels; only transformers and vLLM unpack them.",
    detection="quantization_config names bitsandbytes, or tensors of its quantization state are stored.",
    check=check,
    steps=steps,
    example=example,
)
