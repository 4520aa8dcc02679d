"""A PEFT adapter (adapter_config.json and adapter_model.safetensors) beside a tiny tied base: the doctor."""

from __future__ import annotations

import json
import struct
import tempfile
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import harnesses.fuzz_safetensors as weights
from cases import Case
from mutations import mutate_json
from verbs import verb

FILE = ""
COVERED = ("tiebeam.doctor.adapters", "tiebeam.doctor.adapter_loaders")
CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
NAMES = (
    "lm_head", "embed_tokens", "lm_head.weight", "embed_tokens.weight", "weight", "trainable_tokens_delta",
    "base_model.model.lm_head", "base_model.model.lm_head.base_layer.weight", "base_model.model.lm_head.lora_A.weight",
    "base_model.model.lm_head.lora_B", "base_model.model.model.embed_tokens.lora_embedding_A", "lora_A",
    "base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta", "lm_head.", ".lm_head", "",
    "token_adapter", "lora_.lm_head",
)  # fmt: skip
_base = Path()


def seeds() -> list[Case]:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers.utils import logging

    from helpers.tiny_models import build

    global _base
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    root = Path(tempfile.mkdtemp(prefix="fuzz-adapters-"))
    _base = root / "base"
    build("llama", tie_word_embeddings=True).save_pretrained(_base)
    found = []
    kinds: list[dict[str, Any]] = [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["embed_tokens"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": [1, 2]}},
    ]
    for i, options in enumerate(kinds):
        torch.manual_seed(0)
        model = get_peft_model(
            build("llama", tie_word_embeddings=True), LoraConfig(r=2, task_type="CAUSAL_LM", **options)
        )
        model.save_pretrained(root / str(i), save_embedding_layers=False)
        found.append({name: (root / str(i) / name).read_bytes() for name in (CONFIG, WEIGHTS)})
    return found


def mutate(case: Case, rng: Random) -> Case:
    if CONFIG in case and rng.random() < 0.3:
        return {**case, CONFIG: mutate_json(case[CONFIG], rng)}
    raw = case.get(WEIGHTS, b"")
    if rng.random() < 0.5:
        with suppress(ValueError, struct.error, AttributeError, IndexError, RecursionError):
            (length,) = struct.unpack_from("<Q", raw)
            header = json.loads(raw[8 : 8 + length])
            name = rng.choice([name for name in header if name != "__metadata__"])
            entry = header.pop(name)
            if rng.random() < 0.4 and isinstance(entry["shape"], list):  # another shape of as many bytes
                size = (entry["data_offsets"][1] - entry["data_offsets"][0]) // 4
                entry["shape"] = rng.choice(([size], [1, size], [1, 1, size], [size, 1]))
            header[rng.choice((*NAMES, name))] = entry
            if rng.random() < 0.3:
                begin = max(other["data_offsets"][1] for key, other in header.items() if key != "__metadata__")
                header[rng.choice(NAMES)] = {"dtype": "F32", "shape": [], "data_offsets": [begin, begin + 4]}
                raw += bytes(4)
            text = json.dumps(header).encode()
            return {**case, WEIGHTS: struct.pack("<Q", len(text)) + text + raw[8 + length :]}
    return {**case, WEIGHTS: weights.mutate({weights.FILE: raw}, rng)[weights.FILE]}


def read(directory: Path) -> object:
    from tiebeam.doctor.adapters import diagnose_adapter
    from tiebeam.errors import TiebeamError

    for arguments in (("--base", _base), ("--base", _base, "--json"), ()):
        with suppress(TiebeamError):
            verb("doctor", directory, *arguments)
    return bool(diagnose_adapter(directory, _base).findings)
