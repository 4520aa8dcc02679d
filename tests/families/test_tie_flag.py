"""`declared` compared with the real transformers, for every architecture and every level that can have the flag."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from helpers.transformers_peer import CANNOT_BUILD, from_json, survey
from tiebeam.families import Declared, declared_in_gguf, known_types, lookup, resolve_declared

pytestmark = pytest.mark.xdist_group("transformers survey")
KEY = "tie_word_embeddings"


def transformers_ties(model_type, document, deciders) -> bool:
    """Whether transformers ties with this config.json: if the resolved flag of any deciding level is on."""
    config = from_json(model_type, document)
    for path in deciders:
        level = config
        for step in path.split(".") if path else ():
            level = getattr(level, step)
        if getattr(level, KEY, False):
            return True
    return False


def documents(architecture):
    """config.json with the flag on, off and absent, at the top and in the text config; and without the latter."""
    inners: list[dict[str, Any] | None] = [None]
    if architecture.text:
        types = {architecture.text_type, *(("gemma", "llama", "t5") if architecture.text_type == "llama" else ())}
        inners += [
            {**({"model_type": inner} if inner else {}), **flag}
            for inner, flag in itertools.product(sorted(types, key=str), ({}, {KEY: True}, {KEY: False}))
        ]
    for top, inner in itertools.product(({}, {KEY: True}, {KEY: False}), inners):
        document = {"model_type": architecture.model_type, **top}
        if inner is not None:
            document[architecture.text] = inner
        yield document


def test_declared_agrees_with_transformers_for_every_architecture():
    surveyed, failed = survey()
    assert set(failed) == set(CANNOT_BUILD), failed
    wrong, checked = [], 0
    for model_type, classes in surveyed.items():
        architecture = lookup(model_type)
        with_head = [one for one in classes if one.head]
        # Where transformers cannot build or name the head, its config class is still asked, at the table's level.
        deciders = set().union(*(one.deciders for one in with_head)) if with_head else set(architecture.decides)
        for document in documents(architecture):
            try:
                truth = transformers_ties(model_type, document, deciders)
            except Exception:
                continue
            checked += 1
            declared = resolve_declared(document, architecture)
            if declared.value is not truth:
                wrong.append((document, declared, truth))
    assert not wrong
    assert len(surveyed) > 330
    assert checked > 2000


def test_every_known_type_can_be_looked_up():
    assert len(known_types()) >= 303
    assert all(lookup(model_type) is not None for model_type in known_types())


@pytest.mark.parametrize(
    ("model_type", "config", "expected"),
    [
        ("llama", {}, Declared(False, "the default of llama (config.json has no tie_word_embeddings)")),
        ("llama", {KEY: True}, Declared(True, "config.json: tie_word_embeddings")),
        ("gpt2", {}, Declared(True, "the default of gpt2 (config.json has no tie_word_embeddings)")),
        (
            "t5",
            {KEY: False},
            Declared(True, "t5 is always tied in transformers 5 (config.json's false is ignored)"),
        ),
        (
            "nemotron_h",
            {KEY: True},
            Declared(False, "nemotron_h is never tied in transformers 5 (config.json's true is ignored)"),
        ),
        ("qwen2_vl", {"text_config": {KEY: True}}, Declared(True, "config.json: text_config.tie_word_embeddings")),
        ("llama4", {KEY: True, "text_config": {KEY: False}}, Declared(False, "config.json: text_config." + KEY)),
        (
            "llava",
            {"text_config": {"model_type": "gemma"}},
            Declared(True, "the default of gemma (config.json has no text_config.tie_word_embeddings)"),
        ),
        ("lfm2", {KEY: True, "tie_embedding": False}, Declared(False, "config.json: tie_embedding")),
        ("mobilellm", {KEY: False, "share_embedding": True}, Declared(True, "config.json: share_embedding")),
        ("openelm", {"share_input_output_layers": True}, Declared(True, "config.json: share_input_output_layers")),
    ],
)
def test_a_declaration_names_its_key_or_default(model_type, config, expected):
    assert resolve_declared(config, lookup(model_type)) == expected


@pytest.mark.parametrize("value", [None, "true", 1, 0, "false", []])
def test_a_flag_that_transformers_refuses_declares_nothing(value):
    with pytest.raises(Exception, match=KEY):
        from_json("llama", {"model_type": "llama", KEY: value})
    declared = resolve_declared({KEY: value}, lookup("llama"))
    assert declared.value is None
    assert "transformers 5 refuses; write true or false" in declared.by


@pytest.mark.parametrize("model_type", ["gemma3", "perception_lm", "muse_glimmer"])
def test_null_is_interpreted_as_in_transformers(model_type):
    config = from_json(model_type, {"model_type": model_type, KEY: None})
    assert resolve_declared({KEY: None}, lookup(model_type)).value is bool(config.tie_word_embeddings)


def test_an_unknown_type_declares_only_what_is_written():
    assert resolve_declared({"model_type": "new", KEY: True}, None) == Declared(True, f"config.json: {KEY}")
    assert resolve_declared({"llm_config": {KEY: False}}, None) == Declared(False, f"config.json: llm_config.{KEY}")
    assert resolve_declared({"weight_tying": True}, None) == Declared(True, "config.json: weight_tying")
    nested = {"thinker_config": {"text_config": {KEY: True}}}
    assert resolve_declared(nested, None) == Declared(True, f"config.json: thinker_config.text_config.{KEY}")
    absent = resolve_declared({"model_type": "new"}, None)
    assert absent.value is None
    assert "'new'" in absent.by
    assert resolve_declared(None, None) == Declared(None, "there is no config.json")


def test_gguf_declares_by_what_it_stores():
    assert declared_in_gguf({"token_embd.weight"}, "llama") == Declared(True, "no output.weight")
    assert declared_in_gguf({"token_embd.weight", "output.weight"}, "llama").value is False
    for always in ("falcon", "bloom"):
        assert declared_in_gguf({"token_embd.weight", "output.weight"}, always).value is True
