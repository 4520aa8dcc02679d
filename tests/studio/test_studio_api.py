"""The JSON API with tiny real models and runs."""

import json
import threading
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from helpers.building import write_model
from helpers.studio_files import WORDS, record, write_run, write_studio_root
from tiebeam.checkpoint import open_checkpoint
from tiebeam.studio.app import build
from tiebeam.studio.model_list import ModelList
from tiebeam.studio.openapi import DESCRIPTION
from tiebeam.studio.run_stream import follow_metrics

PORT = 4270


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return write_studio_root(tmp_path_factory.mktemp("api"))


@pytest.fixture(scope="module")
def http(root):
    return TestClient(build(ModelList((), root), PORT), base_url=f"http://127.0.0.1:{PORT}")


def id_of(http, name, kind="models"):
    return next(entry["id"] for entry in http.get(f"/api/{kind}").json()[kind] if entry["name"].endswith(f"/{name}"))


def test_plan_equals_the_library(http):
    from tiebeam import price

    answer = http.get("/api/plan?vocab=32k&dim=2048&trunk=968,976,384").json()
    expected = price(32000, 2048, 968_976_384).to_dict()
    assert {key: answer[key] for key in expected} == expected
    assert answer["verdict"].startswith("Of ")


def test_plan_without_non_embedding_parameters_reports_common_sizes(http):
    answer = http.get("/api/plan?vocab=50k&dim=4096").json()
    assert answer["head_share"] is None
    assert "20.5% of a 1B model" in answer["verdict"]
    assert answer["within"]["1B"] == pytest.approx(0.2048)


def test_a_model_has_the_reports_of_inspect_and_doctor(http, root):
    from tiebeam.doctor import examine

    for name, tie in (("tied", "shared"), ("untied", "untied"), ("torn", "torn")):
        answer = http.get(f"/api/models/{id_of(http, name)}").json()
        assert answer["tie"] == tie
        expected = examine(root / "models" / name).to_dict()
        assert {key: answer[key] for key in expected} == expected


@pytest.mark.parametrize(("name", "healthy"), [("tied", True), ("untied", True), ("torn", False)])
def test_a_model_with_errors_or_warnings_is_not_healthy(http, name, healthy):
    assert http.get(f"/api/models/{id_of(http, name)}").json()["healthy"] is healthy


