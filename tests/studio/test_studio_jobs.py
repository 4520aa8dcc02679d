"""Long work of the studio: progress, cancelling, results kept on disk; rows; weights loaded ahead."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import pytest
from starlette.requests import Request
from starlette.testclient import TestClient

from helpers.studio_files import WORDS, tiny_llama
from tiebeam.studio.app import build
from tiebeam.studio.jobs import Cancelled, JobProgress, job_events
from tiebeam.studio.model_list import ModelList

PORT = 4270
STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def model(tmp_path):
    return tiny_llama(tmp_path / "untied", tied=False)


@pytest.fixture
def http(model, monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path / "cache"))
    return TestClient(build(ModelList((str(model),)), PORT), base_url=f"http://127.0.0.1:{PORT}")


def address(http) -> str:
    return f"/api/models/{http.get('/api/models').json()['models'][0]['id']}"


def events(answer) -> list[tuple[str, dict]]:
    blocks = [block.splitlines() for block in answer.text.strip().split("\n\n")]
    return [(lines[0].removeprefix("event: "), json.loads(lines[1].removeprefix("data: "))) for lines in blocks]


@pytest.mark.parametrize("work", ["spectrum", "spectrum?norm=0", "rows"])
def test_long_work_is_the_same_as_json_and_as_events(http, work):
    plain = http.get(f"{address(http)}/{work}").json()
    streamed = events(http.get(f"{address(http)}/{work}", headers=STREAM))
    assert streamed[-1] == ("result", plain)
    assert all(name == "progress" for name, _ in streamed[:-1])


def test_a_result_is_kept_on_disk_until_the_model_changes(http, model, tmp_path):
    first = http.get(f"{address(http)}/spectrum").json()
    (kept,) = (tmp_path / "cache" / "studio").glob("*.json")
    kept.write_text(json.dumps({**first, "from": "disk"}))
    assert http.get(f"{address(http)}/spectrum").json()["from"] == "disk"
    assert "from" not in http.get(f"{address(http)}/spectrum?norm=0").json()
    os.utime(model / "model.safetensors", ns=(1, 1))
    assert http.get(f"{address(http)}/spectrum").json() == first


def test_a_damaged_result_on_disk_is_computed_again(http, tmp_path):
    first = http.get(f"{address(http)}/rows").json()
    (kept,) = (tmp_path / "cache" / "studio").glob("*.json")
    kept.write_text("{")
    assert http.get(f"{address(http)}/rows").json() == first


def test_an_error_of_long_work_is_an_event_and_an_unknown_model_is_not_found(http):
    assert http.get("/api/models/000000000000/spectrum", headers=STREAM).status_code == 404
    assert http.get(f"{address(http)}/spectrum?norm=9", headers=STREAM).status_code == 400


def test_cancelled_work_ends_at_its_next_report():
    """A page that goes away: the stream stops, and the work is told so when it reports."""
    ended, started = threading.Event(), threading.Event()

    class Gone:
        async def is_disconnected(self) -> bool:
            return started.is_set()

    def work(progress):
        try:
            while True:
                started.set()
                progress("counting", 1, 100)
        except Cancelled:
            ended.set()
            raise

    async def run() -> list[bytes]:
        return [event async for event in job_events(cast(Request, Gone()), work)]

    with ThreadPoolExecutor(1) as thread:  # a browser of another test may have a loop in this one
        assert b"event: result" not in b"".join(thread.submit(asyncio.run, run()).result())
    assert ended.wait(30)


def test_progress_estimates_the_time_left_of_its_stage():
    progress = JobProgress()
    progress("reading", 0, 10)
    assert progress.to_dict()["seconds_left"] is None
    progress("reading", 5, 10)
    assert progress.to_dict()["seconds_left"] >= 0


def test_suspicious_rows_are_listed_with_their_texts(tmp_path, monkeypatch):
    import numpy as np

    from helpers.building import write_model

    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path / "cache"))
    where = tiny_llama(tmp_path / "zeros")
    from tiebeam.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(where)
    tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.tensors}
    tensors["model.embed_tokens.weight"][5] = 0
    write_model(where, tensors, checkpoint.config)
    http = TestClient(build(ModelList((str(where),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
    (matrix,) = http.get(f"{address(http)}/rows").json()["matrices"]
    (group,) = [group for group in matrix["groups"] if group["kind"] == "zero"]
    assert group == {"kind": "zero", "count": 1, "trained": False, "rows": [{"id": 5, "text": WORDS[5]}]}


def test_weights_are_loaded_before_they_are_needed(http):
    assert http.get("/api/status").json()["memory"]["loaded"] == []
    streamed = events(http.post(f"{address(http)}/load", headers=STREAM))
    assert streamed[-1][0] == "result"
    assert [one["name"] for one in http.get("/api/status").json()["memory"]["loaded"]] == ["untied"]


def test_a_token_has_its_norms_and_a_generated_token_the_parts_of_its_logit(http, model):
    import numpy as np

    from tiebeam.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(model)
    token = http.get(f"{address(http)}/neighbours?text=York").json()["tokens"][0]
    for end, name in (("embed", "model.embed_tokens.weight"), ("head", "lm_head.weight")):
        assert token["norms"][end] == pytest.approx(float(np.linalg.norm(checkpoint.tensor(name)[2])), rel=1e-5)
    body = {"model": address(http).rsplit("/", 1)[1], "prompt": "New York", "new": 3}
    generated = [data for _, data in events(http.post("/api/generate", json=body)) if "layers" in data]
    assert len(generated) == 3
    for one in generated:
        chosen = next(top for top in one["top"] if top["chosen"])
        assert sum(one["layers"]) == pytest.approx(chosen["logit"], abs=1e-3)
        assert len(one["layers"]) == 2  # direct path and one layer


def test_a_page_that_does_not_exist_is_a_page_for_people_and_json_for_programs(http):
    page = http.get("/nothing<b>here", headers={"accept": "text/html"})
    assert page.status_code == 404
    assert "There is no page here" in page.text
    assert "<b>here" not in page.text
    assert "index.html" in page.text
    assert http.get("/nothing", headers={"accept": "application/json"}).json()["error"].startswith("no page")


def test_the_memory_of_a_model_is_in_its_report(http):
    memory = http.get(address(http)).json()["memory"]
    assert memory["kv_cache_per_token"] == 2 * 2 * 8  # keys and values in bf16, one layer of width 8
    assert memory["logits_per_token"] == 4 * len(WORDS)


@pytest.mark.parametrize("option", [[], ["--root"]])
def test_an_empty_directory_is_said_to_be_empty(tmp_path, option):
    import subprocess
    import sys

    (tmp_path / "empty").mkdir()
    command = [sys.executable, "-m", "tiebeam", "studio", "--no-open", "--port", "0", *option, str(tmp_path / "empty")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert "http://127.0.0.1:" in process.stdout.readline()
        process.terminate()
        assert f"nothing found in {tmp_path / 'empty'}: it has no model and no run" in process.stderr.read()


def test_an_empty_directory_is_not_listed_as_a_model(tmp_path):
    (tmp_path / "empty").mkdir()
    listed = ModelList((str(tmp_path / "empty"),))
    assert listed.models() == []
    assert listed.empty() == [str(tmp_path / "empty")]
