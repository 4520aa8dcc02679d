"""Both engines behind one interface: the same logits, the same text, and one sentence when neither can run a model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import llama_config, table, write_model
from helpers.lively_models import TOLERANCE, lively, reference, save, sentence
from helpers.tiny_ggufs import write_gguf
from helpers.tiny_models import build
from helpers.tiny_tokenizers import TEXT, write_tokenizer
from tiebeam.decode import Decoder, Sampling, Table, divergence, open_engine
from tiebeam.decode.engine import engine_name
from tiebeam.decode.perplexity import perplexity
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

BOTH = ["llama", "qwen3", "gemma2", "gemma3_text", "gpt2", "gpt_neox"]
ONLY_TRANSFORMERS = ["opt", "bloom", "falcon", "gptj", "mamba", "cohere"]


def saved(kind: str, where: Path, **changes: Any) -> Any:
    """A tiny random model on disk, with a tokenizer; returns the model."""
    model = lively(kind, **changes) if kind in BOTH else build(kind, **changes)
    save(model, where)
    write_tokenizer(where, size=96)
    return model


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", BOTH)
def test_both_engines_give_equal_logits_and_the_same_greedy_text(kind: str, tied: bool, tmp_path: Path) -> None:
    model = saved(kind, tmp_path, tie_word_embeddings=tied)
    tokens = sentence(40)
    numpy, torch_engine = (open_engine(tmp_path, engine=name) for name in ("numpy", "transformers"))
    np.testing.assert_allclose(torch_engine.logits(tokens), numpy.logits(tokens), rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(torch_engine.logits(tokens), reference(model, tokens), rtol=0, atol=1e-5)
    texts = [[t.id for t in engine.generate([5, 6, 7], 12, stop=False)] for engine in (numpy, torch_engine)]
    assert texts[0] == texts[1]
    assert torch_engine.perplexity(TEXT[0]).nats_per_token == pytest.approx(
        numpy.perplexity(TEXT[0]).nats_per_token, abs=1e-4
    )


@pytest.mark.parametrize("kind", ONLY_TRANSFORMERS)
def test_an_architecture_that_numpy_lacks_runs_with_transformers(kind: str, tmp_path: Path) -> None:
    model = saved(kind, tmp_path)
    engine = open_engine(tmp_path)
    assert engine_name(engine) == "transformers"
    tokens = sentence(30)
    expected = reference(model, tokens)
    np.testing.assert_allclose(engine.logits(tokens), expected, rtol=0, atol=1e-5)
    targets = torch.from_numpy(tokens[1:])
    loss = torch.nn.functional.cross_entropy(torch.from_numpy(expected[:-1]), targets)
    assert perplexity(engine, tokens).nats_per_token == pytest.approx(float(loss), abs=1e-4)
    greedy = list(tokens[:5])
    for _ in range(6):
        greedy.append(int(reference(model, np.array(greedy))[-1].argmax()))
    assert [t.id for t in engine.generate([int(t) for t in tokens[:5]], 6, stop=False)] == greedy[5:]


def test_numpy_is_chosen_when_it_can_run_the_model(tmp_path: Path) -> None:
    saved("llama", tmp_path)
    assert isinstance(open_engine(tmp_path), Decoder)


@pytest.mark.parametrize("kind", ["opt", "gemma2"])
def test_embedding_and_head_can_be_replaced(kind: str, tmp_path: Path) -> None:
    """The same as loading a model that has those tables."""
    model = saved(kind, tmp_path, tie_word_embeddings=False)
    engine = open_engine(tmp_path, engine="transformers")
    random = np.random.default_rng(0)
    E, W = (random.standard_normal((96, 32)).astype(np.float32) for _ in range(2))
    tokens = sentence(20)
    before = engine.logits(tokens)
    changed = engine.with_tables(Table(E), Table(W))
    with torch.no_grad():
        model.get_input_embeddings().weight.copy_(torch.from_numpy(E))
        model.get_output_embeddings().weight.copy_(torch.from_numpy(W))
    np.testing.assert_allclose(changed.logits(tokens), reference(model, tokens), rtol=0, atol=1e-4)
    np.testing.assert_array_equal(engine.logits(tokens), before)  # the original did not change
    assert divergence(engine, changed, tokens).kl > 0.1
    np.testing.assert_array_equal(changed.embed.lookup(np.array([3])), E[[3]])


def test_a_factorised_table_with_exact_rows_is_used_as_one_matrix(tmp_path: Path) -> None:
    saved("llama", tmp_path, tie_word_embeddings=False)
    random = np.random.default_rng(0)
    S, A, exact = (random.standard_normal(shape).astype(np.float32) for shape in ((96, 8), (8, 32), (2, 32)))
    joint = Table(S, A, np.array([3, 50]), exact)
    tokens = [3, 4, 50, 51]
    engines = [open_engine(tmp_path, engine=name).with_tables(joint, joint) for name in ("numpy", "transformers")]
    np.testing.assert_allclose(engines[1].logits(tokens), engines[0].logits(tokens), rtol=0, atol=TOLERANCE)


def test_named_tensors_replace_the_models_own(tmp_path: Path) -> None:
    saved("opt", tmp_path, tie_word_embeddings=False)
    engine = open_engine(tmp_path, embed="lm_head.weight")
    np.testing.assert_array_equal(engine.embed.lookup(np.arange(5)), engine.head.lookup(np.arange(5)))
    with pytest.raises(BadRequest, match="'nonsense' is not in this checkpoint"):
        open_engine(tmp_path, head="nonsense")


def test_a_sampled_text_is_repeatable(tmp_path: Path) -> None:
    saved("opt", tmp_path)
    engine, sampling = open_engine(tmp_path), Sampling(temperature=1.0, top_k=20, seed=3)
    once, again = (list(engine.generate(TEXT[0][:20], 10, sampling=sampling)) for _ in range(2))
    assert once == again
    assert len(once) > 0


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_weights_are_held_in_the_dtype_asked_for(dtype: str, tmp_path: Path) -> None:
    saved("opt", tmp_path)
    tokens = sentence(20)
    plain, other = open_engine(tmp_path), open_engine(tmp_path, dtype=dtype)
    assert other.model.dtype == getattr(torch, dtype)  # type: ignore[attr-defined]
    np.testing.assert_allclose(other.logits(tokens), plain.logits(tokens), rtol=0, atol=0.05)


def test_a_bfloat16_checkpoint_runs_in_float32(tmp_path: Path) -> None:
    model = build("opt").to(torch.bfloat16)
    save(model, tmp_path)
    tokens = sentence(20)
    found = open_engine(tmp_path).logits(tokens)
    np.testing.assert_allclose(found, reference(model, tokens), rtol=0, atol=1e-5)


def test_a_pytorch_file_is_read_without_unpickling(tmp_path: Path) -> None:
    model = saved("opt", tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    tokens = sentence(20)
    np.testing.assert_allclose(open_engine(tmp_path).logits(tokens), reference(model, tokens), rtol=0, atol=1e-5)


def test_without_transformers_the_message_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("opt", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtra, match=r"'opt'.*needs the extra \[hf\]; install it with: pip install"):
        open_engine(tmp_path)
    with pytest.raises(MissingExtra, match=r"the transformers engine needs the extra \[hf\]"):
        open_engine(tmp_path, engine="transformers")


def test_without_transformers_numpy_still_runs_what_it_can(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("llama", tmp_path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert open_engine(tmp_path).logits([1, 2]).shape == (2, 96)


def test_missing_weights_are_refused_instead_of_random(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    saved("opt", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop("model.decoder.layers.0.fc1.weight")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnreadableInput, match=r"stores no model\.decoder\.layers\.0\.fc1\.weight"):
        open_engine(tmp_path)


@pytest.mark.parametrize("kind", ["bert", "bart", "t5"])
def test_a_model_that_is_not_a_causal_language_model_is_refused(kind: str, tmp_path: Path) -> None:
    build(kind).save_pretrained(tmp_path)
    with pytest.raises(UnreadableInput, match="is not a causal language model"):
        open_engine(tmp_path)


def test_a_gguf_is_refused_by_the_transformers_engine(tmp_path: Path) -> None:
    where = write_gguf(lively("llama"), tmp_path / "m.gguf")
    with pytest.raises(UnreadableInput, match="does not run GGUF"):
        open_engine(where, engine="transformers")


def test_an_unknown_architecture_lists_the_reasons_of_both_engines(tmp_path: Path) -> None:
    config = {**llama_config(), "model_type": "nobodys", "architectures": ["NobodysForCausalLM"]}
    write_model(tmp_path, {"model.embed_tokens.weight": table(), "lm_head.weight": table(1)}, config)
    with pytest.raises(UnreadableInput, match=r"'nobodys'.*transformers cannot run it either.*'nobodys'"):
        open_engine(tmp_path)


def test_code_in_the_repository_is_never_run(tmp_path: Path) -> None:
    saved("opt", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Evil: pass\n")
    open_engine(tmp_path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "jax"}, "engine='jax' is not one of auto, numpy, transformers"),
        ({"engine": "numpy", "device": "cuda"}, "the numpy engine has no device 'cuda'"),
        ({"device": "nonsense"}, "device 'nonsense' cannot be used"),
    ],
)
def test_invalid_choices_are_refused(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    saved("llama", tmp_path)
    with pytest.raises(BadRequest, match=message):
        open_engine(tmp_path, **options)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        ([], "there are no tokens to run"),
        ([96], "token id 96 is outside the vocabulary of 96"),
        ([1] * 65, "65 tokens are more than the model's context of 64"),
        ([1.5], "whole numbers"),
    ],
)
def test_invalid_tokens_are_refused(tokens: list[Any], message: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    where = tmp_path_factory.mktemp("opt")
    saved("opt", where)
    with pytest.raises(BadRequest, match=message):
        open_engine(where).logits(tokens)


def test_loading_prints_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    saved("opt", tmp_path)
    capfd.readouterr()
    open_engine(tmp_path)
    assert capfd.readouterr() == ("", "")
