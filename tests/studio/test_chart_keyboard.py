"""Every chart is read by keyboard, by pointing near a value, and as text."""

from __future__ import annotations

import json
import re

import pytest

from tiebeam.lens import Lens
from tiebeam.studio.pages import STATIC

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture
def trained(visit):
    page = visit(reduced=True).go()  # nothing scrolls on its own
    page.get_by_role("button", name="Train all five").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=90_000)
    return page


def losses(page) -> dict[str, str]:
    rows = page.locator("#untie table.data tbody tr").all_inner_texts()
    return {re.split("[\n\t]", row)[0].strip(): row.split()[-1] for row in rows}


def test_the_curves_of_the_lesson_are_read_by_keyboard_without_leaving_the_step(trained):
    stage = trained.locator("#untie").get_by_role("slider", name="Loss while training")
    stage.focus()
    before = trained.evaluate("scrollY")
    trained.keyboard.press("End")
    final = losses(trained)
    assert stage.get_attribute("aria-valuetext").startswith(f"step 400: E·Eᵀ {final['E·Eᵀ']}")
    trained.keyboard.press("ArrowDown")
    assert stage.get_attribute("aria-valuetext").startswith(f"step 400: E·diag(±1)·Eᵀ {final['E·diag(±1)·Eᵀ']}")
    trained.keyboard.press("ArrowLeft")
    assert stage.get_attribute("aria-valuetext").startswith("step 390: ")
    assert stage.evaluate("(one) => one === document.activeElement")
    assert trained.evaluate("scrollY") == before


def test_pointing_near_a_curve_of_the_lesson_shows_its_values(trained):
    stage = trained.locator("#untie").get_by_role("slider", name="Loss while training")
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    trained.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    tip = stage.locator(".plot-tip").inner_text()
    assert re.match(r"step \d+\n", tip)
    assert len(re.findall(r"\d\.\d{3}", tip)) >= 5


def test_the_focus_stays_on_the_curves_while_they_are_drawn(visit):
    page = visit().go()
    page.get_by_role("button", name="Train this one").click()
    stage = page.locator("#untie").get_by_role("slider", name="Loss while training")
    stage.focus()
    page.keyboard.press("End")
    page.wait_for_selector("text=Trained for 400 steps", timeout=90_000)
    assert stage.evaluate("(one) => one === document.activeElement")
    assert "E·Eᵀ" in stage.get_attribute("aria-valuetext")


def test_the_data_of_the_lessons_curves_is_a_table(trained):
    region = trained.locator("#untie .plot-data")
    region.get_by_text("Data", exact=True).click()
    row = region.locator("tbody tr").nth(40)
    row.wait_for()  # the rows are written when the browser reports that the table was opened, a moment after the click
    assert row.inner_text().split("\t") == ["E·Eᵀ", "400", losses(trained)["E·Eᵀ"]]


def test_the_spectrum_is_read_by_keyboard_and_has_the_values_of_the_lens(visit, studio_root):
    page = visit().go("models.html")
    page.get_by_role("radio", name="models/untied").check()
    page.wait_for_selector("h2#name >> text=models/untied")
    page.get_by_role("button", name="Compute the spectrum").click()
    stage = page.get_by_role("slider", name="Spectrum of the direct path")
    stage.focus()
    values = Lens.open(studio_root / "models" / "untied").spectrum
    page.keyboard.press("Home")
    told = [stage.get_attribute("aria-valuetext")]
    for _ in values[1:]:
        page.keyboard.press("ArrowRight")
        told.append(stage.get_attribute("aria-valuetext"))
    numbers = [float(text.removeprefix(f"rank {n + 1}: direct path ")) for n, text in enumerate(told)]
    assert numbers == pytest.approx([float(x) for x in values], rel=1e-3)
    box = stage.bounding_box()
    page.mouse.move(box["x"] + 80, box["y"] + 40)
    assert "rank 1" in stage.locator(".plot-tip").inner_text()


def test_the_matrix_of_real_tokens_is_read_by_keyboard_and_by_pointer(visit):
    page = visit(reduced=True).go("index.html#real")
    page.wait_for_function("() => scrollY > 5000")
    panel = page.locator("#real .panel")
    matrix = panel.get_by_role("group", name="Direct-path logit")
    one = json.loads((STATIC / "lesson" / "real_tokens.json").read_text())["slices"][0]
    names, raw = one["tokens"], one["raw"]
    matrix.focus()
    before = page.evaluate("scrollY")
    pair = lambda: panel.locator(".pair div").all_inner_texts()  # noqa: E731
    written = lambda x: f"{x:.2f}".replace("-", "−")  # noqa: E731
    told = lambda i, j: f"{names[i]} → {names[j]}\n{written(raw[i][j])}"  # noqa: E731
    assert pair() == [told(0, 1), told(1, 0)]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert pair() == [told(1, 2), told(2, 1)]
    page.keyboard.press("End")
    assert pair() == [told(1, 23), told(23, 1)]
    assert page.evaluate("scrollY") == before
    assert matrix.evaluate("(one) => one === document.activeElement")
    matrix.locator("tbody tr").nth(4).locator("td").nth(6).hover()
    assert pair() == [told(4, 6), told(6, 4)]


@pytest.mark.parametrize("view", ["index.html", "calculator.html"])
def test_the_chart_of_known_models_has_its_models_as_a_table(visit, view):
    from tiebeam.catalog import known_models

    page = visit().go(view)
    page.get_by_text("models as a table").click()
    known = {model.name for model in known_models() if model.head_share is not None}
    table = page.locator("details", has_text="models as a table")
    assert set(table.locator("tbody th").all_inner_texts()) == known
