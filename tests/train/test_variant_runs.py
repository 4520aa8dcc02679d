"""Every variant is trained, interrupted, resumed, written, and opened by the other verbs."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiebeam
from helpers.plain_loss import plain_loss
from helpers.small_corpus import small_corpus
from tiebeam.decode import Decoder
from tiebeam.errors import BadRequest
from tiebeam.nn import tied_cross_entropy
from tiebeam.train import RunDirectory, Settings, train
from tiebeam.train.distributed.environment import Distribution
from tiebeam.train.pack_run import open_run, pack_run

CHANGES: dict[str, dict[str, Any]] = {
    "factorised": {"embed_dim": 8},
    "input-grad-scale": {"input_grad_scale": 4.0},
    "coupled-adam": {"coupled_adam": True},
    "coupled-then-untied": {"coupled_adam": True, "tie": 0.5},
    "zero-head": {"tie": False, "zero_head": True},
    "embed-norm": {"embed_norm": True},
    "softcap": {"softcap": 15.0},
    "z-loss": {"z_loss": 1e-3},
    "bigram": {"bigram_rows": 64},
    "pseudo-inverse": {"pseudo_inverse": True},
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory)


def settings(**changes):
    base = {"layers": 1, "dim": 16, "heads": 2, "kv_heads": 1, "mlp_dim": 32, "context": 32, "batch_tokens": 64,
            "steps": 8, "threads": 1, "log_every": 4}  # fmt: skip
    return Settings(**{**base, **changes})


IN_EVERY_RUN = ("coupled-then-untied", "bigram", "pseudo-inverse")
EACH = [name if name in IN_EVERY_RUN else pytest.param(name, marks=pytest.mark.exhaustive) for name in CHANGES]


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_run_of_a_variant_is_a_checkpoint_that_decodes_packs_and_resumes(name, corpus, tmp_path):
    chosen = settings(**CHANGES[name])
    assert Settings.from_dict(json.loads(json.dumps(chosen.to_dict()))) == replace(chosen, rates=chosen.learning_rates)
    whole = train(chosen, corpus, tmp_path / "whole")
    stops = iter([False] * 4 + [True])
    train(chosen, corpus, tmp_path / "cut", interrupted=lambda: next(stops))
    resumed = train(chosen, corpus, tmp_path / "cut", resume=True)
    assert resumed.final == whole.final
    path = tmp_path / "whole"
    ids = corpus.val[:24].astype(int).tolist()
    model, _ = open_run(path)
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].numpy()
    assert abs(Decoder.open(path).logits(ids) - expected).max() < 1e-3
    assert len(list(Decoder.open(path).generate("the cat", 4))) > 0
    assert str(tiebeam.inspect(path).pair.tie) in ("shared", "untied")
    packed = pack_run(path, tmp_path / "run.tbp")
    assert packed.before.bpb == pytest.approx(whole.final.bpb, abs=1e-3)
    assert abs(packed.lost) < 0.1
    saved = RunDirectory.open(path).read_run()["settings"]
    assert all(saved[key] == value for key, value in CHANGES[name].items())


def test_the_table_of_a_pseudo_inverse_pair_is_orthonormal_after_training(corpus, tmp_path):
    train(settings(pseudo_inverse=True), corpus, tmp_path / "run")
    Z = RunDirectory.open(tmp_path / "run").load_state()[0]["model.model.embed_tokens.weight"].double()
    torch.testing.assert_close(Z.t() @ Z, torch.eye(16, dtype=torch.float64), rtol=0, atol=1e-5)


def test_the_z_loss_is_logsumexp_squared_and_not_part_of_the_held_out_loss(corpus, tmp_path):
    torch.manual_seed(0)
    h, W = torch.randn(6, 5, dtype=torch.float64, requires_grad=True), torch.randn(9, 5, dtype=torch.float64)
    W.requires_grad_()
    targets = torch.randint(9, (6,))
    found = torch.autograd.grad(tied_cross_entropy(h, W, targets, z_loss=0.3), (h, W))
    z = h @ W.t()
    expected = plain_loss(h, W, targets) + 0.3 * torch.logsumexp(z, 1).square().mean()
    for one, other in zip(found, torch.autograd.grad(expected, (h, W)), strict=True):
        torch.testing.assert_close(one, other)
    train(settings(z_loss=10.0, steps=1, rates=None), corpus, tmp_path / "run")
    first = next(r for r in RunDirectory.open(tmp_path / "run").metrics() if "loss" in r)
    held_out = RunDirectory.open(tmp_path / "run").final_validation()["val_loss"]
    assert first["loss"] > 100 > held_out


@pytest.mark.parametrize("name", ["zero_head", "embed_norm", "bigram_rows", "pseudo_inverse", "coupled_adam"])
def test_mlx_refuses_what_it_does_not_have(name):
    with pytest.raises(BadRequest, match=f"{name}=.*is not supported by the MLX backend"):
        settings(backend="mlx", threads=None, tie=name != "zero_head", **{name: 64 if name == "bigram_rows" else True})


@pytest.mark.parametrize("name", ["coupled_adam", "pseudo_inverse"])
@pytest.mark.parametrize("layout", ["fsdp", "vocab"])
def test_sharded_ranks_refuse_what_needs_the_full_embedding(name, layout):
    with pytest.raises(BadRequest, match="needs the full embedding on every rank; drop --shard"):
        Distribution(0, 2, 0, layout).check(settings(**{name: True}))


def test_settings_refuse_what_does_not_fit_together():
    with pytest.raises(BadRequest, match="is not supported by `optimizer='adamw'`"):
        settings(coupled_adam=True, optimizer="adamw")
    with pytest.raises(BadRequest, match="z_loss"):
        settings(z_loss=-1.0)
