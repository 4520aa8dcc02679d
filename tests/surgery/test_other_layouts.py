"""A head is named like the tensors that are stored: as transformers saves them, as they are in memory, without the base
class's prefix, or behind a wrapper."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import untied_models as models
from tiebeam.families import Architecture, lookup
from tiebeam.families.disk_names import embed_name, followers, head_name
from tiebeam.surgery import execute, open_source, plan_tie, plan_untie

IMAGE, CAUSAL, SEQ2SEQ = "IMAGE_TEXT_TO_TEXT", "CAUSAL_LM", "SEQ_TO_SEQ_CAUSAL_LM"


def known(model_type: str) -> Architecture:
    """The entry of a type that the table has."""
    found = lookup(model_type)
    assert found is not None
    return found


def untied(source: Path, target: Path, task: str) -> set[str]:
    """`untie`, then what it added; transformers 5 must load the result whole, with the same logits."""
    execute(plan_untie(open_source(source)), target, proof=False, durable=False)
    before, *_ = models.load(source, task)
    after, missing, unexpected = models.load(target, task)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(models.logits(before), models.logits(after))
    return models.saved_names(target) - models.saved_names(source)


@pytest.mark.parametrize(
    ("model_type", "embed", "head"),
    [
        ("qwen2_vl", "model.language_model.embed_tokens.weight", "lm_head.weight"),
        ("qwen2_5_vl", "model.language_model.embed_tokens.weight", "lm_head.weight"),
        ("gemma3", "model.language_model.embed_tokens.weight", "lm_head.weight"),
        ("llava", "model.language_model.embed_tokens.weight", "lm_head.weight"),
        ("mistral3", "model.language_model.embed_tokens.weight", "lm_head.weight"),
    ],
)
def test_names_as_in_memory(model_type: str, embed: str, head: str, tmp_path: Path) -> None:
    """Tools that save a state dict write these; save_pretrained writes the older names."""
    model = models.build(model_type, IMAGE, tied=True)
    model.save_pretrained(tmp_path / "m")
    state = {name: value.clone() for name, value in model.state_dict().items() if name != head}
    assert embed in state
    save_file(state, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    assert untied(tmp_path / "m", tmp_path / "untied", IMAGE) == {head}


@pytest.mark.parametrize(
    ("model_type", "task", "prefix", "added"),
    [
        ("gpt2", CAUSAL, "transformer.", {"lm_head.weight"}),
        ("bloom", CAUSAL, "transformer.", {"lm_head.weight"}),
        ("bart", SEQ2SEQ, "model.", {"lm_head.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"}),
        ("bert", "MASKED_LM", "bert.", {"cls.predictions.decoder.weight", "cls.predictions.decoder.bias"}),
    ],
)
def test_names_without_the_prefix_of_the_base_class(
    model_type: str, task: str, prefix: str, added: set[str], tmp_path: Path
) -> None:
    models.build(model_type, task, tied=True).save_pretrained(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    stored = {name.removeprefix(prefix): value for name, value in stored.items()}
    save_file(stored, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    assert untied(tmp_path / "m", tmp_path / "untied", task) == added


def test_a_head_alone_is_renamed_in_the_layout_of_the_layers(tmp_path: Path) -> None:
    model = models.build("qwen2_5_vl", IMAGE, tied=True)
    model.save_pretrained(tmp_path / "m")
    in_memory = {name: value.clone() for name, value in model.state_dict().items()}
    for layout, embed in ((in_memory, "model.language_model.embed_tokens.weight"), (None, "model.embed_tokens.weight")):
        stored = layout or load_file(tmp_path / "saved.safetensors")
        if layout:
            (tmp_path / "saved.safetensors").write_bytes((tmp_path / "m" / "model.safetensors").read_bytes())
        alone = {**stored, "lm_head.weight": stored[embed].clone()}
        del alone[embed]
        save_file(alone, tmp_path / "m" / "model.safetensors", {"format": "pt"})
        target = tmp_path / ("a" if layout else "b")
        execute(plan_tie(open_source(tmp_path / "m")), target, proof=False)
        assert embed in models.saved_names(target)
        _, missing, unexpected = models.load(target, IMAGE)
        assert (missing, unexpected) == ([], [])


@pytest.mark.parametrize(
    ("model_type", "embed", "head"),
    [
        ("llama", "module.model.embed_tokens.weight", "module.lm_head.weight"),
        ("llama", "_orig_mod.model.embed_tokens.weight", "_orig_mod.lm_head.weight"),
        ("llama", "base_model.model.model.embed_tokens.weight", "base_model.model.lm_head.weight"),
        ("gpt2", "module.transformer.wte.weight", "module.lm_head.weight"),
        ("gpt_neox", "gpt_neox.embed_in.weight", "embed_out.weight"),
        ("gpt_neox", "module.gpt_neox.embed_in.weight", "module.embed_out.weight"),
        ("llava", "language_model.model.embed_tokens.weight", "language_model.lm_head.weight"),
        ("hyperclovax_vision_v2", "model.language_model.embed_tokens.weight", "model.language_model.lm_head.weight"),
    ],
)
def test_names_behind_a_wrapper(model_type: str, embed: str, head: str) -> None:
    architecture = known(model_type)
    assert head_name(architecture, embed) == head
    layers = f"{embed.rsplit('.', 2)[0]}.layers.0.weight"
    assert embed_name(architecture, head, [head, layers]) == embed


def test_followers_keep_wrapper_and_prefix() -> None:
    bart = known("bart")
    stored = ["module.shared.weight", "module.encoder.layers.0.x", "module.decoder.layers.0.x"]
    assert followers(bart, "module.shared.weight", stored) == {
        "module.encoder.embed_tokens.weight": "module.shared.weight",
        "module.decoder.embed_tokens.weight": "module.shared.weight",
    }
    assert followers(bart, "model.shared.weight", ["model.shared.weight", "model.decoder.x.weight"]) == {
        "model.decoder.embed_tokens.weight": "model.shared.weight"
    }
    assert followers(known("llama"), "model.embed_tokens.weight", ["model.embed_tokens.weight"]) == {}


def test_a_name_that_the_embedding_does_not_tell_is_asked_for() -> None:
    """TrOCR and BART decoders have one name for the table and two for the head."""
    assert head_name(known("vision-encoder-decoder"), "decoder.model.decoder.embed_tokens.weight") is None
