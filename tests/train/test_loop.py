"""Runs are deterministic, resumable and interruptible, and end as ordinary checkpoints."""

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import tiebeam
from helpers.small_corpus import small_corpus
from tiebeam import Tie
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train import LearningRates, RunDirectory, Settings, evaluate, train
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


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return small_corpus(tmp_path_factory)


def settings(**changes):
    return Settings(**{**TINY, "steps": 12, "log_every": 1, "threads": 1, **changes})


def losses(where):
    return [record["loss"] for record in RunDirectory.open(where).metrics() if "loss" in record]


@pytest.mark.parametrize("arch", ["standard", "golf"])
@pytest.mark.parametrize("tie", [True, False, 0.5])
def test_a_run_is_a_checkpoint_with_the_declared_tie(corpus, tmp_path, arch, tie):
    result = train(settings(arch=arch, tie=tie), corpus, tmp_path / "run")
    assert result.finished
    assert result.tied is (tie is True)
    report = tiebeam.inspect(tmp_path / "run")
    assert report.tie is (Tie.SHARED if tie is True else Tie.UNTIED)
    assert report.params.total == result.params


def test_the_loss_goes_down(corpus, tmp_path):
    train(settings(steps=60), corpus, tmp_path / "run")
    run = losses(tmp_path / "run")
    assert run[-1] < 0.6 * run[0]


def test_the_same_seed_gives_the_same_losses(corpus, tmp_path):
    for name in ("a", "b"):
        train(settings(), corpus, tmp_path / name)
    train(settings(seed=1), corpus, tmp_path / "c")
    assert losses(tmp_path / "a") == losses(tmp_path / "b")
    assert losses(tmp_path / "a") != losses(tmp_path / "c")


@pytest.mark.parametrize("tie", [True, False, 0.3, 0.7])
@pytest.mark.parametrize("optimizer", ["muon", "adamw"])
def test_an_interrupted_run_resumes_to_the_same_losses(corpus, tmp_path, tie, optimizer):
    train(settings(tie=tie, optimizer=optimizer), corpus, tmp_path / "whole")
    steps = iter(range(1, 100))
    first = train(
        settings(tie=tie, optimizer=optimizer), corpus, tmp_path / "cut", interrupted=lambda: next(steps) == 6
    )
    assert not first.finished
    assert first.steps == 6
    second = train(settings(tie=tie, optimizer=optimizer), corpus, tmp_path / "cut", resume=True)
    assert second.finished
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_gradient_accumulation_equals_a_larger_batch(corpus, tmp_path):
    train(settings(accumulate=1, steps=1), corpus, tmp_path / "one")
    train(settings(accumulate=4, steps=1), corpus, tmp_path / "four")
    assert losses(tmp_path / "one")[0] == pytest.approx(losses(tmp_path / "four")[0], rel=1e-5)


