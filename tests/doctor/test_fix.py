"""`doctor --fix` on checkpoints that real libraries left: afterwards transformers loads what was meant."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoModelForCausalLM

from helpers.tiny_models import build
from tiebeam.doctor import diagnose
from tiebeam.doctor.fix import plan_fix

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def broken(tmp_path):
    """A saved tiny llama, then changed."""

    def make(tied, *, flag=None, tensors=None, save=None):
        where = tmp_path / "broken"
        model = build("llama", tie_word_embeddings=tied)
        model.save_pretrained(where)
        if save:
            save(model, where)
        if tensors:
            state = tensors(load_file(where / "model.safetensors"))
            save_file(state, where / "model.safetensors", {"format": "pt"})
        if flag is not None:
            config = json.loads((where / "config.json").read_text())
            config["tie_word_embeddings"] = flag
            (where / "config.json").write_text(json.dumps(config))
        return where

    return make


def fix(where, target):
    planned = plan_fix(where)
    before = {p.name: p.read_bytes() for p in where.iterdir()}
    planned.write(target)
    assert {p.name: p.read_bytes() for p in where.iterdir()} == before
    return planned


def load(where):
    model = AutoModelForCausalLM.from_pretrained(where)
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def test_a_true_flag_over_two_matrices_is_set_to_false(broken, tmp_path):
    torch.manual_seed(5)
    head = torch.randn(96, 32)
    where = broken(True, tensors=lambda t: {**t, HEAD: head})
    planned = fix(where, tmp_path / "fixed")
    assert any("tie_word_embeddings" in str(change) for change in planned.plan.changes)
    assert diagnose(tmp_path / "fixed").findings == ()
    embed, loaded = load(tmp_path / "fixed")
    assert torch.equal(loaded, head)
    assert not torch.equal(embed, loaded)


def test_a_false_flag_without_a_head_is_set_to_true(broken, tmp_path):
    where = broken(True, flag=False)
    fix(where, tmp_path / "fixed")
    assert diagnose(tmp_path / "fixed").findings == ()
    embed, head = load(tmp_path / "fixed")
    assert embed is head


def test_the_copy_of_a_lost_alias_is_dropped(broken, tmp_path):
    where = broken(True, tensors=lambda t: {**t, HEAD: t[EMBED].clone()})
    fix(where, tmp_path / "fixed")
    assert diagnose(tmp_path / "fixed").findings == ()
    assert HEAD not in load_file(tmp_path / "fixed" / "model.safetensors")
    embed, head = load(tmp_path / "fixed")
    assert embed is head


def test_a_head_only_file_is_renamed(broken, tmp_path):
    where = broken(True, save=lambda model, where: save_model(model, str(where / "model.safetensors")))
    original = load_file(where / "model.safetensors")[HEAD]
    fix(where, tmp_path / "fixed")
    assert diagnose(tmp_path / "fixed").findings == ()
    stored = load_file(tmp_path / "fixed" / "model.safetensors")
    assert HEAD not in stored
    assert torch.equal(stored[EMBED], original)
    embed, head = load(tmp_path / "fixed")
    assert embed is head


def test_disagreeing_levels_are_made_to_agree(tmp_path):
    """Qwen3-VL reads the top; a tool wrote the flag below only."""
    import numpy as np

    from helpers.building import llama_config, table, write_model

    text = llama_config(tie_word_embeddings=True)
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text}
    tensors = {"model.language_model.embed_tokens.weight": table(), "model.norm.weight": np.ones(8, np.float32)}
    where = write_model(tmp_path / "broken", tensors, config)
    fix(where, tmp_path / "fixed")
    written = json.loads((tmp_path / "fixed" / "config.json").read_text())
    assert written["tie_word_embeddings"] is True
    assert written["text_config"]["tie_word_embeddings"] is True
    assert diagnose(tmp_path / "fixed").findings == ()


def test_an_absent_flag_is_written(broken, tmp_path):
    where = broken(False)
    config = json.loads((where / "config.json").read_text())
    del config["tie_word_embeddings"]
    (where / "config.json").write_text(json.dumps(config))
    fix(where, tmp_path / "fixed")
    assert json.loads((tmp_path / "fixed" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {**t, HEAD: t[EMBED].clone(), EMBED: torch.cat([t[EMBED], torch.randn(4, 32)])},
        lambda t: {**t, HEAD: torch.cat([t[EMBED][:90], t[EMBED][90:] + 1])},
    ],
    ids=["resized on one side", "a few rows differ"],
)
def test_a_finding_that_needs_a_decision_is_left(broken, change):
    planned = plan_fix(broken(True, tensors=change))
    assert planned.plan is None
    assert planned.left


def test_a_healthy_model_needs_nothing(broken):
    planned = plan_fix(broken(True))
    assert planned.plan is None
    assert planned.left == ()
