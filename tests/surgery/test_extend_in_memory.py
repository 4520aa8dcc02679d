"""`extend_`: new tokens for a transformers model in memory, with its tokenizer and optimizer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import tiebeam
from helpers.models_with_tokenizers import TOKENS, save_with_tokenizer
from tiebeam.errors import BadRequest


def trained(where: Path, tied: bool, **options: Any) -> tuple[Any, Any, torch.optim.Optimizer]:
    """A model, its tokenizer, and an optimizer after one step."""
    model = save_with_tokenizer(where, tie_word_embeddings=tied, **options)
    tokenizer = transformers.AutoTokenizer.from_pretrained(where)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ids = torch.arange(40)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, tokenizer, optimizer


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("init", ["mean", "subwords"])
def test_rows_moments_and_tie_are_kept(tied: bool, init: str, tmp_path: Path) -> None:
    model, tokenizer, optimizer = trained(tmp_path, tied)
    E, W = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    before = [(weight.detach().clone(), optimizer.state[weight]["exp_avg"].clone()) for weight in (E, W)]
    assert tiebeam.extend_(model, tokenizer, TOKENS, init=init, optimizer=optimizer) is model
    assert tokenizer("<think>")["input_ids"] == [300]
    assert model.config.vocab_size == 302
    E, W = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    assert (E is W) is tied
    for weight, (values, moments) in zip((E, W), before, strict=True):
        assert weight.shape == (302, 32)
        assert torch.equal(weight[:300], values)
        assert weight[300:].norm(dim=1).tolist() == pytest.approx([float(values.norm(dim=1).median())] * 2, rel=0.01)
        state = optimizer.state[weight]["exp_avg"]
        assert torch.equal(state[:300], moments)
        assert state[300:].eq(0).all()
    held = [p for group in optimizer.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in model.parameters()}
    ids = torch.tensor([[5, 300, 7, 301]])
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    assert not torch.equal(model.get_input_embeddings().weight[300:].detach(), E[300:].detach() * 0)


@pytest.mark.parametrize("tied", [True, False])
def test_the_rows_are_those_that_the_file_gets(tied: bool, tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path / "m", tie_word_embeddings=tied)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "m")
    tiebeam.extend(tmp_path / "m", tmp_path / "x", tokens=TOKENS, proof=False)
    tiebeam.extend_(model, tokenizer, TOKENS)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "x")
    for name, parameter in loaded.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_padding_rows_are_used_first(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path, tie_word_embeddings=True, rows=304)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    old = model.get_input_embeddings().weight.detach().clone()
    tiebeam.extend_(model, tokenizer, TOKENS)
    new = model.get_input_embeddings().weight
    assert new.shape == old.shape
    assert torch.equal(new[:300], old[:300])
    assert torch.equal(new[302:], old[302:])
    assert not torch.equal(new[300:302], old[300:302])


def test_biases_and_multiples(tmp_path: Path) -> None:
    model = save_with_tokenizer(tmp_path, "phi", tie_word_embeddings=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    with torch.no_grad():
        model.lm_head.bias.copy_(torch.arange(300.0))
    tiebeam.extend_(model, tokenizer, ["<a>"], pad_to_multiple_of=64)
    assert len(model.lm_head.bias) == 320
    assert model.lm_head.bias[300:].detach().tolist() == pytest.approx([149.5] * 20)
    assert model.lm_head.bias[:300].tolist() == list(range(300))


def test_bad_requests_change_nothing(tmp_path: Path) -> None:
    model, tokenizer, optimizer = trained(tmp_path, True)
    for tokens, match in (([], "nothing to add"), (["hello"], "exists already"), (["<a>", "<a>"], "given twice")):
        with pytest.raises(BadRequest, match=match):
            tiebeam.extend_(model, tokenizer, tokens)
    with pytest.raises(BadRequest, match="does not hold"):
        tiebeam.extend_(model, tokenizer, ["<a>"], optimizer=torch.optim.SGD([torch.nn.Parameter(torch.ones(1))]))
    with pytest.raises(BadRequest, match="needs a model and a tokenizer of transformers"):
        tiebeam.extend_(torch.nn.Linear(2, 2), tokenizer, ["<a>"])
    assert len(tokenizer) == 300
    assert model.get_input_embeddings().weight.shape[0] == 300
    assert optimizer.param_groups
