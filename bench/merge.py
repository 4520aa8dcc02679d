"""Time and memory of merging a LoRA of rank 16 on all linear layers into a 2.2 GB base, compared with PEFT.

PEFT does what its users write: load the base in bf16, load the adapter, merge_and_unload, save_pretrained. Each side
runs in a process of its own, imports included, and they take turns. Neither side flushes to disk or runs the model:
PEFT proves nothing, and a proof here would measure the decoder.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py has the name of a standard module, which must be found first

import json
import os
import shutil
import tempfile
import time
from pathlib import Path

from _common import Row, in_child, main, row

from surgery import checkpoint

OURS = """
import sys
from tiebeam.surgery.merge import merge
merge(sys.argv[1], sys.argv[2], sys.argv[3], proof=False, durable=False)
"""
PEFT = """
import sys
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM
base = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
PeftModel.from_pretrained(base, sys.argv[2]).merge_and_unload().save_pretrained(sys.argv[3], max_shard_size="900MB")
"""
RANK = 16


def adapter(where: Path, base: Path, layers: int) -> Path:
    """A LoRA on every linear layer of `base`, as PEFT saves it."""
    import numpy as np
    from safetensors.numpy import save_file

    D, F, K = 2048, 5632, 256
    shapes = {"q_proj": (D, D), "k_proj": (K, D), "v_proj": (K, D), "o_proj": (D, D)}
    mlp = {"gate_proj": (F, D), "up_proj": (F, D), "down_proj": (D, F)}
    random, tensors = np.random.default_rng(0), {}
    for i in range(layers):
        for part, modules in (("self_attn", shapes), ("mlp", mlp)):
            for module, (out, into) in modules.items():
                name = f"base_model.model.model.layers.{i}.{part}.{module}"
                tensors[f"{name}.lora_A.weight"] = random.standard_normal((RANK, into), np.float32) * 0.01
                tensors[f"{name}.lora_B.weight"] = random.standard_normal((out, RANK), np.float32) * 0.01
    where.mkdir()
    save_file(tensors, where / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 32, "bias": "none",
        "base_model_name_or_path": str(base), "target_modules": [*shapes, *mlp], "inference_mode": True,
    }  # fmt: skip
    (where / "adapter_config.json").write_text(json.dumps(config))
    return where


def rows(quick: bool) -> list[Row]:
    rounds = 1 if quick else 3
    place = Path(tempfile.mkdtemp(prefix="tiebeam-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        layers = 4 if quick else 22
        base = checkpoint(place / "base", True, layers)
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        trained = adapter(place / "adapter", base, layers)
        times: dict[str, list[float]] = {"ours": [], "peft": []}
        peaks: dict[str, list[float]] = {"ours": [], "peft": []}
        for _ in range(rounds):
            for name, program in (("ours", OURS), ("peft", PEFT)):
                start = time.perf_counter()
                done = in_child(program, str(base), str(trained), str(place / "out"))
                times[name].append(time.perf_counter() - start)
                peaks[name].append(done["peak_rss"])
                shutil.rmtree(place / "out")
                os.sync()
        for name, seconds in times.items():
            spread = f"{min(seconds):.1f} to {max(seconds):.1f} s"
            print(f"{name}: {spread}, peak {max(peaks[name]) / 1e6:,.0f} MB", file=sys.stderr)
        fast, small = min(times["ours"]), max(peaks["ours"])
        return [
            row("merge, against merge_and_unload and save_pretrained", min(times["peft"]) / fast, "our time", ">= 3"),
            row("merge, peak memory against PEFT's", small / min(peaks["peft"]), "PEFT's peak", "<= 0.2"),
            row("merge, peak memory", small / 400e6, "400 MB", "<= 1.0"),
        ]
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(rows)
