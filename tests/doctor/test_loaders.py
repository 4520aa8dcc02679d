"""Predictions for transformers 5 and safetensors against the real libraries, and a prediction for every state."""

import itertools
import json

import pytest
import torch
from safetensors.torch import load_file, load_model, save_file
from transformers import AutoModelForCausalLM

from helpers.tiny_models import build
from tiebeam.doctor.examined import stored_state
from tiebeam.doctor.loaders import LOADERS, predictions
from tiebeam.inspection import inspect

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
STORED = ["one", "equal", "differ", "head", "neither", "rows"]


def write_state(where, stored, tied):
    build("llama", tie_word_embeddings=tied).save_pretrained(where)
    layers = {n: t for n, t in load_file(where / "model.safetensors").items() if n not in (EMBED, HEAD)}
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
    save_file({**layers, **pair}, where / "model.safetensors", {"format": "pt"})
    return pair


def outcome(embed, head, pair):
    """The outcome of a load, in the words of a prediction."""
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


def predicted(loader, where):
    report = inspect(where)
    config = json.loads((where / "config.json").read_text())
    return next(v.outcome for v in predictions(report, config) if v.loader == loader)


@pytest.mark.parametrize(("stored", "tied"), list(itertools.product(STORED, [True, False])))
def test_transformers_5_does_what_is_predicted(tmp_path, stored, tied):
    pair = write_state(tmp_path, stored, tied)
    assert stored_state(inspect(tmp_path)) == stored
    try:
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
        happened = outcome(model.get_input_embeddings().weight, model.get_output_embeddings().weight, pair)
    except RuntimeError:
        happened = "refuses"
    assert predicted("transformers 5", tmp_path) == happened


@pytest.mark.parametrize(("stored", "tied"), list(itertools.product(STORED, [True, False])))
def test_safetensors_load_model_does_what_is_predicted(tmp_path, stored, tied):
    pair = write_state(tmp_path, stored, tied)
    model = build("llama", tie_word_embeddings=tied)
    try:
        load_model(model, str(tmp_path / "model.safetensors"))
        happened = outcome(model.get_input_embeddings().weight, model.get_output_embeddings().weight, pair)
    except RuntimeError:
        happened = "refuses"
    assert predicted("safetensors load_model", tmp_path) == happened


def test_an_absent_flag_is_read_differently_by_mlx_lm(tmp_path):
    write_state(tmp_path, "differ", False)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["tie_word_embeddings"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert predicted("mlx-lm", tmp_path) == "drops the stored head"
    assert predicted("transformers 5", tmp_path) == "keeps both"


@pytest.mark.parametrize("loader", LOADERS, ids=lambda loader: loader.name)
def test_a_loader_predicts_every_state_and_names_its_source(tmp_path, loader):
    known = {"ties", "keeps both", "drops the stored head", "refuses", "random head", "random embedding", "random pair"}
    known |= {"not known", "not supported"}
    for stored, tied in itertools.product(STORED, [True, False]):
        write_state(tmp_path, stored, tied)
        prediction = loader.prediction(inspect(tmp_path), json.loads((tmp_path / "config.json").read_text()))
        assert prediction.outcome in known
        assert prediction.reason
    assert ("run in the tests" in loader.source) == loader.observed
    assert loader.date in loader.source


def test_only_loaders_that_the_tests_run_are_marked_observed():
    from peers.matrix import PEERS

    run = {peer.loader for peer in PEERS.values()} | {"llama.cpp"}  # the runtime is run on what the converter writes
    assert {loader.name for loader in LOADERS if loader.observed} == run


def test_a_kind_that_was_only_read_in_source_is_not_called_observed(tmp_path):
    """mlx-lm's exaone was not run; its llama was."""
    write_state(tmp_path, "one", True)
    config = json.loads((tmp_path / "config.json").read_text())
    mlx = next(loader for loader in LOADERS if loader.name == "mlx-lm")
    assert mlx.prediction(inspect(tmp_path), config).observed
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "exaone"}))
    prediction = mlx.prediction(inspect(tmp_path), config | {"model_type": "exaone"})
    assert prediction.outcome in ("ties", "refuses")
    assert not prediction.observed
    assert "from its source" in prediction.source


def test_a_type_that_a_loader_does_not_know_gets_no_promise(tmp_path):
    write_state(tmp_path, "one", True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"model_type": "opt"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert predicted("mlx-lm", tmp_path) in ("not supported", "refuses")
    (tmp_path / "config.json").write_text(json.dumps(config | {"model_type": "new_model"}))
    outcomes = {p.loader: p.outcome for p in predictions(inspect(tmp_path), config | {"model_type": "new_model"})}
    assert set(outcomes.values()) == {"not known"}


@pytest.mark.parametrize(
    ("architecture", "stored", "outcome"),
    [("llama", "one", "ties"), ("llama", "differ", "keeps both"), ("olmo2", "one", "refuses")],
)
def test_a_gguf_without_output_weight_loads_where_the_architecture_allows(architecture, stored, outcome):
    from tiebeam.doctor.loaders import llama_cpp

    kind = llama_cpp.SURVEY.kind(architecture)
    assert kind is not None
    assert llama_cpp.outcome(kind, stored)[0] == outcome
