"""What a run or model directory from anyone can do to the studio: at most one error answer."""

import json
import os
import shutil

import numpy as np
import pytest
from starlette.testclient import TestClient

from helpers.building import write_model
from helpers.studio_files import tiny_llama, write_run, write_studio_root
from tiebeam.studio.app import build
from tiebeam.studio.model_list import ModelList
from tiebeam.studio.run_stream import follow_metrics

PORT = 4270
DEEP = "[" * 800 + "]" * 800


def client(root) -> TestClient:
    return TestClient(
        build(ModelList((), root), PORT), base_url=f"http://127.0.0.1:{PORT}", raise_server_exceptions=False
    )


@pytest.mark.parametrize(
    "value", ["NaN", "-Infinity", "1e999", "[NaN]", '{"a": [1e999]}', '"\\ud800"', DEEP, "9" * 4000],
    ids=["NaN", "infinity", "1e999", "nested NaN", "nested 1e999", "surrogate", "deep", "digits"],
)  # fmt: skip
def test_one_foreign_record_does_not_hide_the_other_runs(tmp_path, value):
    root = write_studio_root(tmp_path)
    foreign = root / "runs" / "foreign"
    write_run(foreign, tied=True)
    with open(foreign / "metrics.jsonl", "a") as file:
        file.write(f'{{"step": 210, "loss": {value}}}\n{{"step": 220, "list": [{value}]}}\n')
    (foreign / "run.json").write_text(f'{{"settings": {{"lr": {value}}}}}')
    http = client(root)
    answer = http.get("/api/runs")
    assert answer.status_code == 200
    runs = {run["name"]: run for run in answer.json()["runs"]}
    assert set(runs) == {"runs/tied", "runs/untied", "runs/foreign"}
    assert runs["runs/foreign"]["last"]["step"] in (200, 220)  # a line that is not JSON is left out
    assert http.get(f"/api/runs/{runs['runs/foreign']['id']}").status_code == 200


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "config.json"])
def test_a_link_out_of_a_run_is_not_followed(tmp_path, name):
    secret = tmp_path / "secret"
    secret.write_text(
        json.dumps({"settings": {"password": "1234"}, "tie_word_embeddings": True, "password": "1234"}) + "\n"
    )
    run = write_run(tmp_path / "root" / "run", tied=True)
    (run / "run.json").write_text("{}")
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    http = client(tmp_path / "root")
    (found,) = http.get("/api/runs").json()["runs"]
    whole = http.get(f"/api/runs/{found['id']}")
    assert whole.status_code == 200
    assert "1234" not in json.dumps(found) + whole.text
    assert found["tied"] is None
    assert next(follow_metrics(run)) is None or name != "metrics.jsonl"


@pytest.mark.parametrize("name", ["metrics.jsonl", "run.json", "config.json"])
def test_a_fifo_does_not_block_the_server(tmp_path, name):
    run = write_run(tmp_path / "run", tied=True)
    (run / name).unlink(missing_ok=True)
    os.mkfifo(run / name)
    http = client(tmp_path)
    (found,) = http.get("/api/runs").json()["runs"]
    assert http.get(f"/api/runs/{found['id']}").status_code == 200
    next(follow_metrics(run))


def test_a_report_that_is_a_fifo_or_leads_out_is_no_comparison(tmp_path):
    for name in ("one", "two"):
        write_run(tmp_path / "root" / name / "run", tied=True)
    os.mkfifo(tmp_path / "root" / "one" / "report.json")
    (tmp_path / "report.json").write_text('{"verdict": {"sentences": ["secret"]}}')
    (tmp_path / "root" / "two" / "report.json").symlink_to(tmp_path / "report.json")
    assert client(tmp_path / "root").get("/api/runs").json()["comparisons"] == []


def test_a_report_page_that_leads_out_is_not_served(tmp_path):
    write_run(tmp_path / "root" / "one" / "run", tied=True)
    (tmp_path / "root" / "one" / "report.json").write_text('{"verdict": {"sentences": ["a", 3, null, "b"]}}')
    (tmp_path / "report.html").write_text("secret")
    (tmp_path / "root" / "one" / "report.html").symlink_to(tmp_path / "report.html")
    http = client(tmp_path / "root")
    (found,) = http.get("/api/runs").json()["comparisons"]
    assert (found["sentences"], found["report"]) == (["a", "b"], False)
    answer = http.get(f"/reports/{found['id']}.html")
    assert answer.status_code == 422
    assert "secret" not in answer.text


