"""Tensors with the vocabulary as a dimension: named, counted, and draft models that borrow theirs are healthy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import tiebeam
from helpers.tiny_models import VOCAB, build
from tiebeam import Tie
from tiebeam.doctor import Diagnosis, diagnose

DIM = 32


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


def kinds(report: Any) -> dict[str, str]:
    return {tensor.name: tensor.kind for tensor in report.vocabulary_tensors}


def rewrite(where: Path, change: Any, **config: Any) -> Path:
    """Change the tensors and the config of a saved model."""
    tensors = change(load_file(where / "model.safetensors"))
    save_file(tensors, where / "model.safetensors", {"format": "pt"})
    document = {**json.loads((where / "config.json").read_text()), **config}
    (where / "config.json").write_text(json.dumps(document))
    return where


def test_per_layer_embeddings_of_gemma3n_are_not_non_embedding(tmp_path: Path) -> None:
    from transformers import Gemma3nForCausalLM, Gemma3nTextConfig

    sizes: dict[str, Any] = {
        "vocab_size": VOCAB, "vocab_size_per_layer_input": VOCAB - 8, "hidden_size": DIM, "intermediate_size": 48,
        "hidden_size_per_layer_input": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 8, "num_kv_shared_layers": 0, "laurel_rank": 4, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "layer_types": ["sliding_attention", "full_attention"],
        "activation_sparsity_pattern": [0.0, 0.0],
    }  # fmt: skip
    model = Gemma3nForCausalLM(Gemma3nTextConfig(**sizes))
    model.save_pretrained(tmp_path)
    report = tiebeam.inspect(tmp_path)
    name = "model.embed_tokens_per_layer.weight"
    assert kinds(report)[name] == "per-layer embedding"
    table = (VOCAB - 8) * 2 * 8
    assert report.params.further_vocabulary == table
    assert report.params.total == sum(p.numel() for p in model.parameters())
    assert report.params.trunk == report.params.total - table - VOCAB * DIM
    (entry,) = [t for t in report.to_dict()["vocabulary_tensors"] if t["name"] == name]
    assert entry == {
        "name": name, "shape": [VOCAB - 8, 16], "kind": "per-layer embedding", "params": table, "bytes": 4 * table,
    }  # fmt: skip
    assert "per-layer embedding" in str(report)


def test_biases_of_the_head_and_of_the_logits_are_listed(tmp_path: Path) -> None:
    build("phi").save_pretrained(tmp_path / "phi")
    build("bart").save_pretrained(tmp_path / "bart")
    assert kinds(tiebeam.inspect(tmp_path / "phi"))["lm_head.bias"] == "head bias"
    listed = kinds(tiebeam.inspect(tmp_path / "bart"))
    assert listed["final_logits_bias"] == "head bias"
    assert set(listed.values()) <= {"embedding", "LM head", "head bias", "further embedding"}


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen2", "bert", "mamba", "bloom", "whisper", "albert"])
def test_layers_are_never_vocabulary_tensors(model_type: str, tmp_path: Path) -> None:
    model = build(model_type)
    model.save_pretrained(tmp_path)
    report = tiebeam.inspect(tmp_path)
    assert set(kinds(report).values()) <= {"embedding", "LM head", "head bias"}
    assert report.params.further_vocabulary == 0
    assert report.params.total == sum(p.numel() for p in model.parameters())


def test_the_mtp_tables_of_deepseek_are_listed(tmp_path: Path) -> None:
    """Its checkpoints store one layer more than the model runs, with an embedding and a head of its own."""
    build("llama", tie_word_embeddings=False).save_pretrained(tmp_path)

    def add(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        extra = {
            f"model.layers.2.{name}.weight": torch.randn(VOCAB, DIM) for name in ("embed_tokens", "shared_head.head")
        }
        return {**tensors, **extra}

    report = tiebeam.inspect(rewrite(tmp_path, add))
    assert [kind for kind in kinds(report).values() if kind == "MTP table"] == ["MTP table"] * 2
    assert report.params.further_vocabulary == 2 * VOCAB * DIM
    assert codes(diagnose(tmp_path)) == []


def test_eagle_1_is_healthy(tmp_path: Path) -> None:
    """An embedding, one layer and `fc` [D, 2D]; the head is the target's."""
    build("llama", tie_word_embeddings=False, num_hidden_layers=1).save_pretrained(tmp_path)

    def eagle(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {name.removeprefix("model."): values for name, values in tensors.items() if "lm_head" not in name}
        del kept["norm.weight"], kept["layers.0.input_layernorm.weight"]
        return {**kept, "fc.weight": torch.randn(DIM, 2 * DIM)}

    diagnosis = diagnose(rewrite(tmp_path, eagle))
    assert codes(diagnosis) == []
    assert diagnosis.report.tie is Tie.NONE
    assert diagnosis.report.facts == "EAGLE draft model: it uses the LM head of its target"


@pytest.mark.parametrize("embedding", [True, False])
def test_eagle_3_is_healthy(embedding: bool, tmp_path: Path) -> None:
    """A head over 40 of 96 tokens, with the maps between both vocabularies."""
    build("llama", tie_word_embeddings=False, num_hidden_layers=1).save_pretrained(tmp_path)

    def eagle(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        kept = {
            name.removeprefix("model.").replace("layers.0", "midlayer"): values
            for name, values in tensors.items()
            if embedding or "embed_tokens" not in name
        }
        maps = {"d2t": torch.arange(40), "t2d": torch.arange(VOCAB) < 40}
        return {**kept, **maps, "lm_head.weight": torch.randn(40, DIM), "fc.weight": torch.randn(DIM, 3 * DIM)}

    where = rewrite(tmp_path, eagle, draft_vocab_size=40, architectures=["LlamaForCausalLMEagle3"])
    diagnosis = diagnose(where)
    assert codes(diagnosis) == []
    report = diagnosis.report
    assert report.facts == f"EAGLE-3 draft model: its head scores 40 of {VOCAB} tokens"
    assert kinds(report) | {"d2t": "token map", "t2d": "token map", "lm_head.weight": "draft head"} == kinds(report)
    assert report.params.further_vocabulary == 40 * DIM
    assert report.to_dict()["draft"] == "EAGLE-3"


def test_a_score_head_is_named(tmp_path: Path) -> None:
    from transformers import LlamaForSequenceClassification

    config = build("llama").config
    LlamaForSequenceClassification(config).save_pretrained(tmp_path)
    assert kinds(tiebeam.inspect(tmp_path))["score.weight"] == "score head"


def test_t5_with_flag_false_and_two_matrices_is_untied(tmp_path: Path) -> None:
    """T5 v1.1: transformers 5 forces the tie and keeps the head that differs; nothing is torn."""
    from transformers import AutoModelForSeq2SeqLM

    build("t5").save_pretrained(tmp_path)
    head = torch.randn(VOCAB, DIM)
    where = rewrite(tmp_path, lambda tensors: {**tensors, "lm_head.weight": head}, tie_word_embeddings=False)
    assert torch.equal(AutoModelForSeq2SeqLM.from_pretrained(where).lm_head.weight, head)
    diagnosis = diagnose(where)
    assert diagnosis.report.tie is Tie.UNTIED
    assert codes(diagnosis) == ["TB105"]
    rewrite(tmp_path, lambda tensors: tensors, tie_word_embeddings=True)
    assert "TB101" in codes(diagnose(where))


def test_mistral3_without_flags_and_two_matrices_is_untied(tmp_path: Path) -> None:
    import transformers

    text = build("mistral").config
    vision = transformers.PixtralVisionConfig(
        hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4, image_size=28, patch_size=14
    )
    config = transformers.Mistral3Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), image_token_index=5
    )
    config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
    model = transformers.Mistral3ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    document = json.loads((tmp_path / "config.json").read_text())
    for level in (document, document["text_config"]):
        level.pop("tie_word_embeddings", None)
    (tmp_path / "config.json").write_text(json.dumps(document))
    loaded = transformers.Mistral3ForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)
    diagnosis = diagnose(tmp_path)
    assert diagnosis.report.tie is Tie.UNTIED
    assert "TB101" not in codes(diagnosis)


