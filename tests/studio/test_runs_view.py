"""The Runs view in a real browser: values by pointer and keyboard, axes, held-out sets, runs that appear and finish."""

import json
import re

import pytest

from helpers.accessibility import axe
from helpers.studio_files import record, write_run

from .conftest import start

pytestmark = pytest.mark.xdist_group("browser")
TOKENS = 2048
HOSTILE = """<!doctype html><html><title>report</title><body><script>
fetch("/api/models").then(() => "read", () => "refused").then((word) => {
  document.documentElement.dataset.origin = origin; document.documentElement.dataset.api = word; });
</script></body></html>"""


def finished_run(where, tied):
    """A run whose last validation is on the whole held-out text, as runs of 0.1 have it."""
    write_run(where, tied)
    settings = {"tie": tied, "batch_tokens": TOKENS, "context": 256, "accumulate": 1}
    (where / "run.json").write_text(json.dumps({"settings": settings}))
    records = [{**record(step, tied), "done": step / 200} for step in range(10, 201, 10)]
    for one in records:
        if "val_bpb" in one:
            one["val_tokens"] = 32768
    records[-1].pop("val_bpb")
    records.append({"step": 200, "seconds": 20.0, "done": 1.0, "val_bpb": 1.5, "val_tokens": 132681})
    (where / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    return records


@pytest.fixture(scope="module")
def runs_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("dashboard")
    for name in ("tied", "untied"):
        finished_run(root / "study" / name, name == "tied")
    sentences = ["At equal steps, no clear difference.", "At equal time, untied is better.", "At equal size, tied is."]
    (root / "study" / "report.json").write_text(json.dumps({"verdict": {"sentences": sentences}}))
    (root / "study" / "report.html").write_text(HOSTILE)
    return root


@pytest.fixture(scope="module")
def runs_studio(runs_root):
    process, address = start("--root", str(runs_root))
    yield address
    process.terminate()
    process.wait(10)


@pytest.fixture
def open_runs(visit, runs_studio):
    def open_runs(**options):
        page = visit(address=runs_studio, **options).go("runs.html")
        page.wait_for_selector(".plot-stage path.plot-line")
        return page

    return open_runs


def chart(page, name):
    return page.get_by_role("region", name=name).get_by_role("slider")


def records_of(root, name):
    return [json.loads(line) for line in (root / "study" / name / "metrics.jsonl").read_text().splitlines()]


def test_hover_shows_the_values_of_the_nearest_point(open_runs, runs_root):
    page = open_runs()
    stage = chart(page, "Training loss")
    stage.scroll_into_view_if_needed()
    dot = page.get_by_role("region", name="Training loss").locator("circle.plot-dot").nth(4).bounding_box()
    page.mouse.move(dot["x"] + dot["width"] / 2 + 3, dot["y"] + dot["height"] / 2 - 2)
    tip = stage.locator(".plot-tip").inner_text()
    fifth = [records_of(runs_root, name)[4] for name in ("tied", "untied")]
    assert "step 50" in tip
    assert "5 s · 102k tokens" in tip
    assert [f"{one['loss']:.4f}" for one in fifth] == re.findall(r"\d\.\d{4}", tip)
    page.mouse.move(5, 5)
    assert stage.locator(".plot-tip").is_hidden()


def test_arrow_keys_move_along_a_curve_and_between_curves(open_runs, runs_root):
    page = open_runs()
    stage = chart(page, "Training loss")
    stage.focus()
    page.keyboard.press("Home")
    losses = {
        name: [one["loss"] for one in records_of(runs_root, name) if "loss" in one] for name in ("tied", "untied")
    }
    assert stage.get_attribute("aria-valuetext").startswith(
        f"step 10, 1 s, 20.5k tokens: study/tied {losses['tied'][0]:.4f}"
    )
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    text = stage.get_attribute("aria-valuetext")
    assert text.startswith(f"step 30, 3 s, 61.4k tokens: study/untied {losses['untied'][2]:.4f}")
    assert f"study/tied {losses['tied'][2]:.4f}" in text
    page.keyboard.press("End")
    assert f"step 200, 20 s, 410k tokens: study/untied {losses['untied'][-1]:.4f}" in stage.get_attribute(
        "aria-valuetext"
    )
    page.keyboard.press("Escape")
    assert stage.get_attribute("aria-valuetext") == "no point chosen"


def test_keys_switch_all_charts_between_steps_time_and_tokens(open_runs):
    page = open_runs()
    page.get_by_role("radio", name="steps").focus()
    names = []
    for _ in range(3):
        names.append(set(page.locator("main .plot-stage text:last-of-type").filter(has_text="→").all_text_contents()))
        page.keyboard.press("ArrowRight")
    assert names == [{"steps →"}, {"training time, s →"}, {"tokens →"}]
    assert page.get_by_role("radio", name="steps").is_checked()


def test_log_scale_smoothing_and_the_second_half_are_applied(open_runs):
    page = open_runs()
    lines = page.get_by_role("region", name="Training loss").locator("path.plot-line")
    drawn = lambda: [lines.nth(i).get_attribute("d") for i in range(lines.count())]  # noqa: E731
    before = drawn()
    page.get_by_role("checkbox", name="Log scale").check()
    logarithmic = drawn()
    assert logarithmic != before
    page.get_by_role("slider", name="Smoothing").fill("0")
    assert len(drawn()) == 2  # the values themselves only
    page.get_by_role("slider", name="Smoothing").fill("0.5")
    assert len(drawn()) == 4
    page.get_by_role("checkbox", name="Second half only").check()
    stage = chart(page, "Training loss")
    stage.focus()
    page.keyboard.press("Home")
    assert stage.get_attribute("aria-valuetext").startswith("step 100,")


def test_the_held_out_curve_never_joins_two_held_out_sets(open_runs):
    page = open_runs()
    region = page.get_by_role("region", name="Held-out loss")
    for path in region.locator(".plot-stage path.plot-line").all():
        assert path.get_attribute("d").count("L") == 2  # steps 50, 100 and 150
    assert region.locator(".plot-stage path.plot-mark").count() == 2
    assert "study/tied, on 132,681 held-out tokens: 1.5000" in region.locator(".plot-note").inner_text()
    row = page.get_by_role("row").filter(has_text="study/untied").inner_text()
    assert re.search(r"1\.\d{4}; 1\.5000 on 132,681 tokens", row)


def test_the_data_behind_a_chart_is_a_table(open_runs, runs_root):
    page = open_runs()
    region = page.get_by_role("region", name="Training loss")
    region.get_by_text("Data", exact=True).click()
    region.locator(".plot-data tbody tr").nth(39).wait_for()
    rows = region.locator(".plot-data tbody tr").all_inner_texts()
    first = records_of(runs_root, "tied")[0]
    assert len(rows) == 40
    assert rows[0].split("\t") == ["study/tied", "10", "1 s", "20.5k", f"{first['loss']:.4f}"]


def test_a_new_run_appears_updates_and_finishes_without_a_reload(open_runs, runs_root):
    page = open_runs()
    page.get_by_role("checkbox", name="Draw study/tied").focus()
    later = write_run(runs_root / "study" / "later", tied=True, steps=50)
    row = page.get_by_role("row").filter(has_text="study/later")
    row.wait_for(timeout=20_000)
    assert "running" in row.inner_text()
    with open(later / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**record(60, tied=True), "loss": 1.234, "done": 0.5}) + "\n")
    row.get_by_text("1.234", exact=True).wait_for()
    assert "6 s" in row.inner_text()  # as long as it has taken
    with open(later / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 120, "seconds": 12, "done": 1.0, "val_bpb": 1.1}) + "\n")
    row.get_by_text("finished").wait_for(timeout=20_000)
    assert (
        page.evaluate("document.activeElement.ariaLabel") == "Draw study/tied"
    )  # nothing was replaced under the focus


