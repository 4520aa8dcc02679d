"""Tokenizer ids, vocab_size and rows of tiny real models, the findings on them, and what transformers says to each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from helpers.tiny_models import VOCAB, build
from helpers.tiny_tokenizers import write_tokenizer
from tiebeam.checkpoint import open_checkpoint
from tiebeam.doctor import Diagnosis, Severity, diagnose
from tiebeam.doctor.fix import plan_fix

ROWS = 320


def codes(diagnosis: Diagnosis) -> list[str]:
    return [finding.code for finding in diagnosis.findings]


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., Path]:
    """A llama of 320 rows beside a real tokenizer of 300 tokens; `changes` go into config.json."""

    def write(ids: int = 300, added: int = 0, rows: int = ROWS, **changes: Any) -> Path:
        where = tmp_path / "m"
        build("llama", vocab_size=rows, tie_word_embeddings=True).save_pretrained(where)
        write_tokenizer(where, ids)
        if added:
            from tokenizers import Tokenizer

            tokenizer = Tokenizer.from_file(str(where / "tokenizer.json"))
            tokenizer.add_tokens([f"<new{i}>" for i in range(added)])
            tokenizer.save(str(where / "tokenizer.json"))
        edit(where / "config.json", **changes)
        return where

    return write


def edit(path: Path, **changes: Any) -> None:
    document = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**document, **changes}))


def loads(where: Path) -> str:
    """The error with which transformers refuses the model; empty if it loads."""
    from transformers import AutoModelForCausalLM

    try:
        AutoModelForCausalLM.from_pretrained(where)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_padding_is_a_note(model: Callable[..., Path]) -> None:
    diagnosis = diagnose(model())
    assert diagnosis.report.vocabulary.to_dict() == {
        "tokenizer_ids": 300, "vocab_size": ROWS, "embed_rows": ROWS, "head_rows": ROWS, "padding_rows": 20,
    }  # fmt: skip
    assert codes(diagnosis) == ["TB704"]
    assert diagnosis.worst is Severity.NOTE
    assert "rows 300 to 319 are padding" in diagnosis.findings[0].evidence


def test_a_table_as_large_as_the_tokenizer_has_no_findings(model: Callable[..., Path]) -> None:
    assert codes(diagnose(model(rows=300))) == []


def test_ids_of_the_vocabulary_beyond_the_rows_are_an_error_that_transformers_meets(model: Callable[..., Path]) -> None:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    where = model(ids=300, rows=280)
    assert codes(diagnose(where)) == ["TB701"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(where / "tokenizer.json"))
    ids = tokenizer("hello world and the rain in torrents, dark and stormy")["input_ids"]
    assert max(ids) >= 280
    with pytest.raises(IndexError, match="index out of range"):
        AutoModelForCausalLM.from_pretrained(where)(torch.tensor([ids]))


def test_added_tokens_beside_a_table_of_the_base_are_a_bad_merge(model: Callable[..., Path]) -> None:
    (finding,) = diagnose(model(ids=300, added=3, rows=300)).findings
    assert (finding.code, finding.severity) == ("TB702", Severity.ERROR)
    assert "3 added tokens have no row (<new0>, <new1>, <new2>)" in finding.evidence
    assert "resize_token_embeddings(303)" in finding.fix


@pytest.mark.parametrize("declared", [ROWS - 10, ROWS + 10, 5000])
def test_vocab_size_beside_other_rows_is_found_and_fixed(
    model: Callable[..., Path], tmp_path: Path, declared: int
) -> None:
    """transformers refuses the model, loads the fixed one, and its logits are those before config.json was changed."""
    import torch
    from transformers import AutoModelForCausalLM

    where = model()
    logits = AutoModelForCausalLM.from_pretrained(where)(torch.arange(8)[None]).logits
    edit(where / "config.json", vocab_size=declared)
    diagnosis = diagnose(where)
    assert codes(diagnosis)[0] == "TB703"
    assert diagnosis.worst is Severity.ERROR
    assert "size mismatch" in loads(where) or "mismatch" in loads(where)
    plan_fix(where).write(tmp_path / "fixed")
    assert "TB703" not in codes(diagnose(tmp_path / "fixed"))
    fixed = AutoModelForCausalLM.from_pretrained(tmp_path / "fixed")
    assert torch.equal(fixed(torch.arange(8)[None]).logits, logits)


def test_tokens_in_the_padding_are_named(model: Callable[..., Path]) -> None:
    finding = diagnose(model(vocab_size=290)).findings[0]
    assert "the tokens from 290 to 299 sit in the padding" in finding.evidence


@pytest.mark.parametrize(
    ("file", "key", "value"),
    [
        ("config.json", "pad_token_id", ROWS),
        ("config.json", "eos_token_id", [2, ROWS + 7]),
        ("generation_config.json", "bos_token_id", ROWS),
        ("generation_config.json", "suppress_tokens", [1, ROWS]),
        ("generation_config.json", "forced_decoder_ids", [[1, ROWS]]),
    ],
)
def test_special_ids_out_of_range_are_found(model: Callable[..., Path], file: str, key: str, value: Any) -> None:
    where = model()
    edit(where / file, **{key: value})
    diagnosis = diagnose(where)
    (finding,) = [f for f in diagnosis.findings if f.code == "TB705"]
    assert f"{file}: {key} = " in finding.evidence
    assert finding.severity is (Severity.NOTE if (file, key) == ("config.json", "eos_token_id") else Severity.ERROR)


def test_transformers_refuses_a_pad_token_beyond_the_rows(model: Callable[..., Path]) -> None:
    assert "Padding_idx" in loads(model(pad_token_id=ROWS))


def test_a_negative_id_means_none(model: Callable[..., Path]) -> None:
    assert codes(diagnose(model(pad_token_id=-1))) == ["TB704"]


def test_a_broken_tokenizer_is_a_note_and_the_rest_is_reported(model: Callable[..., Path]) -> None:
    where = model()
    (where / "tokenizer.json").write_text('{"model": {"vocab": {')
    report = diagnose(where).report
    assert report.vocabulary.tokenizer_ids is None
    assert any("the tokenizer was not read" in note for note in report.notes)


@pytest.mark.parametrize("tokens", [80, VOCAB, 120])
def test_a_gguf_needs_one_row_per_token(tokens: int, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{i}" for i in range(tokens)])
    writer.add_tensor("token_embd.weight", np.random.default_rng(0).standard_normal((VOCAB, 32)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    diagnosis = diagnose(path)
    assert (codes(diagnosis) == ["TB701"]) == (tokens != VOCAB)
    assert diagnosis.report.vocabulary.tokenizer_ids == tokens


def test_numbers_of_a_checkpoint_without_config_are_unknown_and_no_finding(model: Callable[..., Path]) -> None:
    where = model(rows=300)
    (where / "config.json").unlink()
    report = diagnose(open_checkpoint(where)).report
    assert report.vocabulary.vocab_size is None
    assert report.vocabulary.tokenizer_ids == 300
