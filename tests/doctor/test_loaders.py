"""What each loader will do: the rules for transformers 5 and safetensors are run against the libraries."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from transformers import AutoModelForCausalLM

from helpers.tiny_models import build
from tiebeam.doctor.loaders import _data, stored_state, what_loaders_do
from tiebeam.inspection import inspect

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
STORED = ["one", "equal", "differ", "head", "neither", "rows"]


def write_state(where, stored, tied):
    build("llama", tie_word_embeddings=tied).save_pretrained(where)
    trunk = {n: t for n, t in load_file(where / "model.safetensors").items() if n not in (EMBED, HEAD)}
    torch.manual_seed(3)
    e, w = torch.randn(96, 32), torch.randn(96, 32)
    pair = {
        "one": {EMBED: e},
        "equal": {EMBED: e, HEAD: e.clone()},
        "differ": {EMBED: e, HEAD: w},
        "head": {HEAD: w},
        "neither": {},
        "rows": {EMBED: e, HEAD: w[:90].clone()},
    }[stored]
    save_file({**trunk, **pair}, where / "model.safetensors", {"format": "pt"})
    return pair


def outcome(embed, head, pair):
    """The word for what came out of a loader."""
    e, w = pair.get(EMBED), pair.get(HEAD)
    known = [t for t in (e, w) if t is not None]
    embed_known = any(torch.equal(embed, t) for t in known)
    head_known = any(torch.equal(head, t) for t in known)
    if not known:
        return "random pair"
    if not embed_known or not head_known:
        return "random embedding" if head_known else "random head"
    if embed.data_ptr() == head.data_ptr():
        return "ties" if w is None or e is None or torch.equal(e, w) else "drops the stored head"
    return "keeps both"


def said(loader, where):
    report = inspect(where)
    config = json.loads((where / "config.json").read_text())
    return next(v.outcome for v in what_loaders_do(report, config) if v.loader == loader)


@pytest.mark.parametrize(("stored", "tied"), list(itertools.product(STORED, [True, False])))
def test_transformers_5_does_what_the_table_says(tmp_path, stored, tied):
    pair = write_state(tmp_path, stored, tied)
    assert stored_state(inspect(tmp_path)) == stored
    try:
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        happened = outcome(model.get_input_embeddings().weight, model.get_output_embeddings().weight, pair)
    except RuntimeError:
        happened = "refuses"
    assert said("transformers 5", tmp_path) == happened


@pytest.mark.parametrize(("stored", "tied"), list(itertools.product(STORED, [True, False])))
def test_safetensors_load_model_does_what_the_table_says(tmp_path, stored, tied):
    pair = write_state(tmp_path, stored, tied)
    model = build("llama", tie_word_embeddings=tied)
    try:
        load_model(model, str(tmp_path / "model.safetensors"))
        happened = outcome(model.get_input_embeddings().weight, model.get_output_embeddings().weight, pair)
    except RuntimeError:
        happened = "refuses"
    assert said("safetensors load_model", tmp_path) == happened


def test_an_absent_flag_is_read_differently_by_mlx_lm(tmp_path):
    write_state(tmp_path, "differ", False)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert said("mlx-lm", tmp_path) == "drops the stored head"
    assert said("transformers 5", tmp_path) == "keeps both"


def test_every_loader_has_a_rule_for_every_state_and_a_source():
    for loader in _data()["loaders"]:
        assert set(loader["rules"]) == {f"{s}/{d}" for s in STORED for d in ("tied", "untied")}
        assert "from its source" in loader["source"] or "run in the tests" in loader["source"]
