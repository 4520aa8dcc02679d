"""Every view at three widths, light and dark: axe finds nothing, and nothing sticks out, is cut off or overlaps."""

from __future__ import annotations

import pytest

from helpers.accessibility import axe
from helpers.page_layout import layout_problems, painted_beside_the_page
from helpers.studio_files import write_run

from .conftest import start

pytestmark = pytest.mark.xdist_group("browser")
WIDTHS = [1440, 768, 390]
OPEN = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
STILL = "() => document.getAnimations().length === 0"  # no transition is under way


def lesson(page):
    page.get_by_role("button", name="Train all five").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=90_000)
    page.wait_for_selector("#real .heatmap")


def calculator(page):
    page.locator("svg[aria-label*='known models']").focus()
    page.keyboard.press("ArrowRight")


def models(page):
    page.get_by_role("radio", name="models/torn").check()
    page.wait_for_selector("text=TB101 error")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_selector("text=highest direct-path logits")
    page.get_by_role("button", name="Compute the spectrum").click()
    page.wait_for_selector("text=of its energy is symmetric")
    page.get_by_role("button", name="Search").click()
    page.wait_for_selector("text=nearest in the LM head")
    page.get_by_role("button", name="Check every row").click()
    page.wait_for_selector("text=/every row looks trained|untrained/i")


def runs(page):
    page.wait_for_selector(".plot-stage path.plot-line")
    page.get_by_role("region", name="Held-out loss").get_by_role("slider").focus()
    page.keyboard.press("End")


def generate(page):
    page.get_by_label("Prompt").fill("New York")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("text=32 tokens")


VIEWS = {"index": lesson, "calculator": calculator, "models": models, "runs": runs, "generate": generate}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_with_all_its_results_is_accessible_and_fits(visit, view, width):
    page = visit(width=width, height=900).go(f"{view}.html")
    VIEWS[view](page)
    page.evaluate(OPEN)
    page.wait_for_function(STILL)
    assert layout_problems(page) == []
    assert painted_beside_the_page(page) == []
    assert axe(page) == []
    page.emulate_media(color_scheme="dark")
    page.wait_for_timeout(100)  # colours start to change with the next frame
    page.wait_for_function(STILL)
    assert axe(page) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_missing_page_is_accessible_and_fits(visit, width):
    one = visit(width=width)
    one.page.goto(one.address + "nothing-" + 60 * "x" + ".html")
    assert layout_problems(one.page) == []
    assert painted_beside_the_page(one.page) == []
    assert axe(one.page) == []
    one.console_errors.clear()  # the browser logs the 404


@pytest.mark.parametrize("view", ["models", "runs", "generate"])
def test_a_view_with_nothing_to_show_is_accessible_and_fits(visit, tmp_path, view):
    process, address = start("--root", str(tmp_path))
    try:
        page = visit(width=390, address=address).go(f"{view}.html")
        assert layout_problems(page) == []
        assert painted_beside_the_page(page) == []
        assert axe(page) == []
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_name_of_a_run_is_not_broken_into_letters(visit, tmp_path, width):
    write_run(tmp_path / "comparison-of-plays" / "untied-d64-v2048-s0", tied=False)
    process, address = start("--root", str(tmp_path))
    try:
        page = visit(width=width, address=address).go("runs.html")
        name = page.locator(".run-name").first
        lines = name.evaluate("(one) => one.clientHeight / parseFloat(getComputedStyle(one).lineHeight)")
        assert lines < 3.5
        assert layout_problems(page) == []
        page.close()  # it follows the runs until the server ends
    finally:
        process.terminate()
        process.wait(10)


ADD = """([text, style]) => {
  const made = document.createElement("p");
  made.textContent = text;
  for (const [name, value] of Object.entries(style)) made.style.setProperty(name, value);
  document.querySelector("main").prepend(made);
}"""


@pytest.mark.parametrize(
    ("style", "problem"),
    [
        ({"width": "500px", "max-width": "none", "white-space": "nowrap"}, "outside the page"),
        ({"width": "4rem", "overflow": "hidden", "white-space": "nowrap"}, "clipped"),
        ({"height": "0", "margin": "0"}, "overlapping"),
    ],
)
def test_a_broken_layout_is_found(visit, style, problem):
    """The checks above can fail: each kind of defect, put into a page that has none."""
    page = visit(width=390).go("calculator.html")
    assert layout_problems(page) == []
    page.evaluate(ADD, ["a line of words that is far too long for the place that it has", style])
    found = layout_problems(page)
    assert any(one.startswith(problem) for one in found), found


def test_what_is_painted_beside_the_page_is_in_the_screenshot(visit):
    page = visit(width=390).go("calculator.html")
    assert painted_beside_the_page(page) == []
    page.evaluate(ADD, ["", {"width": "450px", "max-width": "none", "height": "30px", "background": "red"}])
    top = page.locator("main p").first.evaluate("(one) => Math.round(one.getBoundingClientRect().top + scrollY)")
    found = painted_beside_the_page(page)
    assert top in range(min(found) - 2, min(found) + 3)
    assert 25 <= len(found) <= 35
