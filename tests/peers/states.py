"""Write every stored state of a tiny checkpoint: what the files hold, and what the config declares.

Stored states: `one` (embedding only), `equal` (both, the same numbers), `differ` (both, different numbers), `head`
(head only), `neither`, `rows` (both, the head with fewer rows). Flags: true, false or absent, at the top level and, for
a nested config, in the text config.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers import tiny_architectures

STORED = ("one", "equal", "differ", "head", "neither", "rows")
FLAGS = ("true", "false", "absent")
FLAG = "tie_word_embeddings"


@dataclass(frozen=True)
class Names:
    """The names that save_pretrained gives the two matrices of one architecture, and the config's text level."""

    model_type: str
    task: str
    embed: str
    head: str
    text: str | None


def disk_name(model: Any, parameter: Any) -> str:
    """The name under which save_pretrained writes a parameter."""
    from transformers.core_model_loading import revert_weight_conversion

    for name, candidate in model.named_parameters(remove_duplicate=False):
        if candidate is parameter:
            return min(revert_weight_conversion(model, {name: candidate}))
    raise ValueError("not a parameter of this model")


def text_level(document: dict[str, Any]) -> str | None:
    for key in ("text_config", "llm_config", "thinker_config", "decoder", "generator", "language_config"):
        if isinstance(document.get(key), dict) and "vocab_size" in document[key]:
            return key
    return None


class Base:
    """One architecture's tiny checkpoint in memory: its tensors without the pair, its config, E [V, D] and W [V, D]."""

    def __init__(self, model_type: str, directory: Path) -> None:
        import torch
        from safetensors.torch import load_file

        model = tiny_architectures.build(model_type, tied=False)
        embed, head = model.get_input_embeddings(), model.get_output_embeddings()
        if embed is None or head is None or not hasattr(head, "weight") or not hasattr(embed, "weight"):
            raise ValueError("no input or output embedding of its own")
        if embed.weight.shape != head.weight.shape:
            raise ValueError(f"shapes differ: {tuple(embed.weight.shape)} and {tuple(head.weight.shape)}")
        untied = embed.weight is not head.weight
        tied = tiny_architectures.build(model_type, tied=True)
        self.tieable = tied.get_input_embeddings().weight is tied.get_output_embeddings().weight
        head_name = disk_name(model, head.weight) if untied else ""
        embed_name = disk_name(model, embed.weight)
        tied.save_pretrained(directory)
        self.tensors = load_file(directory / "model.safetensors")
        self.config = with_older_keys(json.loads((directory / "config.json").read_text()), tied.config)
        self.config = tiny_architectures.merge(self.config, tiny_architectures.PUBLISHED.get(model_type, {}))
        stored_tied = [n for n in (embed_name, head_name) if n in self.tensors]
        self.saved_as = stored_tied
        if not untied:
            head_name = "lm_head.weight"
        for name in {embed_name, head_name}:
            self.tensors.pop(name, None)
        self.names = Names(
            model_type, str(tiny_architectures.task_of(model_type)), embed_name, head_name, text_level(self.config)
        )
        torch.manual_seed(11)
        self.E = torch.randn(embed.weight.shape) * 0.02
        self.W = torch.randn(embed.weight.shape) * 0.02

    def pair(self, stored: str) -> dict[str, Any]:
        E, W, n = self.E, self.W, self.names
        return {
            "one": {n.embed: E},
            "equal": {n.embed: E, n.head: E.clone()},
            "differ": {n.embed: E, n.head: W},
            "head": {n.head: W},
            "neither": {},
            "rows": {n.embed: E, n.head: W[:-6].clone()},
        }[stored]

    def write(self, where: Path, stored: str, top: str, text: str = "same", weights: Path | None = None) -> None:
        """One state on disk; `text` is the flag of the text config, "same" as the top level unless given.

        `weights` is a directory with the same state: its files are linked instead of written again.
        """
        from safetensors.torch import save_file

        where.mkdir(parents=True)
        if weights is not None:
            for name in ("model.safetensors", "expected.st"):
                (where / name).hardlink_to(weights / name)
        else:
            save_file({**self.tensors, **self.pair(stored)}, where / "model.safetensors", {"format": "pt"})
            save_file({"E": self.E, "W": self.W}, where / "expected.st")
        document = json.loads(json.dumps(self.config))
        _set(document, top)
        if self.names.text:
            _set(document[self.names.text], top if text == "same" else text)
        (where / "config.json").write_text(json.dumps(document))


def _set(level: dict[str, Any], flag: str) -> None:
    if flag == "absent":
        level.pop(FLAG, None)
    else:
        level[FLAG] = flag == "true"


def with_older_keys(document: dict[str, Any], config: Any) -> dict[str, Any]:
    """Add the key spellings that published checkpoints have and transformers 5 no longer writes.

    transformers 4 and mlx-lm read `rope_theta`, `n_ctx`, `head_dim` and the aliases of a config class at the top level.
    """
    for name, kept in getattr(config, "attribute_map", {}).items():
        if kept in document:
            document.setdefault(name, document[kept])
    rope = document.get("rope_parameters")
    if isinstance(rope, dict) and "rope_theta" in rope:
        document.setdefault("rope_theta", rope["rope_theta"])
        document.setdefault("rotary_emb_base", rope["rope_theta"])
        document.setdefault("rope_scaling", None)
        share = rope.get("partial_rotary_factor", 1.0)
        document.setdefault("partial_rotary_factor", share)
        document.setdefault("rotary_pct", share)
    heads, width = document.get("num_attention_heads"), document.get("hidden_size")
    computed = isinstance(getattr(type(config), "head_dim", None), property)  # Falcon: it cannot be set
    if isinstance(heads, int) and isinstance(width, int) and not computed:
        document.setdefault("head_dim", width // heads)
    if "n_positions" in document:
        document.setdefault("n_ctx", document["n_positions"])
    for key, value in list(document.items()):
        inner = getattr(config, key, None)
        if isinstance(value, dict) and hasattr(inner, "to_dict"):
            document[key] = with_older_keys(value, inner)
            if "vocab_size" in value and key == text_level(document):
                document.setdefault("vocab_size", value["vocab_size"])
    return document
