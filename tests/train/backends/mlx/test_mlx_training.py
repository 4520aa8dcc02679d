"""A run on MLX has the losses and files of a run on torch, and everything else opens it."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.small_corpus import small_corpus

mx = pytest.importorskip("mlx.core", reason="mlx is not installed here", exc_type=ImportError)

import torch
from click.testing import CliRunner

import tiebeam
from helpers.mlx_twins import weights_of
from tiebeam import Tie, nn
from tiebeam.cli import tiebeam as program
from tiebeam.decode import Decoder
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train import LearningRates, RunDirectory, Settings, train
from tiebeam.train import evaluate as evaluate_on_torch
from tiebeam.train.backends import mlx
from tiebeam.train.pack_run import open_run, pack_run, unpack_run
from tiebeam.train.result import Diverged

TINY: dict[str, Any] = {
    "layers": 2,
    "dim": 32,
    "heads": 2,
    "kv_heads": 1,
    "mlp_dim": 64,
    "context": 32,
    "batch_tokens": 128,
}
SRC = str(Path(tiebeam.__file__).parent.parent)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory)


@pytest.fixture(scope="module")
def finished(corpus, tmp_path_factory):
    """A tied run of each architecture."""
    where = tmp_path_factory.mktemp("runs")
    for arch in ("standard", "golf"):
        train(settings(arch=arch), corpus, where / arch)
    return where


def settings(**changes):
    return Settings(**{**TINY, "steps": 8, "log_every": 1, "validate_every": 0.5, "backend": "mlx", **changes})


def records(where, key):
    return [record[key] for record in RunDirectory.open(where).metrics() if key in record]


def with_torch_initial_weights(chosen, corpus):
    torch.manual_seed(chosen.seed)
    model = mlx.GPT(chosen.model(corpus.vocab))
    model.load(weights_of(nn.GPT(model.config)))
    return model


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tie": False},
        {"tie": 0.5, "accumulate": 2},
        {"arch": "golf", "softcap": 15.0, "z_loss": 1e-4},
        {"arch": "golf", "tie": False, "optimizer": "adamw"},
    ],
    ids=str,
)
def test_twenty_steps_match_torch(corpus, tmp_path, monkeypatch, changes):
    monkeypatch.setattr("tiebeam.train.muon.fast_dtype", lambda device: torch.float32)
    ours = settings(steps=20, **changes)
    theirs = Settings(**{**ours.to_dict(), "backend": "torch", "threads": 1, "rates": ours.rates})
    on_torch = train(theirs, corpus, tmp_path / "torch")
    on_mlx = train(ours, corpus, tmp_path / "mlx", model=with_torch_initial_weights(ours, corpus))
    for key, within in (("loss", 2e-3), ("val_bpb", 2e-3), ("rate", 1e-9), ("head_share", 2e-3)):
        expected, found = records(tmp_path / "torch", key), records(tmp_path / "mlx", key)
        assert len(found) == len(expected) > 0
        assert found == pytest.approx(expected, abs=within), key
    assert on_mlx.final.to_dict() == pytest.approx(on_torch.final.to_dict(), abs=2e-3)
    assert (on_mlx.tied, on_mlx.params, on_mlx.steps) == (on_torch.tied, on_torch.params, on_torch.steps)
    assert {p.name for p in (tmp_path / "mlx").iterdir()} == {p.name for p in (tmp_path / "torch").iterdir()}
    config_of_one, config_of_other = (json.loads((tmp_path / n / "config.json").read_text()) for n in ("torch", "mlx"))
    assert config_of_other == config_of_one


def test_the_metrics_have_the_same_fields_as_torch(corpus, finished, tmp_path):
    train(Settings(**{**TINY, "steps": 2, "log_every": 1, "threads": 1}), corpus, tmp_path / "torch")
    fields = [
        {tuple(sorted(r)) for r in RunDirectory.open(p).metrics()} for p in (tmp_path / "torch", finished / "golf")
    ]
    assert fields[0] == fields[1]


@pytest.mark.parametrize("arch", ["standard", "golf"])
def test_inspect_sees_one_table(finished, arch):
    report = tiebeam.inspect(finished / arch)
    assert report.tie is Tie.SHARED
    assert report.params.total == report.params.stored


@pytest.mark.parametrize("arch", ["standard", "golf"])
def test_the_decoder_and_torch_agree_with_mlx(corpus, finished, arch):
    ids = list(range(20))
    model, _ = open_run(finished / arch)
    with torch.no_grad():
        on_torch = model(torch.tensor([ids]))[0].numpy()
    np.testing.assert_allclose(Decoder.open(finished / arch).logits(ids), on_torch, atol=2e-4)
    ours = mlx.GPT(model.config)
    ours.load(weights_of(model))
    np.testing.assert_allclose(np.array(ours(mx.array([ids])))[0], on_torch, atol=2e-4)


@pytest.mark.parametrize("arch", ["standard", "golf"])
def test_both_backends_evaluate_to_the_same_number(corpus, finished, arch):
    model, _ = open_run(finished / arch)
    ours = mlx.GPT(model.config)
    ours.load(weights_of(model))
    expected, found = evaluate_on_torch(model, corpus), mlx.evaluate(ours, corpus)
    assert found.tokens == expected.tokens == len(corpus.val) - 1
    assert found.bpb == pytest.approx(expected.bpb, abs=1e-5)
    assert records(finished / arch, "val_bpb")[-1] == pytest.approx(expected.bpb, abs=1e-5)


def test_transformers_opens_it_tied(finished):
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(finished / "standard").eval()
    assert loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    ids = torch.arange(20)[None]
    with torch.no_grad():
        found = loaded(ids).logits[0].numpy()
    np.testing.assert_allclose(found, Decoder.open(finished / "standard").logits(list(range(20))), atol=2e-4)


def test_an_mlx_run_packs_and_unpacks(finished, tmp_path):
    packed = pack_run(finished / "golf", tmp_path / "run.tbp")
    assert packed.fits
    assert abs(packed.lost) < 0.01
    unpack_run(tmp_path / "run.tbp", tmp_path / "back")
    assert tiebeam.inspect(tmp_path / "back").tie is Tie.SHARED


@pytest.mark.parametrize("changes", [{"bridge": True}, {"embed_dim": 16}], ids=str)
def test_a_folded_run_is_an_untied_checkpoint(corpus, tmp_path, changes):
    train(settings(steps=2, **changes), corpus, tmp_path / "run")
    assert tiebeam.inspect(tmp_path / "run").tie is Tie.UNTIED


@pytest.mark.parametrize(
    "changes", [{}, {"tie": False}, {"tie": 0.3}, {"tie": 0.7, "optimizer": "adamw"}, {"arch": "golf"}], ids=str
)
def test_an_interrupted_run_resumes_to_the_same_losses(corpus, tmp_path, changes):
    train(settings(**changes), corpus, tmp_path / "whole")
    steps = iter(range(1, 100))
    first = train(settings(**changes), corpus, tmp_path / "cut", interrupted=lambda: next(steps) == 4)
    assert not first.finished
    assert first.steps == 4
    assert train(settings(**changes), corpus, tmp_path / "cut", resume=True).finished
    assert records(tmp_path / "cut", "loss") == records(tmp_path / "whole", "loss")


def test_a_finished_run_can_be_resumed_with_more_steps(corpus, tmp_path):
    train(settings(steps=2), corpus, tmp_path / "run")
    with pytest.raises(BadRequest, match="finished"):
        train(settings(steps=2), corpus, tmp_path / "run", resume=True)
    assert train(settings(steps=2).longer(4, None), corpus, tmp_path / "run", resume=True).steps == 4


def test_a_nan_loss_stops_the_run_with_a_fix(corpus, tmp_path):
    wild = LearningRates(matrices=1e30, table=1e30, scalars=1e30)
    with pytest.raises(Diverged, match=r"the loss is \S+ at step \d+; lower the learning rates"):
        train(settings(rates=wild, steps=40), corpus, tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"compile": True}, "compile=True` is not supported by the MLX backend"),
        ({"threads": 2}, "threads=2` is not supported by the MLX backend"),
        ({"device": "cuda"}, "use auto, cpu or gpu"),
        ({"embed_norm": True}, "embed_norm=True` is not supported by the MLX backend"),
    ],
)
def test_unsupported_settings_are_refused_before_anything_is_written(corpus, tmp_path, changes, says):
    with pytest.raises(BadRequest, match=says):
        train(settings(**changes), corpus, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_of_another_shape_is_refused(corpus, tmp_path):
    other = mlx.GPT(settings(dim=16).model(corpus.vocab))
    with pytest.raises(BadRequest, match="dim=16"):
        train(settings(), corpus, tmp_path / "run", model=other)


def test_an_unknown_backend_is_refused():
    with pytest.raises(BadRequest, match="use 'torch' or 'mlx'"):
        settings(backend="jax")


def test_a_state_saved_by_torch_is_refused(corpus, tmp_path):
    train(Settings(**{**TINY, "steps": 2, "threads": 1}), corpus, tmp_path / "run")
    with pytest.raises(UnreadableInput, match="backend='torch'"):
        train(settings(steps=4), corpus, tmp_path / "run", resume=True)


SMALL = ["--layers", "1", "--dim", "16", "--heads", "2", "--kv-heads", "1", "--mlp-dim", "32", "--context", "16",
         "--batch-tokens", "64"]  # fmt: skip


def test_the_command_trains_and_resumes_with_the_backend_of_the_run(corpus, tmp_path):
    def call(*arguments):
        return CliRunner().invoke(program, ["train", *arguments, "--out", str(tmp_path / "run")], catch_exceptions=True)

    first = call(str(corpus.path), *SMALL, "--steps", "2", "--backend", "mlx", "--json")
    assert first.exit_code == 0, first.output
    assert math.isfinite(json.loads(first.stdout)["final"]["bpb"])
    saved = RunDirectory.open(tmp_path / "run").read_run()
    assert saved["settings"]["backend"] == "mlx"
    assert "mlx" in saved["versions"]
    assert isinstance(call("--resume", "--steps", "4", "--backend", "torch").exception, BadRequest)
    second = call("--resume", "--steps", "4", "--json")
    assert second.exit_code == 0, second.output
    assert json.loads(second.stdout)["steps"] == 4


def test_mlx_trains_without_torch_installed(corpus, tmp_path):
    program = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch': raise ModuleNotFoundError('no torch', name='torch')\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from tiebeam.cli import main\n"
        "main(sys.argv[1:])\n"
    )

    def call(*arguments):
        return subprocess.run(
            [sys.executable, "-c", program, "train", str(corpus.path), *SMALL, "--steps", "2", *arguments],
            capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC}, check=False,
        )  # fmt: skip

    done = call("--backend", "mlx", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert tiebeam.inspect(tmp_path / "run").tie is Tie.SHARED
    refused = call("--out", str(tmp_path / "other"))
    assert refused.returncode == 3
    assert (
        refused.stderr == "tiebeam: training needs the extra [train]; install it with: pip install 'tiebeam[train]'\n"
    )
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("asked", [{"arguments": ["--shard"]}, {"env": {"RANK": "0", "WORLD_SIZE": "2"}}], ids=str)
def test_several_ranks_are_refused(corpus, tmp_path, asked):
    arguments = [str(corpus.path), *SMALL, "--steps", "2", "--backend", "mlx", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(program, ["train", *arguments, *asked.get("arguments", [])], env=asked.get("env"))
    assert isinstance(done.exception, BadRequest)
    assert "MLX" in str(done.exception) or "mlx backend runs on a single rank" in str(done.exception)
    assert not (tmp_path / "run").exists()
