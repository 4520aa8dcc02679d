"""Known models: every row is consistent, published mistakes are corrected, models are found by their usual names."""

import re

import pytest

from tiebeam.catalog import find, known_models, matching, named
from tiebeam.errors import BadRequest

MODELS = known_models()


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.slug)
def test_row_is_consistent(model):
    assert model.vocab > 0
    assert 0 < model.dim <= model.hidden
    assert model.layers > 0
    assert model.trunk > 0
    assert model.confidence in ("high", "medium", "low")
    assert model.audit in ("exact", "rounded", None)
    assert (model.confidence == "high") == (not model.doubt), "a doubt is named exactly where there is one"
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.hf_id)
    assert model.source
    assert all(model.sources)
    assert not {"memory", "find_string"} & set(re.findall(r"\w+", f"{model.source} {model.doubt} {model.note}"))
    if model.published != model.total:
        assert model.note or model.doubt, "a difference from the published figure is explained"
    if model.audit == "rounded":
        counted = {model.total, model.total + model.matrix, model.total - model.vocab * model.head_dim}
        assert min(abs(model.published / n - 1) for n in counted) < 0.005


@pytest.mark.parametrize("model", [m for m in MODELS if m.tieable], ids=lambda model: model.slug)
def test_share_is_one_matrix_over_the_untied_total(model):
    untied = model.total + model.matrix if model.tied else model.total
    assert model.budget.untied_total == untied
    assert model.head_share == model.matrix / untied <= 0.5
    assert model.to_dict()["tied_total"] == untied - model.matrix


def test_there_are_155_models_with_unique_names():
    assert len(MODELS) == 155
    assert len({model.slug for model in MODELS}) == 155
    for model in MODELS:
        for name in (model.name, model.slug, model.hf_id, model.hf_id.split("/")[1]):
            assert named(name) is model


@pytest.mark.parametrize(
    ("name", "tied_total", "untied_total"),
    [
        ("phi-4-mini", 3_836_021_760, 4_450_618_368),
        ("tinyllama-1.1b", 1_034_512_384, 1_100_048_384),
        ("gpt-2-small", 124_439_808, 163_037_184),
    ],
)
def test_exact_totals(name, tied_total, untied_total):
    budget = find(name).budget
    assert (budget.tied_total, budget.untied_total) == (tied_total, untied_total)


@pytest.mark.parametrize(
    ("name", "total", "published"),
    [
        ("Qwen1.5 0.5B", 463_987_712, 619_570_176),
        ("Falcon 7B", 6_921_720_704, 7_217_189_760),
    ],
)
def test_a_matrix_published_twice_is_counted_once(name, total, published):
    model = find(name)
    assert (model.total, model.published) == (total, published)
    assert model.published - model.total == model.matrix


@pytest.mark.parametrize(
    ("name", "dim", "hidden"), [("OPT-350M", 512, 1024), ("ALBERT base v2", 128, 768), ("ALBERT xxlarge v2", 128, 4096)]
)
def test_a_factorized_embedding_uses_its_own_width(name, dim, hidden):
    model = find(name)
    assert (model.dim, model.hidden) == (dim, hidden)
    assert model.matrix == model.vocab * dim


def test_two_widths_cannot_be_tied():
    model = find("RemBERT")
    assert (model.dim, model.head_dim, model.head_share) == (256, 1664, None)
    assert model.trunk == model.total - model.vocab * (256 + 1664)
    assert model.to_dict()["untied_total"] is None
    with pytest.raises(BadRequest, match="RemBERT cannot be tied: its embedding is 256 wide and its LM head 1,664"):
        _ = model.budget


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("phi-4-mini", "Phi-4-mini"),
        ("PHI 4 MINI", "Phi-4-mini"),
        ("microsoft/Phi-4-mini-instruct", "Phi-4-mini"),
        ("Phi-4-mini-instruct", "Phi-4-mini"),
        ("phi-4", "Phi-4 14B"),
        ("gpt2", "GPT-2 small"),
        ("gpt2-xl", "GPT-2 XL"),
        ("phi-1_5", "Phi-1.5"),
        ("llama-3.2-1b", "Llama-3.2 1B"),
        ("apertus", "Apertus 8B"),
        ("gpt-j", "GPT-J 6B"),
        ("tinyllama", "TinyLlama 1.1B"),
    ],
)
def test_finding_by_name(said, name):
    assert find(said).name == name


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("smollm2", "'smollm2' matches 3 known models; name one of them: smollm2-135m, smollm2-360m, smollm2-1.7b"),
        ("phi-5-mini", "no known model is called 'phi-5-mini'; similar: phi-3.5-mini"),
        ("gemma-3-4b-it", "similar: gemma-3-4b"),
        ("zzzz", "no known model is called 'zzzz'; `tiebeam models` lists them all"),
        ("someone/gpt2", "no known model is called 'someone/gpt2'"),
        ("", "no known model is called ''"),
        ("llama", "and 12 more"),
    ],
)
def test_an_unknown_name_lists_similar_ones(said, sentence):
    with pytest.raises(BadRequest) as refused:
        find(said)
    assert sentence in str(refused.value)


def test_matching_needs_every_word_and_whole_numbers():
    assert [model.name for model in matching("qwen3 4b")] == ["Qwen3 4B", "Qwen3.5 4B"]
    assert {model.architecture for model in matching("neox")} == {"gpt_neox"}
    assert "RoBERTa base" in [model.name for model in matching("bert")]
    assert matching("?!") == matching("") == []
