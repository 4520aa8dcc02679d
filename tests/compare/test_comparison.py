"""The whole comparison: its files, that its numbers are those of the runs, and that it can be resumed."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tiebeam.compare import VARIANTS, Interrupted, compare
from tiebeam.compare.embedding_similarity import alignment
from tiebeam.compare.held_out_curves import read_curve
from tiebeam.compare.ladder_cells import collect_cell
from tiebeam.compare.train_runs import final_metrics, initial_model, plan_runs, train_in_turns
from tiebeam.errors import BadRequest
from tiebeam.train import RunDirectory, train


def metrics(path):
    return list(RunDirectory.open(path).metrics())


def test_report_numbers_are_those_of_the_runs(comparison):
    document = json.loads((comparison.out / "report.json").read_text())
    assert [run["name"] for run in document["runs"]] == ["tied-d16-v300-s0", "untied-d16-v300-s0"]
    for run in document["runs"]:
        held = metrics(comparison.out / run["name"])
        final = [r for r in held if "val_bpb" in r][-1]  # the whole held-out split
        checks = [r for r in held if "val_documents" in r]
        assert run["val_bpb"] == final["val_bpb"]
        assert run["steps"] == final["step"] == 12
        assert run["seconds"] == final["seconds"]
        assert [p["loss"] for p in run["curve"]] == [r["loss"] for r in held if "loss" in r]
        assert [p["val_bpb"] for p in run["val_curve"]] == [r["val_bpb"] for r in checks]
        assert {r["val_tokens"] for r in checks} == {checks[0]["val_tokens"]}
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
    assert "one seed" in verdict["note"]
    assert comparison.document["variants"][0]["val_bpb_error"] is None


def test_alignment_compares_the_matrices_of_the_saved_models(comparison, corpus):
    (row,) = comparison.document["alignment"]
    tied, untied = (
        load_file(comparison.out / name / "model.safetensors") for name in ("tied-d16-v300-s0", "untied-d16-v300-s0")
    )
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


def test_the_ladder_has_every_width_and_the_gaps_are_those_of_the_cells(comparison):
    ladder = comparison.document["ladder"]
    assert [(c["variant"], c["width"]) for c in ladder["cells"]] == [
        ("tied", 8), ("untied", 8), ("tied", 16), ("untied", 16)
    ]  # fmt: skip
    assert [gap["width"] for gap in ladder["gaps"]] == [8, 16]
    for gap in ladder["gaps"]:
        tied, untied = (c for c in ladder["cells"] if c["width"] == gap["width"])
        assert gap["steps"]["difference"] == pytest.approx(untied["bpb"] - tied["bpb"], abs=1e-9)
        assert gap["steps"]["ci_low"] < gap["steps"]["difference"] < gap["steps"]["ci_high"]
        assert gap["head_share"] == pytest.approx(300 * gap["width"] / untied["params"])
        assert gap["time"]["at"]["seconds"][0] > 0
    assert {c["checks"][-1]["bpb"] for c in ladder["cells"]} == {c["bpb"] for c in ladder["cells"]}


def test_the_answers_are_in_the_verdict(comparison):
    answers, sentences = comparison.document["answers"], comparison.document["verdict"]["sentences"]
    assert list(answers)[:3] == ["steps", "time", "size"]
    for answer, sentence in zip(answers.values(), sentences, strict=False):
        assert sentence.startswith(answer["sentence"])
        assert answer["includes_zero"] == (answer["ci_low"] <= 0 <= answer["ci_high"]) == (answer["winner"] is None)
        assert bool(answer["needed"]) == answer["includes_zero"]


def test_the_difference_halfway_is_that_of_the_checks_in_the_middle(comparison):
    halfway = comparison.document["answers"]["steps"]["at"]["halfway"]
    wide = [cell for cell in comparison.document["ladder"]["cells"] if cell["width"] == 16]
    tied, untied = ({check["step"]: check["bpb"] for check in cell["checks"]} for cell in wide)
    assert halfway["step"] == 6
    assert halfway["difference"] == pytest.approx(untied[6] - tied[6], abs=1e-9)


def test_second_call_keeps_finished_runs(comparison, corpus, tiny):
    records = []
    before = (comparison.out / "tied-d16-v300-s0" / "model.safetensors").stat().st_mtime_ns
    again = compare(
        tiny(),
        corpus,
        comparison.out,
        widths=(8, 16),
        bigram_dim=8,
        bigram_steps=10,
        command=comparison.document["command"],
        report=lambda run, r: records.append(r),
    )
    assert records == []
    assert (comparison.out / "tied-d16-v300-s0" / "model.safetensors").stat().st_mtime_ns == before
    assert again.document["runs"] == comparison.document["runs"]


def planned(settings, corpus, out, variants=("tied", "untied"), widths=(16,)):
    chosen = [VARIANTS[name] for name in variants]
    (runs,) = plan_runs(settings, chosen, [corpus], widths, [0], out, match="steps", anchor="tied", threads=1)
    return runs


def test_interrupted_and_resumed_runs_give_the_same_result(comparison, corpus, tiny, tmp_path):
    calls = []

    def soon():
        calls.append(1)
        return len(calls) == 17  # both runs have begun

    with pytest.raises(Interrupted, match="d16-v300-s0 stopped after"):
        train_in_turns(planned(tiny(), corpus, tmp_path), interrupted=soon)
    steps = {name: RunDirectory(tmp_path / f"{name}-d16-v300-s0").read_facts()["step"] for name in ("tied", "untied")}
    assert sum(steps.values()) == 17
    seen = []
    train_in_turns(planned(tiny(), corpus, tmp_path), report=lambda r, m: seen.append((r.name, m["step"])))
    assert {name for name, _ in seen} == {"tied-d16-v300-s0", "untied-d16-v300-s0"}
    assert min(step for _, step in seen) > min(steps.values())
    for whole in comparison.document["runs"]:
        here, there = (
            [{k: v for k, v in r.items() if k not in ("seconds", "tokens_per_second")} for r in metrics(path)]
            for path in (tmp_path / whole["name"], comparison.out / whole["name"])
        )
        assert here == there
        assert final_metrics(tmp_path / whole["name"])["val_bpb"] == whole["val_bpb"]


def test_a_run_in_turns_equals_the_run_alone_to_the_bit(comparison, corpus, tiny, tmp_path):
    for variant in ("tied", "untied"):
        (run,) = planned(tiny(), corpus, tmp_path, [variant])
        train(run.settings, corpus, run.path)
        alone, together = (load_file(d / run.name / "model.safetensors") for d in (tmp_path, comparison.out))
        assert all((alone[name] == together[name]).all() for name in alone)


@pytest.mark.parametrize("changes", [{"tie": False}, {"embed_dim": 8}, {"bridge": True}, {"tie": 0.5}])
def test_variants_start_with_the_same_weights_outside_the_vocabulary(tiny, changes):
    plain, other = (initial_model(settings, 300).state_dict() for settings in (tiny(), replace(tiny(), **changes)))
    common = [name for name in plain if name in other and "embed" not in name and "lm_head" not in name]
    assert len(common) > 5
    assert all((plain[name] == other[name]).all() for name in common)


def test_turns_alternate_and_clocks_do_not_run_while_waiting(corpus, tiny, tmp_path):
    seen = []
    train_in_turns(planned(tiny(log_every=1), corpus, tmp_path), report=lambda run, r: seen.append((run.variant, r)))
    order = [name for name, r in seen if "loss" in r]
    assert order[:20] == 5 * ["tied"] + 5 * ["untied"] + 5 * ["tied"] + 5 * ["untied"]


def test_peak_memory_is_measured_if_asked_for(corpus, tiny, tmp_path):
    found = compare(
        tiny(), corpus, tmp_path / "R", variants=[VARIANTS["tied"]], bigram_dim=8, bigram_steps=5, memory=True
    )
    (run,) = found.document["runs"]
    assert run["peak_bytes"] is None or run["peak_bytes"] > 0
    assert found.document["ladder"]["cells"][0]["peak_bytes"] == run["peak_bytes"]
    assert "Only tied was trained" in found.document["verdict"]["sentences"][0]


def test_errors_of_the_settings_are_raised(corpus, tiny, tmp_path):
    with pytest.raises(BadRequest, match="context=1000000 needs"):
        compare(tiny(context=1_000_000, batch_tokens=1_000_000), corpus, tmp_path / "R")


def test_other_settings_are_an_error_and_the_report_is_kept(comparison, corpus, tiny):
    with pytest.raises(BadRequest, match='pass another out="DIR"'):
        compare(tiny(dim=32), corpus, comparison.out)
    assert comparison.page.exists()


def test_a_directory_with_other_content_is_an_error(corpus, tiny, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadRequest, match="is not empty and not a comparison"):
        compare(tiny(), corpus, tmp_path)


def test_minutes_become_the_same_number_of_steps_for_every_run_and_are_kept(corpus, tiny, tmp_path):
    base = replace(tiny(), steps=None, minutes=0.001)
    options: dict[str, Any] = {"bigram_dim": 8, "bigram_steps": 5, "widths": (8, 16)}
    found = compare(base, corpus, tmp_path / "R", **options)
    steps = {cell["steps"] for cell in found.document["ladder"]["cells"]}
    assert steps == {json.loads((tmp_path / "R" / "compare.json").read_text())["steps"]}
    seen = []
    compare(base, corpus, tmp_path / "R", **options, report=lambda run, r: seen.append(r))
    assert seen == []


@pytest.mark.parametrize(
    ("options", "word"),
    [({"match": "time"}, "minutes=5"), ({"seeds": 0}, "seeds=0"), ({"match": "love"}, 'match="love"'),
     ({"anchor": "x"}, 'anchor="x"')],
)  # fmt: skip
def test_invalid_arguments_raise_bad_request(corpus, tiny, tmp_path, options, word):
    with pytest.raises(BadRequest, match=word):
        compare(tiny(), corpus, tmp_path / "R", **options)


def test_several_variants_with_two_seeds_have_error_bars(corpus, tiny, tmp_path):
    variants = [VARIANTS[name] for name in ("tied", "untied", "then", "bridge")]
    found = compare(tiny(steps=6), corpus, tmp_path / "R", variants=variants, seeds=2, bigram_dim=8, bigram_steps=5)
    document = found.document
    assert len(document["runs"]) == 8
    assert all(v["val_bpb_error"] is not None for v in document["variants"])
    assert "2 seeds" in document["verdict"]["note"]
    assert document["by_variant"].keys() == {"untied", "then", "bridge"}
    then = next(run for run in document["runs"] if run["variant"] == "then")
    assert not then["tied_at_end"]
    bridge = next(run for run in document["runs"] if run["variant"] == "bridge")
    assert bridge["params"] == document["runs"][0]["params"] + 16 * 16


def test_a_variant_that_is_saved_folded_is_priced_as_it_was_trained(tiny, corpus, tmp_path):
    names = ("tied", "bridge", "factorised", "pseudo-inverse", "untied")
    chosen = [VARIANTS[name] for name in names]
    (runs,) = plan_runs(
        tiny(steps=2), chosen, [corpus], [16], [0], tmp_path, match="steps", anchor="tied", threads=1
    )  # fmt: skip
    train_in_turns(runs)
    packed = {run.variant: collect_cell(read_curve(run)).packed_bytes for run in runs}
    table = 2 * corpus.vocab * 16  # bytes in fp16
    for name in ("bridge", "pseudo-inverse"):
        assert packed["tied"] < packed[name] < packed["tied"] + table // 4
    assert packed["factorised"] < packed["tied"] < packed["untied"] - table // 2
