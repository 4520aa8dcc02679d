"""Checkpoints as the real libraries leave them, and the finding on each."""

import json
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file, save_model

from helpers.building import DIM, VOCAB, llama_config, table, write_model
from helpers.tiny_models import CAUSAL, MASKED, SEQ2SEQ, SPEECH, build
from tiebeam.doctor import Severity, diagnose

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
LAYERS = {"model.norm.weight": np.ones(DIM, np.float32)}


def codes(diagnosis):
    return [f.code for f in diagnosis.findings]


@pytest.fixture
def saved(tmp_path):
    def save(model_type="llama", *, name="m", **changes):
        build(model_type, **changes).save_pretrained(tmp_path / name)
        return tmp_path / name

    return save


def edit(where, *, config=None, tensors=None):
    if config:
        document = json.loads((where / "config.json").read_text())
        for key, value in config.items():
            if value is None:
                document.pop(key, None)
            else:
                document[key] = value
        (where / "config.json").write_text(json.dumps(document))
    if tensors:
        state = tensors(load_file(where / "model.safetensors"))
        save_file(state, where / "model.safetensors", {"format": "pt"})
    return where


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_type", [*CAUSAL, *MASKED, *SEQ2SEQ, *SPEECH])
def test_a_healthy_checkpoint_has_no_findings(saved, model_type, tied):
    if model_type == "t5" and not tied:
        pytest.skip("T5 cannot be untied in transformers 5; see test_the_ignored_flag_of_the_t5_family_is_found")
    assert codes(diagnose(saved(model_type, tie_word_embeddings=tied))) == []


