"""report.html in a real browser: the answer first, values by pointer and keyboard; three widths, light, dark, print."""

import json
import re

import pytest

from helpers.accessibility import axe
from tiebeam.compare.learning_rate_sweep import SweptRate, sweep_document
from tiebeam.compare.plan_answer import PlanAnswer
from tiebeam.compare.report_answers import QUESTIONS
from tiebeam.compare.report_page import page as build_page
from tiebeam.studio.request_guard import REPORT_POLICY

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def show(browser, comparison):
    """show(width, dark) -> the page. After the test: no console messages, and no request but the file itself."""
    opened = []

    def show(width=1440, dark=False, path=comparison.page):
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        page = context.new_page()
        heard = []
        page.on("console", lambda message: heard.append(message.text))
        page.on("pageerror", lambda error: heard.append(str(error)))
        page.on("request", lambda request: heard.append(request.url) if request.url != path.as_uri() else None)
        page.goto(path.as_uri())
        page.wait_for_selector("html[data-ready=true]")
        opened.append((context, heard))
        return page

    yield show
    for context, heard in opened:
        context.close()
        assert [line for line in heard if line != "data:,"] == []


def cells(comparison, variant, width):
    return next(c for c in comparison.document["ladder"]["cells"] if (c["variant"], c["width"]) == (variant, width))


def chart(page, name):
    return page.get_by_role("slider", name=re.compile(f"^{re.escape(name)}"))


def number(text):
    return float(text.replace("−", "-"))


def test_the_page_opens_with_the_sentences_of_the_verdict_word_for_word(show, comparison):
    page = show()
    shown = page.locator(".verdict li").all_text_contents()
    assert shown == comparison.document["verdict"]["sentences"]
    assert len(shown) == 3
    top = page.locator(".verdict").bounding_box()
    assert top["y"] < 300


def test_the_table_has_every_question_with_its_interval_and_whether_it_includes_zero(show, comparison):
    page = show()
    rows = page.locator("main table").first.locator("tbody tr")
    answers = [comparison.document["answers"][q] for q in QUESTIONS if q in comparison.document["answers"]]
    assert {"steps", "time", "size"} <= set(comparison.document["answers"])
    assert rows.count() == len(answers)
    for row, answer in zip(rows.all(), answers, strict=True):
        cells = row.locator("td").all_inner_texts()
        assert number(cells[2]) == pytest.approx(answer["difference"], abs=5e-5)
        assert [number(x) for x in cells[3].split(" to ")] == pytest.approx(
            [answer["ci_low"], answer["ci_high"]], abs=5e-5
        )
        assert cells[5].startswith("includes 0" if answer["includes_zero"] else "excludes 0")


