"""SmolLM3: Llama in which every fourth layer has no rotary positions."""

from __future__ import annotations

from dataclasses import replace

from tiebeam.errors import UnreadableInput
from tiebeam.families import gguf, llama
from tiebeam.families.config_fields import Fields, layer_kinds
from tiebeam.families.family import Family, Gguf
from tiebeam.families.spec import Spec


def spec(f: Fields) -> Spec:
    rotary = _rotary_layers(f)
    slides = f.flag("use_sliding_window") and f.get("sliding_window") is not None
    base = llama.spec(f, layer_kinds(f, lambda i: slides and not rotary[i]))
    layers = tuple(layer if on else replace(layer, rope=None) for layer, on in zip(base.layers, rotary, strict=True))
    return replace(base, layers=layers)


def _rotary_layers(f: Fields) -> list[bool]:
    """For each layer, whether it has rotary positions: `no_rope_layers` has a 1 for those that have them."""
    count, given = f.layers(), f.integers("no_rope_layers")
    if not given:
        every = f.count("no_rope_layer_interval")
        return [(i + 1) % every != 0 for i in range(count)]
    if len(given) < count:
        raise UnreadableInput(f"{f.where}: no_rope_layers has {len(given)} entries for {count} layers")
    return [bool(on) for on in given[:count]]


FAMILIES = (
    Family(
        model_type="smollm3",
        architecture="SmolLM3ForCausalLM",
        defaults={
            **llama.DEFAULTS,
            "vocab_size": 128256,
            "hidden_size": 2048,
            "num_hidden_layers": 36,
            "num_attention_heads": 16,
            "num_key_value_heads": 4,
            "max_position_embeddings": 32768,
            "rope_theta": 2_000_000.0,
            "no_rope_layer_interval": 4,  # llama.cpp has the same number in its code
        },
        names=llama.NAMES,
        gguf=Gguf("smollm3", gguf.PAIRED_ROTARY_NAMES, gguf.KEYS),
        spec=spec,
    ),
)