def test_qwen2_5_omni_is_no_encoder(tmp_path: Path) -> None:
    """Its published config names the class Qwen2_5OmniModel. Tied, it stores no head."""
    thinker = build("qwen2", tie_word_embeddings=True)
    thinker.save_pretrained(tmp_path)
    text = {**json.loads((tmp_path / "config.json").read_text()), "model_type": "qwen2_5_omni_text"}
    inner = {"model_type": "qwen2_5_omni_thinker", "text_config": text, "tie_word_embeddings": True}
    config = {"model_type": "qwen2_5_omni", "architectures": ["Qwen2_5OmniModel"], "thinker_config": inner}
    (tmp_path / "config.json").write_text("{}")
    where = rewrite(tmp_path, lambda tensors: {f"thinker.{name}": v for name, v in tensors.items()}, **config)
    report = tiebeam.inspect(where)
    assert not report.pair.encoder
    assert report.tie is Tie.SHARED


def test_mllama_has_eight_rows_more_in_its_embedding(tmp_path: Path) -> None:
    build("llama", tie_word_embeddings=False).save_pretrained(tmp_path)

    def more(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        named = {f"language_model.{name}": values for name, values in tensors.items()}
        return {**named, "language_model.model.embed_tokens.weight": torch.randn(VOCAB + 8, DIM)}

    text = {"model_type": "mllama_text_model", "vocab_size": VOCAB, "hidden_size": DIM}
    config = {"model_type": "mllama", "architectures": ["MllamaForConditionalGeneration"], "text_config": text}
    assert codes(diagnose(rewrite(tmp_path, more, **config))) == []


def quantized_by_mlx(where: Path, tied: bool) -> Path:
    """A real llama whose embedding (and head) MLX packs to 4 bits."""
    mx = pytest.importorskip("mlx.core")
    build("llama", hidden_size=64, tie_word_embeddings=tied).save_pretrained(where)
    tensors = {name: mx.array(v.numpy()) for name, v in load_file(where / "model.safetensors").items()}
    for name in [n for n in tensors if n.endswith(("embed_tokens.weight", "lm_head.weight"))]:
        stem = name.removesuffix(".weight")
        parts = mx.quantize(tensors.pop(name), group_size=32, bits=4)
        tensors |= {f"{stem}.{part}": v for part, v in zip(("weight", "scales", "biases"), parts, strict=True)}
    mx.save_safetensors(str(where / "model.safetensors"), tensors)
    document = json.loads((where / "config.json").read_text())
    (where / "config.json").write_text(json.dumps({**document, "quantization": {"group_size": 32, "bits": 4}}))
    return where


@pytest.mark.parametrize("tied", [True, False])
def test_a_packed_pair_is_read_in_its_logical_shape_and_counted_unpacked(tied: bool, tmp_path: Path) -> None:
    report = tiebeam.inspect(quantized_by_mlx(tmp_path, tied))
    plain = build("llama", hidden_size=64, tie_word_embeddings=tied)
    assert report.pair.embed is not None
    assert report.pair.embed.shape == (VOCAB, 64)
    assert report.tie is (Tie.SHARED if tied else Tie.UNTIED)
    assert report.params.total == sum(p.numel() for p in plain.parameters())
    assert report.vocabulary.embed_rows == VOCAB
    assert list(kinds(report).values()).count("quantizer scales") == (2 if tied else 4)


def test_packed_copies_are_equal_only_if_all_their_parts_are(tmp_path: Path) -> None:
    from safetensors.numpy import load_file as load
    from safetensors.numpy import save_file as save

    where = quantized_by_mlx(tmp_path, tied=True)
    tensors = load(where / "model.safetensors")
    copies = {f"lm_head.{part}": tensors[f"model.embed_tokens.{part}"] for part in ("weight", "scales", "biases")}
    save({**tensors, **copies}, where / "model.safetensors")
    assert tiebeam.inspect(where).tie is Tie.TWIN
    copies["lm_head.scales"] = copies["lm_head.scales"] * np.float32(3)
    save({**tensors, **copies}, where / "model.safetensors")
    report = tiebeam.inspect(where)
    assert report.tie is Tie.TORN
    assert report.how == "2 of 3 packed parts are equal"


def test_scales_left_behind_by_a_dropped_head_are_found_and_dropped(tmp_path: Path) -> None:
    from safetensors.numpy import load_file as load
    from safetensors.numpy import save_file as save

    from tiebeam.doctor.fix import plan_fix

    where = quantized_by_mlx(tmp_path / "m", tied=True)
    tensors = load(where / "model.safetensors")
    orphans = {f"lm_head.{part}": tensors[f"model.embed_tokens.{part}"] for part in ("scales", "biases")}
    save({**tensors, **orphans}, where / "model.safetensors")
    assert codes(diagnose(where)) == ["TB708", "TB805"]  # TB805 notes that only MLX programs load it
    plan_fix(where).write(tmp_path / "fixed")
    assert codes(diagnose(tmp_path / "fixed")) == ["TB805"]
    assert set(load(tmp_path / "fixed" / "model.safetensors")) == set(tensors)


@pytest.mark.parametrize(
    ("listed", "found"), [(["vision_tower"], True), (["lm_head"], False), (["re:.*lm_head"], False), ([], False)]
)
def test_a_skip_list_must_name_the_head(listed: list[str], found: bool, tmp_path: Path) -> None:
    build("llama", tie_word_embeddings=False).save_pretrained(tmp_path)
    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "llm_int8_skip_modules": listed}
    where = rewrite(tmp_path, lambda tensors: tensors, quantization_config=settings)
    assert ("TB709" in codes(diagnose(where))) is found
