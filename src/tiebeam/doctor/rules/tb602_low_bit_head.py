"""TB602: a low-bit embedding is used as the head."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tiebeam._pattern import pattern
from tiebeam.doctor.examined import ExaminedCheckpoint
from tiebeam.doctor.rule import Evidence, Names, Rule, Severity, Step

if TYPE_CHECKING:
    from pathlib import Path

# GGUF types coarser than Q6_K.
_LOW_BIT = pattern(r"^(IQ[1-4]_\w+|Q[2345]_\w+|TQ\d_\w+|MXFP4|NVFP4)$")


def check(model: ExaminedCheckpoint) -> Iterator[Evidence]:
    embed = model.pair.embed
    if model.is_gguf and embed is not None and model.pair.head is None and _LOW_BIT.match(embed.dtype):
        yield Evidence(f"{embed.name} is {embed.dtype} and there is no output.weight")


def steps(at: Names) -> tuple[Step, ...]:
    return (
        Step("Quantize the original again with a finer type: llama-quantize --token-embedding-type q8_0 (or q6_k)"),
    )


def example(directory: Path) -> Path:
    """A GGUF whose embedding is Q4_0."""
    import gguf
    import numpy as np
    from gguf.quants import quantize

    values = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
    kind = gguf.GGMLQuantizationType.Q4_0
    writer = gguf.GGUFWriter(directory / "model.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", quantize(values, kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return directory / "model.gguf"


RULE = Rule(
    code="TB602",
    severity=Severity.WARNING,
    title="a low-bit embedding is used as the head",
    symptoms="Repetition and odd tokens in a quantized tied model.",
    cause="Without output.weight, llama.cpp uses token_embd.weight for the logits. Below Q6_K its rounding errors are "
    "visible there.",
    detection="A GGUF has no output.weight, and the type of token_embd.weight is coarser than Q6_K.",
    check=check,
    steps=steps,
    example=example,
    seen_in=("llama.cpp#5650",),
)
