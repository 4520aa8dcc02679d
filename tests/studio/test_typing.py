"""Real keys in every editable place of every view: what is typed stays, the focus stays, and Tab goes on in order."""

from __future__ import annotations

import pytest

from helpers.studio_files import write_run

from .conftest import start

pytestmark = pytest.mark.xdist_group("browser")
VIEWS = ["index.html", "calculator.html", "models.html", "runs.html", "generate.html"]
FIELDS = "main :is(input:not([type=radio], [type=checkbox], [type=range]), textarea)"
FOCUSED = "(one) => one === document.activeElement"

# The element that has the focus: whether it comes after the one before in the document, or is the first one again.
WALK = """() => {
  const [now, before] = [document.activeElement, window.before];
  window.first ??= now;
  window.before = now;
  const left = now === document.body || (before !== undefined && now === window.first);
  const after = before === undefined || Boolean(before.compareDocumentPosition(now) & Node.DOCUMENT_POSITION_FOLLOWING);
  return { left, after, shown: now.checkVisibility(), text: now.outerHTML.slice(0, 80) };
}"""


@pytest.fixture(scope="module")
def many_runs(tmp_path_factory):
    """Address of a studio with enough runs for the filter of the table."""
    root = tmp_path_factory.mktemp("many")
    for n in range(9):
        write_run(root / f"run-{n}", tied=n % 2 == 0, steps=50)
    process, address = start("--root", str(root))
    yield address
    process.terminate()
    process.wait(10)


def type_everywhere(page) -> int:
    fields = [field for field in page.locator(FIELDS).all() if field.is_visible()]
    for field in fields:
        kind = field.evaluate("(one) => one.type")
        text = "2.5" if kind == "number" else "a b, 2.5"
        field.click()
        page.keyboard.press("ControlOrMeta+a")
        page.keyboard.type(text, delay=3)
        assert field.input_value() == text, field.evaluate("(one) => one.outerHTML")
        assert field.evaluate(FOCUSED), field.evaluate("(one) => one.outerHTML")
    return len(fields)


@pytest.mark.parametrize(
    ("view", "least"), [("index.html", 50), ("calculator.html", 3), ("models.html", 4), ("generate.html", 4)]
)
def test_typing_works_in_every_field(visit, view, least):
    page = visit(reduced=True).go(view)  # every step of the lesson has its own figure
    if view == "models.html":
        page.wait_for_selector("h2#name")
        page.get_by_text("Show tensors").click()
    if view == "index.html":
        page.wait_for_selector("#real form")
    assert type_everywhere(page) >= least


def test_typing_works_in_the_filter_of_the_runs(visit, many_runs):
    page = visit(address=many_runs).go("runs.html")
    page.wait_for_selector(".plot-stage path.plot-line")
    field = page.get_by_label("Filter runs")
    field.click()
    page.keyboard.type("run-3")
    assert field.input_value() == "run-3"
    assert field.evaluate(FOCUSED)
    rows = page.locator("table.runs tbody tr").all()
    assert [row.inner_text().split()[0] for row in rows if row.is_visible()] == ["run-3"]


@pytest.mark.parametrize("view", VIEWS)
def test_an_arrow_key_moves_every_slider_and_keeps_the_focus(visit, view):
    page = visit().go(view)
    if view == "models.html":
        page.wait_for_selector("h2#name")
    sliders = [one for one in page.locator("main input[type=range]").all() if one.is_visible()]
    for slider in sliders:
        before = slider.input_value()
        slider.focus()
        page.keyboard.press("ArrowRight")
        page.keyboard.press("ArrowRight")
        if slider.input_value() == before:  # it was at its end
            page.keyboard.press("ArrowLeft")
        assert slider.input_value() != before
        assert slider.evaluate(FOCUSED)


@pytest.mark.parametrize("view", VIEWS)
def test_arrow_keys_move_through_every_group_of_radio_buttons(visit, view):
    page = visit(reduced=True).go(view)
    if view == "models.html":
        page.wait_for_selector("h2#name")
    if view == "index.html":
        page.wait_for_selector("#real .heatmap")
    names = page.evaluate(
        "[...new Set([...document.querySelectorAll('main input[type=radio]')].filter((one) => one.checkVisibility())"
        ".map((one) => one.name))]"
    )
    for name in reversed(names):  # the first group of models.html opens another model, which has new groups
        group = page.locator(f"input[name='{name}']")
        group.first.focus()
        page.keyboard.press("ArrowDown")
        assert group.nth(1).is_checked(), name
        assert group.nth(1).evaluate(FOCUSED), name
        page.keyboard.press("ArrowUp")
        assert group.first.evaluate(FOCUSED), name


def tab(page):
    page.keyboard.press("Tab")
    return page.evaluate(WALK)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("view", VIEWS)
def test_tab_goes_through_the_page_in_order_and_leaves_it(visit, view, width):
    page = visit(width=width).go(view)
    if view == "models.html":
        page.wait_for_selector("h2#name")
    passed = 0
    while not (now := tab(page))["left"]:
        assert now["shown"], now
        assert now["after"], now
        passed += 1
        assert passed < 400, "Tab never left the page"
    assert passed > 8
