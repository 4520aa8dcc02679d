"""Checkpoints of many architectures, written by the real transformers, in all seven states of the pair.

`declared` is compared with transformers: a file with one matrix is loaded, and embedding and head are one parameter
exactly when `declared` is true.
"""

import json
import logging
import shutil

import pytest
from safetensors.numpy import load_file, save_file

import tiebeam
from helpers.tiny_models import CAUSAL, MASKED, SEQ2SEQ, SPEECH, auto_class, build
from tiebeam import Tie

EVERY = [*CAUSAL, *MASKED, *SEQ2SEQ, *SPEECH]
ALWAYS_TIED = {"t5"}  # transformers 5 ignores a false in this family's config.json


@pytest.fixture(scope="module", autouse=True)
def quiet_transformers():
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(model type, tied?) -> a directory written by save_pretrained; built once each."""
    made = {}

    def get(model_type, tied):
        if (model_type, tied) not in made:
            where = tmp_path_factory.mktemp(f"{model_type}-{tied}")
            build(model_type, tie_word_embeddings=tied).save_pretrained(where)
            made[model_type, tied] = where
        return made[model_type, tied]

    return get


def change(source, target, tensors=lambda t: t, flag="keep"):
    """A copy of a saved model with its tensors or its flag changed, as faulty tools do."""
    shutil.copytree(source, target)
    save_file(tensors(load_file(source / "model.safetensors")), target / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    if flag == "absent":
        config.pop("tie_word_embeddings", None)
    elif flag != "keep":
        config["tie_word_embeddings"] = flag
    (target / "config.json").write_text(json.dumps(config))
    return target


def loads_tied(where, model_type):
    model = auto_class(model_type).from_pretrained(where)
    return model.get_input_embeddings().weight is model.get_output_embeddings().weight


def unique_parameters(where, model_type):
    return sum(p.numel() for p in auto_class(model_type).from_pretrained(where).parameters())


@pytest.mark.parametrize("model_type", EVERY)
def test_shared(saved, model_type):
    report = tiebeam.inspect(saved(model_type, True))
    assert report.tie is Tie.SHARED
    assert not report.guessed
    assert report.params.total == unique_parameters(saved(model_type, True), model_type)


@pytest.mark.parametrize("model_type", [m for m in EVERY if m not in ALWAYS_TIED])
def test_untied(saved, model_type):
    report = tiebeam.inspect(saved(model_type, False))
    assert report.tie is Tie.UNTIED
    assert report.params.total == unique_parameters(saved(model_type, False), model_type)
    assert not loads_tied(saved(model_type, False), model_type)


@pytest.mark.parametrize("flag", [True, False, "absent"])
@pytest.mark.parametrize("model_type", EVERY)
def test_declared_agrees_with_what_transformers_does_with_one_matrix(saved, tmp_path, model_type, flag):
    where = change(saved(model_type, True), tmp_path / "m", flag=flag)
    report = tiebeam.inspect(where)
    assert report.pair.declared is loads_tied(where, model_type)
    assert report.tie is (Tie.SHARED if report.pair.declared else Tie.HEADLESS)


@pytest.fixture
def pair_names(saved):
    def names(model_type):
        embed = tiebeam.inspect(saved(model_type, True)).pair.embed.name
        return embed, tiebeam.inspect(saved(model_type, False)).pair.head.name

    return names


TIEABLE = [m for m in EVERY if m not in ALWAYS_TIED]


@pytest.mark.parametrize("model_type", TIEABLE)
def test_twin_torn_and_swapped(saved, tmp_path, pair_names, model_type):
    embed, head = pair_names(model_type)
    tied = saved(model_type, True)

    twin = change(tied, tmp_path / "twin", lambda t: {**t, head: t[embed].copy()})
    assert tiebeam.inspect(twin).tie is Tie.TWIN
    assert loads_tied(twin, model_type)

    torn = change(tied, tmp_path / "torn", lambda t: {**t, head: t[embed] + 1})
    assert tiebeam.inspect(torn).tie is Tie.TORN
    assert not loads_tied(torn, model_type)

    swapped = change(tied, tmp_path / "swapped", lambda t: {head if n == embed else n: v for n, v in t.items()})
    assert tiebeam.inspect(swapped).tie is Tie.SWAPPED
    assert loads_tied(swapped, model_type)


@pytest.mark.parametrize("model_type", TIEABLE)
def test_none(saved, tmp_path, pair_names, model_type):
    embed, _ = pair_names(model_type)
    bare = change(saved(model_type, True), tmp_path / "m", lambda t: {n: v for n, v in t.items() if n != embed})
    assert tiebeam.inspect(bare).tie is Tie.NONE
