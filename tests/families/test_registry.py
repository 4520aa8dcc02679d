"""architectures.json: complete, consistent, and found by every model type and GGUF architecture."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources

import pytest

from tiebeam.families import known_types, lookup, vocabulary, width

TEXT = resources.files("tiebeam.families").joinpath("architectures.json").read_text(encoding="utf-8")
TABLE = json.loads(TEXT)
FIELDS = {
    *("role", "layout", "base", "embed", "head", "head_bias", "tie", "flag", "flag_type", "legacy_flag", "decides"),
    *("text", "text_type", "text_tie", "vocab", "width", "input_scale", "logit_scale", "softcap", "note"),
    *("beside", "followers"),
}
ENTRIES = {**TABLE["architectures"], **TABLE["remote"]}


def test_an_architecture_is_one_line_so_that_a_diff_reads():
    lines = TEXT.splitlines()
    assert len(lines) < len(ENTRIES) + len(TABLE["gguf"]) + len(TABLE["layouts"]) + len(TABLE["about"]) + 20
    assert list(TABLE["architectures"]) == sorted(TABLE["architectures"])


def test_entries_use_known_fields_and_layouts_and_levels():
    used = set()
    for model_type, entry in ENTRIES.items():
        assert set(entry) <= FIELDS, model_type
        assert ("embed" in entry) == ("head" in entry) != ("layout" in entry) or not {"embed", "layout"} & set(entry)
        assert entry.get("flag", "own") in ("own", "forced", "lift", "inherit", "text")
        assert entry.get("flag_type", "bool") in ("bool", "nullable", "any")
        assert set(entry.get("decides", [""])) <= {"", entry.get("text")}, model_type
        if entry.get("flag") in ("lift", "inherit", "text") or entry.get("text") in entry.get("decides", [""]):
            assert ("text_type" in entry) != ("text_tie" in entry), model_type
        if "text_type" in entry:
            assert lookup(entry["text_type"]) or not {"lift", "inherit", "text"} & {entry.get("flag")}, model_type
        assert set(lookup(model_type).beside) <= set(lookup(model_type).embed), model_type
        assert set(lookup(model_type).beside.values()) - {None} <= set(lookup(model_type).head), model_type
        used.add(entry.get("layout", "decoder"))
    assert used == set(TABLE["layouts"])


def test_every_type_reads_into_an_architecture():
    for model_type in known_types():
        architecture = lookup(model_type)
        assert architecture is not None
        assert architecture.model_type == model_type
        assert architecture.embed
        assert all(name.startswith("model.transformer.wte") or name.endswith(".weight") for name in architecture.embed)
        assert "{" not in "".join(architecture.embed + architecture.head)
        assert dataclasses.replace(architecture) == architecture


def test_gguf_architectures_map_to_their_model_type():
    gguf = pytest.importorskip("gguf")
    names = set(gguf.MODEL_ARCH_NAMES.values())
    assert set(TABLE["gguf"]) <= names
    assert all(target in TABLE["architectures"] for target in TABLE["gguf"].values())
    assert not set(TABLE["gguf"]) & set(ENTRIES)
    assert lookup("gptneox").model_type == "gpt_neox"
    assert lookup("command-r").model_type == "cohere"
    for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "falcon", "bloom", "gpt2", "mpt"):
        assert lookup(name).model_type == name
    assert len([name for name in names if lookup(name)]) > 90


def test_an_unknown_type_gives_none():
    assert lookup(None) is None
    assert lookup("no-such-model") is None


def test_sizes_are_read_at_the_level_that_has_them():
    qwen = lookup("qwen2_vl")
    assert vocabulary({"vocab_size": 9, "hidden_size": 4}, qwen) == 9  # older configs were flat
    nested = {"hidden_size": 1, "text_config": {"vocab_size": 9, "hidden_size": 4}}
    assert (vocabulary(nested, qwen), width(nested, qwen)) == (9, 4)
    thinker = {"thinker_config": {"text_config": {"vocab_size": 9, "hidden_size": 4}}}
    assert (vocabulary(thinker, lookup("qwen2_5_omni")), width(thinker, lookup("qwen2_5_omni"))) == (9, 4)
    assert width({"hidden_size": 1024, "word_embed_proj_dim": 512}, lookup("opt")) == 512
    assert vocabulary({"text_config": {"vocab_size": 9}}, None) == 9
    for nonsense in (None, {}, {"vocab_size": "many"}, {"vocab_size": True}, {"vocab_size": -1}, {"text_config": 3}):
        assert vocabulary(nonsense, qwen) is None
        assert vocabulary(nonsense, None) is None