def test_hover_values_are_those_of_the_document(show, comparison):
    page = show()
    stage = chart(page, "Held-out loss, width 16")
    stage.scroll_into_view_if_needed()
    checks = cells(comparison, "tied", 16)["checks"]
    for index in (0, len(checks) // 2, len(checks) - 1):
        dot = stage.locator("circle.plot-dot").nth(index).bounding_box()
        page.mouse.move(dot["x"] + dot["width"] / 2 + 2, dot["y"] + dot["height"] / 2 - 1)
        tip = stage.locator(".plot-tip").inner_text()
        step, tied = checks[index]["step"], checks[index]["bpb"]
        untied = cells(comparison, "untied", 16)["checks"][index]["bpb"]
        assert f"step {step:,}\n" in tip
        assert re.findall(r"\d+\.\d{4}", tip) == [f"{tied:.4f}", f"{untied:.4f}"]


def test_arrow_keys_read_out_the_values(show, comparison):
    page = show()
    stage = chart(page, "Held-out loss, width 8")
    stage.focus()
    page.keyboard.press("Home")
    for variant, key, index in (("tied", "ArrowRight", 1), ("untied", "ArrowDown", 1), ("untied", "End", -1)):
        page.keyboard.press(key)
        check = cells(comparison, variant, 8)["checks"][index]
        text = stage.get_attribute("aria-valuetext")
        assert text.startswith(f"step {check['step']:,}, ")
        assert f": {variant} {check['bpb']:.4f}" in text


def test_the_axis_switch_moves_all_curves_to_time_and_tokens(show, comparison):
    page = show()
    stage = chart(page, "Held-out loss, width 8")
    page.get_by_role("group", name="Charts").get_by_role("radio", name="steps").focus()
    page.keyboard.press("ArrowRight")
    assert "training time, s →" in stage.text_content()
    page.keyboard.press("ArrowRight")
    assert "tokens →" in stage.text_content()
    assert "tokens →" in chart(page, "Training loss, width 16").text_content()
    stage.focus()
    page.keyboard.press("End")
    tokens = cells(comparison, "tied", 8)["checks"][-1]["tokens"]
    assert stage.get_attribute("aria-valuetext").startswith(f"{tokens / 1000:.3g}k tokens, step ")


def test_the_gap_chart_has_the_intervals_of_the_ladder(show, comparison):
    page = show()
    stage = chart(page, "Gap by width")
    stage.focus()
    page.keyboard.press("Home")
    first = comparison.document["ladder"]["gaps"][0]
    low, high = (f"{first['steps'][key]:.4f}".replace("-", "−") for key in ("ci_low", "ci_high"))
    text = stage.get_attribute("aria-valuetext")
    assert text.startswith(f"width {first['width']}, LM head {100 * first['head_share']:.1f}% of the untied model: ")
    assert f"(95% CI {low} to {high})" in text
    assert stage.locator("path.plot-interval").count() == 2 * len(comparison.document["ladder"]["gaps"])
    page.get_by_role("radio", name="LM head share").check(force=True)
    assert "LM head share →" in stage.text_content()


def test_gaps_while_training_are_differences_of_the_checks(show, comparison):
    page = show()
    stage = chart(page, "Gap while training")
    stage.focus()
    page.keyboard.press("End")
    last = {v: cells(comparison, v, 8)["checks"][-1]["bpb"] for v in ("tied", "untied")}
    (found,) = re.findall(r"width 8 ([^\s;]+)", stage.get_attribute("aria-valuetext"))
    assert number(found) == pytest.approx(last["untied"] - last["tied"], abs=5e-5)


def test_every_chart_has_its_data_in_a_table(show, comparison):
    page = show()
    charts = page.locator(".plot")
    assert charts.count() >= 4 + 3 + 3
    figure = page.locator("figure").filter(has=chart(page, "Held-out loss, width 8"))
    figure.locator("summary").focus()
    page.keyboard.press("Enter")
    rows = figure.locator(".plot-data tbody tr")
    rows.first.wait_for()  # they are written when the browser reports that the table was opened, a moment after the key
    assert rows.count() == sum(len(cells(comparison, v, 8)["checks"]) for v in ("tied", "untied"))
    last = cells(comparison, "untied", 8)["checks"][-1]
    assert rows.last.inner_text().split("\t")[-1] == f"{last['bpb']:.4f}"


def test_the_legend_leaves_curves_out(show):
    page = show()
    lines = chart(page, "Held-out loss, width 8").locator("path.plot-line")
    assert lines.count() == 2
    button = page.locator(".plot-bar").first.get_by_role("button", name="untied", exact=True)
    button.focus()
    page.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert lines.count() == 1


@pytest.mark.parametrize(("width", "dark"), [(1440, False), (1100, False), (768, True), (390, True)])
def test_nothing_overflows(show, width, dark):
    page = show(width, dark)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    hidden = page.evaluate(
        "[...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).length"
    )
    assert hidden == 0
    assert page.locator("figure").count() > 8


@pytest.mark.parametrize(
    ("width", "dark"), [(390, True), pytest.param(1440, False, marks=pytest.mark.exhaustive)], ids=["dark", "light"]
)
def test_no_serious_accessibility_violation(show, width, dark):
    assert axe(show(width, dark)) == []


def test_print_is_light_and_without_controls(show):
    page = show(700, dark=True)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    chart(page, "Held-out loss, width 8").focus()
    page.keyboard.press("End")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(0, 0, 0)"
    for gone in (".plot-controls", ".plot-tip", ".plot-data", "details"):
        assert not any(one.is_visible() for one in page.locator(gone).all()), gone
    assert page.locator(".plot-lines").first.is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 700


def test_it_works_under_the_policy_of_the_studio(browser, comparison):
    """The studio serves the page in a sandbox; its own policy and the sandbox together must let it draw."""
    context = browser.new_context()
    page = context.new_page()
    policy = {"content-security-policy": REPORT_POLICY, "content-type": "text/html; charset=utf-8"}
    page.route("**/*", lambda route: route.fulfill(body=comparison.page.read_text(), headers=policy))
    page.goto("http://127.0.0.1:9/report.html")
    page.wait_for_selector("html[data-ready=true]")
    assert page.evaluate("origin") == "null"
    context.close()


def test_text_from_the_corpus_cannot_become_markup_or_script(comparison, show, tmp_path):
    document = json.loads(json.dumps(comparison.document))
    hostile = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">\u202e"
    document["samples"][0] |= {"prompt": hostile, "text": hostile}
    document["verdict"]["sentences"][0] = hostile
    document["variants"][1]["title"] = hostile
    path = tmp_path / "report.html"
    path.write_text(build_page(document, {}))
    page = show(path=path)
    assert "owned" not in page.title().split("·")[-1]
    assert page.evaluate("document.title !== 'owned'")
    assert page.locator("img").count() == 0
    assert page.locator(".verdict li").first.text_content().startswith("</script><script>")
    assert "\u202e" not in page.locator("body").inner_text()


def test_a_comparison_of_one_variant_has_a_page(comparison, show, tmp_path):
    document = json.loads(json.dumps(comparison.document))
    document |= {"answers": {}, "by_variant": {}, "alignment": [], "variants": document["variants"][:1]}
    document["runs"] = [run for run in document["runs"] if run["variant"] == "tied"]
    document["samples"] = document["samples"][:1]
    document["ladder"] |= {"gaps": [], "cells": [c for c in document["ladder"]["cells"] if c["variant"] == "tied"]}
    document["verdict"] |= {"second": "", "sentences": ["Only tied was trained."]}
    path = tmp_path / "report.html"
    path.write_text(build_page(document, {}))
    page = show(path=path)
    assert page.get_by_role("slider", name=re.compile("^Held-out loss, ")).count() == 2
    assert page.get_by_role("slider", name=re.compile("^Gap")).count() == 0


def test_several_variants_are_ranked_and_their_gaps_switch_between_steps_and_time(comparison, show, tmp_path):
    document = json.loads(json.dumps(comparison.document))
    for kind in ("variants", "runs"):
        document[kind] += [{**one, "name": "then", "variant": "then", "title": "then"} for one in document[kind][1:2]]
    ladder = document["ladder"]
    ladder["cells"] += [{**cell, "variant": "then"} for cell in ladder["cells"] if cell["variant"] == "untied"]
    ladder["gaps"] += [{**gap, "variant": "then"} for gap in ladder["gaps"]]
    better = {q: {**a, "second": "then", "difference": a["difference"] - 1} for q, a in document["answers"].items()}
    document["by_variant"]["then"] = better
    path = tmp_path / "report.html"
    path.write_text(build_page(document, {}))
    page = show(path=path)
    ranking = page.locator("table", has=page.locator("caption", has_text="At equal steps")).locator("tbody th")
    assert ranking.all_inner_texts() == ["then", "untied"]
    stage = chart(page, "Gap by width")
    gap = ladder["gaps"][0]
    for question, name in (("time", "equal time"), ("steps", "equal steps")):
        page.get_by_role("radio", name=name).check(force=True)
        stage.focus()
        page.keyboard.press("Home")
        shown = f"{gap[question]['difference']:.4f}".replace("-", "−")
        assert f": untied {shown} (95% CI" in stage.get_attribute("aria-valuetext")


def test_a_sweep_and_a_planned_model_have_their_sections(comparison, show, tmp_path):
    rows = [
        SweptRate("tied", width, 300, "table", (0.01, 0.02, 0.04), (2.2, 2.0, None), 0.02, False, 0.2, None)
        for width in (8, 16)
    ]
    rows.append(SweptRate("untied", 16, 300, "head", (0.001, 0.002), (2.4, 2.1), 0.002, True, 0.3, None))
    told = ("Measured: <one>.", "In size it is an extrapolation.")
    plan = PlanAnswer("50k x 4096", 50000, 4096, 0.1, 2_000_000_000, (0.2, 0.3), (1000, 2000), -0.1, False, told)
    document = {**comparison.document, "sweep": sweep_document(rows, 12), "plan": plan.to_dict()}
    path = tmp_path / "report.html"
    path.write_text(build_page(document, {}))
    page = show(path=path)
    shown = page.locator("main").inner_text()
    assert "For 50k x 4096\n\nMeasured: <one>.\n\nIn size it is an extrapolation." in shown
    assert "untied, width 16: the best head learning rate 0.002 is at the edge of its grid" in shown
    row = page.get_by_role("row").filter(has_text="tied, shared matrix").first
    assert row.locator("td").all_inner_texts() == ["8", "0.02", "+0.2000", "not tried"]
    stage = chart(page, "Learning rate, tied, shared matrix")
    stage.focus()
    page.keyboard.press("End")
    assert stage.get_attribute("aria-valuetext") == "learning rate 0.02: width 8 2.0000; width 16 2.0000"


def test_the_table_of_models_has_the_numbers_of_the_ladder_and_says_which_held_out_text(comparison, show):
    section = show().locator("h2", has_text="Models").locator("xpath=following-sibling::div")
    rows = [row.locator("td").all_inner_texts() for row in section.first.locator("tbody tr").all()]
    cells = comparison.document["ladder"]["cells"]
    assert [row[:3] for row in rows] == [[f"{c['width']}", f"{c['bpb']:.4f}", f"{c['params']:,}"] for c in cells]
    assert [row[-1] for row in rows] == [c["peak_rates"].split(", matrices")[0] for c in cells]
    assert rows[0][-1] == f"embedding {cells[0]['rates']['table']:.3g}"
    whole = comparison.document["runs"][0]["val_tokens"]
    assert f"on all {whole:,} held-out tokens" in section.nth(1).inner_text()


def test_several_claims_have_a_table_with_source_interval_and_verdict(comparison):
    document = json.loads(json.dumps(comparison.document))
    assert "Published claims" not in build_page(document, {})  # one claim is the answer itself
    (claim,) = document["claims"]
    document["claims"] = [claim, {**claim, "variant": "then", "source": "a <source>", "verdict": "does not hold"}]
    shown = build_page(document, {}).partition("Published claims")[2]
    rows = re.findall(r"<tr>.*?</tr>", shown)[1:3]
    interval = f"{claim['ci_low']:+.4f} to {claim['ci_high']:+.4f}".replace("-", "−")
    assert claim["source"] in rows[0]
    assert interval in rows[0]
    assert "a &lt;source&gt;" in rows[1]
    assert "does not hold" in rows[1]


def test_the_note_says_what_the_intervals_contain(comparison, show):
    note = show().locator("main .note").first.inner_text()
    assert comparison.document["verdict"]["note"] in note


def test_the_page_is_self_contained_and_only_its_own_script_may_run(comparison):
    held = comparison.page.read_text()
    addresses = set(re.findall(r'(?:src|href)="([^"#]+)"', held))
    assert all(a.startswith("data:") for a in addresses), addresses
    assert "@import" not in held
    assert "import " not in held[held.index('<script type="module">') :]
    assert re.search(r"script-src 'sha256-[\w+/]{43}='; style-src 'unsafe-inline'; img-src data:", held)
    body = re.sub(r"<[^>]+>", " ", held[held.index("<body>") :])
    assert body.index(comparison.document["verdict"]["sentences"][0]) < 300
    assert comparison.document["command"] in held


def test_ids_in_the_page_are_unique(comparison):
    ids = re.findall(r' id="([^"]+)"', comparison.page.read_text())
    assert len(ids) == len(set(ids))


def test_figures_are_files_and_those_that_the_page_does_not_draw_are_in_it(comparison):
    names = {path.stem for path in (comparison.out / "figures").glob("*.svg")}
    assert names == {"held-out", "gap", "bands", "heat-pmi", "heat-antisymmetric", "heat-tied", "heat-untied"}
    assert names == {path.stem for path in (comparison.out / "figures").glob("*.png")}
    held = comparison.page.read_text()
    assert {name for name in names if f'aria-label="{name}"' in held} == names - {"held-out", "gap"}


def test_sample_text_is_escaped(comparison):
    samples = [{"variant": "tied", "prompt": "<script>alert(1)</script>", "text": "</pre><b>\x1b[2J\x9b\u202e\n\tnext"}]
    made = build_page({**comparison.document, "samples": samples}, {})
    assert "<script>" not in made
    assert "&lt;script&gt;" in made
    assert "\\x1b[2J\\x9b\\u202e\n\tnext" in made
