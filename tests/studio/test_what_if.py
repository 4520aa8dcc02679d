"""What fewer rows or bits would cost: the page's numbers are those of `trim` and `quantize`, and its commands run."""

from __future__ import annotations

import json
import shlex

import pytest
from starlette.testclient import TestClient

pytest.importorskip("transformers")

from helpers.trimmable_models import prose, save_trimmable
from tiebeam.studio.app import build
from tiebeam.studio.model_list import ModelList

PORT = 4270


@pytest.fixture
def http(tmp_path):
    save_trimmable(tmp_path / "model")
    return TestClient(build(ModelList((str(tmp_path / "model"),)), PORT), base_url=f"http://127.0.0.1:{PORT}")


def ask(http, **body):
    id = http.get("/api/models").json()["models"][0]["id"]
    return http.post(f"/api/models/{id}/what-if", json=body)


def test_fewer_rows_are_measured_and_the_command_makes_such_a_model(http, tmp_path, monkeypatch, capsys):
    from tiebeam import inspect
    from tiebeam.cli import main

    text = prose()[:40_000]
    found = ask(http, text=text, rows=500).json()
    before, after = found["ladder"]["rungs"][0], found["ladder"]["rungs"][-1]
    assert after["rows"] == found["rows"] == 500
    assert before["bits_per_byte"] > 0
    assert after["bits_per_byte"] > 0
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.txt").write_text(text)
    main([*shlex.split(found["commands"][0])[1:], "--quiet", "--json"])
    assert json.loads(capsys.readouterr().out)
    assert inspect(tmp_path / "model-500").pair.embed.rows == 500


def test_fewer_bits_are_measured_for_every_precision(http):
    from tiebeam.surgery.quantize.precisions import PRECISIONS

    found = ask(http, text=prose()[:40_000]).json()["costs"]
    named = {cost["head"]["precision"] for cost in found["costs"] if cost["which"] == "both"}
    assert named <= {precision.name for precision in PRECISIONS}
    assert len(named) >= 6
    assert found["nats_per_token"] > 0


@pytest.mark.parametrize(("body", "sentence"), [
    ({}, "text is required"), ({"text": "short"}, "at least 2,000"), ({"text": "x" * 3000, "rows": 0}, "rows is 0"),
    ({"text": "x" * 3000, "rows": True}, "rows is true"), ({"text": "x" * 3000, "loud": 1}, "not a setting"),
])  # fmt: skip
def test_an_invalid_question_is_a_bad_request(http, body, sentence):
    answer = ask(http, **body)
    assert answer.status_code == 400
    assert sentence in answer.json()["error"]


@pytest.mark.xdist_group("browser")
def test_sliders_show_the_size_at_once_and_a_click_the_measured_cost_with_its_command(visit, tmp_path):
    from .conftest import start

    save_trimmable(tmp_path / "model")
    process, address = start(str(tmp_path / "model"))
    try:
        page = visit(address=address).go("models.html")
        panel = page.locator("section[aria-labelledby=whatif]")
        size = panel.locator("p[role=status]").first
        before = size.inner_text()
        panel.get_by_role("slider").first.focus()
        for _ in range(4):
            page.keyboard.press("PageDown")
        fewer = size.inner_text()
        assert fewer != before
        assert "% less" in fewer
        panel.get_by_role("slider").last.focus()
        page.keyboard.press("End")
        assert size.inner_text() != fewer
        panel.get_by_label("Your text").fill(prose()[:20_000])
        page.get_by_role("button", name="Measure these rows").click()
        page.wait_for_selector("section[aria-labelledby=whatif] >> text=Bits per byte", timeout=120_000)
        command = panel.locator(".command code").inner_text()
        assert shlex.split(command)[:3] == ["tiebeam", "trim", str(tmp_path / "model")]
    finally:
        process.terminate()
        process.wait(10)
