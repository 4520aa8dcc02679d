"""Which checkpoints the NumPy decoder can run, and what it runs them by: config, Spec and tensor names.

Everything about a family is in its file in `tiebeam.families`; this refuses what the decoder has no code for.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from tiebeam.checkpoint import Checkpoint
from tiebeam.decode.numpy.ops import ACTIVATIONS
from tiebeam.decode.numpy.rope import SCALINGS
from tiebeam.errors import UnreadableInput
from tiebeam.families.config_fields import Fields
from tiebeam.families.family import TensorNames
from tiebeam.families.gguf import config_from_gguf
from tiebeam.families.registry import families
from tiebeam.families.spec import Spec

_TEXT_PARTS = {"gemma3": "gemma3_text"}
"""Multimodal types of which the decoder runs the text part, `text_config`."""

RUNNABLE = sorted(
    {"gemma3" if name == "gemma3_text" else name for name, family in families().items() if family.spec is not None}
)
"""The model types that the decoder runs."""

# The same model is saved bare, as a language model, or inside a multimodal one.
_PREFIXES = ("", "model.", "model.language_model.", "language_model.model.", "language_model.")


def model_config(checkpoint: Checkpoint) -> tuple[Mapping[str, Any], str]:
    """The configuration of a checkpoint, and the file that holds it."""
    if checkpoint.format == "gguf":
        shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
        config = config_from_gguf(
            checkpoint.metadata, shapes, lambda name: checkpoint.tensor(name).tolist(), checkpoint.source
        )
        return config, "the GGUF's metadata"
    if checkpoint.config is None:
        raise UnreadableInput(
            f"{checkpoint.source} has no config.json, which describes how to run it; give the directory that holds both"
        )
    return checkpoint.config, checkpoint.config_name


def spec_of(config: Mapping[str, Any], where: str = "config.json") -> Spec:
    """The Spec of a configuration; an error that names what the decoder does not have."""
    model_type = config.get("model_type")
    runs = f"it runs {', '.join(RUNNABLE)}"
    if not isinstance(model_type, str):
        raise UnreadableInput(f"{where} has no model_type, which the decoder needs to run the model; {runs}")
    if config.get("quantization_config"):
        method = config["quantization_config"]
        method = method.get("quant_method", "a packed form") if isinstance(method, Mapping) else method
        raise UnreadableInput(f"{where}: the weights are quantised ({method}); the decoder runs the unpacked model")
    if model_type in _TEXT_PARTS and isinstance(config.get("text_config"), Mapping):
        model_type = _TEXT_PARTS[model_type]
        config = {**config["text_config"], "model_type": model_type}
    family = families().get(model_type)
    if family is None or family.spec is None:
        raise UnreadableInput(f"the decoder cannot run the architecture {model_type!r}; {runs}")
    f = Fields(config, family.defaults, where)
    f.refuse("use_bidirectional_attention", "the decoder runs causal models only")
    spec = family.spec(f)
    if spec.activation not in ACTIVATIONS:
        raise UnreadableInput(f"{where}: the decoder has no activation {spec.activation!r} ({', '.join(ACTIVATIONS)})")
    for rope in {layer.rope for layer in spec.layers if layer.rope is not None}:
        if rope.kind not in SCALINGS:
            raise UnreadableInput(f"{where}: the decoder has no rotary scaling {rope.kind!r} ({', '.join(SCALINGS)})")
        if rope.dim % 2 or not 0 < rope.dim <= spec.head_dim:
            raise UnreadableInput(
                f"{where}: rotary positions need an even part of a head; {rope.dim} of {spec.head_dim} is not"
            )
    return spec


def names_for(model_type: str, format: str, stored: Collection[str]) -> TensorNames:
    """The tensor names of a family, with the prefix that layer 0 has in this file."""
    family = families()[model_type]
    names = family.names
    if format == "gguf":
        assert family.gguf is not None
        names = family.gguf.names
    assert names is not None
    probe = names.layer.format(i=0) + names.roles["o"] + ".weight"
    found = next((p for p in (names.prefix, *_PREFIXES) if p + probe in stored), names.prefix)
    return replace(names, prefix=found)
