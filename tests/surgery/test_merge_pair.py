"""What a merge does to the pair: untied in the open, tied at a measured cost, clean for the doctor and transformers."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from helpers.tiny_models import build
from helpers.trained_adapters import loaded_logits, train_adapter
from tiebeam.cli import tiebeam as tiebeam_command
from tiebeam.doctor.adapters import diagnose_adapter
from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery.merge import merge


def load_silently(path: Path) -> None:
    """Load with transformers; every warning and every missing or unexpected weight fails."""
    from transformers import AutoModelForCausalLM

    said: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())

    ear, logger = Ear(logging.WARNING), logging.getLogger("transformers")
    logger.addHandler(ear)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            _, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    finally:
        logger.removeHandler(ear)
    assert said == []
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))


def test_a_copy_of_the_head_of_a_tied_base_is_merged_whole(tmp_path: Path) -> None:
    """The case that people lose their head to: modules_to_save=["lm_head"] on a tied base in bf16."""
    trained = train_adapter(
        tmp_path, dtype=torch.bfloat16, tied=True, target_modules=["q_proj", "v_proj"], modules_to_save=["lm_head"]
    )
    done = CliRunner().invoke(
        tiebeam_command, ["merge", *map(str, (trained.base, trained.adapter, tmp_path / "merged"))]
    )
    assert done.exit_code == 0, done.output
    assert "untied" in done.output
    rounding = np.abs(trained.logits).max() * 2**-7
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < rounding
    load_silently(tmp_path / "merged")
    doctor = CliRunner().invoke(tiebeam_command, ["doctor", str(tmp_path / "merged")])
    assert doctor.exit_code == 0, doctor.output
    assert "healthy" in doctor.output
    config = json.loads((tmp_path / "merged" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    stored = load_file(tmp_path / "merged" / "model.safetensors")
    adapter = load_file(trained.adapter / "adapter_model.safetensors")
    base = load_file(trained.base / "model.safetensors")
    assert torch.equal(stored["lm_head.weight"], adapter["base_model.model.lm_head.weight"])
    assert torch.equal(stored["model.embed_tokens.weight"], base["model.embed_tokens.weight"])


@pytest.mark.parametrize("end", ["embed", "head"])
def test_pair_keeps_one_matrix_and_measures_what_that_costs(end: str, tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=True, target_modules=["q_proj", "lm_head"])
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", pair=end, durable=False)
    assert outcome.after.tie is Tie.SHARED
    assert "it stays tied with the matrix of the" in outcome.notes[0]
    base, stored = (load_file(path / "model.safetensors") for path in (trained.base, tmp_path / "merged"))
    name = "model.embed_tokens.weight"
    assert torch.equal(stored[name], base[name]) == (end == "embed"), "the embedding was not trained"
    assert outcome.measured["divergence"]["kl"] > 1e-4
    assert "KL" in outcome.measured["sentence"]
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() > 1e-2, "so it is not what was trained"


def test_pair_changes_nothing_where_both_ends_are_alike(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=True, target_modules=["q_proj"])
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", pair="head", durable=False)
    assert not outcome.measured
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < 1e-5


def test_pair_is_refused_on_an_untied_base(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=False, target_modules=["q_proj"])
    with pytest.raises(BadRequest, match='is untied, so pair="head" has nothing to keep'):
        merge(trained.base, trained.adapter, tmp_path / "merged", pair="head")


def test_a_torn_base_is_repaired_first(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=True, target_modules=["lm_head"])
    file = trained.base / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, file, {"format": "pt"})
    with pytest.raises(BadRequest, match="the base is torn; repair it first: tiebeam doctor"):
        merge(trained.base, trained.adapter, tmp_path / "merged")


def test_a_type_that_no_file_can_untie_is_merged_with_pair_only(tmp_path: Path) -> None:
    """transformers always ties a T5."""
    import peft

    model = build("t5")
    model.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(r=2, target_modules=["lm_head"], init_lora_weights=False)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "adapter")
    paths = tmp_path / "base", tmp_path / "adapter", tmp_path / "merged"
    with pytest.raises(BadRequest, match=r"ties t5 whatever its config says.*or keep one matrix: pair="):
        merge(*paths)
    outcome = merge(*paths, pair="head", durable=False)
    assert outcome.after.tie is Tie.SHARED
    assert outcome.proof is not None
    assert "not a causal language model" in outcome.proof.why, "it cannot be run, and says so"


def test_the_doctor_says_what_the_merge_then_does(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, tied=True, target_modules=["q_proj", "lm_head"])
    advice = diagnose_adapter(trained.adapter).advice
    assert advice is not None
    assert "only the head of a tied base, so the result is untied" in advice.sentence
    assert advice.command == f"tiebeam merge {trained.base} {trained.adapter} {trained.base}-merged"
    done = CliRunner().invoke(tiebeam_command, advice.command.split()[1:])
    assert done.exit_code == 0, done.output
    assert np.abs(loaded_logits(tmp_path / "base-merged") - trained.logits).max() < 1e-5
