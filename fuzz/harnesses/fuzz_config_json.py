"""config.json, beside the weights of a tiny model: doctor, plan, a dry run of tie, and the decoder.

A case is config.json alone. The weights are those of the model with that model_type, so a regression stays small.
"""

from __future__ import annotations

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from cases import Case
from mutations import VALUES, mutate_json, mutate_value, write_json
from verbs import verb

FILE = "config.json"
COVERED = ("tiebeam.families.config_fields", "tiebeam.families.llama", "tiebeam.decode.numpy", "tiebeam.inspection")
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
    "beta_fast": 32,
}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 10000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 10000.0,
          "original_max_position_embeddings": 16}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": YARN, "tie_word_embeddings": True},
    "qwen3": {"rope_parameters": LLAMA3},
    "gemma3_text": {},
    "phi3": {"rope_parameters": LONG, "original_max_position_embeddings": 32},
    "gpt2": {},
    "gpt_neox": {},
    "qwen3_moe": {},
    "cohere2": {},
    "t5": {},
}
# Keys that some reader looks for and the seeds do not have; and numbers that arithmetic on sizes does not expect.
FURTHER = (
    "tie_word_embeddings", "text_config", "layer_types", "rope_scaling", "sliding_window", "quantization_config",
    "vocab_size", "num_nextn_predict_layers", "architectures", "tiebeam", "head_dim", "torch_dtype", "dtype", "decoder",
    "eos_token_id", "no_rope_layers", "attention_bias", "beta_fast", "beta_slow", "mscale", "attention_factor",
    "rope_theta", "num_hidden_layers", "partial_rotary_factor", "quantization", "modules_to_not_convert",
)  # fmt: skip
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    5,
    0.5,
    1e-300,
    1e300,
    10**400,
    2**31 - 1,
    2**31,
    2**40,
    2**63,
    10_000,
    10_001,
    "@1e999",
    "@NaN",
)
_weights: dict[str, Path] = {}


def seeds() -> list[Case]:
    from transformers.utils import logging

    from helpers.tiny_models import build

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    root = Path(tempfile.mkdtemp(prefix="fuzz-config-"))
    found = []
    for kind, changes in MODELS.items():
        model = build(kind, **changes)
        if kind == "qwen3":  # two ends, stored both
            model.config.tie_word_embeddings = False
        model.save_pretrained(root / kind)
        _weights[kind] = root / kind / "model.safetensors"
        found.append({FILE: (root / kind / FILE).read_bytes()})
    nested = {
        "model_type": "llava",
        "text_config": json.loads(found[0][FILE]),
        "architectures": ["LlavaForConditionalGeneration"],
    }
    return [*found, {FILE: json.dumps(nested).encode()}]


def mutate(case: Case, rng: Random) -> Case:
    raw = case[FILE]
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or rng.random() < 0.5:
        return {FILE: mutate_json(raw, rng)}
    levels = [document, *(value for value in document.values() if isinstance(value, dict))]
    level = rng.choice(levels)
    numeric = [key for key, value in level.items() if type(value) in (int, float, list)]
    if numeric and rng.random() < 0.6:
        level[rng.choice(numeric)] = rng.choice(NUMBERS)
    else:
        level[rng.choice(FURTHER)] = rng.choice((*VALUES, *NUMBERS, *rng.sample(list(level.values()) or [None], 1)))
    if rng.random() < 0.3:
        document = mutate_value(document, rng)
    return {FILE: write_json(document, rng)}


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.decode import Decoder
    from tiebeam.errors import TiebeamError

    kind = None
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        kind = json.loads((directory / FILE).read_bytes()).get("model_type")
    os.link(_weights.get(kind if isinstance(kind, str) else "", _weights["llama"]), directory / "model.safetensors")
    open_checkpoint(directory)  # refused or not
    for question in (
        lambda: verb("inspect", directory),
        lambda: verb("doctor", directory, "--json"),
        lambda: verb("plan", "--config", directory),
        lambda: verb("plan", "--model", directory, "--json"),
        lambda: verb("tie", directory, directory.parent / "tied", "--dry-run"),
        lambda: Decoder.open(directory).logits([1, 2, 3]),
    ):
        with suppress(TiebeamError):
            question()
    return None
