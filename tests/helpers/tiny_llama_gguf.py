"""A tiny Llama as a GGUF file with a tokenizer inside, its vocabulary matrices in any types; no torch needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from helpers.tiny_tokenizers import write_tokenizer

VOCAB, DIM, LAYERS = 300, 64, 2
TEXT = "It was a dark and stormy night; the rain fell in torrents. hello world, the world is wide. " * 40


def table(seed: int, rows: int = VOCAB) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, DIM), np.float32) * np.float32(0.3)


def write_llama_gguf(
    where: Path, embed: str = "F32", head: str | None = None, *, tables: tuple[Any, Any] | None = None,
    architecture: str = "llama",
) -> Path:  # fmt: skip
    """`head` None: tied. `tables`: the numbers of both; the same by default."""
    E, W = tables or (table(0), table(0))
    writer = gguf.GGUFWriter(where, architecture)
    writer.add_block_count(LAYERS)
    writer.add_context_length(512)
    writer.add_embedding_length(DIM)
    writer.add_head_count(4)
    writer.add_head_count_kv(4)
    writer.add_feed_forward_length(DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    _add_tokenizer(writer, where.parent)
    random = np.random.default_rng(1)
    _add(writer, "token_embd.weight", E, embed)
    for i in range(LAYERS):
        for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
            _add(writer, f"blk.{i}.{name}.weight", random.standard_normal((DIM, DIM), np.float32) * 0.1, "Q8_0")
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{i}.{name}.weight", np.ones(DIM, np.float32))
    writer.add_tensor("output_norm.weight", np.linspace(0.2, 3, DIM, dtype=np.float32))  # directions of unequal size
    if head is not None:
        _add(writer, "output.weight", W, head)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return where


def _add(writer: gguf.GGUFWriter, name: str, values: np.ndarray, dtype: str) -> None:
    kind = gguf.GGMLQuantizationType[dtype]
    writer.add_tensor(name, gguf.quants.quantize(np.ascontiguousarray(values, np.float32), kind), raw_dtype=kind)


def _add_tokenizer(writer: gguf.GGUFWriter, scratch: Path) -> None:
    write_tokenizer(scratch, VOCAB)
    model = json.loads((scratch / "tokenizer.json").read_text())["model"]
    (scratch / "tokenizer.json").unlink()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    writer.add_token_types([3, *([1] * (VOCAB - 1))])
    writer.add_token_merges([" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]])


def stored(path: Path) -> dict[str, tuple[str, bytes]]:
    """tensor: its type and bytes, as the gguf package reads them."""
    return {t.name: (t.tensor_type.name, np.asarray(t.data).tobytes()) for t in gguf.GGUFReader(path).tensors}


def numbers(path: Path, name: str) -> np.ndarray:
    """The numbers of a tensor, dequantised by the gguf package."""
    tensor = next(t for t in gguf.GGUFReader(path).tensors if t.name == name)
    found = gguf.quants.dequantize(np.asarray(tensor.data), tensor.tensor_type)
    return np.asarray(found, np.float32).reshape(-1, DIM)
