"""Logits, generation, and one-sentence errors."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.building import write_model
from helpers.lively_models import lively, save, sentence
from helpers.tiny_tokenizers import write_tokenizer
from tiebeam.decode import Decoder
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput

pytest.importorskip("transformers")

DOWN = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny llama of 96 tokens and 64 positions with a tokenizer of its own."""
    where = save(lively("llama", tie_word_embeddings=True, eos_token_id=2), tmp_path_factory.mktemp("llama"))
    write_tokenizer(where, size=96)
    return where


@pytest.fixture(scope="module")
def decoder(model: Path) -> Decoder:
    return Decoder.open(model)


def copy_of(model: Path, where: Path) -> Path:
    for file in model.iterdir():
        (where / file.name).write_bytes(file.read_bytes())
    return where


def with_tensors(model: Path, where: Path, **changes: np.ndarray | None) -> Path:
    copy_of(model, where)
    tensors = {**load_file(model / "model.safetensors"), **changes}
    save_file({name: value for name, value in tensors.items() if value is not None}, where / "model.safetensors")
    return where


def test_greedy_is_the_argmax_of_a_whole_forward_each_time(decoder):
    tokens = sentence(5).tolist()
    made = [token.id for token in decoder.generate(tokens, 10, stop=False)]
    for token in made:
        assert token == int(decoder.logits(tokens)[-1].argmax())
        tokens.append(token)


def test_tokens_come_one_by_one(decoder):
    stream = decoder.generate(sentence(5).tolist(), 10, stop=False)
    first = next(stream)
    assert first.id == next(decoder.generate(sentence(5).tolist(), 1, stop=False)).id


def test_text_is_the_decoded_tokens(decoder):
    made = list(decoder.generate("hello world", 20, stop=False))
    whole = decoder.tokenizer.decode([*decoder.encode("hello world"), *(token.id for token in made)])
    assert "hello world" + "".join(token.text for token in made) == whole


def test_a_seed_makes_generation_repeatable(decoder):
    def draw(seed: int) -> list[int]:
        return [t.id for t in decoder.generate([1, 5], 12, temperature=2.0, top_p=0.9, seed=seed, stop=False)]

    assert draw(7) == draw(7)
    assert draw(7) != draw(8)


def test_generation_ends_at_the_end_token(model, tmp_path):
    where = copy_of(model, tmp_path)
    tokens = sentence(5).tolist()
    made = [token.id for token in Decoder.open(model).generate(tokens, 12, stop=False)]
    (where / "generation_config.json").write_text(json.dumps({"eos_token_id": [90, made[4]]}))
    decoder = Decoder.open(where)
    assert [token.id for token in decoder.generate(tokens, 12)] == made[: made.index(made[4])]
    assert [token.id for token in decoder.generate(tokens, 12, stop=False)] == made


def test_rows_without_a_token_string_are_never_generated(model, tmp_path):
    where = copy_of(model, tmp_path)
    write_tokenizer(where, size=60)
    decoder = Decoder.open(where)
    assert decoder.tokenizer.size == 60 < decoder.vocab
    made = [t.id for t in decoder.generate([1, 2, 3], 30, temperature=5.0, seed=0, stop=False)]
    assert max(made) < 60


def test_zero_new_tokens_run_nothing(decoder):
    assert list(decoder.generate([1], 0)) == []


def test_the_whole_context_can_be_used(decoder):
    assert decoder.logits(sentence(64)).shape == (64, 96)
    assert len(list(decoder.generate(sentence(60).tolist(), 4, stop=False))) == 4


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda d: d.logits(sentence(65)), "65 tokens are more than the model's context of 64; shorten the text"),
        (lambda d: d.generate(sentence(60).tolist(), 5), "60 tokens of prompt and 5 new .*; ask for at most 4"),
        (lambda d: d.generate(sentence(64).tolist(), 5), "64 tokens are more than the model's context of 64"),
        (lambda d: d.logits([]), "there are no tokens to run"),
        (lambda d: d.generate([], 3), "there are no tokens to run"),
        (lambda d: d.generate("", 3), "the prompt is empty"),
        (lambda d: d.logits([1, 96]), "token id 96 is outside the vocabulary of 96"),
        (lambda d: d.logits([-1]), "token id -1 is outside the vocabulary of 96"),
        (lambda d: d.logits([0.5]), "tokens must be a list of whole numbers"),
        (lambda d: d.logits([[1, 2]]), "tokens must be a list of whole numbers"),
        (lambda d: d.generate([1], -1), "n must be 0 or more, not -1"),
        (lambda d: d.forward([1, 2, 3], d.cache(2)), "the cache has capacity for 2 positions and holds 0; 3 more"),
    ],
)
def test_wrong_requests_are_refused_before_anything_runs(decoder, ask, message):
    with pytest.raises(BadRequest, match=message):
        ask(decoder)


