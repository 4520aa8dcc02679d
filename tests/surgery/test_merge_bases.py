"""Bases of every layout: families, shards and 16-bit types, GGUF, names of transformers 4 and 5, multimodal."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.lively_models import lively
from helpers.tiny_ggufs import options, write_gguf
from helpers.tiny_models import build
from helpers.trained_adapters import TOKENS, loaded_logits, train_adapter
from tiebeam.decode import open_engine
from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery.merge import merge

LINEAR = {"target_modules": "all-linear"}
FAMILIES: dict[str, list[str]] = {
    "gpt_neox": ["query_key_value", "dense_h_to_4h"],
    "gemma3_text": ["q_proj", "embed_tokens"],  # its embedding is scaled
    "granite": ["q_proj", "embed_tokens", "lm_head"],
    "mixtral": ["q_proj"],
}
BY_TRANSFORMERS: dict[str, list[str]] = {
    "phi": ["q_proj", "lm_head"], "falcon": ["query_key_value", "word_embeddings"], "opt": ["q_proj"],
    "mamba": ["in_proj"],
}  # fmt: skip


@pytest.mark.parametrize("family", [*FAMILIES, *BY_TRANSFORMERS])
def test_other_families_compute_what_peft_computes(family: str, tmp_path: Path) -> None:
    make = (lambda: lively(family)) if family in FAMILIES else (lambda: build(family))
    trained = train_adapter(tmp_path, built=make, target_modules={**FAMILIES, **BY_TRANSFORMERS}[family])
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert outcome.proof is not None
    assert outcome.proof.ran, outcome.proof.why
    assert outcome.proof.engine == ("numpy" if family in FAMILIES else "transformers")
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shards_of_16_bits_are_within_rounding_and_the_others_are_linked(dtype: Any, tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, dtype=dtype, shard="10KB", target_modules=["down_proj"])
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", link=True, durable=False)
    rounding = np.abs(trained.logits).max() * torch.finfo(dtype).eps * 2
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < rounding
    assert outcome.proof is not None
    assert 0 < outcome.proof.largest < rounding
    files = sorted(path.name for path in trained.base.glob("*.safetensors"))
    assert len(files) > 3
    linked = [name for name in files if (tmp_path / "merged" / name).samefile(trained.base / name)]
    changed = {change.file for change in outcome.changes}
    assert set(files) == set(linked) | changed
    assert linked


def test_numbers_are_rounded_once(tmp_path: Path) -> None:
    """A bf16 result is the float32 sum rounded to nearest, in every bit."""
    trained = train_adapter(tmp_path, dtype=torch.bfloat16, target_modules=["q_proj"])
    merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    name = "model.layers.0.self_attn.q_proj"
    factors = load_file(trained.adapter / "adapter_model.safetensors")
    A, B = (factors[f"base_model.model.{name}.lora_{f}.weight"].double() for f in "AB")
    W = load_file(trained.base / "model.safetensors")[f"{name}.weight"].double()
    expected = (W + 6 / 4 * B @ A).float().bfloat16()
    found = load_file(tmp_path / "merged" / "model.safetensors")[f"{name}.weight"]
    differ = (expected.view(torch.int16) != found.view(torch.int16)).float().mean()
    assert differ < 1e-3, "float32 and float64 sums may round apart at a tie"


GGUF: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", LINEAR, {"tie_word_embeddings": True}),
    "llama, LoRA on the head": ("llama", {"target_modules": ["q_proj", "lm_head"]}, {"tie_word_embeddings": True}),
    "llama, DoRA": (
        "llama",
        {"target_modules": ["q_proj", "k_proj"], "use_dora": True},
        {"tie_word_embeddings": False},
    ),
    "llama, rows": (
        "llama",
        {"target_modules": ["q_proj"], "trainable_token_indices": [3, 4]},
        {"tie_word_embeddings": True},
    ),
    "gpt2": ("gpt2", {"target_modules": ["c_attn", "c_proj", "c_fc"]}, {}),
    "gpt_neox": ("gpt_neox", {"target_modules": ["query_key_value", "dense"]}, {}),
}


@pytest.mark.parametrize("target", ["merged.gguf", "merged"])
@pytest.mark.parametrize("case", GGUF)
def test_a_gguf_of_floats_is_merged_into_a_gguf_or_a_directory(case: str, target: str, tmp_path: Path) -> None:
    """Rows of q and k, orientation and fused qkv are those that llama.cpp's converter wrote."""
    family, adapter, changes = GGUF[case]
    make = lambda: lively(family, **options(family), **changes)  # noqa: E731
    trained = train_adapter(tmp_path, built=make, **adapter)
    base = write_gguf(make(), tmp_path / "base.gguf", "F16" if family == "llama" else "F32")
    outcome = merge(base, trained.adapter, tmp_path / target, durable=False)
    assert outcome.proof is not None
    assert outcome.proof.ran
    found = open_engine(tmp_path / target).logits(TOKENS[0].tolist())
    assert np.abs(found - trained.logits).max() < 5e-3
    assert (outcome.after.tie is Tie.UNTIED) == ("head" in case or family == "gpt_neox" or "DoRA" in case)


