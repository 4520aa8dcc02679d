"""tie and untie on every state of a pair, and what they refuse."""

import json
import re
import sys
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.building import llama_config, table, write_model, write_sharded
from tiebeam import _fs
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import BadRequest, ProofFailed
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import Plan, edits, execute, open_source, plan_tie, plan_untie, tie, untie
from tiebeam.surgery.pair_edits import drop_head, set_flag
from tiebeam.surgery.tie import is_tied

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
QUICK: dict[str, Any] = {"proof": False, "durable": False}
E, W, G = table(0), table(1), np.ones(8, np.float32)


def model(where, tensors, **config):
    return write_model(where, {NORM: G, **tensors}, llama_config(**config))


def written(where):
    return load_file(where / "model.safetensors"), json.loads((where / "config.json").read_text())


@pytest.mark.parametrize("flag", [True, False])
def test_tie_drops_the_copy_of_a_twin(tmp_path, flag):
    tie(model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=flag), tmp_path / "t", **QUICK)
    tensors, config = written(tmp_path / "t")
    assert set(tensors) == {EMBED, NORM}
    assert config["tie_word_embeddings"] is True


def test_untie_only_sets_the_flag_of_a_twin_declared_tied(tmp_path):
    untie(model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=True), tmp_path / "u", **QUICK)
    tensors, config = written(tmp_path / "u")
    assert set(tensors) == {EMBED, HEAD, NORM}
    assert config["tie_word_embeddings"] is False


def test_untie_keeps_both_matrices_of_a_torn_pair_and_tie_refuses_it(tmp_path):
    source = model(tmp_path / "m", {EMBED: E, HEAD: W}, tie_word_embeddings=True)
    untie(source, tmp_path / "u", **QUICK)
    assert inspect(tmp_path / "u").tie is Tie.UNTIED
    with pytest.raises(BadRequest, match='keep="embed", keep="head" or keep="mean"'):
        tie(source, tmp_path / "t", **QUICK)


def test_a_missing_head_is_written_by_untie_and_declared_tied_by_tie(tmp_path):
    source = model(tmp_path / "m", {EMBED: E}, tie_word_embeddings=False)
    assert inspect(source).tie is Tie.HEADLESS
    untie(source, tmp_path / "u", **QUICK)
    assert np.array_equal(written(tmp_path / "u")[0][HEAD], E)
    tie(source, tmp_path / "t", **QUICK)
    assert inspect(tmp_path / "t").tie is Tie.SHARED


def test_tie_renames_a_swapped_matrix_and_drops_its_alias(tmp_path):
    where = tmp_path / "m"
    write_model(where, {NORM: G, HEAD: E}, llama_config(tie_word_embeddings=True), {EMBED: HEAD, "format": "pt"})
    assert inspect(where).tie is Tie.SWAPPED
    tie(where, tmp_path / "t", **QUICK)
    assert set(written(tmp_path / "t")[0]) == {EMBED, NORM}
    assert dict(open_checkpoint(tmp_path / "t").metadata) == {"format": "pt"}
    untie(where, tmp_path / "u", **QUICK)
    assert set(written(tmp_path / "u")[0]) == {EMBED, HEAD, NORM}


def test_nothing_to_do_is_refused_with_the_reason_and_nothing_is_written(tmp_path):
    shared = model(tmp_path / "s", {EMBED: E}, tie_word_embeddings=True)
    untied = model(tmp_path / "u", {EMBED: E, HEAD: W}, tie_word_embeddings=False)
    with pytest.raises(BadRequest, match=r"is already tied: one matrix is stored, and config\.json says tied"):
        tie(shared, tmp_path / "t", **QUICK)
    with pytest.raises(BadRequest, match="is already untied: two tensors are stored"):
        untie(untied, tmp_path / "t", **QUICK)
    assert not (tmp_path / "t").exists()


def test_an_absent_flag_is_written(tmp_path):
    shared = model(tmp_path / "m", {EMBED: E}, model_type="gemma", head_dim=4)  # gemma ties by default
    tie(shared, tmp_path / "t", **QUICK)
    assert written(tmp_path / "t")[1]["tie_word_embeddings"] is True


def test_an_unknown_architecture_needs_the_names(tmp_path):
    source = write_model(tmp_path / "m", {"tok.w": E, "norm": G}, {"model_type": "nobody_knows"})
    with pytest.raises(BadRequest, match='head="NAME"'):
        untie(source, tmp_path / "u", **QUICK, embed="tok.w")
    untie(source, tmp_path / "u", **QUICK, embed="tok.w", head="out.w")
    assert np.array_equal(load_file(tmp_path / "u" / "model.safetensors")["out.w"], E)
    tie(tmp_path / "u", tmp_path / "t", **QUICK, embed="tok.w", head="out.w")
    assert set(load_file(tmp_path / "t" / "model.safetensors")) == {"tok.w", "norm"}


