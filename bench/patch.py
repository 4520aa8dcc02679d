"""A training step of a Hugging Face causal LM with `tiebeam.nn.patch`: peak memory and time against the plain model.

python bench/patch.py [--quick] [--json]

The model is a Llama with V = 128,256 and two small layers, tied, in float32: forward, backward, AdamW's step. Memory is
the peak of a fresh process, and what the step adds to what it held before; the rounds of the time are interleaved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from harness import STATUS, Bench, Row, in_child, main, several, timed

from tiebeam.nn import patch

VOCAB, DIM = 128_256, 128


def model_and_batch(patched: bool, tokens: int, vocab: int = VOCAB) -> tuple[Any, torch.Tensor]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab, hidden_size=DIM, intermediate_size=2 * DIM, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).train()
    return patch(model) if patched else model, torch.randint(vocab, (max(1, tokens // 512), min(512, tokens)))


def step(patched: bool, tokens: int, vocab: int = VOCAB) -> Callable[[], None]:
    model, ids = model_and_batch(patched, tokens, vocab)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def run() -> None:
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return run


MEMORY = (
    STATUS
    + """
sys.path.append(sys.argv[1])
from patch import step
patched, tokens = sys.argv[2] == "patched", int(sys.argv[3])
step(patched, 32, 64)()
run = step(patched, tokens)
before = reset_peak()
run()
print(json.dumps({"peak": status("VmHWM"), "beyond": status("VmHWM") - before}))
"""
)


def memory(patched: bool, tokens: int) -> dict[str, float]:
    """`peak`: bytes of the process in one step; `beyond`: what the step adds to model and libraries."""
    return in_child(MEMORY, str(Path(__file__).parent), "patched" if patched else "plain", str(tokens))


def rows(bench: Bench) -> Iterator[Row]:
    tokens = 2048
    label = f"Llama step, V = {VOCAB:,}, {tokens:,} tokens"
    launches = [{name: memory(name == "patched", tokens) for name in ("patched", "plain")} for _ in range(2)]
    for name in ("patched", "plain"):
        used = launches[0][name]
        bench.say(f"{name}: peak {used['peak'] / 1e9:.2f} GB, of the step {used['beyond'] / 1e9:.2f} GB")
    for key, what in (("peak", "peak memory of the process"), ("beyond", "memory of the step")):
        ratios = [found["patched"][key] / found["plain"][key] for found in launches]
        yield several(
            f"{label}: {what}", ratios, "the plain model", "<= 0.5", limited_by="weights, gradient and moments"
        )
    found = bench.measure({name: step(name == "patched", tokens) for name in ("plain", "patched")}, "plain",
                          bench.budget * 0.4)  # fmt: skip
    yield timed(f"{label}: time", found, "patched", "the plain model", "<= 1.0", limited_by="the matrix products")


if __name__ == "__main__":
    main(rows, memory=5)  # the plain model holds its logits three times
