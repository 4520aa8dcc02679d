"""Adapters trained with added tokens: the base grows, with the rows and the tokenizer of the adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from helpers.lively_models import lively
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import VOCAB
from helpers.trained_adapters import Trained, loaded_logits, train_adapter
from tiebeam.doctor import diagnose
from tiebeam.doctor.adapters import diagnose_adapter
from tiebeam.doctor.examples import write_vocab
from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery.merge import merge

NEW = [96, 97, 98]
KINDS: dict[str, dict[str, Any]] = {
    "layers only": {"target_modules": ["q_proj"]},
    "copies of both": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens", "lm_head"]},
    "a copy of the embedding": {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    "LoRA on both": {"target_modules": ["q_proj", "embed_tokens", "lm_head"]},
    "rows": {"target_modules": ["q_proj"], "trainable_token_indices": {"embed_tokens": NEW}},
}


def trained_with_tokens(where: Path, tied: bool, kind: str, tokens: int = 3) -> Trained:
    trained = train_adapter(where, tied=tied, grow=len(NEW), **KINDS[kind])
    write_vocab(trained.base, VOCAB)
    write_vocab(trained.adapter, VOCAB, added=tokens)
    return trained


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_base_grows_to_the_adapters_vocabulary(kind: str, tied: bool, tmp_path: Path) -> None:
    trained = trained_with_tokens(tmp_path, tied, kind)
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert np.abs(loaded_logits(tmp_path / "merged") - trained.logits).max() < 1e-5
    assert trained.logits.shape[1] == VOCAB + len(NEW)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["vocab_size"] == VOCAB + len(NEW)
    assert outcome.after.vocabulary.tokenizer_ids == outcome.after.vocabulary.rows == VOCAB + len(NEW)
    assert (outcome.after.tie is Tie.SHARED) == (tied and kind in ("layers only", "rows"))
    assert not diagnose(tmp_path / "merged").findings
    assert outcome.proof is not None
    assert outcome.proof.ran


def test_rows_that_the_adapter_lacks_start_as_the_mean(tmp_path: Path) -> None:
    """An adapter whose file has only the embedding: the new rows of the untied head were never saved."""
    trained = trained_with_tokens(tmp_path, False, "a copy of the embedding")
    from safetensors.numpy import save_file

    file = trained.adapter / "adapter_model.safetensors"
    save_file({n: v for n, v in load_file(file).items() if "lm_head" not in n}, file)
    merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    base, found = (
        load_file(path / "model.safetensors")["lm_head.weight"] for path in (trained.base, tmp_path / "merged")
    )
    assert np.array_equal(found[:VOCAB], base)
    assert np.allclose(found[VOCAB:], base.mean(0), atol=1e-6)


def test_the_tokenizer_of_the_adapter_is_taken_if_new_tokens_use_padding_rows(tmp_path: Path) -> None:
    """As in Qwen2.5-VL: the table has rows to spare, so nothing grows, but the new tokens must have their texts."""
    trained = train_adapter(tmp_path, target_modules=["q_proj"], trainable_token_indices=[90, 91])
    write_vocab(trained.base, 90)
    write_vocab(trained.adapter, 90, added=2)
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert outcome.after.vocabulary.tokenizer_ids == 92
    assert outcome.after.vocabulary.rows == VOCAB


def test_a_tokenizer_without_its_rows_is_not_taken(tmp_path: Path) -> None:
    """The merged model that others write: the adapter's tokenizer beside a table of the base's size (TB702)."""
    trained = train_adapter(tmp_path, target_modules=["q_proj"])
    write_vocab(trained.base, VOCAB)
    write_vocab(trained.adapter, VOCAB, added=3)
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert any("the rows of the added tokens are not in the adapter" in note for note in outcome.notes)
    assert outcome.after.vocabulary.tokenizer_ids == VOCAB
    assert not diagnose(tmp_path / "merged").findings
    write_vocab(tmp_path / "merged", VOCAB, added=3)
    (finding,) = diagnose(tmp_path / "merged").findings
    assert finding.code == "TB702"
    assert "tiebeam merge" in finding.fix


def test_without_a_tokenizer_the_report_says_so(tmp_path: Path) -> None:
    trained = train_adapter(tmp_path, grow=3, **KINDS["layers only"])
    outcome = merge(trained.base, trained.adapter, tmp_path / "merged", durable=False)
    assert any("no adapter has the tokenizer of the new rows" in note for note in outcome.notes)


def test_a_gguf_does_not_grow_by_a_merge(tmp_path: Path) -> None:
    trained = trained_with_tokens(tmp_path, True, "copies of both")
    base = write_gguf(lively("llama", tie_word_embeddings=True), tmp_path / "base.gguf")
    with pytest.raises(BadRequest, match="a GGUF has its tokenizer inside; add the tokens first: tiebeam extend"):
        merge(base, trained.adapter, tmp_path / "merged.gguf")


def test_the_doctor_announces_that_the_base_grows(tmp_path: Path) -> None:
    trained = trained_with_tokens(tmp_path, True, "copies of both")
    diagnosis = diagnose_adapter(trained.adapter)
    assert diagnosis.advice is not None
    assert "the base grows to 99 rows" in diagnosis.advice.sentence
    assert any(step.command == diagnosis.advice.command for f in diagnosis.findings for step in f.steps)