def test_a_run_that_is_not_ticked_is_not_drawn(open_runs):
    page = open_runs()
    lines = page.get_by_role("region", name="Held-out loss").locator(".plot-stage path.plot-mark")
    page.get_by_role("checkbox", name="Draw study/untied").focus()
    page.keyboard.press("Space")
    assert lines.count() == 1


def test_the_verdict_is_in_the_words_of_the_report_and_links_it(open_runs, runs_root):
    page = open_runs()
    panel = page.get_by_role("region", name="Verdict of study")
    told = json.loads((runs_root / "study" / "report.json").read_text())["verdict"]["sentences"]
    assert panel.locator("p").all_inner_texts()[:3] == told
    with page.context.expect_page() as opened:
        panel.get_by_role("link", name="Open the report").click()
    report = opened.value
    report.wait_for_selector("html[data-api]")
    assert report.evaluate("({...document.documentElement.dataset})") == {"origin": "null", "api": "refused"}


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (768, True), (390, False)])
def test_the_view_fits_its_window_and_is_accessible(open_runs, width, dark):
    page = open_runs(width=width, dark=dark)
    page.get_by_role("region", name="Training loss").get_by_text("Data", exact=True).click()
    chart(page, "Held-out loss").focus()
    page.keyboard.press("End")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    if width == 768:  # test_studio_pages.py has the others
        assert axe(page) == []
