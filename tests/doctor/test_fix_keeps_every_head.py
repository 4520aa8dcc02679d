"""`doctor --fix` on two different matrices under a true flag: transformers 5 then loads both, and all that was tied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers import untied_models as models
from tiebeam.doctor import diagnose
from tiebeam.doctor.fix import plan_fix
from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery import open_source, plan_tie, plan_untie

SEQ2SEQ, MASKED, IMAGE = "SEQ_TO_SEQ_CAUSAL_LM", "MASKED_LM", "IMAGE_TEXT_TO_TEXT"
CASES = [
    ("bart", SEQ2SEQ, "lm_head.weight"),
    ("marian", SEQ2SEQ, "lm_head.weight"),
    ("m2m_100", SEQ2SEQ, "lm_head.weight"),
    ("bert", MASKED, "cls.predictions.decoder.weight"),
    ("roberta", MASKED, "lm_head.decoder.weight"),
    ("albert", MASKED, "predictions.decoder.weight"),
    ("qwen2_5_vl", IMAGE, "lm_head.weight"),
    ("gemma3", IMAGE, "language_model.lm_head.weight"),
]


def write(where: Path, model_type: str, task: str, head_name: str, head: torch.Tensor | None) -> Path:
    """A model saved tied, with a head beside it; the head repeats the embedding if `head` is None."""
    model = models.build(model_type, task, tied=True)
    model.save_pretrained(where)
    stored = load_file(where / "model.safetensors")
    copied = model.get_output_embeddings().weight.detach().clone() if head is None else head
    save_file({**stored, head_name: copied}, where / "model.safetensors", {"format": "pt"})
    return where


def set_flags(where: Path, value: bool) -> None:
    config = json.loads((where / "config.json").read_text())
    for level in (config, config.get("text_config")):
        if isinstance(level, dict):
            level["tie_word_embeddings"] = value
    (where / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(("model_type", "task", "head_name"), CASES, ids=[case[0] for case in CASES])
def test_a_torn_model_keeps_both_matrices_and_every_follower(
    model_type: str, task: str, head_name: str, tmp_path: Path
) -> None:
    torch.manual_seed(5)
    shape = models.build(model_type, task, tied=True).get_output_embeddings().weight.shape
    head = torch.randn(shape) * 0.02
    source = write(tmp_path / "torn", model_type, task, head_name, head)
    assert diagnose(source).report.tie is Tie.TORN
    plan_fix(source).write(tmp_path / "fixed")
    models.build(model_type, task, tied=False).save_pretrained(tmp_path / "expected")
    assert models.saved_names(tmp_path / "fixed") == models.saved_names(tmp_path / "expected")
    before, *_ = models.load(source, task)
    after, missing, unexpected = models.load(tmp_path / "fixed", task)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(after.get_output_embeddings().weight, head)
    assert torch.equal(after.get_input_embeddings().weight, before.get_input_embeddings().weight)
    assert torch.equal(models.logits(before), models.logits(after))
    assert not [f for f in diagnose(tmp_path / "fixed").findings if f.severity != "note"]


@pytest.mark.parametrize(("model_type", "task", "head_name"), CASES, ids=[case[0] for case in CASES])
def test_a_flag_flipped_by_hand_is_found_and_the_followers_are_written(
    model_type: str, task: str, head_name: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "flipped", model_type, task, head_name, None)
    set_flags(source, False)
    _, missing, _ = models.load(source, task)
    found = {finding.code for finding in diagnose(source).findings}
    assert ("TB208" in found) == bool(missing)
    if not missing:
        return
    plan_fix(source).write(tmp_path / "fixed")
    set_flags(source, True)
    before, *_ = models.load(source, task)
    after, missing, unexpected = models.load(tmp_path / "fixed", task)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(models.logits(before), models.logits(after))


@pytest.mark.parametrize(("model_type", "task", "head_name"), CASES, ids=[case[0] for case in CASES])
def test_a_repeated_head_is_dropped_and_the_logits_stay(
    model_type: str, task: str, head_name: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "twin", model_type, task, head_name, None)
    plan_fix(source).write(tmp_path / "fixed")
    assert head_name not in models.saved_names(tmp_path / "fixed")
    before, *_ = models.load(source, task)
    after, missing, unexpected = models.load(tmp_path / "fixed", task)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(models.logits(before), models.logits(after))


@pytest.mark.parametrize(("model_type", "task", "head_name"), CASES, ids=[case[0] for case in CASES])
def test_a_head_alone_becomes_the_embedding_that_transformers_reads(
    model_type: str, task: str, head_name: str, tmp_path: Path
) -> None:
    source = write(tmp_path / "swapped", model_type, task, head_name, None)
    before, *_ = models.load(source, task)
    stored = load_file(source / "model.safetensors")
    embed = diagnose(source).report.pair.embed.name
    del stored[embed]
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    plan_fix(source).write(tmp_path / "fixed")
    assert embed in models.saved_names(tmp_path / "fixed")
    after, missing, unexpected = models.load(tmp_path / "fixed", task)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(models.logits(before), models.logits(after))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("flag", [True, False])
def test_a_head_of_three_times_the_embedding_is_never_a_twin_and_never_deleted(
    dtype: torch.dtype, flag: bool, tmp_path: Path
) -> None:
    model = models.build("llama", "CAUSAL_LM", tied=True)
    model.save_pretrained(tmp_path / "scaled")
    head = (3 * model.lm_head.weight.detach()).to(dtype)
    stored = load_file(tmp_path / "scaled" / "model.safetensors")
    save_file({**stored, "lm_head.weight": head}, tmp_path / "scaled" / "model.safetensors", {"format": "pt"})
    set_flags(tmp_path / "scaled", flag)
    assert diagnose(tmp_path / "scaled").report.tie is (Tie.TORN if flag else Tie.UNTIED)
    with pytest.raises(BadRequest, match="differ"):
        plan_tie(open_source(tmp_path / "scaled"))
    planned = plan_fix(tmp_path / "scaled")
    assert (planned.plan is not None) == flag
    if planned.plan:
        planned.write(tmp_path / "fixed")
        assert torch.equal(load_file(tmp_path / "fixed" / "model.safetensors")["lm_head.weight"], head)
    assert not plan_untie(open_source(tmp_path / "scaled")).edit.drop


def test_what_tie_refuses_is_left_by_the_fix_too(tmp_path: Path) -> None:
    """Two dtypes of one matrix: which of them to keep is a decision."""
    model = models.build("llama", "CAUSAL_LM", tied=True)
    model.save_pretrained(tmp_path / "m")
    stored = load_file(tmp_path / "m" / "model.safetensors")
    rounded = stored["model.embed_tokens.weight"].to(torch.bfloat16)
    save_file({**stored, "lm_head.weight": rounded}, tmp_path / "m" / "model.safetensors", {"format": "pt"})
    with pytest.raises(BadRequest, match="up to rounding"):
        plan_tie(open_source(tmp_path / "m"))
    planned = plan_fix(tmp_path / "m")
    assert planned.plan is None
    assert [finding.code for finding in planned.left] == ["TB209"]


def test_a_type_that_ignores_its_flag_keeps_it(tmp_path: Path) -> None:
    """T5 reads the flag as whether decoder outputs are scaled: setting it would change the logits."""
    model = models.build("t5", SEQ2SEQ, tied=True)
    model.save_pretrained(tmp_path / "t5")
    stored = load_file(tmp_path / "t5" / "model.safetensors")
    copy = stored["shared.weight"].clone()
    save_file({**stored, "lm_head.weight": copy}, tmp_path / "t5" / "model.safetensors", {"format": "pt"})
    set_flags(tmp_path / "t5", False)
    before, *_ = models.load(tmp_path / "t5", SEQ2SEQ)
    planned = plan_fix(tmp_path / "t5")
    assert planned.plan is not None
    planned.write(tmp_path / "fixed")
    assert json.loads((tmp_path / "fixed" / "config.json").read_text())["tie_word_embeddings"] is False
    after, missing, unexpected = models.load(tmp_path / "fixed", SEQ2SEQ)
    assert (missing, unexpected) == ([], [])
    assert torch.equal(models.logits(before), models.logits(after))


def test_a_head_alone_under_a_false_flag_needs_a_decision(tmp_path: Path) -> None:
    """gemma3 with the head only, declared untied: its embedding may be lost, so nothing is declared tied."""
    source = write(tmp_path / "g", "gemma3", IMAGE, "language_model.lm_head.weight", None)
    stored = load_file(source / "model.safetensors")
    del stored["language_model.model.embed_tokens.weight"]
    save_file(stored, source / "model.safetensors", {"format": "pt"})
    set_flags(source, False)
    planned = plan_fix(source)
    assert planned.plan is None
    assert "TB203" in {finding.code for finding in planned.left}


def test_a_loader_that_the_fix_leaves_worse_off_is_named_first(tmp_path: Path) -> None:
    """Every loader that loads the model before and not after is in the notes, and no other."""
    good = ("ties", "keeps both", "copies", "loads")
    source = write(tmp_path / "neox", "gpt_neox", "CAUSAL_LM", "embed_out.weight", None)
    planned = plan_fix(source)
    planned.write(tmp_path / "fixed")
    before = {p.loader: p.outcome for p in diagnose(source).loaders}
    after = {p.loader: p.outcome for p in diagnose(tmp_path / "fixed").loaders}
    worse = [name for name in before if before[name] in good and after[name] not in good]
    assert [note.partition(" loads the model")[0] for note in planned.notes] == worse
