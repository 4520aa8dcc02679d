"""The comparison as a whole: what it leaves, that its figures are the runs' own, and that it can be interrupted."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from tiebeam.compare import VARIANTS, Interrupted, compare
from tiebeam.compare.report_page import page
from tiebeam.compare.train_runs import final_of, run_all
from tiebeam.compare.variants import contenders
from tiebeam.errors import BadRequest
from tiebeam.train import RunDirectory


def metrics(path):
    return list(RunDirectory.open(path).metrics())


def test_report_figures_are_those_of_the_runs(comparison):
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


def test_losses_of_all_targets_are_the_validation_loss(comparison):
    for run in comparison.document["runs"]:
        losses = np.load(comparison.out / run["name"] / "losses.npy")
        assert len(losses) == run["val_tokens"]
        assert float(losses.astype(np.float64).mean()) == pytest.approx(run["val_loss"], rel=1e-5)
        bands = run["bands"]
        assert sum(b["share"] for b in bands) == pytest.approx(1)
        assert sum(b["share"] * b["nats"] for b in bands) == pytest.approx(run["val_loss"], rel=1e-5)


def test_untied_has_one_table_more(comparison, corpus):
    tied, untied = comparison.document["runs"]
    assert untied["params"] - tied["params"] == corpus.vocab * 16
    assert tied["tied_at_end"]
    assert not untied["tied_at_end"]


def test_both_ends_gradients_are_followed_on_both_sides(comparison):
    for run in comparison.document["runs"]:
        assert run["gradient"]
        assert all(0 <= p["head_share"] <= 1 for p in run["gradient"])


def test_one_seed_is_called_one_seed(comparison):
    verdict = comparison.document["verdict"]
    assert verdict["seeds"] == 1
    assert "one seed" in verdict["sentences"][1]
    assert comparison.document["variants"][0]["val_bpb_error"] is None


def test_alignment_is_of_the_two_runs(comparison):
    (row,) = comparison.document["alignment"]
    for which in ("embed", "head", "each_other"):
        assert -1 <= row[which]["map_cosine"] <= 1
        assert 0 <= row[which]["procrustes"] <= 1
        assert 0 <= row[which]["knn"] <= 1


def test_figures_are_files_and_inline(comparison):
    held = comparison.page.read_text()
    names = {path.stem for path in (comparison.out / "figures").glob("*.svg")}
    assert {"held-out", "plane", "gradient", "bands", "norms", "spectrum", "bigrams", "heat-pmi",
            "heat-antisymmetric", "heat-tied", "heat-untied"} <= names  # fmt: skip
    assert names == {path.stem for path in (comparison.out / "figures").glob("*.png")}
    assert held.count("<svg") == len(names)


def test_page_stands_alone_and_starts_with_the_verdict(comparison):
    held = comparison.page.read_text()
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)"', held))
    assert all(a.startswith("data:") for a in addresses), addresses
    assert "<script" not in held
    assert "@import" not in held
    body = re.sub(r"<[^>]+>", " ", held[held.index("<body>") :])
    assert body.split()[:6] == ["To", "tie", "or", "not", "to", "tie"]
    assert "On this text tied" in body[:200]
    assert comparison.document["command"] in held


def test_page_has_no_id_twice(comparison):
    ids = re.findall(r' id="([^"]+)"', comparison.page.read_text())
    assert len(ids) == len(set(ids))


def test_text_of_a_sample_cannot_become_markup(comparison):
    samples = [{"variant": "tied", "prompt": "<script>alert(1)</script>", "text": "</pre><b>"}]
    made = page({**comparison.document, "samples": samples}, {})
    assert "<script" not in made
    assert "&lt;script&gt;" in made


def test_second_call_keeps_finished_runs(comparison, corpus, tiny):
    told = []
    before = (comparison.out / "tied-s0" / "model.safetensors").stat().st_mtime_ns
    again = compare(
        tiny(), corpus, comparison.out, bigram_dim=8, bigram_steps=10, apart=False, report=lambda run, r: told.append(r)
    )
    assert told == []
    assert (comparison.out / "tied-s0" / "model.safetensors").stat().st_mtime_ns == before
    assert again.document["runs"] == comparison.document["runs"]


def field(settings, corpus):
    return contenders(settings, [VARIANTS["tied"], VARIANTS["untied"]], corpus.vocab, "steps")


def test_interrupted_run_goes_on_to_the_same_end(comparison, corpus, tiny, tmp_path):
    calls = []

    def soon():
        calls.append(1)
        return len(calls) == 17  # in the second run

    options = {"threads": 1, "apart": False}
    with pytest.raises(Interrupted, match="untied-s0"):
        run_all(field(tiny(), corpus), [0], corpus, tmp_path, interrupted=soon, **options)
    seen = []
    run_all(
        field(tiny(), corpus), [0], corpus, tmp_path, report=lambda r, m: seen.append((r.name, m["step"])), **options
    )
    assert {name for name, _ in seen} == {"untied-s0"}
    assert min(step for _, step in seen) > 5
    for whole in comparison.document["runs"]:
        assert final_of(tmp_path / whole["name"])["val_bpb"] == whole["val_bpb"]


def test_runs_apart_are_the_same_runs_and_know_their_memory(comparison, corpus, tiny, tmp_path):
    found = compare(
        tiny(), corpus, tmp_path / "R", variants=[VARIANTS["tied"]], bigram_dim=8, bigram_steps=5, apart=True
    )
    (run,) = found.document["runs"]
    assert run["val_bpb"] == pytest.approx(comparison.document["runs"][0]["val_bpb"], rel=1e-6)
    assert run["peak_bytes"] is None or run["peak_bytes"] > 0
    assert "Only tied was trained" in found.document["verdict"]["sentences"][0]


def test_a_run_apart_stops_between_two_steps_when_told(corpus, tiny, tmp_path):
    seen = []
    with pytest.raises(Interrupted, match="tied-s0 stopped after"):
        run_all(
            field(tiny(steps=100_000), corpus), [0], corpus, tmp_path, threads=1, apart=True,
            report=lambda run, record: seen.append(record), interrupted=lambda: bool(seen),
        )  # fmt: skip
    assert (tmp_path / "tied-s0" / "resume.safetensors").is_file()
    assert not (tmp_path / "tied-s0" / "model.safetensors").exists()


def test_errors_of_a_run_apart_are_the_run_s_own(corpus, tiny, tmp_path):
    with pytest.raises(BadRequest, match="context=1000000 needs"):
        compare(tiny(context=1_000_000, batch_tokens=1_000_000), corpus, tmp_path / "R", apart=True)


def test_other_settings_are_refused_and_nothing_is_lost(comparison, corpus, tiny):
    with pytest.raises(BadRequest, match="another --out"):
        compare(tiny(dim=32), corpus, comparison.out, apart=False)
    assert comparison.page.exists()


def test_a_directory_of_something_else_is_refused(corpus, tiny, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(BadRequest, match="something else"):
        compare(tiny(), corpus, tmp_path, apart=False)


def test_equal_steps_from_minutes_gives_all_runs_the_first_one_s_steps(corpus, tiny, tmp_path):
    base = replace(tiny(), steps=None, minutes=0.01)
    runs = run_all(field(base, corpus), [0], corpus, tmp_path, threads=1, equal_steps=True, apart=False)
    tied, untied = (final_of(run.path)["step"] for run in runs)
    assert tied == untied > 0


@pytest.mark.parametrize(
    ("options", "word"),
    [({"match": "time"}, "--minutes"), ({"seeds": 0}, "--seeds"), ({"match": "love"}, "--match"),
     ({"anchor": "x"}, "--anchor")],
)  # fmt: skip
def test_wrong_requests_are_refused(corpus, tiny, tmp_path, options, word):
    with pytest.raises(BadRequest, match=word):
        compare(tiny(), corpus, tmp_path / "R", apart=False, **options)


def test_all_variants_with_two_seeds_have_error_bars(corpus, tiny, tmp_path):
    found = compare(
        tiny(steps=6), corpus, tmp_path / "R", variants=list(VARIANTS.values()), seeds=2, bigram_dim=8, bigram_steps=5,
        apart=False,
    )  # fmt: skip
    document = found.document
    assert len(document["runs"]) == 8
    assert all(v["val_bpb_error"] is not None for v in document["variants"])
    assert "2 seeds" in document["verdict"]["sentences"][1]
    then = next(run for run in document["runs"] if run["variant"] == "then")
    assert not then["tied_at_end"]
    bridge = next(run for run in document["runs"] if run["variant"] == "bridge")
    assert bridge["params"] == document["runs"][0]["params"] + 16 * 16
