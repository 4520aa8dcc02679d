"""Decoding with GPT-2 124M shapes in float32, a prompt of 64 and 64 new tokens: ours against the uncached NumPy way,
against transformers with its cache, and against the time that reading the weights once for each token takes.

A new token is timed by itself, and the fastest of them counts for each side: on a machine that does anything else
no run of 64 goes undisturbed, and reading the weights, which takes as long as one token, would be flattered.

python bench/decode.py [--quick] [--json]
"""

from __future__ import annotations

import sys

sys.path.append(sys.path.pop(0))  # bench/inspect.py is named like a standard module, and the standard one must win

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from _common import Row, in_child, main, row
from safetensors.numpy import load_file, save_file

from tiebeam.decode import Decoder, Token

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = 12, 768, 12, 50257, 1024
PROMPT, NEW = 64, 64


def write_gpt2(where: Path) -> Path:
    random = np.random.default_rng(0)

    def draw(*shape: int) -> np.ndarray:
        return random.standard_normal(shape, np.float32) * np.float32(0.02)

    tensors = {"transformer.wte.weight": draw(VOCAB, WIDTH), "transformer.wpe.weight": draw(CONTEXT, WIDTH)}
    norms = ["transformer.ln_f"]
    for i in range(LAYERS):
        p = f"transformer.h.{i}."
        norms += [p + "ln_1", p + "ln_2"]
        for name, inner, outer in (
            ("attn.c_attn", 1, 3),
            ("attn.c_proj", 1, 1),
            ("mlp.c_fc", 1, 4),
            ("mlp.c_proj", 4, 1),
        ):
            tensors[f"{p}{name}.weight"] = draw(inner * WIDTH, outer * WIDTH)
            tensors[f"{p}{name}.bias"] = draw(outer * WIDTH)
    for name in norms:
        tensors[name + ".weight"], tensors[name + ".bias"] = np.ones(WIDTH, np.float32), np.zeros(WIDTH, np.float32)
    save_file(tensors, where / "model.safetensors", metadata={"format": "pt"})
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": True}
    (where / "config.json").write_text(json.dumps(config))
    return where


