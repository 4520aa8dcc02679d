"""model.safetensors.index.json of a model in two shards: opening, doctor, a dry run of tie."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from random import Random

from cases import Case
from mutations import VALUES, mutate_json, write_json
from verbs import verb

FILE = "model.safetensors.index.json"
COVERED = ("tiebeam.checkpoint.model_files", "tiebeam.checkpoint.json_files", "tiebeam.checkpoint.files")
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
NAMES = (
    *SHARDS, "model-00003-of-00002.safetensors", "../model.safetensors", "/etc/passwd", "", ".", "..", "a/../../b",
    "a\0b", "C:x", "\\\\host\\x", "model.safetensors", FILE, "config.json", "x" * 5000, "é.safetensors", "\ud800",
)  # fmt: skip
_shards: dict[str, bytes] = {}


def seeds() -> list[Case]:
    import numpy as np
    from safetensors.numpy import save

    embed = np.arange(24, dtype=np.float32).reshape(8, 3)
    _shards[SHARDS[0]] = save({"model.embed_tokens.weight": embed, "model.norm.weight": embed[0].copy()})
    _shards[SHARDS[1]] = save({"lm_head.weight": embed + 1})
    places = {"model.embed_tokens.weight": SHARDS[0], "model.norm.weight": SHARDS[0], "lm_head.weight": SHARDS[1]}
    plain = {"metadata": {"total_size": 204}, "weight_map": places}
    return [{FILE: json.dumps(document).encode()} for document in (plain, {"weight_map": places})]


def mutate(case: Case, rng: Random) -> Case:
    try:
        document = json.loads(case[FILE])
        places = document["weight_map"]
        names = list(places)
    except (ValueError, RecursionError, TypeError, KeyError):
        return {FILE: mutate_json(case[FILE], rng)}
    if not isinstance(places, dict) or not names or rng.random() < 0.4:
        return {FILE: mutate_json(case[FILE], rng)}
    name = rng.choice(names)
    match rng.randrange(4):
        case 0:
            places[name] = rng.choice(NAMES)
        case 1:
            places[rng.choice(("lm_head", "lm_head.weight", "x", "", "\x1b[2J", "\ud800"))] = places.pop(name)
        case 2:
            places[name] = rng.choice(VALUES)
        case _:
            places.update({f"model.layers.{i}.x": rng.choice(NAMES) for i in range(rng.randrange(4))})
    return {FILE: write_json(document, rng)}


def read(directory: Path) -> object:
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.errors import TiebeamError

    for name, raw in _shards.items():
        (directory / name).write_bytes(raw)
    checkpoint = open_checkpoint(directory)
    for arguments in (
        ("inspect",),
        ("doctor", "--json"),
        ("tie", directory.parent / "tied", "--dry-run", "--keep", "head"),
    ):
        with suppress(TiebeamError):
            verb(arguments[0], directory, *arguments[1:])
    return sorted(checkpoint.tensors)