def test_a_merge_that_leaves_the_flag_true_is_torn(saved, tmp_path):
    """PEFT trains a copy of a tied model's head and merges it; the flag stays true, as older PEFT left it."""
    import peft

    model = build("llama", tie_word_embeddings=True)
    adapted = peft.get_peft_model(
        model, peft.LoraConfig(r=2, target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    )
    optimizer = torch.optim.SGD([p for p in adapted.parameters() if p.requires_grad], lr=1.0)
    ids = torch.arange(10)[None]
    adapted(ids, labels=ids).loss.backward()
    optimizer.step()
    merged = adapted.merge_and_unload()
    merged.config.tie_word_embeddings = True
    merged.save_pretrained(tmp_path / "merged")
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is True
    diagnosis = diagnose(tmp_path / "merged")
    assert codes(diagnosis) == ["TB101"]
    assert diagnosis.findings[0].repair == "declare untied"
    assert "rows differ" in diagnosis.findings[0].evidence


def test_a_flag_set_to_false_by_hand_leaves_no_head(saved):
    where = edit(saved(tie_word_embeddings=True), config={"tie_word_embeddings": False})
    diagnosis = diagnose(where)
    assert codes(diagnosis) == ["TB102"]
    assert diagnosis.worst is Severity.ERROR


def test_a_lost_alias_is_a_redundant_head(saved):
    where = edit(saved(tie_word_embeddings=True), tensors=lambda t: {**t, HEAD: t[EMBED].clone()})
    assert codes(diagnose(where)) == ["TB201"]


def test_untied_but_equal_is_only_a_note(saved):
    where = edit(saved(tie_word_embeddings=False), tensors=lambda t: {**t, HEAD: t[EMBED].clone()})
    diagnosis = diagnose(where)
    assert codes(diagnosis) == ["TB202"]
    assert diagnosis.worst is Severity.NOTE


def test_save_model_leaves_only_the_head(saved, tmp_path):
    model = build("llama", tie_word_embeddings=True)
    where = saved(tie_word_embeddings=True)
    save_model(model, str(where / "model.safetensors"))
    assert HEAD in load_file(where / "model.safetensors")
    diagnosis = diagnose(where)
    assert codes(diagnosis) == ["TB203"]
    assert diagnosis.findings[0].repair == "rename the head"


def test_an_alias_noted_only_in_the_metadata_is_a_note(tmp_path):
    where = write_model(
        tmp_path / "m", {EMBED: table(), **LAYERS}, llama_config(tie_word_embeddings=True), {HEAD: EMBED}
    )
    assert codes(diagnose(where)) == ["TB206"]


def test_only_the_head_with_the_flag_false_is_an_error(tmp_path):
    where = write_model(tmp_path / "m", {HEAD: table(), **LAYERS}, llama_config(tie_word_embeddings=False))
    diagnosis = diagnose(where)
    assert codes(diagnosis) == ["TB203"]
    assert diagnosis.worst is Severity.ERROR


def test_disagreeing_levels_of_a_multimodal_config_are_found(tmp_path):
    text = llama_config(tie_word_embeddings=True)
    config = {"model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text}
    tensors = {"model.language_model.embed_tokens.weight": table(), **LAYERS}
    below = diagnose(write_model(tmp_path / "below", tensors, config))
    assert "TB103" in codes(below)
    both = diagnose(write_model(tmp_path / "both", tensors, {**config, "tie_word_embeddings": False}))
    assert "TB103" in codes(both)
    agreed = diagnose(write_model(tmp_path / "agreed", tensors, {**config, "tie_word_embeddings": True}))
    assert codes(agreed) == []


@pytest.mark.parametrize(
    ("model_type", "severity", "said"),
    [
        ("mistral3", "warning", "starts a random head; mlx-lm"),
        ("glmasr", "note", "no loader that the tests run takes another level for this type"),
    ],
)
def test_levels_that_transformers_writes_by_default_are_a_note_unless_a_loader_is_misled(
    tmp_path, model_type, severity, said
):
    """The default configs of some types disagree with themselves. tests/peers shows what each loader does with them."""
    from peers import tiny_architectures

    tiny_architectures.build(model_type).save_pretrained(tmp_path / "saved")
    (found,) = [f for f in diagnose(tmp_path / "saved").findings if f.code == "TB103"]
    assert found.severity == severity
    assert said in found.evidence


@pytest.mark.parametrize(
    ("model_type", "path"),
    [
        ("encoder-decoder", ["decoder"]),
        ("rag", ["generator"]),
        ("qwen2_5_omni", ["thinker_config", "text_config"]),
        ("qwen3_vl", ["text_config"]),
    ],
)
def test_disagreeing_flags_are_found_at_every_level_that_untie_writes(tmp_path, model_type, path):
    """TB103 saw four keys one level down; `untie` and `doctor --fix` wrote six keys at any depth."""
    inner: dict[str, Any] = {"tie_word_embeddings": False}
    for key in reversed(path):
        inner = {key: inner}
    config = {**llama_config(model_type=model_type, tie_word_embeddings=True), **inner}
    where = write_model(tmp_path / "m", {EMBED: table(), **LAYERS}, config)
    found = [f for f in diagnose(where, embed=EMBED).findings if f.code == "TB103"]
    assert len(found) == 1
    assert f"{'.'.join(path)}.tie_word_embeddings = false" in found[0].evidence


def test_an_absent_flag_is_found_if_libraries_disagree(saved):
    where = edit(saved(tie_word_embeddings=False), config={"tie_word_embeddings": None})
    assert codes(diagnose(where)) == ["TB104"]


def test_an_absent_flag_is_fine_if_libraries_agree(saved):
    where = edit(saved("gemma", tie_word_embeddings=True), config={"tie_word_embeddings": None})
    assert codes(diagnose(where)) == []


def test_the_ignored_flag_of_the_t5_family_is_found(saved):
    where = edit(
        saved("t5"),
        config={"tie_word_embeddings": False},
        tensors=lambda t: {**t, HEAD: torch.randn_like(t["shared.weight"])},
    )
    assert "TB105" in codes(diagnose(where))


def test_a_vocabulary_resized_on_one_side_is_found(saved):
    where = edit(
        saved(tie_word_embeddings=True),
        tensors=lambda t: {**t, HEAD: t[EMBED].clone(), EMBED: torch.cat([t[EMBED], torch.randn(4, 32)])},
    )
    assert codes(diagnose(where)) == ["TB204"]


def test_a_checkpoint_without_its_pair_is_found(saved):
    where = edit(saved(tie_word_embeddings=True), tensors=lambda t: {n: v for n, v in t.items() if n != EMBED})
    assert codes(diagnose(where)) == ["TB205"]


@pytest.mark.parametrize(("flag", "code"), [(True, "TB301"), (False, "TB302")])
def test_a_few_rows_trained_on_one_side_are_found(saved, flag, code):
    def train_three_rows(tensors):
        head = tensors[EMBED].clone()
        head[-3:] += 0.5
        return {**tensors, HEAD: head}

    where = edit(saved(tie_word_embeddings=flag), tensors=train_three_rows)
    diagnosis = diagnose(where)
    assert codes(diagnosis) == [code]
    assert "3 of 96 rows" in diagnosis.findings[0].evidence


def test_copies_of_the_embedding_that_drifted_are_found(tmp_path):
    embed = table()
    tensors = {EMBED: embed, HEAD: table(1), "model.layers.1.embed_tokens.weight": embed + 0.01 * table(2), **LAYERS}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    assert codes(diagnose(where)) == ["TB303"]
    tensors["model.layers.1.embed_tokens.weight"] = embed
    assert codes(diagnose(write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False)))) == []