def test_a_shard_without_tensors_is_removed_and_the_others_renumbered(tmp_path):
    config = llama_config(tie_word_embeddings=False)
    source = write_sharded(tmp_path / "m", [{EMBED: E}, {NORM: G}, {HEAD: E}], config)
    tie(source, tmp_path / "t", **QUICK)
    names = sorted(p.name for p in (tmp_path / "t").glob("*.safetensors"))
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / "t" / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": E.nbytes + G.nbytes}, "weight_map": {EMBED: names[0], NORM: names[1]},
    }  # fmt: skip
    assert inspect(tmp_path / "t").tie is Tie.SHARED


def test_a_plan_lists_its_changes_and_writes_nothing(tmp_path):
    source = model(tmp_path / "m", {EMBED: E}, tie_word_embeddings=True)
    plan = plan_untie(open_source(source))
    assert [str(change) for change in plan.changes] == [
        "config.json: tie_word_embeddings true -> false",
        f"model.safetensors: + lm_head.weight F32 [40, 8], a copy of {EMBED}",
    ]
    assert plan.to_dict()["changes"][0] == {"file": "config.json", "what": "tie_word_embeddings true -> false"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_a_result_that_is_not_as_planned_is_not_written(tmp_path):
    source = model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=False)
    opened = open_source(source)
    flag_only = Plan("tie", opened, set_flag(opened, True), is_tied(opened))  # sets the flag, keeps the copy
    with pytest.raises(ProofFailed, match="twin, not shared"):
        execute(flag_only, tmp_path / "t", **QUICK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_the_proof_fails_when_logits_change(tmp_path):
    import torch

    from helpers.tiny_models import build

    torch.manual_seed(0)
    build("llama", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    plan = plan_tie_by_force(open_source(tmp_path / "m"))
    with pytest.raises(ProofFailed, match="logits moved"):
        execute(plan, tmp_path / "t")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def plan_tie_by_force(source):
    """A plan that claims to be exact but drops a different matrix."""
    return Plan("tie", source, drop_head(source) | set_flag(source, True), is_tied(source), exact=True)


def test_a_model_without_a_pair_is_refused(tmp_path):
    source = write_model(tmp_path / "m", {"layer.weight": np.ones((4, 4), np.float32)}, {"model_type": "vit"})
    for planner in (plan_tie, plan_untie):
        with pytest.raises(BadRequest, match="has no embedding and head to"):
            planner(open_source(source))


@pytest.mark.parametrize("operation", [tie, untie])
def test_wrong_types_get_a_sentence(operation, tmp_path):
    with pytest.raises(BadRequest, match="source must be a path, a model id or an open Checkpoint, not int"):
        operation(5, tmp_path / "t")
    source = model(tmp_path / "m", {EMBED: E}, tie_word_embeddings=True)
    with pytest.raises(BadRequest, match="target must be a path, not int"):
        operation(source, 5)
    with pytest.raises(BadRequest, match="dtype must be"):
        operation(source, tmp_path / "t", dtype="Q4_0")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"keep": "both"}, 'keep must be "embed", "head" or "mean", not \'both\''),
        ({"keep": "head", "joint": True}, 'keep="head" and joint=True are alternatives'),
        ({"rank": 4}, "rank=4 needs joint=True"),
        ({"distill": 2.0}, "distill=2.0 needs joint=True"),
    ],
)
def test_arguments_of_tie_that_contradict_each_other_are_refused(arguments, sentence, tmp_path):
    with pytest.raises(BadRequest, match=re.escape(sentence)):
        tie(tmp_path / "m", tmp_path / "t", **arguments)


def test_an_operation_applies_its_edit_and_checks_its_target_once(tmp_path, monkeypatch):
    calls = []

    def counted(function):
        def call(*arguments):
            calls.append(function.__name__)
            return function(*arguments)

        return call

    monkeypatch.setattr("tiebeam.surgery.plan.apply", counted(edits.apply))
    monkeypatch.setattr(sys.modules["tiebeam.surgery.execute"], "check_target", counted(_fs.check_target))
    source = model(tmp_path / "m", {EMBED: E, HEAD: W}, tie_word_embeddings=False)
    outcome = tie(source, tmp_path / "t", keep="mean", **QUICK)
    assert outcome.changes
    assert sorted(calls) == ["apply", "check_target"]