def test_a_model_with_notes_only_is_healthy(tmp_path):
    """Equal matrices declared untied: nothing has to be done about them (TB202)."""
    tensors = {name: np.eye(4, dtype=np.float32) for name in ("model.embed_tokens.weight", "lm_head.weight")}
    write_model(tmp_path / "twin", tensors, {"model_type": "llama", "tie_word_embeddings": False})
    http = TestClient(build(ModelList((str(tmp_path / "twin"),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
    (model,) = http.get("/api/models").json()["models"]
    answer = http.get(f"/api/models/{model['id']}").json()
    assert answer["tie"] == "twin"
    assert [finding["severity"] for finding in answer["findings"]] == ["note"]
    assert answer["healthy"]


def test_tensors_mark_embedding_and_head(http):
    tensors = http.get(f"/api/models/{id_of(http, 'untied')}/tensors").json()["tensors"]
    assert {t["role"]: t["name"] for t in tensors if t["role"]} == {
        "embed": "model.embed_tokens.weight",
        "head": "lm_head.weight",
    }


def test_direct_path_is_the_product_of_the_matrices(http, root):
    checkpoint = open_checkpoint(root / "models" / "untied")
    E, W = (np.asarray(checkpoint.tensor(name), np.float32) for name in ("model.embed_tokens.weight", "lm_head.weight"))
    answer = http.get(f"/api/models/{id_of(http, 'untied')}/direct?text=New York City&k=3&norm=0").json()
    ids = [token["id"] for token in answer["tokens"]]
    assert [WORDS[i] for i in ids] == ["New", "York", "City"]
    np.testing.assert_allclose(answer["between"], (E @ W.T)[np.ix_(ids, ids)], rtol=1e-5)
    for token in answer["tokens"]:
        best = np.argsort(-(E @ W.T)[token["id"]])[:3]
        assert [score["text"] for score in token["top"]] == [WORDS[i] for i in best]


def test_direct_path_of_a_tied_model_is_symmetric_and_never_negative_on_its_diagonal(http):
    answer = http.get(f"/api/models/{id_of(http, 'tied')}/direct?ids=1,2,3,4,5&norm=0").json()
    matrix = np.array(answer["between"])
    assert answer["tied"]
    np.testing.assert_allclose(matrix, matrix.T, rtol=1e-6)
    assert (np.diag(matrix) >= 0).all()


def test_direct_path_and_spectrum_are_those_of_tiebeam_lens(http, root):
    """One definition: with the final norm by default, and without it as `tiebeam lens --no-norm`."""
    from tiebeam.lens import Lens

    for model in ("tied", "untied"):
        for norm in (True, False):
            lens = Lens.open(root / "models" / model, norm=norm)
            query = f"norm={int(norm)}"
            direct = http.get(f"/api/models/{id_of(http, model)}/direct?ids=1,2,3&{query}").json()
            assert direct["norm"] == norm
            np.testing.assert_array_equal(direct["between"], lens.direct([1, 2, 3]).matrix)
            spectrum = http.get(f"/api/models/{id_of(http, model)}/spectrum?{query}").json()
            np.testing.assert_array_equal(spectrum["values"], lens.spectrum)
            assert spectrum["energy"] == lens.energy.to_dict()
    default = http.get(f"/api/models/{id_of(http, 'tied')}/direct?ids=1,2,3").json()
    np.testing.assert_array_equal(default["between"], Lens.open(root / "models" / "tied").direct([1, 2, 3]).matrix)


def test_neighbours_come_from_one_matrix_if_tied_and_from_both_if_not(http):
    one = http.get(f"/api/models/{id_of(http, 'tied')}/neighbours?text=New").json()["tokens"][0]
    two = http.get(f"/api/models/{id_of(http, 'untied')}/neighbours?text=New").json()["tokens"][0]
    assert "head" not in one
    assert one["embed"][0]["text"] in WORDS
    assert two["head"] != two["embed"]


def test_spectrum_of_a_tied_model_has_no_antisymmetric_or_negative_energy(http):
    tied = http.get(f"/api/models/{id_of(http, 'tied')}/spectrum?norm=0").json()["energy"]
    untied = http.get(f"/api/models/{id_of(http, 'untied')}/spectrum?norm=0").json()["energy"]
    assert tied["antisymmetric"] == pytest.approx(0, abs=1e-9)
    assert tied["negative"] == pytest.approx(0, abs=1e-9)
    assert untied["antisymmetric"] > 0.1
    assert untied["negative"] > 0.1


@pytest.mark.parametrize(("query", "sentence"), [
    ("text=", "text is empty"), ("ids=999", "token id"), ("ids=x", "whole numbers"), ("text=New&k=0", "k is"),
    ("ids=" + ",".join(["1"] * 13), "at most 12"), ("text=New&norm=2", "norm is"),
])  # fmt: skip
def test_invalid_tokens_are_a_bad_request(http, query, sentence):
    answer = http.get(f"/api/models/{id_of(http, 'tied')}/direct?{query}")
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


def test_generation_streams_tokens_whose_logits_are_dot_products(http, root):
    from tiebeam.decode import Decoder

    body = {"model": id_of(http, "untied"), "prompt": "New York", "new": 5, "top": 3}
    answer = http.post("/api/generate", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: ")]
    tokens = [event for event in events if "id" in event]
    expected = [token.id for token in Decoder.open(root / "models" / "untied").generate("New York", 5)]
    assert [token["id"] for token in tokens] == expected
    assert events[-1] == {"done": True}
    for token in tokens:
        assert sum(one["chosen"] for one in token["top"]) == 1
        for one in token["top"]:
            assert one["hidden_length"] * one["row_length"] * one["cosine"] == pytest.approx(one["logit"], abs=1e-4)


@pytest.mark.parametrize(("change", "sentence"), [
    ({"prompt": ""}, "empty"), ({"new": 0}, "new is 0"), ({"new": 10_000}, "new tokens"),
    ({"new": "x"}, "wrong type"),
    ({"temperature": -1}, "temperature"), ({"model": "nope"}, "no model has the id"), ({"loud": 1}, "not a setting"),
    ({"top": 0}, "top is 0"), ({"new": True}, "wrong type"), ({"new": 64}, "context"),
])  # fmt: skip
def test_invalid_generation_settings_are_an_error_before_the_stream_starts(http, change, sentence):
    body = {"model": id_of(http, "tied"), "prompt": "New York", "new": 3, **change}
    answer = http.post("/api/generate", json=body)
    assert answer.status_code in (400, 404)
    assert sentence in answer.json()["error"]


def test_runs_have_their_tie_and_latest_metrics(http):
    runs = {run["name"]: run for run in http.get("/api/runs").json()["runs"]}
    assert {name: run["tied"] for name, run in runs.items()} == {"runs/tied": True, "runs/untied": False}
    assert runs["runs/tied"]["last"]["step"] == 200
    one = http.get(f"/api/runs/{runs['runs/tied']['id']}").json()
    assert len(one["records"]) == 20


def test_following_metrics_handles_incomplete_lines_and_rewrites(tmp_path):
    path = tmp_path / "metrics.jsonl"
    tail = follow_metrics(tmp_path)
    assert next(tail) is None
    path.write_text('{"step": 1}\n{"step": 2')
    assert next(tail) == [{"step": 1}]
    assert next(tail) is None
    with open(path, "a") as file:
        file.write('}\nnot json\n{"step": 3, "loss": NaN}\n')
    assert next(tail) == [{"step": 2}, {"step": 3, "loss": None}]
    path.write_text('{"step": 1}\n')
    assert next(tail) == "reset"
    assert next(tail) == [{"step": 1}]


def test_events_stream_appended_metrics(studio, studio_root):
    import httpx

    runs = httpx.get(studio + "api/runs").json()["runs"]
    run = next(run["id"] for run in runs if run["name"] == "runs/untied")
    path = studio_root / "runs" / "untied" / "metrics.jsonl"

    def later():
        time.sleep(0.7)
        with open(path, "a") as file:
            file.write(json.dumps(record(210, tied=False)) + "\n")

    writer = threading.Thread(target=later)
    writer.start()
    steps = []
    with httpx.stream("GET", f"{studio}api/events?runs={run}", timeout=20) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                steps += [one["step"] for one in json.loads(line[6:])["records"]]
            if 210 in steps:
                break
    writer.join()
    assert steps == [*range(10, 201, 10), 210]


def test_every_described_route_exists(http):
    served = http.get("/api/openapi.json").json()
    assert served == json.loads(json.dumps(DESCRIPTION))
    for path, operations in served["paths"].items():
        for method in operations:
            answer = http.request(method, path.replace("{id}", "0" * 12), json={} if method == "post" else None)
            assert answer.status_code in (200, 400, 404), path


def test_runs_include_the_verdict_of_their_comparison(http):
    (found,) = http.get("/api/runs").json()["comparisons"]
    assert (found["name"], found["sentences"], found["report"]) == ("runs", ["Tied won.", "By a little."], False)
    assert http.get(f"/reports/{found['id']}.html").status_code == 422
    assert http.get("/reports/nothing.html").status_code == 404


def test_a_run_says_whether_it_is_running_finished_or_stopped(tmp_path):
    import os

    for name in ("running", "finished", "stopped"):
        write_run(tmp_path / name, tied=True)
    with open(tmp_path / "finished" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 200, "done": 1.0, "val_bpb": 1.1}) + "\n")
    os.utime(tmp_path / "stopped" / "metrics.jsonl", (1, 1))
    here = TestClient(build(ModelList((), tmp_path), PORT), base_url=f"http://127.0.0.1:{PORT}")
    runs = here.get("/api/runs").json()["runs"]
    assert {run["name"]: run["state"] for run in runs} == {name: name for name in ("running", "finished", "stopped")}


def test_tokens_of_a_step_are_those_of_the_settings(tmp_path):
    from tiebeam.train import Settings

    for number, settings in enumerate(
        [Settings(steps=1), Settings(steps=1, batch_tokens=5000, context=64, accumulate=3)]
    ):
        where = write_run(tmp_path / str(number), tied=True)
        (where / "run.json").write_text(json.dumps({"settings": settings.to_dict()}))
        here = TestClient(build(ModelList((str(where),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
        assert here.get("/api/runs").json()["runs"][0]["step_tokens"] == settings.step_tokens


def test_a_report_above_the_named_directory_is_not_read(tmp_path):
    root = write_studio_root(tmp_path)
    named = ModelList((str(root / "runs" / "tied"),))
    assert [entry.name for entry in named.runs()] == ["tied"]
    assert named.comparisons() == []
    assert [one.where for one in ModelList((str(root / "runs"),)).comparisons()] == [str(root / "runs")]


def test_a_trained_run_is_listed_and_can_generate(tmp_path):
    """`tiebeam train`, then the studio: a run directory is a run and a model."""
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    from tiebeam.cli import main

    text = tmp_path / "text.txt"
    text.write_text("New York City is big. San Francisco is old. Los Angeles is the new town. " * 300)
    arguments = ["--steps", "12", "--layers", "1", "--dim", "32", "--heads", "2", "--kv-heads", "2", "--mlp-dim", "64"]
    main(["train", str(text), "--out", str(tmp_path / "run"), "--context", "32", *arguments])
    here = TestClient(build(ModelList((str(tmp_path / "run"),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
    (run,) = here.get("/api/runs").json()["runs"]
    assert run["tied"] is True
    assert run["model"] is True
    assert "val_bpb" in run["last"]
    (model,) = here.get("/api/models").json()["models"]
    assert model["id"] == run["id"]
    assert here.get(f"/api/models/{model['id']}").json()["tie"] == "shared"
    answer = here.post("/api/generate", json={"model": model["id"], "prompt": "New York", "new": 3})
    assert answer.text.count("event: token") == 5


def test_an_aborted_generation_releases_the_decoder(studio):
    import httpx

    model = next(m["id"] for m in httpx.get(studio + "api/models").json()["models"] if m["name"] == "models/tied")
    body = {"model": model, "prompt": "New York", "new": 60}
    for _ in range(3):
        with httpx.stream("POST", studio + "api/generate", json=body, timeout=20) as stream:
            next(stream.iter_lines())
    assert '"done":true' in httpx.post(studio + "api/generate", json=body, timeout=20).text


def test_streams_above_the_limit_are_an_error(studio):
    import contextlib

    import httpx

    run = httpx.get(studio + "api/runs").json()["runs"][0]["id"]
    address = f"{studio}api/events?runs={run}"
    reading = []  # httpx closes a stream whose iterator is garbage-collected
    with contextlib.ExitStack() as stack:
        for _ in range(16):
            reading.append(stack.enter_context(httpx.stream("GET", address, timeout=20)).iter_lines())
            next(reading[-1])
        with httpx.stream("GET", address, timeout=20) as refused:
            assert refused.status_code == 400
    for _ in range(20):  # a closed stream is released at once, not at the next keep-alive
        with httpx.stream("GET", address, timeout=20) as again:
            if again.status_code == 200:
                return
        time.sleep(0.25)
    pytest.fail("closed streams were not released")


def test_one_stream_follows_several_runs(studio):
    import httpx

    runs = [run["id"] for run in httpx.get(studio + "api/runs").json()["runs"]]
    seen = set()
    with httpx.stream("GET", f"{studio}api/events?runs={','.join(runs)}", timeout=20) as stream:
        for line in stream.iter_lines():
            if line.startswith("data: "):
                seen.add(json.loads(line[6:])["run"])
            if seen == set(runs):
                break
    assert len(seen) == 2
    assert httpx.get(f"{studio}api/events?runs={runs[0]},nothing").status_code == 404
    assert httpx.get(f"{studio}api/events").status_code == 400
