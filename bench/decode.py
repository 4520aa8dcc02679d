"""Decoding with GPT-2 124M shapes in float32: a new token over reading the weights once, over transformers and over the
uncached NumPy way; the head alone; and a prompt of 512 tokens against transformers.

python bench/decode.py [--quick] [--json]

Reading the weights is numpy.dot or a matrix-vector product over as many bytes, whichever is faster here. The limit of a
token is its matrix-vector products alone, with nothing in between.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench, Row, Seconds, Side, in_child, main, several, timed
from safetensors.numpy import load_file, save_file

from tiebeam.decode import Decoder

LAYERS, WIDTH, HEADS, VOCAB, CONTEXT = 12, 768, 12, 50257, 1024
PROMPT, NEW = 64, 16
PREFILL = 512
HUGE_PAGE = 2 << 20  # bytes


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
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "tie_word_embeddings": True,
              "n_layer": LAYERS, "vocab_size": VOCAB}  # fmt: skip
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


class Streamer:
    """Times the tokens that transformers makes: `put` is called with the prompt, then with each token."""

    def __init__(self) -> None:
        self.at: list[float] = []

    def put(self, _: object) -> None:
        self.at.append(time.perf_counter())

    def end(self) -> None: ...

    def seconds(self) -> Seconds:
        """Of a token after the first, which includes the prompt."""
        return Seconds((self.at[-1] - self.at[1]) / (len(self.at) - 2))


class Peers:
    """The same weights in our decoder, in transformers and as arrays."""

    def __init__(self, where: Path) -> None:
        import torch
        import transformers

        transformers.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self.tensors = load_file(where / "model.safetensors")
        self.decoder = Decoder.open(where)
        self.peer: Any = transformers.AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32)
        self.peer.generation_config.eos_token_id = None
        self.torch = torch

    def ours(self, prompt: list[int], new: int = NEW) -> Seconds:
        stream = self.decoder.generate(prompt, new)
        next(stream)
        start = time.perf_counter()
        made = sum(1 for _ in stream)
        return Seconds((time.perf_counter() - start) / made)

    def theirs(self, prompt: list[int], new: int = NEW) -> Seconds:
        batch, streamer = self.torch.tensor([prompt]), Streamer()
        self.peer.generate(
            batch, attention_mask=self.torch.ones_like(batch), max_new_tokens=new, do_sample=False, streamer=streamer
        )
        return streamer.seconds()

    def our_prefill(self, prompt: list[int]) -> None:
        hidden = self.decoder.forward(prompt, self.decoder.cache(len(prompt) + 1))
        self.decoder.unembed(hidden[-1:])

    def their_prefill(self, prompt: list[int]) -> None:
        with self.torch.inference_mode():
            self.peer(self.torch.tensor([prompt]), use_cache=True, logits_to_keep=1)

    def check(self, prompt: list[int]) -> None:
        batch = self.torch.tensor([prompt])
        made = self.peer.generate(batch, attention_mask=self.torch.ones_like(batch), max_new_tokens=4, do_sample=False)[
            0, len(prompt) :
        ].tolist()
        ours = [token.id for token in self.decoder.generate(prompt, 4)]
        assert ours == made == _uncached_run(self.tensors, prompt, 4), "the three outputs must be equal"

    def products(self, tokens: int) -> Side:
        """Only the matrix products of a forward pass, each into a fresh array, and the head for one token."""
        weights = [t for name, t in self.tensors.items() if t.ndim == 2 and "wte" not in name and "wpe" not in name]
        E, h = self.tensors["transformer.wte.weight"], np.ones(WIDTH, np.float32)
        stored = weights
        if tokens == 1:  # rows are read in order
            *stored, E = in_one_block([*(t.T for t in weights), E])
        inputs = {n: np.ones((tokens, n), np.float32) for n in (WIDTH, 4 * WIDTH)}

        def run() -> None:
            for W, S in zip(weights, stored, strict=True):
                S @ inputs[W.shape[0]][0] if tokens == 1 else inputs[W.shape[0]] @ S
            E @ h

        return run


def in_one_block(arrays: list[np.ndarray]) -> list[np.ndarray]:
    """Contiguous copies cut from one allocation in huge pages."""
    block, at, cut = aligned(sum(a.size for a in arrays)), 0, []
    for array in arrays:
        cut.append(block[at : at + array.size].reshape(array.shape))
        cut[-1][:] = array
        at += array.size
    return cut


def aligned(size: int) -> np.ndarray:
    """An array that begins with a huge page: reading it is a little faster than 16 bytes later, where NumPy's begin."""
    room = np.empty(size + HUGE_PAGE // 4, np.float32)
    start = -room.ctypes.data % HUGE_PAGE // 4
    return room[start : start + size]


def reading(size: int) -> Side:
    """The faster way to read as many numbers once."""
    block = aligned(size)
    block[:] = 1.0
    wide = block[: len(block) // 4096 * 4096].reshape(-1, 4096)
    vector = np.ones(4096, np.float32)
    ways: list[Side] = [lambda: np.dot(block, block), lambda: wide @ vector]
    return min(ways, key=lambda way: min(_seconds(way) for _ in range(5)))


def _seconds(call: Side) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def rows(bench: Bench) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as scratch:
        where = write_gpt2(Path(scratch))
        sides = Peers(where)
        prompt = np.random.default_rng(1).integers(0, VOCAB, PREFILL).tolist()
        short = prompt[:PROMPT]
        sides.check(short)
        # A token reads everything but the position table: the embedding too, as it is the head.
        touched = sum(value.nbytes for name, value in sides.tensors.items() if "wpe" not in name)
        token = bench.measure(
            {
                "read": reading(touched // 4),
                "ours": partial(sides.ours, short),
                "limit": sides.products(1),
            },
            "read", bench.budget * 0.15, judged=("ours",),
        )  # fmt: skip
        job = "decode, one token, over reading the weights once"
        yield timed("each new token, speed over reading the weights", token, "ours", "reading the weights once",
                    ">= 0.83", speed=True, bound="<= 1.0", limited_by="its matrix-vector products alone", limit="limit",
                    job=job)  # fmt: skip
        # In rounds of its own: the threads of torch spin for a while after their work and slow down what comes next.
        peer = bench.measure(
            {"theirs": partial(sides.theirs, short), "ours": partial(sides.ours, short)}, "theirs", bench.budget * 0.12
        )  # fmt: skip
        yield timed("each new token, speed over transformers", peer, "ours", "transformers with its cache", ">= 1.2",
                    speed=True, limited_by="reading the weights")  # fmt: skip
        E, h = sides.tensors["transformer.wte.weight"], np.ones((1, WIDTH), np.float32)
        [own] = in_one_block([E])
        head = bench.measure(
            {"read": reading(E.size), "head": lambda: sides.decoder.unembed(h), "limit": lambda: own @ h[0]},
            "read", bench.budget * 0.1, judged=("head",),
        )  # fmt: skip
        yield timed("h @ E.T for one token, speed", head, "head", "reading E once", ">= 0.85", speed=True,
                    bound="<= 1.0", limited_by="numpy's E @ h alone", limit="limit", job=job)  # fmt: skip
        prefill = bench.measure(
            {
                "theirs": partial(sides.their_prefill, prompt),
                "ours": partial(sides.our_prefill, prompt),
                "limit": sides.products(PREFILL),
            },
            "theirs", bench.budget * 0.25, judged=("ours",),
        )  # fmt: skip
        yield timed("prefill of 512 tokens, speed", prefill, "ours", "transformers", ">= 0.9", speed=True,
                    limit="limit", limited_by="its matrix products alone, by NumPy",
                    job="prefill of 512 tokens against transformers")  # fmt: skip
        middle = prompt[: PROMPT + 32]  # the mean length of an uncached forward in 64 tokens
        whole = bench.measure(
            {"uncached": lambda: uncached(sides.tensors, middle), "ours": partial(sides.ours, short)}, "uncached",
            bench.budget * 0.08,
        )  # fmt: skip
        yield timed("each new token, speed over uncached NumPy", whole, "ours", "a whole forward pass of 96 tokens",
                    ">= 10", speed=True, limited_by="reading the weights")  # fmt: skip
        weights = sum(value.nbytes for value in sides.tensors.values())
        peak = [in_child(MEMORY, str(where), json.dumps(short))["peak_rss"] / (weights + 200e6) for _ in range(2)]
        yield several("peak memory of decoding", peak, "weights + 200 MB", "<= 1.0", limited_by="the weights")


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
