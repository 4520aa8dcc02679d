"""The windows of every check: evenly spaced, grouped by document; and runs that take turns in one process."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiebeam.corpus import build_corpus
from tiebeam.train import RunDirectory, Settings, train
from tiebeam.train.held_out_windows import HeldOutWindows
from tiebeam.train.loop import training

TINY = Settings(layers=1, dim=16, heads=2, kv_heads=1, mlp_dim=32, context=32, batch_tokens=128, steps=12, threads=1,
                warmup_steps=2, log_every=4, validate_every=0.25, validation_tokens=500)  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    return build_corpus([], tmp_path_factory.mktemp("corpus") / "c", vocab=300, max_bytes=120_000)


def test_windows_are_evenly_spaced_and_at_most_the_number_of_tokens(corpus):
    windows = HeldOutWindows(corpus, 32, 500)
    gaps = np.diff(windows.starts)
    assert len(windows.starts) == 500 // 32
    assert gaps.max() - gaps.min() <= 32
    tokens = np.asarray(corpus.val[:])
    targets = np.concatenate([y.reshape(-1) for _, y in windows.batches(4)])
    assert (targets == tokens[windows.positions]).all()
    assert windows.bytes.sum() == corpus.bytes_of(targets, tokens[windows.positions - 1])


def test_the_whole_split_is_used_if_it_is_small_enough(corpus):
    windows = HeldOutWindows(corpus, 32, 10**9)
    assert windows.whole
    assert sum(y.size for _, y in windows.batches(3)) == len(windows.positions) == len(corpus.val) - 1


def test_a_target_belongs_to_the_document_that_the_boundary_before_it_starts(tmp_path):
    for i in range(200):
        (tmp_path / f"{i}.txt").write_text(f"document number {i} says {i * i} and {i**3}. " * 3)
    corpus = build_corpus([tmp_path], tmp_path / "c", vocab=280)
    tokens = np.asarray(corpus.val[:])
    windows = HeldOutWindows(corpus, 16, None)
    document = -1
    slow = []
    for token in tokens:
        document += token == corpus.boundary
        slow.append(document)
    expected = np.array(slow)[1:]
    assert len(set(expected)) >= 8
    assert (windows.groups == np.unique(expected, return_inverse=True)[1]).all()


def test_every_check_has_the_same_windows_and_its_documents_add_up(corpus, tmp_path):
    with training(TINY, corpus, tmp_path / "run", by_document=True) as run:
        run.advance(100)
        run.finish()
    checks = [r for r in RunDirectory.open(tmp_path / "run").metrics() if "val_documents" in r]
    assert [r["step"] for r in checks] == [3, 6, 9, 12]
    windows = HeldOutWindows(corpus, 32, 500)
    for record in checks:
        assert record["val_tokens"] == len(windows.positions)
        assert sum(record["val_documents"]) == pytest.approx(record["val_loss"] * record["val_tokens"])
        bits = sum(record["val_documents"]) / np.log(2) / windows.bytes.sum()
        assert record["val_bpb"] == pytest.approx(bits)
    plain = train(TINY, corpus, tmp_path / "plain")
    sums = [r for r in RunDirectory.open(tmp_path / "plain").metrics() if "val_bpb" in r]
    assert [r["val_bpb"] for r in sums][:4] == pytest.approx([r["val_bpb"] for r in checks], rel=1e-6)
    assert sums[-1]["full"]
    assert plain.final.tokens == len(corpus.val) - 1


def test_runs_that_take_turns_equal_runs_alone_to_the_bit(corpus, tmp_path):
    settings = {"tied": TINY, "untied": Settings(**{**TINY.to_dict(), "tie": False, "rates": None})}
    for name, one in settings.items():
        train(one, corpus, tmp_path / f"{name}-alone")
    with (
        training(settings["tied"], corpus, tmp_path / "tied") as a,
        training(settings["untied"], corpus, tmp_path / "untied") as b,
    ):
        while not (a.done and b.done):
            a.advance(5)
            b.advance(3)
        for run in (b, a):
            run.finish()
    for name in settings:
        together, alone = (load_file(tmp_path / d / "model.safetensors") for d in (name, f"{name}-alone"))
        assert together.keys() == alone.keys()
        assert all((together[key] == alone[key]).all() for key in together)
        losses = [
            [r["loss"] for r in map(json.loads, (tmp_path / d / "metrics.jsonl").open()) if "loss" in r]
            for d in (name, f"{name}-alone")
        ]
        assert losses[0] == losses[1]
