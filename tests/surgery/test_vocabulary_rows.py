"""Rows of every vocabulary tensor change together: added, replaced, dropped, in safetensors, shards and GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.building import write_sharded
from helpers.lively_models import lively
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import VOCAB, auto_class, build
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.surgery import Outcome, Plan, execute, open_source
from tiebeam.surgery.vocabulary_rows import plan_rows, vocabulary_tables


def written(source: Path, target: Path, order: Any, fill: float = 0.25) -> Outcome:
    """The model with the rows `order`; every value of new row k is fill + k."""
    opened = open_source(source, target=target)
    tables = vocabulary_tables(opened)
    count = max(0, -min(order))
    new = {
        table.name: np.broadcast_to(
            (fill + np.arange(count)).reshape(-1, *(1 for _ in table.width)), (count, *table.width)
        )
        for table in tables
    }
    edit = plan_rows(opened, order, new, tables)
    return execute(Plan("extend", opened, edit, lambda report: None, exact=False), target)


CASES = {
    "llama tied": ("llama", {"tie_word_embeddings": True}, 1),
    "llama untied": ("llama", {"tie_word_embeddings": False}, 2),
    "gpt2": ("gpt2", {}, 1),
    "phi, a head with a bias": ("phi", {"tie_word_embeddings": False}, 3),
    "bert, a bias": ("bert", {}, 2),
    "bart, final_logits_bias": ("bart", {}, 2),
    "t5": ("t5", {}, 1),
    "whisper": ("whisper", {}, 1),
    "opt": ("opt", {}, 1),
}


@pytest.mark.parametrize("case", list(CASES))
@pytest.mark.filterwarnings("ignore")
def test_transformers_loads_every_tensor_with_two_rows_more(case: str, tmp_path: Path) -> None:
    model_type, options, changed = CASES[case]
    build(model_type, **options).save_pretrained(tmp_path / "m")
    outcome = written(tmp_path / "m", tmp_path / "x", [*range(VOCAB), -1, -2])
    config = json.loads((tmp_path / "x" / "config.json").read_text())
    assert config["vocab_size"] == VOCAB + 2
    assert outcome.after.vocabulary.rows == VOCAB + 2
    before, after = load_file(tmp_path / "m" / "model.safetensors"), load_file(tmp_path / "x" / "model.safetensors")
    grown = {name for name in after if after[name].shape != before[name].shape}
    assert len(grown) == changed, grown
    for name, tensor in after.items():
        axis = -1 if name in grown and "bias" in name else 0
        old = tensor.narrow(axis, 0, before[name].shape[axis]) if name in grown else tensor
        assert torch.equal(old, before[name]), name
        if name in grown:
            assert tensor.narrow(axis, VOCAB, 1).eq(0.25).all()
            assert tensor.narrow(axis, VOCAB + 1, 1).eq(1.25).all()
    model, info = auto_class(model_type).from_pretrained(tmp_path / "x", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert model.get_input_embeddings().weight.shape[0] == VOCAB + 2


def test_rows_are_replaced_dropped_and_reordered_to_the_byte(tmp_path: Path) -> None:
    build("llama", tie_word_embeddings=False, dtype="bfloat16").save_pretrained(tmp_path / "m")
    before = load_file(tmp_path / "m" / "model.safetensors")
    order = [5, 6, 7, -1, 3, 2, 90, -2]
    written(tmp_path / "m", tmp_path / "x", order)
    after = load_file(tmp_path / "x" / "model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        for row, old in enumerate(order):
            expected = before[name][old] if old >= 0 else torch.full_like(before[name][0], -old - 0.75)
            assert torch.equal(after[name][row], expected)
    assert json.loads((tmp_path / "x" / "config.json").read_text())["vocab_size"] == len(order)


def test_many_runs_are_copied_like_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m")
    order = [*range(0, VOCAB, 2), -1]
    written(tmp_path / "m", tmp_path / "few", order)
    monkeypatch.setattr("tiebeam.surgery.vocabulary_rows._SPANS", 3)
    written(tmp_path / "m", tmp_path / "many", order)
    few, many = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("few", "many"))
    assert few == many


def test_only_the_shard_with_the_table_is_rewritten(tmp_path: Path) -> None:
    model = build("llama", tie_word_embeddings=True)
    tensors = {name: value.numpy() for name, value in model.state_dict().items() if name != "lm_head.weight"}
    first = {name: value for name, value in tensors.items() if "embed" in name}
    write_sharded(tmp_path / "m", [first, {n: v for n, v in tensors.items() if n not in first}], model.config.to_dict())
    written(tmp_path / "m", tmp_path / "x", [*range(VOCAB), -1])
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    same = [(tmp_path / "m" / name).read_bytes() == (tmp_path / "x" / name).read_bytes() for name in names]
    assert same == [False, True]
    assert open_checkpoint(tmp_path / "x").tensors["model.embed_tokens.weight"].shape == (VOCAB + 1, 32)


@pytest.mark.parametrize("store", ["F32", "F16", "BF16", "Q8_0", "Q4_0"])
def test_a_gguf_keeps_its_old_rows_to_the_byte(store: str, tmp_path: Path) -> None:
    write_gguf(
        lively("llama", tie_word_embeddings=False, intermediate_size=64), tmp_path / "m.gguf", store, vocab_size=VOCAB
    )
    written(tmp_path / "m.gguf", tmp_path / "x.gguf", [*range(VOCAB), -1, -2], fill=1.0)
    before, after = (gguf.GGUFReader(tmp_path / f"{name}.gguf") for name in ("m", "x"))
    assert after.fields["llama.vocab_size"].contents() == VOCAB + 2
    for old, new in zip(before.tensors, after.tensors, strict=True):
        assert old.name == new.name
        if old.name in ("token_embd.weight", "output.weight"):
            assert new.shape.tolist() == [32, VOCAB + 2]
            assert np.array_equal(new.data[:VOCAB], old.data)
            values = gguf.quants.dequantize(new.data[VOCAB:], new.tensor_type)
            np.testing.assert_allclose(values, np.array([[1.0] * 32, [2.0] * 32]), rtol=0.01)
        else:
            assert np.array_equal(new.data, old.data)


def test_a_type_that_gguf_cannot_write_is_refused(tmp_path: Path) -> None:
    path = write_gguf(lively("llama", tie_word_embeddings=True, hidden_size=256), tmp_path / "m.gguf")
    reader, writer = gguf.GGUFReader(path), gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(field.name, value)
    for tensor in reader.tensors:
        if tensor.name == "token_embd.weight":
            raw = np.zeros((VOCAB, 210), np.uint8)
            writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType.Q6_K)
        else:
            writer.add_tensor(tensor.name, np.array(tensor.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadRequest, match="cannot write Q6_K; change the model before it is quantized"):
        written(tmp_path / "k.gguf", tmp_path / "x.gguf", [*range(VOCAB), -1])
    written(tmp_path / "k.gguf", tmp_path / "fewer.gguf", range(10))
    assert not (tmp_path / "x.gguf").exists()
