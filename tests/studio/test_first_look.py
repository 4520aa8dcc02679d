"""The first look at a model: what the headers say comes first, then the stages, and it can be cancelled."""

from __future__ import annotations

import json

import numpy as np
import pytest
from starlette.testclient import TestClient

from helpers.building import write_model
from helpers.studio_files import tiny_llama
from tiebeam.checkpoint import open_checkpoint
from tiebeam.studio.app import build
from tiebeam.studio.jobs import Cancelled, JobProgress
from tiebeam.studio.model_list import ModelList
from tiebeam.studio.open_models import OpenModel, OpenModels

PORT = 4270


@pytest.fixture
def model(tmp_path):
    return tiny_llama(tmp_path / "untied", tied=False)


def test_the_outline_needs_the_headers_only(model, monkeypatch):
    opened = OpenModels().open(ModelList((str(model),)).models()[0])
    monkeypatch.setattr(OpenModel, "_examined", lambda self, progress: pytest.fail("values were read"))
    found = opened.outline()
    assert found["format"] == "safetensors"
    assert found["tensors"] == len(opened.checkpoint.tensors)
    assert found["parameters"] == sum(info.size for info in opened.checkpoint.tensors.values())


def test_the_stages_are_told_in_order_and_the_report_is_the_same(model):
    opened = OpenModels().open(ModelList((str(model),)).models()[0])
    told: list[tuple[str, int, int]] = []
    found = opened.first_look(lambda *progress: told.append(progress))
    assert list(dict.fromkeys(stage for stage, _, _ in told)) == [
        "comparing embedding and LM head",
        "checking every rule",
    ]
    assert found == opened.report()
    rules = [(done, total) for stage, done, total in told if stage == "checking every rule" and total]
    assert [done for done, _ in rules] == list(range(rules[0][1]))


@pytest.fixture
def twins(tmp_path):
    """Two equal matrices of 4 MB, which are compared to the last byte."""
    where = tiny_llama(tmp_path / "twins", tied=False, vocab=1 << 17)
    checkpoint = open_checkpoint(where)
    tensors = {name: np.array(checkpoint.tensor(name)) for name in checkpoint.tensors}
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    write_model(where, tensors, checkpoint.config)
    return where


def test_comparing_two_matrices_has_a_time_left(twins):
    opened = OpenModels().open(ModelList((str(twins),)).models()[0])
    progress, seen = JobProgress(), list[dict]()

    def report(*now):
        progress(*now)
        seen.append(progress.to_dict())

    assert opened.first_look(report)["tie"] == "twin"
    comparing = [now for now in seen if now["stage"] == "comparing embedding and LM head" and now["total"]]
    assert len(comparing) == 4
    assert {now["total"] for now in comparing} == {4 << 20}
    assert [now["done"] for now in comparing] == sorted(now["done"] for now in comparing)
    assert all(now["seconds_left"] is not None for now in comparing)


def test_a_cancelled_look_stops_in_the_comparison_and_can_be_repeated(twins):
    opened = OpenModels().open(ModelList((str(twins),)).models()[0])
    progress, seen = JobProgress(), list[int]()

    def report(stage, done, total):
        progress(stage, done, total)
        if total:
            seen.append(done)
            progress.cancelled = True

    with pytest.raises(Cancelled):
        opened.first_look(report)
    assert len(seen) == 1
    assert opened.first_look(lambda *now: None)["tie"] == "twin"


def test_the_report_is_the_same_as_json_and_as_events(model):
    http = TestClient(build(ModelList((str(model),)), PORT), base_url=f"http://127.0.0.1:{PORT}")
    path = f"/api/models/{http.get('/api/models').json()['models'][0]['id']}"
    blocks = http.get(path, headers={"accept": "text/event-stream"}).text.strip().split("\n\n")
    assert blocks[-1].startswith("event: result\n")
    assert json.loads(blocks[-1].partition("data: ")[2]) == http.get(path).json()


@pytest.mark.xdist_group("browser")
def test_the_page_shows_the_outline_the_stage_and_a_way_to_cancel(visit):
    """The server's events, held back after the first stage, as they are while a large model is read."""
    one = visit()
    page = one.page
    # A stream that stays open after the first stage: the page is in the state of a long first look.
    page.add_init_script(
        """const real = window.fetch;
        window.fetch = async (path, options) => {
          if (!/^api\\/models\\/[^/]+$/.test(String(path)) || window.go) return real(path, options);
          const event = (name, data) => `event: ${name}\\ndata: ${JSON.stringify(data)}\\n\\n`;
          const first = event("partial", { format: "gguf", tensors: 201, parameters: 1100048384, bytes: 323000000 })
            + event("progress", { stage: "comparing embedding and LM head", done: 1, total: 4, seconds_left: 6 });
          const body = new ReadableStream({ start(control) {
            control.enqueue(new TextEncoder().encode(first));
            options.signal.addEventListener("abort", () => control.error(options.signal.reason));
          } });
          return new Response(body, { headers: { "content-type": "text/event-stream" } });
        };"""
    )
    page.goto(one.address + "models.html")
    page.wait_for_selector("text=gguf · 201 tensors · 1.10B parameters · 323 MB")
    page.wait_for_selector("text=comparing embedding and LM head, 25%, about 6 s left")
    page.get_by_role("button", name="Cancel").click()
    page.wait_for_selector("text=Cancelled.")
    page.evaluate("window.go = true")
    page.get_by_role("button", name="Read it again").click()
    page.wait_for_selector("h2#name")