def test_a_packed_head_on_a_tied_model(tmp_path):
    tensors = {
        EMBED: table(),
        "lm_head.qweight": np.zeros((DIM // 8, VOCAB), np.int32),
        "lm_head.scales": np.ones((1, VOCAB), np.float16),
        **LAYERS,
    }
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=True))
    assert codes(diagnose(where)) == ["TB601"]


def test_a_packed_head_on_an_untied_model_is_fine(tmp_path):
    tensors = {
        EMBED: table(),
        "lm_head.qweight": np.zeros((DIM // 8, VOCAB), np.int32),
        "lm_head.scales": np.ones((1, VOCAB), np.float16),
        **LAYERS,
    }
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    assert codes(diagnose(where)) == []


@pytest.mark.parametrize(("type_name", "expected"), [("Q4_0", ["TB602"]), ("Q8_0", []), ("F16", [])])
def test_a_low_bit_embedding_that_is_the_head_is_found(tmp_path, type_name, expected):
    gguf = pytest.importorskip("gguf")
    from gguf.quants import quantize

    kind = gguf.GGMLQuantizationType[type_name]
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_block_count(1)
    writer.add_tensor("token_embd.weight", quantize(table(0, 64, 32), kind), raw_dtype=kind)
    writer.add_tensor("output_norm.weight", np.ones(32, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert codes(diagnose(tmp_path / "m.gguf")) == expected


def test_a_diagnosis_prints_its_verdict_first(saved):
    where = saved(tie_word_embeddings=True)
    assert str(diagnose(where)).splitlines()[0] == f"healthy: no findings · {where}"
    broken = diagnose(edit(where, config={"tie_word_embeddings": False}))
    assert str(broken).splitlines()[0] == f"1 error · {where}"
    assert f"tiebeam doctor {where} --fix" in str(broken)
    assert "TB102 error" in broken._repr_html_()


def test_examine_is_an_alias_of_diagnose():
    import tiebeam

    assert tiebeam.examine is tiebeam.diagnose


def test_findings_come_worst_first_and_as_json(saved):
    where = edit(saved(tie_word_embeddings=True), config={"tie_word_embeddings": False})
    document = json.loads(json.dumps(diagnose(where).to_dict()))
    (finding,) = document["findings"]
    assert finding["code"] == "TB102"
    assert finding["severity"] == "error"
    assert finding["cause"]
    assert finding["fix"]
    assert {v["loader"] for v in document["loaders"]} >= {"transformers 5", "transformers 4", "vLLM", "mlx-lm"}


def few_rows_differ():
    changed = table(0)
    changed[-3:] += 1
    return changed


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("tensors", "config", "expected"),
    [
        ({EMBED: table(0), HEAD: table(1)}, {"tie_word_embeddings": True}, ["TB101"]),
        ({EMBED: table(0)}, {"tie_word_embeddings": False}, ["TB102"]),
        ({EMBED: table(0), HEAD: table(1)}, {}, ["TB104"]),
        ({EMBED: table(0), HEAD: table(0)}, {"tie_word_embeddings": True}, ["TB201"]),
        ({EMBED: table(0), HEAD: table(0)}, {"tie_word_embeddings": False}, ["TB202"]),
        ({HEAD: table(0)}, {"tie_word_embeddings": True}, ["TB203"]),
        ({EMBED: table(0), HEAD: table(1, VOCAB + 2)}, {"tie_word_embeddings": False}, ["TB204"]),
        ({}, {"tie_word_embeddings": True}, ["TB205"]),
        ({EMBED: table(0), HEAD: few_rows_differ()}, {"tie_word_embeddings": True}, ["TB301"]),
        ({EMBED: table(0), HEAD: few_rows_differ()}, {"tie_word_embeddings": False}, ["TB302"]),
        ({EMBED: table(0)}, {"tie_word_embeddings": True}, []),
    ],
)
def test_a_sharded_checkpoint_has_the_findings_of_the_consolidated_one(tmp_path, tensors, config, expected):
    import torch.distributed.checkpoint as dcp

    config, tensors = llama_config(**config), {**LAYERS, **tensors}
    assert codes(diagnose(write_model(tmp_path / "whole", tensors, config))) == expected
    state = {name: torch.tensor(values) for name, values in tensors.items()}
    dcp.save({"model": state}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (tmp_path / "dcp" / "config.json").write_text(json.dumps(config))
    found = diagnose(tmp_path / "dcp")
    assert sorted(codes(found)) == sorted([*expected, "TB207"])
    assert next(f for f in found.findings if f.code == "TB207").severity is Severity.NOTE