def test_a_tied_run_logs_the_head_share_of_the_gradient(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    records = [r for r in RunDirectory.open(tmp_path / "run").metrics() if "loss" in r]
    assert len(records) == 12
    for record in records:
        assert record["lookup_norm"] > 0
        expected = record["head_norm"] / (record["head_norm"] + record["lookup_norm"])
        assert record["head_share"] == pytest.approx(expected)


def test_validation_counts_every_target_and_every_byte(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    model, _ = open_run(tmp_path / "run")
    found = evaluate(model, corpus)
    assert found.tokens == len(corpus.val) - 1
    assert found.bpb == pytest.approx(found.nats / torch.tensor(2.0).log().item() * found.tokens / corpus.bytes_val)


def test_a_nan_loss_stops_the_run_with_a_fix(corpus, tmp_path):
    wild = LearningRates(matrices=1e30, table=1e30, scalars=1e30)
    with pytest.raises(Diverged, match=r"LearningRates\.scaled\(0\.5\).*warmup_steps=50"):
        train(settings(rates=wild, steps=40), corpus, tmp_path / "run")


def test_an_existing_run_is_not_overwritten(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    with pytest.raises(BadRequest, match="resume=True"):
        train(settings(), corpus, tmp_path / "run")
    train(settings(), corpus, tmp_path / "run", force=True)


def test_a_directory_with_other_files_is_not_touched(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("precious")
    with pytest.raises(BadRequest, match="not empty"):
        train(settings(), corpus, tmp_path / "run")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "precious"


def test_a_finished_run_can_be_resumed_only_with_more_steps(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    with pytest.raises(BadRequest, match="finished"):
        train(settings(), corpus, tmp_path / "run", resume=True)
    assert train(settings().longer(20, None), corpus, tmp_path / "run", resume=True).steps == 20


def test_resuming_a_missing_run_is_refused(corpus, tmp_path):
    with pytest.raises(UnreadableInput, match=r"run\.json"):
        train(settings(), corpus, tmp_path / "nothing", resume=True)


def test_settings_round_trip_through_run_json(corpus, tmp_path):
    train(settings(tie=0.5), corpus, tmp_path / "run")
    saved = RunDirectory.open(tmp_path / "run").read_run()
    assert Settings.from_dict(saved["settings"]).to_dict() == settings(tie=0.5).to_dict()


def test_each_architecture_has_its_own_tied_learning_rate():
    assert settings(arch="standard").learning_rates.table > settings(arch="golf", softcap=15.0).learning_rates.table
    assert LearningRates.of("golf", 256) == replace(LearningRates(), matrices=0.022, table=1.5 / 256)


def test_the_default_rates_follow_the_width_of_a_standard_model():
    small, large = (Settings(steps=1, dim=dim).learning_rates for dim in (64, 256))
    assert (large.table, large.head) == pytest.approx((small.table / 4, small.head / 4))  # 1/width
    assert (large.embed, large.matrices) == (small.embed, small.matrices)
    assert LearningRates.of("standard", 16) == LearningRates.of("standard", 64)  # nothing was swept below


def test_given_rates_are_kept():
    assert settings(rates=LearningRates(table=0.01)).learning_rates.table == 0.01
    assert Settings.from_dict(settings().to_dict()).learning_rates == settings().learning_rates


def test_the_length_must_be_given_once():
    with pytest.raises(BadRequest, match="`steps` or `minutes`"):
        Settings(**TINY)
    with pytest.raises(BadRequest, match="`steps` or `minutes`"):
        Settings(**TINY, steps=3, minutes=1)


@pytest.mark.parametrize("tie", [True, False])
def test_transformers_and_the_decoder_agree_with_the_model(corpus, tmp_path, tie):
    from transformers import AutoModelForCausalLM

    from tiebeam.decode import Decoder

    train(settings(tie=tie), corpus, tmp_path / "run")
    model, _ = open_run(tmp_path / "run")
    ids = torch.randint(corpus.vocab, (1, 20), generator=torch.Generator().manual_seed(0))
    ours = model.eval()(ids)[0].detach()
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "run").eval()
    assert (loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight) is tie
    torch.testing.assert_close(loaded(ids).logits[0], ours, atol=2e-4, rtol=0)
    decoded = torch.from_numpy(Decoder.open(tmp_path / "run").logits(ids[0].tolist()))
    torch.testing.assert_close(decoded, ours, atol=2e-4, rtol=0)


def test_the_decoder_runs_a_golf_run(corpus, tmp_path):
    from tiebeam.decode import Decoder

    train(settings(arch="golf", softcap=15.0), corpus, tmp_path / "run")
    model, _ = open_run(tmp_path / "run")
    ids = list(range(20))
    ours = model.eval()(torch.tensor([ids]))[0].detach()
    torch.testing.assert_close(torch.from_numpy(Decoder.open(tmp_path / "run").logits(ids)), ours, atol=2e-4, rtol=0)


@pytest.mark.parametrize("arch", ["standard", "golf"])
def test_packing_and_unpacking_restores_a_checkpoint(corpus, tmp_path, arch):
    train(settings(arch=arch), corpus, tmp_path / "run")
    packed = pack_run(tmp_path / "run", tmp_path / "run.tbp", limit=16_000_000)
    assert packed.fits
    assert abs(packed.lost) < 0.01
    assert unpack_run(tmp_path / "run.tbp", tmp_path / "back") > 10
    assert tiebeam.inspect(tmp_path / "back").tie is Tie.SHARED
    with pytest.raises(BadRequest, match="force=True"):
        unpack_run(tmp_path / "run.tbp", tmp_path / "back")


@pytest.mark.parametrize("options", [{"embed": "int3"}, {"bits": 3.5}])
def test_packing_compensates_the_table_and_says_what_it_gained(corpus, tmp_path, options):
    train(settings(), corpus, tmp_path / "run")
    packed = pack_run(tmp_path / "run", tmp_path / "run.tbp", **options)
    assert packed.nearest is not None
    assert packed.gained == packed.nearest.bpb - packed.after.bpb
    plain = pack_run(tmp_path / "run", tmp_path / "plain.tbp", rounding="nearest", **options)
    assert plain.after.bpb == pytest.approx(packed.nearest.bpb, abs=1e-6)
    assert plain.nearest is None
    finer = pack_run(tmp_path / "run", tmp_path / "finer.tbp", embed="fp16")
    assert finer.bytes > packed.bytes
    assert unpack_run(tmp_path / "run.tbp", tmp_path / "back") > 10


def test_metrics_are_one_json_object_per_line(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines():
        assert {"step", "seconds", "done"} <= json.loads(line).keys()


def test_a_run_killed_before_its_model_was_written_is_completed_by_resuming(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    whole, records = (run.path / "model.safetensors").read_bytes(), list(run.metrics())
    for missing in (["model.safetensors"], ["model.safetensors", "config.json", "README.md", "tokenizer.json"]):
        for name in missing:
            (run.path / name).unlink()
        assert not run.is_finished()
        assert train(settings(), corpus, run.path, resume=True).finished
        assert (run.path / "model.safetensors").read_bytes() == whole
        assert list(run.metrics()) == records
    with pytest.raises(BadRequest, match="finished"):
        train(settings(), corpus, run.path, resume=True)


def test_a_run_killed_before_its_first_state_starts_over_when_it_is_resumed(corpus, tmp_path):
    train(settings(), corpus, tmp_path / "run")
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    for name in ("model.safetensors", "resume.safetensors"):
        (tmp_path / "run" / name).unlink()
    (tmp_path / "run" / ".resume.safetensors.part").write_text("cut short")
    train(settings(), corpus, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole
    assert not (tmp_path / "run" / ".resume.safetensors.part").exists()


def test_a_longer_run_that_was_interrupted_resumes_to_its_new_length(corpus, tmp_path):
    run = RunDirectory(tmp_path / "run")
    first = settings()
    train(first, corpus, run.path)
    longer = first.longer(2 * first.steps, None)
    assert not train(longer, corpus, run.path, resume=True, interrupted=lambda: True).finished
    assert (run.path / "model.safetensors").exists(), "the model of the shorter run stays until the longer one ends"
    stored = type(first).from_dict(run.read_run()["settings"])
    assert stored.steps == longer.steps
    assert train(stored, corpus, run.path, resume=True).steps == longer.steps


def test_a_temporary_file_that_a_kill_left_does_not_stop_a_new_run(corpus, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".run.json.part").write_text("cut short")
    (tmp_path / "run" / ".metrics.jsonl.0badcafe.part").write_text("of version 0.1")
    train(settings(), corpus, tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*"))