def broken(case: str, model: Path, where: Path) -> Path:
    weight = load_file(model / "model.safetensors")[DOWN]
    match case:
        case "missing tensor":
            return with_tensors(model, where, **{DOWN: None})
        case "wrong shape":
            return with_tensors(model, where, **{DOWN: weight[:, :-1].copy()})
        case "NaN":
            weight = weight.copy()
            weight[3, 5] = np.nan
            return with_tensors(model, where, **{DOWN: weight})
        case "whole numbers":
            return with_tensors(model, where, **{DOWN: np.ones(weight.shape, np.int8)})
        case "overflow":
            return with_tensors(model, where, **{DOWN: np.full(weight.shape, 3e38, np.float32)})
        case "no config":
            copy_of(model, where)
            (where / "config.json").unlink()
            return where
        case "bad tokenizer":
            copy_of(model, where)
            (where / "tokenizer.json").write_text("{}")
            return where
        case "no tokenizer":
            copy_of(model, where)
            (where / "tokenizer.json").unlink()
            return where
        case "another architecture":
            return write_model(where, {"x": np.ones(3, np.float32)}, {"model_type": "mamba"})
    raise AssertionError(case)


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing tensor", f"has no tensor '{DOWN}', which its architecture requires"),
        ("wrong shape", rf"{DOWN} is \[32, 47\] but the configuration requires \[32, 48\]"),
        ("NaN", rf"{DOWN} holds 1 values that are not finite, the first at \[3, 5\]"),
        ("whole numbers", f"{DOWN} holds I8, not floating point"),
        ("overflow", "overflows on this input: the weights are finite, the activations are not"),
        ("no config", "has no config.json, which describes how to run it"),
        ("bad tokenizer", "tokenizer.json cannot be read"),
        ("no tokenizer", "has no tokenizer; give token ids instead of text"),
        ("another architecture", "cannot run the architecture 'mamba'; it runs cohere2, gemma, gemma2,"),
    ],
)
def test_damaged_checkpoints_give_a_one_sentence_error(case, message, model, tmp_path):
    with pytest.raises(UnreadableInput, match=message) as caught:
        list(Decoder.open(broken(case, model, tmp_path)).generate("hello", 3, stop=False))
    assert "\n" not in str(caught.value)


def test_nan_in_a_table_is_found(model, tmp_path):
    name = "model.embed_tokens.weight"
    table = load_file(model / "model.safetensors")[name].copy()
    table[40, 2] = np.inf
    with pytest.raises(UnreadableInput, match=rf"{name} holds 1 values .* first at \[40, 2\]"):
        Decoder.open(with_tensors(model, tmp_path, **{name: table})).logits([1, 2])


def test_ids_run_without_a_readable_tokenizer(model, tmp_path):
    decoder = Decoder.open(broken("bad tokenizer", model, tmp_path))
    made = list(decoder.generate([1, 2], 3, stop=False))
    assert [token.text for token in made] == ["", "", ""]


def test_unused_tensors_are_noted(model, tmp_path):
    decoder = Decoder.open(with_tensors(model, tmp_path, extra=np.ones(3, np.float32)))
    assert decoder.notes == ("one stored tensor is not used: extra",)


def test_a_config_with_wrong_sizes_raises_only_tiebeam_errors(model, tmp_path):
    config = json.loads((model / "config.json").read_text())
    copy_of(model, tmp_path)
    for key, value in config.items():
        wrong_values: list[Any] = [None, "x", -1, 0, 7, 2**40, 0.5, [], {}, True]
        for wrong in wrong_values:
            if type(wrong) is not type(value) or wrong != value:
                (tmp_path / "config.json").write_text(json.dumps({**config, key: wrong}))
                with contextlib.suppress(TiebeamError):
                    Decoder.open(tmp_path).logits([1, 2, 3])