def uncached(t: dict[str, np.ndarray], tokens: list[int]) -> int:
    """The next token by a whole forward pass, as picoGPT does it (with float32 kept: its np.sqrt would promote)."""

    def norm(x: np.ndarray, p: str) -> np.ndarray:
        mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
        return t[p + ".weight"] * (x - mean) / np.sqrt(variance + 1e-5) + t[p + ".bias"]

    def linear(x: np.ndarray, p: str) -> np.ndarray:
        return x @ t[p + ".weight"] + t[p + ".bias"]

    def gelu(x: np.ndarray) -> np.ndarray:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(-1, keepdims=True))
        return e / e.sum(-1, keepdims=True)

    x = t["transformer.wte.weight"][tokens] + t["transformer.wpe.weight"][: len(tokens)]
    mask = (1 - np.tri(len(tokens), dtype=np.float32)) * np.float32(-1e10)
    for i in range(LAYERS):
        p = f"transformer.h.{i}."
        qkv = np.split(linear(norm(x, p + "ln_1"), p + "attn.c_attn"), 3, axis=-1)
        q, k, v = (np.split(part, HEADS, axis=-1) for part in qkv)
        heads = [softmax(q[h] @ k[h].T / math.sqrt(WIDTH // HEADS) + mask) @ v[h] for h in range(HEADS)]
        x = x + linear(np.hstack(heads), p + "attn.c_proj")
        x = x + linear(gelu(linear(norm(x, p + "ln_2"), p + "mlp.c_fc")), p + "mlp.c_proj")
    return int(np.argmax((norm(x, "transformer.ln_f") @ t["transformer.wte.weight"].T)[-1]))


class Clock:
    """The fastest first token and the fastest later token of each side; also a streamer for transformers."""

    def __init__(self) -> None:
        self.best: dict[str, float] = {}
        self.first: dict[str, float] = {}
        self._puts, self._at = 0, 0.0

    def each(self, side: str, tokens: Iterator[Token]) -> Iterator[Token]:
        last, times = time.perf_counter(), self.first
        for token in tokens:
            now = time.perf_counter()
            times[side] = min(times.get(side, now - last), now - last)
            yield token
            last, times = time.perf_counter(), self.best

    def time(self, side: str, run: Callable[[], object]) -> None:
        start = time.perf_counter()
        run()
        took = time.perf_counter() - start
        self.best[side] = min(self.best.get(side, took), took)

    def put(self, _: object) -> None:
        """Called with the prompt, with the first token, and with each token after it."""
        now = time.perf_counter()
        self._puts += 1
        if self._puts > 2:
            self.best["theirs"] = min(self.best.get("theirs", now - self._at), now - self._at)
        self._at = now

    def end(self) -> None:
        self._puts = 0


def rows(quick: bool) -> Iterator[Row]:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    rounds = 3 if quick else 8
    with tempfile.TemporaryDirectory() as scratch:
        where = write_gpt2(Path(scratch))
        tensors = load_file(where / "model.safetensors")
        decoder = Decoder.open(where)
        peer = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
        peer.generation_config.eos_token_id = None
        prompt = np.random.default_rng(1).integers(0, VOCAB, PROMPT).tolist()
        batch = torch.tensor([prompt])

        def ours(new: int) -> list[int]:
            return [token.id for token in clock.each("ours", decoder.generate(prompt, new))]

        def theirs(new: int) -> list[int]:
            made = peer.generate(
                batch, attention_mask=torch.ones_like(batch), max_new_tokens=new, do_sample=False, streamer=clock
            )
            return made[0, PROMPT:].tolist()

        clock = Clock()
        assert ours(8) == theirs(8) == _uncached_run(tensors, prompt, 8), "the three outputs must be equal"
        # A token reads everything but the position table: the embedding too, as it is the head.
        touched = sum(value.nbytes for name, value in tensors.items() if "wpe" not in name)
        block = np.ones(touched // 4, np.float32)
        wide = block[: len(block) // 4096 * 4096].reshape(-1, 4096)
        vector, h = np.ones(4096, np.float32), np.ones((1, WIDTH), np.float32)
        middle = prompt + ours(NEW // 2)  # the mean length of an uncached forward
        for _ in range(rounds):
            ours(NEW)
            theirs(NEW)
            clock.time("uncached", lambda: uncached(tensors, middle))
            for _ in range(12):
                clock.time("read", lambda: np.dot(block, block))
                clock.time("read by BLAS", lambda: wide @ vector)
                for _ in range(3):
                    clock.time("head", lambda: decoder.unembed(h))
        best = clock.best
        limit = min(best["read"], best["read by BLAS"])
        step, first = best["ours"], clock.first["ours"]
        whole = first + (NEW - 1) * step
        yield row("64 new tokens after 64", NEW * best["uncached"] / whole, "uncached NumPy, speed", ">= 20")
        yield row("each new token", best["theirs"] / step, "transformers with its cache, speed", ">= 1.2")
        yield row("each new token", limit / step, "reading the weights once, speed", ">= 0.7")
        share = tensors["transformer.wte.weight"].nbytes / touched
        yield row("h @ E.T for one token", limit * share / best["head"], "reading E once, speed", ">= 0.85")
        weights = sum(value.nbytes for value in tensors.values())
        child = in_child(MEMORY, str(where), json.dumps(prompt))
        yield row("peak memory", child["peak_rss"] / (weights + 200e6), "weights + 200 MB", "<= 1.0")


def _uncached_run(tensors: dict[str, np.ndarray], prompt: list[int], new: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(new):
        tokens.append(uncached(tensors, tokens))
    return tokens[len(prompt) :]


MEMORY = f"""
import json, sys
from tiebeam.decode import Decoder, Token
assert len(list(Decoder.open(sys.argv[1]).generate(json.loads(sys.argv[2]), {NEW}))) == {NEW}
"""

if __name__ == "__main__":
    main(rows)
