"""The safe cures, on situations made by the real libraries: afterwards transformers loads what was meant."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from transformers import AutoModelForCausalLM

from helpers.tiny_models import build
from tiebeam.doctor import examine
from tiebeam.doctor.cures import plan_cure
from tiebeam.surgery import execute

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def sick(tmp_path):
    """A saved tiny llama, then changed."""

    def make(tied, *, flag=None, tensors=None, save=None):
        where = tmp_path / "sick"
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


def cure(where, target):
    planned = plan_cure(where)
    before = {p.name: p.read_bytes() for p in where.iterdir()}
    execute(planned.plan, target)
    assert {p.name: p.read_bytes() for p in where.iterdir()} == before
    return planned


def load(where):
    model = AutoModelForCausalLM.from_pretrained(where)
    return model.get_input_embeddings().weight, model.get_output_embeddings().weight


def test_a_stale_flag_over_two_tables_is_set_to_false(sick, tmp_path):
    torch.manual_seed(5)
    head = torch.randn(96, 32)
    where = sick(True, tensors=lambda t: {**t, HEAD: head})
    planned = cure(where, tmp_path / "cured")
    assert any("tie_word_embeddings" in str(change) for change in planned.plan.changes)
    assert examine(tmp_path / "cured").findings == ()
    embed, loaded = load(tmp_path / "cured")
    assert torch.equal(loaded, head)
    assert not torch.equal(embed, loaded)


def test_a_flipped_flag_without_a_head_is_set_back(sick, tmp_path):
    where = sick(True, flag=False)
    cure(where, tmp_path / "cured")
    assert examine(tmp_path / "cured").findings == ()
    embed, head = load(tmp_path / "cured")
    assert embed is head


def test_a_lost_alias_loses_its_copy(sick, tmp_path):
    where = sick(True, tensors=lambda t: {**t, HEAD: t[EMBED].clone()})
    cure(where, tmp_path / "cured")
    assert examine(tmp_path / "cured").findings == ()
    assert HEAD not in load_file(tmp_path / "cured" / "model.safetensors")
    embed, head = load(tmp_path / "cured")
    assert embed is head


def test_a_head_only_file_is_renamed(sick, tmp_path):
    where = sick(True, save=lambda model, where: save_model(model, str(where / "model.safetensors")))
    original = load_file(where / "model.safetensors")[HEAD]
    cure(where, tmp_path / "cured")
    assert examine(tmp_path / "cured").findings == ()
    stored = load_file(tmp_path / "cured" / "model.safetensors")
    assert HEAD not in stored
    assert torch.equal(stored[EMBED], original)
    embed, head = load(tmp_path / "cured")
    assert embed is head


def test_levels_that_disagree_are_made_to_agree(tmp_path):
    """Qwen3-VL reads the top; a tool wrote the flag below only."""
    import numpy as np

    from helpers.building import llama_config, table, write_model

    text = llama_config(tie_word_embeddings=True)
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text}
    tensors = {"model.language_model.embed_tokens.weight": table(), "model.norm.weight": np.ones(8, np.float32)}
    where = write_model(tmp_path / "sick", tensors, config)
    cure(where, tmp_path / "cured")
    written = json.loads((tmp_path / "cured" / "config.json").read_text())
    assert written["tie_word_embeddings"] is True
    assert written["text_config"]["tie_word_embeddings"] is True
    assert examine(tmp_path / "cured").findings == ()


def test_an_absent_flag_is_written_out(sick, tmp_path):
    where = sick(False)
    config = json.loads((where / "config.json").read_text())
    del config["tie_word_embeddings"]
    (where / "config.json").write_text(json.dumps(config))
    cure(where, tmp_path / "cured")
    assert json.loads((tmp_path / "cured" / "config.json").read_text())["tie_word_embeddings"] is False


@pytest.mark.parametrize(
    "change",
    [
        lambda t: {**t, HEAD: t[EMBED].clone(), EMBED: torch.cat([t[EMBED], torch.randn(4, 32)])},
        lambda t: {**t, HEAD: torch.cat([t[EMBED][:90], t[EMBED][90:] + 1])},
    ],
    ids=["resized on one side", "a few rows differ"],
)
def test_what_needs_a_decision_is_left(sick, change):
    planned = plan_cure(sick(True, tensors=change))
    assert planned.plan is None
    assert planned.left


def test_a_healthy_model_needs_nothing(sick):
    planned = plan_cure(sick(True))
    assert planned.plan is None
    assert planned.left == ()