def test_a_directory_that_may_not_be_read_or_links_to_itself_hides_nothing(tmp_path):
    root = write_studio_root(tmp_path)
    (root / "models" / "tied" / "loop").symlink_to("loop")
    (root / "closed" / "inner").mkdir(parents=True)
    (root / "closed").chmod(0)
    try:
        names = {model["name"] for model in client(root).get("/api/models").json()["models"]}
    finally:
        (root / "closed").chmod(0o700)
    assert names == {"models/tied", "models/untied", "models/torn"}


@pytest.mark.parametrize("length", [300, 5_000, 60_000])
def test_a_long_path_is_one_error_answer(tmp_path, length):
    http = client(write_studio_root(tmp_path))
    for path in ("x" * length, f"{tmp_path}/" + "x" * length, f"{tmp_path}/" + "x/" * (length // 2)):
        answer = http.post("/api/find", json={"path": path})
        assert answer.status_code in (403, 422), answer.text


@pytest.mark.parametrize("path", ['"\\ud800"', '"\\udcff"', '"~nobody-at-all/x"', '"a\\u0000b"'])
def test_a_path_that_is_none_is_one_error_answer(tmp_path, path):
    body = f'{{"path": {path}}}'
    answer = client(tmp_path).post("/api/find", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 403), answer.text


def test_what_is_found_can_be_opened(tmp_path):
    """Models that the walk below the root does not list: too deep, in a hidden directory, one file of a directory."""
    root = write_studio_root(tmp_path)
    deep = tiny_llama(root.joinpath(*"abcdefgh"))
    hidden = tiny_llama(root / ".cache" / "model")
    http = client(root)
    for path in (deep, hidden, root / "models" / "tied" / "model.safetensors", root / "models" / "tied"):
        found = http.post("/api/find", json={"path": str(path)})
        assert found.status_code == 200
        assert http.get(f"/api/models/{found.json()['id']}").json()["tie"] == "shared"
    shutil.rmtree(hidden)
    assert http.get(f"/api/models/{ModelList((), root)._source(str(hidden), named=False).id}").status_code == 404


def test_a_named_directory_of_runs_is_not_found_as_a_model(tmp_path):
    write_run(tmp_path / "runs" / "one", tied=True)
    http = TestClient(build(ModelList((str(tmp_path / "runs"),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
    assert http.post("/api/find", json={"path": str(tmp_path / "runs")}).status_code == 403


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_numbers_that_json_lacks_are_null(tmp_path, number):
    where = tiny_llama(tmp_path / "model", tied=False)
    from safetensors.numpy import load_file

    tensors = load_file(where / "model.safetensors")
    tensors["lm_head.weight"][3] = number
    write_model(where, tensors, json.loads((where / "config.json").read_text()))
    http = client(tmp_path)
    (model,) = http.get("/api/models").json()["models"]
    for path in ("", "/tensors", "/direct?ids=1,2,3", "/neighbours?ids=1,2,3"):
        assert http.get(f"/api/models/{model['id']}{path}").status_code == 200, path
    spectrum = http.get(f"/api/models/{model['id']}/spectrum")
    assert spectrum.status_code == 422
    assert "NaN or infinite" in spectrum.json()["error"]
    stream = http.post("/api/generate", json={"model": model["id"], "prompt": "New York", "new": 2})
    assert "event: error" in stream.text
    assert "lm_head.weight holds" in stream.text


def test_a_prompt_with_a_lone_surrogate_is_one_error_answer(tmp_path):
    tiny_llama(tmp_path / "model")
    http = client(tmp_path)
    (model,) = http.get("/api/models").json()["models"]
    body = json.dumps({"model": model["id"], "prompt": "New \ud800"})
    answer = http.post("/api/generate", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)
    assert "cannot be turned into tokens" in answer.json()["error"]
