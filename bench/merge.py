"""Time and memory of merging a LoRA of rank 16 on all linear layers into a base of 0.7 GB, compared with PEFT.

PEFT does what its users write: load the base in bf16, load the adapter, merge_and_unload, save_pretrained. Each side
runs in a process of its own, imports included, and they take turns. Neither side flushes to disk or runs the model:
PEFT proves nothing, and a proof here would measure the decoder.

python bench/merge.py [--quick] [--json]
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness import Bench, Row, in_child, main, several, timed

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


def rows(bench: Bench) -> Iterator[Row]:
    place = Path(tempfile.mkdtemp(prefix="tiebeam-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        layers = 2 if bench.quick else 5
        base = checkpoint(place / "base", True, layers)
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps({**config, "tie_word_embeddings": False}))
        trained = adapter(place / "adapter", base, layers)
        peaks: dict[str, list[float]] = {"ours": [], "peft": []}

        def run(name: str, program: str) -> None:
            peaks[name].append(in_child(program, str(base), str(trained), str(place / "out"))["peak_rss"])

        def after() -> None:
            shutil.rmtree(place / "out", ignore_errors=True)
            os.sync()

        found = bench.measure(
            {"peft": lambda: run("peft", PEFT), "ours": lambda: run("ours", OURS)}, "peft", bench.budget * 0.5,
            after=after, fewest=6, warmup=False,
        )  # fmt: skip
        yield timed("merge, speed", found, "ours", "merge_and_unload and save_pretrained", ">= 3", speed=True,
                    limited_by="B.A of every layer, rounded to bf16, and the copy")  # fmt: skip
        ratios = [ours / min(peaks["peft"]) for ours in peaks["ours"]]
        yield several("merge, peak memory against PEFT", ratios, "PEFT's peak", "<= 0.2", limited_by="the imports")
        yield several("merge, peak memory", [x / 1e6 for x in peaks["ours"]], "MB", "<= 400", unit="MB",
                      limited_by="one tensor in float32")  # fmt: skip
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(rows)
