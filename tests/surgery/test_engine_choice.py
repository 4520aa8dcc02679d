"""Proof and loss effect of models that only transformers can run, with and without it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from helpers.tiny_models import build
from helpers.tiny_tokenizers import TEXT, write_tokenizer
from tiebeam.checkpoint import open_checkpoint
from tiebeam.errors import ProofFailed
from tiebeam.inspection import inspect
from tiebeam.surgery import tie, untie
from tiebeam.surgery.loss_effect import measure_keep
from tiebeam.surgery.proof import prove

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


def saved(kind: str, where: Path, tied: bool) -> Path:
    build(kind, tie_word_embeddings=tied).save_pretrained(where)
    write_tokenizer(where, size=96)
    return where


@pytest.mark.parametrize("kind", ["opt", "mamba", "falcon"])
def test_tie_and_untie_are_proved_with_transformers(kind: str, tmp_path: Path) -> None:
    source = saved(kind, tmp_path / "m", tied=True)
    there = untie(source, tmp_path / "u").proof
    back = tie(tmp_path / "u", tmp_path / "t").proof
    for proof in (there, back):
        assert proof is not None
        assert (proof.ran, proof.largest, proof.engine) == (True, 0.0, "transformers")


def test_without_transformers_the_proof_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = saved("opt", tmp_path / "m", tied=True)
    monkeypatch.setitem(sys.modules, "transformers", None)
    proof = untie(source, tmp_path / "u").proof
    assert proof is not None
    assert not proof.ran
    assert "needs the extra [hf]; install it with: pip install 'tiebeam[hf]'" in proof.why


def test_a_changed_weight_fails_the_proof(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    saved("opt", tmp_path / "a", tied=False)
    saved("opt", tmp_path / "b", tied=False)
    file = tmp_path / "b" / "model.safetensors"
    tensors = load_file(file)
    tensors["model.decoder.layers.0.fc1.weight"] *= 1.5
    save_file(tensors, file, {"format": "pt"})
    source, target = (open_checkpoint(tmp_path / name) for name in "ab")
    assert prove(source, source).engine == "transformers"
    with pytest.raises(ProofFailed, match="the logits moved"):
        prove(source, target)


@pytest.mark.parametrize("keep", ["embed", "head", "mean"])
def test_the_effect_on_the_loss_equals_that_of_the_written_model(keep: str, tmp_path: Path) -> None:
    from tiebeam.decode import open_engine

    source = saved("opt", tmp_path / "m", tied=False)
    checkpoint = open_checkpoint(source)
    effect = measure_keep(checkpoint, inspect(checkpoint).pair, keep, TEXT[0])
    tie(source, tmp_path / "t", keep=keep)
    assert effect.divergence is not None
    after = open_engine(tmp_path / "t").perplexity(open_engine(source).encode(TEXT[0]))
    assert effect.divergence.after.nats_per_token == pytest.approx(after.nats_per_token, abs=1e-5)
    assert "nats per token on the text given" in effect.sentence


def test_without_transformers_the_effect_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint = open_checkpoint(saved("opt", tmp_path / "m", tied=False))
    monkeypatch.setitem(sys.modules, "transformers", None)
    effect = measure_keep(checkpoint, inspect(checkpoint).pair, "head")
    assert effect.divergence is None
    assert effect.sentence.startswith("the effect on the loss was not measured: ")
    assert "needs the extra [hf]" in effect.sentence
