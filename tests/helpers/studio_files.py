"""Tiny real models and runs for the studio: a Llama with a word tokenizer, and run directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

import tiebeam
from helpers.building import write_model

SRC = str(Path(tiebeam.__file__).parent.parent)

WORDS = ["<unk>", "New", "York", "City", "San", "Francisco", "Los", "Angeles", "is", "the", "big", "old", "town", "."]
DIM, INNER = 8, 16


def tiny_llama(
    where: Path, tied: bool = True, torn: bool = False, seed: int = 0, vocab: int = len(WORDS)
) -> Path:  # fmt: skip
    """A Llama of one layer that the decoder can run; `torn` declares the tie but stores two different matrices."""
    random = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        return (0.5 * random.standard_normal(shape)).astype(np.float32)

    layer = "model.layers.0."
    tensors = {
        "model.embed_tokens.weight": normal(vocab, DIM),
        "model.norm.weight": np.ones(DIM, np.float32),
        layer + "input_layernorm.weight": np.ones(DIM, np.float32),
        layer + "post_attention_layernorm.weight": np.ones(DIM, np.float32),
        layer + "mlp.gate_proj.weight": normal(INNER, DIM),
        layer + "mlp.up_proj.weight": normal(INNER, DIM),
        layer + "mlp.down_proj.weight": normal(DIM, INNER),
    }
    tensors |= {f"{layer}self_attn.{name}_proj.weight": normal(DIM, DIM) for name in "qkvo"}
    if torn or not tied:
        tensors["lm_head.weight"] = normal(vocab, DIM)
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": DIM,
        "intermediate_size": INNER, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": tied or torn,
    }  # fmt: skip
    write_model(where, tensors, config)
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: i for i, word in enumerate(WORDS)}, "unk_token": "<unk>"},
    }  # fmt: skip
    (where / "tokenizer.json").write_text(json.dumps(tokenizer))
    return where


def record(step: int, tied: bool) -> dict[str, float]:
    loss = 2.2 + 3.0 * float(np.exp(-step / 60)) + (0.0 if tied else 0.08)
    line = {"step": step, "seconds": step * 0.1, "loss": loss, "tokens_per_second": 9000.0}
    if tied:
        line["head_share"] = 0.56 + 0.1 * float(np.exp(-step / 40))
    if step % 50 == 0:
        line["val_bpb"] = loss / 2
    return line


def write_run(where: Path, tied: bool, steps: int = 200) -> Path:
    where.mkdir(parents=True, exist_ok=True)
    (where / "run.json").write_text(json.dumps({"settings": {"tie": tied, "dim": 64, "steps": steps}}))
    lines = [json.dumps(record(step, tied)) for step in range(10, steps + 1, 10)]
    (where / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return where


def write_studio_root(root: Path) -> Path:
    """A root directory with three models and two runs."""
    tiny_llama(root / "models" / "tied")
    tiny_llama(root / "models" / "untied", tied=False, seed=1)
    tiny_llama(root / "models" / "torn", torn=True, seed=2)
    write_run(root / "runs" / "tied", tied=True)
    write_run(root / "runs" / "untied", tied=False)
    (root / "runs" / "report.json").write_text(json.dumps({"verdict": {"sentences": ["Tied won.", "By a little."]}}))
    return root
