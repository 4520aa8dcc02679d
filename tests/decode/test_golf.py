"""parameter-golf's block, against a plain forward pass written from its description, position by position."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import write_model
from tiebeam.decode import Decoder
from tiebeam.errors import UnreadableInput

V, D, H, K, M, L = 48, 32, 4, 2, 64, 5  # an odd number of layers: two keep their outputs, three come after
N = D // H


def config(**changes: Any) -> dict[str, Any]:
    return {
        "model_type": "tiebeam_golf",
        "vocab_size": V,
        "num_hidden_layers": L,
        "hidden_size": D,
        "num_attention_heads": H,
        "num_key_value_heads": K,
        "intermediate_size": M,
        "max_position_embeddings": 64,
        "rope_theta": 10000.0,
        "logit_softcap": 30.0,
        "tie_word_embeddings": True,
        "embed_dim": None,
        "bridge": False,
        **changes,
    }


def tensors(untied: bool = False, bridge: bool = False, narrow: int | None = None) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)

    def draw(*shape: int, scale: float = 0.3) -> np.ndarray:
        return (random.standard_normal(shape) * scale).astype(np.float32)

    t = {"tok_emb.weight": draw(V, narrow or D, scale=1.0), "skip_weights": 1 + draw(L // 2, D)}
    for i in range(L):
        p = f"blocks.{i}."
        t |= {
            p + "attn.c_q.weight": draw(D, D), p + "attn.c_k.weight": draw(K * N, D),
            p + "attn.c_v.weight": draw(K * N, D), p + "attn.proj.weight": draw(D, D),
            p + "attn.q_gain": 1.5 + draw(H), p + "attn_scale": 1 + draw(D), p + "mlp_scale": 1 + draw(D),
            p + "resid_mix": np.stack([1 + draw(D), draw(D)]),
            p + "mlp.fc.weight": draw(M, D), p + "mlp.proj.weight": draw(D, M),
        }  # fmt: skip
    if untied:
        t["lm_head.weight"] = draw(V, D, scale=1.0)
    if bridge:
        t["bridge.weight"] = draw(D, D)
    if narrow:
        t |= {"embed_proj.weight": draw(D, narrow), "head_proj.weight": draw(narrow, D)}
    return t


def plain_forward(t: dict[str, np.ndarray], tokens: list[int], cap: float = 30.0) -> np.ndarray:  # [T] -> [T, V]
    """One vector at a time, float64, no cache, no batching."""
    t = {name: value.astype(np.float64) for name, value in t.items()}

    def rms(x: np.ndarray) -> np.ndarray:
        return x / math.sqrt((x * x).mean() + 2.0**-23)

    def turn(x: np.ndarray, position: int) -> np.ndarray:  # [N] -> [N]
        half = N // 2
        y = x.copy()
        for j in range(half):
            angle = -position * 10000.0 ** (-2 * j / N)
            y[j] = x[j] * math.cos(angle) - x[half + j] * math.sin(angle)
            y[half + j] = x[half + j] * math.cos(angle) + x[j] * math.sin(angle)
        return y

    def attention(p: str, xs: list[np.ndarray]) -> list[np.ndarray]:
        q = [(t[p + "c_q.weight"] @ x).reshape(H, N) for x in xs]
        k = [(t[p + "c_k.weight"] @ x).reshape(K, N) for x in xs]
        v = [(t[p + "c_v.weight"] @ x).reshape(K, N) for x in xs]
        out = []
        for i in range(len(xs)):
            mixed = np.zeros((H, N))
            for h in range(H):
                query = turn(rms(q[i][h]), i) * t[p + "q_gain"][h]
                g = h // (H // K)
                scores = np.array([query @ turn(rms(k[j][g]), j) / math.sqrt(N) for j in range(i + 1)])
                weights = np.exp(scores - scores.max())
                mixed[h] = sum(w * v[j][g] for j, w in enumerate(weights / weights.sum()))
            out.append(t[p + "proj.weight"] @ mixed.ravel())
        return out

    def block(i: int, xs: list[np.ndarray], firsts: list[np.ndarray]) -> list[np.ndarray]:
        p = f"blocks.{i}."
        mix = t[p + "resid_mix"]
        xs = [mix[0] * x + mix[1] * first for x, first in zip(xs, firsts, strict=True)]
        attended = attention(p + "attn.", [rms(x) for x in xs])
        xs = [x + t[p + "attn_scale"] * a for x, a in zip(xs, attended, strict=True)]
        fed = [t[p + "mlp.proj.weight"] @ np.maximum(t[p + "mlp.fc.weight"] @ rms(x), 0) ** 2 for x in xs]
        return [x + t[p + "mlp_scale"] * m for x, m in zip(xs, fed, strict=True)]

    table = t["tok_emb.weight"]
    xs = [table[token] for token in tokens]
    if "embed_proj.weight" in t:
        xs = [t["embed_proj.weight"] @ x for x in xs]
    xs = firsts = [rms(x) for x in xs]
    skips = []
    for i in range(L // 2):
        xs = block(i, xs, firsts)
        skips.append(xs)
    for i in range(L // 2, L):
        if skips:
            weight = t["skip_weights"][i - L // 2]
            xs = [x + weight * skip for x, skip in zip(xs, skips.pop(), strict=True)]
        xs = block(i, xs, firsts)
    logits = []
    for x in map(rms, xs):
        if "bridge.weight" in t:
            x = t["bridge.weight"] @ x
        if "head_proj.weight" in t:
            x = t["head_proj.weight"] @ x
        z = t.get("lm_head.weight", table) @ x
        logits.append(cap * np.tanh(z / cap))
    return np.array(logits)


@pytest.mark.parametrize("form", [{}, {"untied": True}, {"bridge": True}, {"narrow": 12}], ids=str)
def test_golf_agrees_with_the_plain_forward(form, tmp_path: Path):
    stored = tensors(**form)
    said = config(tie_word_embeddings="untied" not in form, bridge="bridge" in form, embed_dim=form.get("narrow"))
    decoder = Decoder.open(write_model(tmp_path / "m", stored, said))
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 47, 0]
    expected = plain_forward(stored, tokens)
    assert decoder.notes == ()
    assert np.abs(expected).max() > 10, "the cap must be felt"
    np.testing.assert_allclose(decoder.logits(tokens), expected, rtol=0, atol=2e-4)
    cache = decoder.cache(len(tokens))
    steps = [decoder.unembed(decoder.forward([token], cache)) for token in tokens]
    np.testing.assert_allclose(np.concatenate(steps), expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("form", [{}, {"tie": False}, {"bridge": True}, {"embed_dim": 12}], ids=str)
def test_a_saved_gpt_module_gives_the_same_logits(form, tmp_path: Path):
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    from tiebeam.nn import GPT, GPTConfig

    torch.manual_seed(0)
    model = GPT(GPTConfig(vocab=V, dim=D, layers=L, heads=H, kv_heads=K, arch="golf", context=64, **form))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
        expected = model(torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]]))[0].numpy()
    said, stored = model.export()
    save_file(stored, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(said))
    decoder = Decoder.open(tmp_path)
    assert decoder.notes == ()
    np.testing.assert_allclose(decoder.logits([3, 1, 4, 1, 5, 9, 2, 6]), expected, rtol=0, atol=2e-4)


def test_the_softcap_is_read_from_the_config(tmp_path: Path):
    stored = tensors()
    decoder = Decoder.open(write_model(tmp_path / "m", stored, config(logit_softcap=15.0)))
    np.testing.assert_allclose(decoder.logits([1, 2]), plain_forward(stored, [1, 2], cap=15.0), rtol=0, atol=2e-4)


def test_a_narrow_table_needs_its_projection(tmp_path: Path):
    stored = tensors(narrow=12)
    del stored["embed_proj.weight"]
    with pytest.raises(UnreadableInput, match=r"needs embed_proj.weight \[32, 12\]"):
        Decoder.open(write_model(tmp_path / "m", stored, config(embed_dim=12)))
