"""Every state of a pair, what tie and untie make of it, and the single repairs."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.building import llama_config, table, write_model, write_sharded
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import BadRequest, ProofFailed
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.surgery import How, carry_out, open_case, plan_tie, plan_untie, repairs, tie, untie
from tiebeam.surgery.deciding import is_tied
from tiebeam.surgery.execute import Plan

EMBED, HEAD, NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
QUICK = How(prove=False, durable=False)
E, W, G = table(0), table(1), np.ones(8, np.float32)


def model(where, tensors, **config):
    return write_model(where, {NORM: G, **tensors}, llama_config(**config))


def written(where):
    return load_file(where / "model.safetensors"), json.loads((where / "config.json").read_text())


@pytest.mark.parametrize("flag", [True, False])
def test_a_twin_loses_its_copy(tmp_path, flag):
    tie(model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=flag), tmp_path / "t", QUICK)
    tensors, config = written(tmp_path / "t")
    assert set(tensors) == {EMBED, NORM}
    assert config["tie_word_embeddings"] is True


def test_a_twin_declared_tied_is_untied_by_its_flag_alone(tmp_path):
    untie(model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=True), tmp_path / "u", QUICK)
    tensors, config = written(tmp_path / "u")
    assert set(tensors) == {EMBED, HEAD, NORM}
    assert config["tie_word_embeddings"] is False


def test_a_torn_pair_keeps_both_when_untied_and_is_not_tied_silently(tmp_path):
    source = model(tmp_path / "m", {EMBED: E, HEAD: W}, tie_word_embeddings=True)
    untie(source, tmp_path / "u", QUICK)
    assert inspect(tmp_path / "u").tie is Tie.UNTIED
    with pytest.raises(BadRequest, match=r"--keep embed\|head\|mean"):
        tie(source, tmp_path / "t", QUICK)


def test_a_missing_head_is_written_or_declared_tied(tmp_path):
    source = model(tmp_path / "m", {EMBED: E}, tie_word_embeddings=False)
    assert inspect(source).tie is Tie.HEADLESS
    untie(source, tmp_path / "u", QUICK)
    assert np.array_equal(written(tmp_path / "u")[0][HEAD], E)
    tie(source, tmp_path / "t", QUICK)
    assert inspect(tmp_path / "t").tie is Tie.SHARED


def test_a_swapped_matrix_gets_its_name_back_and_its_alias_is_forgotten(tmp_path):
    where = tmp_path / "m"
    write_model(where, {NORM: G, HEAD: E}, llama_config(tie_word_embeddings=True), {EMBED: HEAD, "format": "pt"})
    assert inspect(where).tie is Tie.SWAPPED
    tie(where, tmp_path / "t", QUICK)
    assert set(written(tmp_path / "t")[0]) == {EMBED, NORM}
    assert dict(open_checkpoint(tmp_path / "t").metadata) == {"format": "pt"}
    untie(where, tmp_path / "u", QUICK)
    assert set(written(tmp_path / "u")[0]) == {EMBED, HEAD, NORM}


def test_what_is_so_already_is_said_and_not_copied(tmp_path):
    shared = model(tmp_path / "s", {EMBED: E}, tie_word_embeddings=True)
    untied = model(tmp_path / "u", {EMBED: E, HEAD: W}, tie_word_embeddings=False)
    with pytest.raises(BadRequest, match="tied already"):
        tie(shared, tmp_path / "t", QUICK)
    with pytest.raises(BadRequest, match="untied already"):
        untie(untied, tmp_path / "t", QUICK)
    assert not (tmp_path / "t").exists()


def test_a_flag_that_is_absent_is_written_out(tmp_path):
    shared = model(tmp_path / "m", {EMBED: E}, model_type="gemma", head_dim=4)  # gemma ties by default
    tie(shared, tmp_path / "t", QUICK)
    assert written(tmp_path / "t")[1]["tie_word_embeddings"] is True


def test_names_given_by_hand_serve_an_unknown_architecture(tmp_path):
    source = write_model(tmp_path / "m", {"tok.w": E, "norm": G}, {"model_type": "nobody_knows"})
    with pytest.raises(BadRequest, match="--head"):
        untie(source, tmp_path / "u", QUICK, embed="tok.w")
    untie(source, tmp_path / "u", QUICK, embed="tok.w", head="out.w")
    assert np.array_equal(load_file(tmp_path / "u" / "model.safetensors")["out.w"], E)
    tie(tmp_path / "u", tmp_path / "t", QUICK, embed="tok.w", head="out.w")
    assert set(load_file(tmp_path / "t" / "model.safetensors")) == {"tok.w", "norm"}


def test_a_shard_that_loses_its_last_tensor_disappears(tmp_path):
    config = llama_config(tie_word_embeddings=False)
    source = write_sharded(tmp_path / "m", [{EMBED: E}, {NORM: G}, {HEAD: E}], config)
    tie(source, tmp_path / "t", QUICK)
    names = sorted(p.name for p in (tmp_path / "t").glob("*.safetensors"))
    assert names == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = json.loads((tmp_path / "t" / "model.safetensors.index.json").read_text())
    assert index == {
        "metadata": {"total_size": E.nbytes + G.nbytes}, "weight_map": {EMBED: names[0], NORM: names[1]},
    }  # fmt: skip
    assert inspect(tmp_path / "t").tie is Tie.SHARED


def test_the_plan_says_it_before_it_is_done(tmp_path):
    source = model(tmp_path / "m", {EMBED: E}, tie_word_embeddings=True)
    plan = plan_untie(open_case(source))
    assert [str(change) for change in plan.changes] == [
        "config.json: tie_word_embeddings true -> false",
        f"model.safetensors: + lm_head.weight F32 [40, 8], a copy of {EMBED}",
    ]
    assert plan.to_dict()["changes"][0] == {"file": "config.json", "what": "tie_word_embeddings true -> false"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_a_result_that_is_not_what_was_meant_is_not_put_in_place(tmp_path):
    source = model(tmp_path / "m", {EMBED: E, HEAD: E}, tie_word_embeddings=False)
    case = open_case(source)
    forgetful = Plan("tie", case, repairs.set_flag(case, True), is_tied(case))  # sets the flag, keeps the copy
    with pytest.raises(ProofFailed, match="twin, not shared"):
        carry_out(forgetful, tmp_path / "t", QUICK)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def test_logits_that_move_are_found_by_the_proof(tmp_path):
    import torch

    from helpers.tiny_models import build

    torch.manual_seed(0)
    build("llama", tie_word_embeddings=False).save_pretrained(tmp_path / "m")
    plan = plan_tie_by_force(open_case(tmp_path / "m"))
    with pytest.raises(ProofFailed, match="logits moved"):
        carry_out(plan, tmp_path / "t")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m"]


def plan_tie_by_force(case):
    """Claims to be exact about dropping a head that is another matrix."""
    return Plan("tie", case, repairs.drop_head(case) | repairs.set_flag(case, True), is_tied(case), exact=True)


def test_an_encoder_has_nothing_to_tie(tmp_path):
    source = write_model(tmp_path / "m", {"layer.weight": np.ones((4, 4), np.float32)}, {"model_type": "vit"})
    for planner in (plan_tie, plan_untie):
        with pytest.raises(BadRequest, match="no vocabulary pair"):
            planner(open_case(source))
