"""Types whose head cannot be left out of the file, because a loader would not take the embedding for it."""

from __future__ import annotations

from tiebeam.families.gguf_output import output_weight
from tiebeam.families.registry import Architecture


def why_never_tied(architecture: Architecture | None, gguf_name: str | None, is_gguf: bool) -> str | None:
    """Why this type cannot be stored tied, as a sentence for people; None if it can.

    `gguf_name` is the architecture that a GGUF names.

    >>> why_never_tied(None, "gptneox", is_gguf=True)[:43]
    'llama.cpp requires output.weight in gptneox'
    """
    if is_gguf and output_weight(gguf_name) == "required":
        return f"llama.cpp requires output.weight in {gguf_name}: it does not load such a GGUF with one matrix"
    if architecture is not None and not architecture.decides and not is_gguf:
        return f"transformers never ties {architecture.model_type}: it would initialise a missing head at random"
    return None
