"""Time and memory of tie and untie on a 2.2 GB checkpoint of three shards, compared with cp and with transformers.

cp does not flush to disk, so the first rows do not either; the next ones flush on both sides. Logits are not compared
here: that would measure the decoder.
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py has the name of a standard module, which must be found first

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from _common import Row, in_child, main, row

from tiebeam.checkpoint.write.copy_bytes import Made, write_files
from tiebeam.checkpoint.write.safetensors import Entry, layout
from tiebeam.surgery import tie, untie

UNTIE = """
import sys
from tiebeam.surgery import untie
untie(sys.argv[1], sys.argv[2], proof=False)
"""
TRANSFORMERS = """
import sys
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], tie_word_embeddings=True)
model.tie_weights()
model.save_pretrained(sys.argv[2], max_shard_size="900MB")
"""
NOTHING = "import tiebeam.surgery"
# Random rows: memory does not depend on their number, and 128k of them would only take longer.
JOINT = """
import sys
import numpy as np
from tiebeam.surgery.joint.decomposition import moments_of, spectrum_of, square_roots
D, V = int(sys.argv[1]), int(sys.argv[2])
random = np.random.default_rng(0)
rows = lambda start, stop: tuple(random.standard_normal((stop - start, D), dtype=np.float32) for _ in range(2))
moments = moments_of(rows, np.full(V, 1 / V), D)
spectrum_of(moments, square_roots(np.eye(D)), 1.0).factors(D)
"""


def checkpoint(where: Path, twin: bool, layers: int) -> Path:
    """A Llama of TinyLlama's shape in bf16, in three shards."""
    V, D, F, K = 32000, 2048, 5632, 256
    shapes = {"model.embed_tokens.weight": (V, D)}
    for i in range(layers):
        layer = f"model.layers.{i}."
        shapes |= {
            layer + "self_attn.q_proj.weight": (D, D), layer + "self_attn.k_proj.weight": (K, D),
            layer + "self_attn.v_proj.weight": (K, D), layer + "self_attn.o_proj.weight": (D, D),
            layer + "mlp.gate_proj.weight": (F, D), layer + "mlp.up_proj.weight": (F, D),
            layer + "mlp.down_proj.weight": (D, F), layer + "input_layernorm.weight": (D,),
            layer + "post_attention_layernorm.weight": (D,),
        }  # fmt: skip
    shapes["model.norm.weight"] = (D,)
    if twin:
        shapes["lm_head.weight"] = (V, D)
    noise = os.urandom(1 << 20)
    small = bytes(b & 0xBF for b in noise)  # bf16 values below 2: no infinities, which transformers would not handle

    def entry(name: str) -> Entry:
        shape = shapes[name]
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        return Entry(
            name,
            "BF16",
            shape,
            Made(size, lambda: (small[: min(1 << 20, size - at)] for at in range(0, size, 1 << 20))),
        )

    where.mkdir(parents=True)
    total = sum(entry(name).nbytes for name in shapes)
    piles: list[list[Entry]] = [[], [], []]
    done = 0
    for name in shapes:
        piles[min(2, 3 * done // total)].append(entry(name))
        done += entry(name).nbytes
    weight_map = {}
    for i, pile in enumerate(piles, 1):
        file = f"model-{i:05d}-of-00003.safetensors"
        write_files([(where / file, layout(pile, {"format": "pt"}))])
        weight_map |= {e.name: file for e in pile}
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (where / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": V, "hidden_size": D,
        "intermediate_size": F, "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 4,
        "tie_word_embeddings": not twin, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (where / "config.json").write_text(json.dumps(config))
    return where


def best_of(sides: dict[str, Callable[[Path], object]], place: Path, rounds: int) -> dict[str, float]:
    """Best time of each function in seconds, each run with a new target; cleaning up is not timed."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for name, run in sides.items():
            target = place / "target"
            start = time.perf_counter()
            run(target)
            best[name] = min(best[name], time.perf_counter() - start)
            shutil.rmtree(target)
            os.sync()
    return best


def rows(quick: bool) -> list[Row]:
    rounds = 2 if quick else 5
    place = Path(tempfile.mkdtemp(prefix="tiebeam-bench-", dir=os.environ.get("TMPDIR", "/var/tmp")))
    try:
        layers = 4 if quick else 22
        twin, shared = checkpoint(place / "twin", True, layers), checkpoint(place / "shared", False, layers)
        fast = {"proof": False, "durable": False}
        times = best_of(
            {
                "cp": lambda t: subprocess.run(["cp", "-r", twin, t], check=True),
                "tie": lambda t: tie(twin, t, **fast),
                "untie": lambda t: untie(shared, t, **fast),
                "tie --link": lambda t: tie(twin, t, **fast, link=True),
                "untie --link": lambda t: untie(shared, t, **fast, link=True),
                "cp + sync": lambda t: subprocess.run(f"cp -r '{twin}' '{t}' && sync '{t}'/*", shell=True, check=True),
                "tie, flushed": lambda t: tie(twin, t, proof=False),
                "transformers": lambda t: in_child(TRANSFORMERS, str(twin), str(t)),
            },
            place,
            rounds,
        )
        base = in_child(NOTHING)["peak_rss"]
        peak = in_child(UNTIE, str(shared), str(place / "memory"))["peak_rss"]
        wide = 512 if quick else 4096
        joint = in_child(JOINT, str(wide), str(2 * wide))["peak_rss"]
        allowed = 2e9 if not quick else 2e8
        return [
            row("tie, every byte copied and compared", times["tie"] / times["cp"], "cp -r", "<= 1.15"),
            row("untie, every byte copied and compared", times["untie"] / times["cp"], "cp -r", "<= 1.15"),
            row("tie --link", times["tie --link"] / times["cp"], "cp -r", "<= 0.4"),
            row("untie --link", times["untie --link"] / times["cp"], "cp -r", "<= 0.4"),
            row("tie, flushed to the disk", times["tie, flushed"] / times["cp + sync"], "cp -r and sync", "<= 1.15"),
            row("tie, against load-tie-save", times["transformers"] / times["tie"], "our time", ">= 5"),
            row("untie, peak memory", peak / 150e6, "150 MB", "<= 1.0"),
            row("untie, memory beyond the imports", (peak - base) / 20e6, "20 MB", "<= 1.0"),
            row(f"tie --joint at width {wide:,}, peak memory", joint / allowed, f"{allowed / 1e9:g} GB", "<= 1.0"),
        ]
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main(rows)