def test_a_quantised_gguf_is_merged_into_a_directory_only(tmp_path: Path) -> None:
    make = lambda: lively("llama", intermediate_size=64, tie_word_embeddings=True)  # noqa: E731
    trained = train_adapter(tmp_path, built=make, target_modules=["down_proj"])
    base = write_gguf(make(), tmp_path / "base.gguf", "Q8_0")
    with pytest.raises(BadRequest, match=r"Q8_0.*name a directory as the target"):
        merge(base, trained.adapter, tmp_path / "merged.gguf")
    assert not (tmp_path / "merged.gguf").exists()
    outcome = merge(base, trained.adapter, tmp_path / "merged", dtype="BF16", durable=False)
    assert outcome.proof is not None
    assert outcome.proof.ran
    assert np.abs(open_engine(tmp_path / "merged").logits(TOKENS[0].tolist()) - trained.logits).max() < 0.1


NAMES: dict[str, Callable[[str], str]] = {
    "a language model inside a multimodal one, transformers 5": lambda n: n.replace(
        "model.", "model.language_model.", 1
    ),
    "the same, transformers 4": lambda n: f"language_model.{n}",
    "a base class": lambda n: n.removeprefix("model."),
}


@pytest.mark.parametrize("layout", NAMES)
def test_a_base_under_other_names_is_found(layout: str, tmp_path: Path) -> None:
    """Only leading levels differ; the adapter names the modules of a plain llama."""
    trained = train_adapter(tmp_path, tied=False, target_modules=["q_proj", "down_proj"])
    file = trained.base / "model.safetensors"
    tensors = load_file(file)
    renamed = {NAMES[layout](name): value for name, value in tensors.items()}
    assert set(renamed) != set(tensors)
    save_file(renamed, file, {"format": "pt"})
    merge(trained.base, trained.adapter, tmp_path / "merged", proof=False, durable=False)
    found = load_file(tmp_path / "merged" / "model.safetensors")
    moved = [name for name in renamed if not torch.equal(renamed[name], found[name])]
    assert sorted(moved) == sorted(name for name in renamed if "q_proj" in name or "down_proj" in name)


def test_an_adapter_of_a_multimodal_model_is_merged_into_it(tmp_path: Path) -> None:
    """The real Gemma 3 with vision: the adapter's modules are model.language_model..., and the tower is left alone."""
    import peft
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    text = lively("gemma3_text").config.to_dict()
    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
              "image_size": 28, "patch_size": 14}  # fmt: skip
    config = Gemma3Config(text_config=text, vision_config=vision, mm_tokens_per_image=4)
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(config).eval()
    model.save_pretrained(tmp_path / "base")
    targets = r".*language_model.*\.(q_proj|down_proj)"
    live = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False)).eval()
    live.save_pretrained(tmp_path / "adapter")
    outcome = merge(tmp_path / "base", tmp_path / "adapter", tmp_path / "merged", durable=False)
    assert outcome.proof is not None
    result = Gemma3ForConditionalGeneration.from_pretrained(tmp_path / "merged").eval()
    with torch.no_grad():
        off = (result(TOKENS).logits - live(TOKENS).logits).abs().max()
    assert off < 1e-4
    assert outcome.proof.ran or outcome.proof.why


def test_a_pytorch_base_becomes_safetensors(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, target_modules=["q_proj", "lm_head"])
    file = trained.base / "model.safetensors"
    torch.save(load_file(file), trained.base / "pytorch_model.bin")
    file.unlink()
    merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < 1e-5


def test_a_base_stored_twice_but_tied_gets_both_matrices_right(tmp_path: Path) -> None:
    """A twin: the flag says tied and the head is stored too."""
    trained = train_adapter(tmp_path, tied=True, target_modules=["q_proj", "embed_tokens"])
    file = trained.base / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert outcome.after.tie is Tie.UNTIED
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["tie_word_embeddings"] is False
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < 1e-5
