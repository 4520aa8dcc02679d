"""The whole comparison: its files, that its numbers are those of the runs, and that it can be resumed."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiebeam.compare import VARIANTS, Interrupted, compare
from tiebeam.compare.embedding_similarity import alignment
from tiebeam.compare.train_runs import final_metrics, run_all
from tiebeam.compare.variants import variant_configs
from tiebeam.errors import BadRequest
from tiebeam.train import RunDirectory


def metrics(path):
    return list(RunDirectory.open(path).metrics())


def test_report_numbers_are_those_of_the_runs(comparison):
    document = json.loads((comparison.out / "report.json").read_text())
    assert [run["name"] for run in document["runs"]] == ["tied-s0", "untied-s0"]
    for run in document["runs"]:
        held = metrics(comparison.out / run["name"])
        final = [r for r in held if "val_bpb" in r][-1]
        assert run["val_bpb"] == final["val_bpb"]
        assert run["steps"] == final["step"] == 12
        assert run["seconds"] == final["seconds"]
        assert [p["loss"] for p in run["curve"]] == [r["loss"] for r in held if "loss" in r]
        assert [p["val_bpb"] for p in run["val_curve"]] == [r["val_bpb"] for r in held if "val_bpb" in r]
        assert [p["head_share"] for p in run["gradient"]] == [r["head_share"] for r in held if "head_share" in r]
        assert run["disk_bytes"] == (comparison.out / run["name"] / "model.safetensors").stat().st_size
        assert run["packed_bytes"] == (comparison.out / f"{run['name']}.tbp").stat().st_size


def test_mean_of_all_target_losses_is_the_validation_loss(comparison):
    for run in comparison.document["runs"]:
        losses = np.load(comparison.out / run["name"] / "losses.npy")
        assert len(losses) == run["val_tokens"]
        assert float(losses.astype(np.float64).mean()) == pytest.approx(run["val_loss"], rel=1e-5)
        bands = run["bands"]
        assert sum(b["share"] for b in bands) == pytest.approx(1)
        assert sum(b["share"] * b["nats"] for b in bands) == pytest.approx(run["val_loss"], rel=1e-5)


def test_untied_has_one_more_matrix(comparison, corpus):
    tied, untied = comparison.document["runs"]
    assert untied["params"] - tied["params"] == corpus.vocab * 16
    assert tied["tied_at_end"]
    assert not untied["tied_at_end"]


def test_gradient_share_of_the_head_is_recorded_for_both_variants(comparison):
    for run in comparison.document["runs"]:
        assert run["gradient"]
        assert all(0 < p["head_share"] < 1 for p in run["gradient"])


def test_a_single_seed_is_stated_in_the_verdict(comparison):
    verdict = comparison.document["verdict"]
    assert verdict["seeds"] == 1
    assert "one seed" in verdict["sentences"][1]
    assert comparison.document["variants"][0]["val_bpb_error"] is None


def test_alignment_compares_the_matrices_of_the_saved_models(comparison, corpus):
    (row,) = comparison.document["alignment"]
    tied, untied = (load_file(comparison.out / name / "model.safetensors") for name in ("tied-s0", "untied-s0"))
    frequent = np.bincount(corpus.train[:], minlength=corpus.vocab) >= 10
    matrices = {
        "tied": tied["model.embed_tokens.weight"],
        "embed": untied["model.embed_tokens.weight"],
        "head": untied["lm_head.weight"],
    }
    assert row["rows"] == frequent.sum()
    for which, (a, b) in {
        "embed": ("tied", "embed"),
        "head": ("tied", "head"),
        "each_other": ("embed", "head"),
    }.items():
        x, y = (matrices[name][frequent] - matrices[name][frequent].mean(axis=0) for name in (a, b))
        overlap = np.linalg.norm(x.T @ y, "nuc") / np.linalg.norm(x) / np.linalg.norm(y)
        assert row[which]["procrustes"] == pytest.approx(overlap, rel=1e-4)
        assert row[which] == pytest.approx(alignment(matrices[a][frequent], matrices[b][frequent]))


def test_second_call_keeps_finished_runs(comparison, corpus, tiny):
    records = []
    before = (comparison.out / "tied-s0" / "model.safetensors").stat().st_mtime_ns
    again = compare(
        tiny(),
        corpus,
        comparison.out,
        bigram_dim=8,
        bigram_steps=10,
        in_subprocess=False,
        report=lambda run, r: records.append(r),
    )
    assert records == []
    assert (comparison.out / "tied-s0" / "model.safetensors").stat().st_mtime_ns == before
    assert again.document["runs"] == comparison.document["runs"]


def configs(settings, corpus):
    return variant_configs(settings, [VARIANTS["tied"], VARIANTS["untied"]], corpus.vocab, "steps")


def test_resumed_run_gives_the_same_result(comparison, corpus, tiny, tmp_path):
    calls = []

    def soon():
        calls.append(1)
        return len(calls) == 17  # in the second run

    options: dict[str, Any] = {"threads": 1, "in_subprocess": False}
    with pytest.raises(Interrupted, match="untied-s0"):
        run_all(configs(tiny(), corpus), [0], corpus, tmp_path, interrupted=soon, **options)
    seen = []
    run_all(
        configs(tiny(), corpus), [0], corpus, tmp_path, report=lambda r, m: seen.append((r.name, m["step"])), **options
    )
    assert {name for name, _ in seen} == {"untied-s0"}
    assert min(step for _, step in seen) > 5
    for whole in comparison.document["runs"]:
        assert final_metrics(tmp_path / whole["name"])["val_bpb"] == whole["val_bpb"]


def test_runs_in_a_subprocess_give_the_same_result_and_measure_memory(comparison, corpus, tiny, tmp_path):
    found = compare(
        tiny(), corpus, tmp_path / "R", variants=[VARIANTS["tied"]], bigram_dim=8, bigram_steps=5, in_subprocess=True
    )
    (run,) = found.document["runs"]
    assert run["val_bpb"] == pytest.approx(comparison.document["runs"][0]["val_bpb"], rel=1e-6)
    assert run["peak_bytes"] is None or run["peak_bytes"] > 0
    assert "Only tied was trained" in found.document["verdict"]["sentences"][0]


def test_a_run_in_a_subprocess_can_be_interrupted(corpus, tiny, tmp_path):
    seen = []
    with pytest.raises(Interrupted, match="tied-s0 stopped after"):
        run_all(
            configs(tiny(steps=100_000), corpus), [0], corpus, tmp_path, threads=1, in_subprocess=True,
            report=lambda run, record: seen.append(record), interrupted=lambda: bool(seen),
        )  # fmt: skip
    assert (tmp_path / "tied-s0" / "resume.safetensors").is_file()
    assert not (tmp_path / "tied-s0" / "model.safetensors").exists()


def test_errors_in_a_subprocess_are_raised_in_the_parent(corpus, tiny, tmp_path):
    with pytest.raises(BadRequest, match="context=1000000 needs"):
        compare(tiny(context=1_000_000, batch_tokens=1_000_000), corpus, tmp_path / "R", in_subprocess=True)


def test_other_settings_are_an_error_and_the_report_is_kept(comparison, corpus, tiny):
    with pytest.raises(BadRequest, match='pass another out="DIR"'):
        compare(tiny(dim=32), corpus, comparison.out, in_subprocess=False)
    assert comparison.page.exists()


def test_a_directory_with_other_content_is_an_error(corpus, tiny, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadRequest, match="is not empty and not a comparison"):
        compare(tiny(), corpus, tmp_path, in_subprocess=False)


def test_equal_steps_with_minutes_uses_the_steps_of_the_first_run(corpus, tiny, tmp_path):
    base = replace(tiny(), steps=None, minutes=0.01)
    runs = run_all(configs(base, corpus), [0], corpus, tmp_path, threads=1, equal_steps=True, in_subprocess=False)
    tied, untied = (final_metrics(run.path)["step"] for run in runs)
    assert tied == untied > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [({"match": "time"}, "minutes=1"), ({"seeds": 0}, "seeds=0"), ({"match": "love"}, 'match="love"'),
     ({"anchor": "x"}, 'anchor="x"')],
)  # fmt: skip
def test_invalid_arguments_raise_bad_request(corpus, tiny, tmp_path, options, word):
    with pytest.raises(BadRequest, match=word):
        compare(tiny(), corpus, tmp_path / "R", in_subprocess=False, **options)


def test_all_variants_with_two_seeds_have_error_bars(corpus, tiny, tmp_path):
    found = compare(
        tiny(steps=6), corpus, tmp_path / "R", variants=list(VARIANTS.values()), seeds=2, bigram_dim=8, bigram_steps=5,
        in_subprocess=False,
    )  # fmt: skip
    document = found.document
    assert len(document["runs"]) == 8
    assert all(v["val_bpb_error"] is not None for v in document["variants"])
    assert "2 seeds" in document["verdict"]["sentences"][1]
    then = next(run for run in document["runs"] if run["variant"] == "then")
    assert not then["tied_at_end"]
    bridge = next(run for run in document["runs"] if run["variant"] == "bridge")
    assert bridge["params"] == document["runs"][0]["params"] + 16 * 16
