"""The lesson in a real browser: real keystrokes, links, what a reload and a resize keep, slices of real models."""

from __future__ import annotations

import json

import pytest

from tiebeam.studio.pages import STATIC

pytestmark = pytest.mark.xdist_group("browser")
SLICES = STATIC / "lesson" / "real_tokens.json"


def numbers(locator) -> list[list[float]]:
    """The numbers of a matrix on the page; typed values count."""
    return locator.evaluate(
        """(table) => [...table.querySelectorAll("tbody tr")].map((row) => [...row.querySelectorAll("td")].map(
             (cell) => Number((cell.querySelector("input")?.value ?? cell.textContent).replace("−", "-"))))"""
    )


def type_into(page, field, text: str) -> None:
    """Select what is there and type, key by key, as a reader does."""
    field.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(text, delay=5)


def test_typing_a_number_into_the_explorer_keeps_the_focus_and_updates_the_product(visit):
    page = visit().go()
    tables = page.locator("#symmetry .panel").first.locator("table.grid:visible")
    first = tables.first.get_by_role("spinbutton").first
    type_into(page, first, "-2.5")
    assert first.input_value() == "-2.5"
    assert first.evaluate("(field) => field === document.activeElement")
    E, product = numbers(tables.first), numbers(tables.last)
    assert E[0][0] == -2.5
    for i, row in enumerate(product):
        for j, shown in enumerate(row):
            assert shown == pytest.approx(E[i][0] * E[j][0] + E[i][1] * E[j][1], abs=0.0051)


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize(("chapter", "label"), [("rows", "E of New, column 1"), ("logits", "h of row 1, column 2")])
def test_typing_a_number_into_a_matrix_of_a_step_keeps_the_focus(visit, width, chapter, label):
    page = visit(width=width).go()
    if chapter == "rows" and width > 1000:
        page.evaluate(
            "document.querySelectorAll('#rows .step')[1].scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        page.wait_for_selector("#rows .stage >> text=first number")
    field = page.locator(f"#{chapter}").get_by_label(label).locator("visible=true").first
    type_into(page, field, "-2.5")
    assert field.input_value() == "-2.5"
    assert field.evaluate("(field) => field === document.activeElement")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "INPUT"
    assert field.input_value() == "-2.5"


def test_a_number_out_of_range_is_replaced_when_the_field_is_left(visit):
    page = visit().go()
    field = page.locator("#symmetry .panel").first.get_by_role("spinbutton").first
    type_into(page, field, "1234")
    page.keyboard.press("Tab")
    assert field.input_value() == "99"


@pytest.mark.parametrize("width", [1280, 390])
def test_typing_text_keeps_the_focus_and_counts_the_bigrams(visit, width):
    page = visit(width=width).go()
    area = page.locator("#direction textarea").first
    type_into(page, area, "a b a b a c .")
    assert area.input_value() == "a b a b a c ."
    assert area.evaluate("(field) => field === document.activeElement")
    names = page.locator("#direction table.grid").first.locator("thead th").all_inner_texts()
    assert names == ["a", "b", "c", "."]


def test_the_text_editor_stays_at_the_second_step(visit):
    page = visit().go()
    page.evaluate(
        "document.querySelectorAll('#direction .step')[1].scrollIntoView({block: 'center', behavior: 'instant'})"
    )
    page.wait_for_selector("#direction >> text=is antisymmetric")
    assert page.locator("#direction textarea").is_visible()


def test_arrow_keys_move_between_radio_buttons_without_leaving_the_step(visit):
    page = visit().go()
    page.locator("#rows").get_by_role("radio", name="New").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.parentElement.textContent") == "York"
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.parentElement.textContent") == "New"


def test_letters_are_no_shortcuts(visit):
    page = visit().go()
    for key in "np":
        page.keyboard.press(key)
    assert page.evaluate("scrollY") == 0
    assert page.evaluate("document.activeElement.closest('.step')") is None


@pytest.mark.parametrize("chapter", ["symmetry", "real", "sources"])
def test_a_link_to_a_chapter_opens_there(visit, chapter):
    page = visit().go(f"index.html#{chapter}")
    page.wait_for_function(
        "(id) => { const top = document.getElementById(id).getBoundingClientRect().top;"
        " return top > -5 && top < innerHeight / 2; }",
        arg=chapter,
    )


def test_resizing_the_window_keeps_what_was_trained_and_typed(visit):
    page = visit().go()
    field = page.locator("#logits").get_by_label("h of row 1, column 1").locator("visible=true")
    type_into(page, field, "3.5")
    page.get_by_role("button", name="Train this one").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=60_000)
    page.set_viewport_size({"width": 800, "height": 900})
    page.wait_for_selector("#rows .inline")
    assert page.locator("text=Trained for 400 steps").is_visible()
    assert page.locator("#logits").get_by_label("h of row 1, column 1").first.input_value() == "3.5"
    page.set_viewport_size({"width": 1280, "height": 860})
    page.wait_for_selector("#rows .synced")
    assert page.locator("#logits").get_by_label("h of row 1, column 1").first.input_value() == "3.5"


def test_quiz_answers_survive_a_reload_and_a_reset_can_be_undone(visit):
    one = visit()
    page = one.go()
    page.locator("#check .panel").first.get_by_role("radio").nth(1).check()
    one.go()
    first = page.locator("#check .panel").first
    assert first.get_by_role("radio").nth(1).is_checked()
    assert first.locator(".answer").inner_text().startswith("Right.")
    assert "1 of 6 answered, 1 right" in page.locator("#check").inner_text()
    page.get_by_role("button", name="reset").click()
    assert page.locator("#aside").inner_text().startswith("0 XP")
    assert not first.get_by_role("radio").nth(1).is_checked()
    page.get_by_role("button", name="undo reset").click()
    assert page.locator("#aside").inner_text().startswith("10 XP")
    assert first.get_by_role("radio").nth(1).is_checked()


def test_two_tabs_do_not_overwrite_each_other(visit, studio):
    one = visit()
    first = one.go()
    second = first.context.new_page()
    second.goto(studio)
    second.wait_for_selector("html[data-ready]")
    second.locator("#check .panel").nth(1).get_by_role("radio").nth(2).check()
    first.locator("#check .panel").first.get_by_role("radio").nth(1).check()
    first.wait_for_function("() => document.querySelector('#check').innerText.includes('2 of 6 answered, 2 right')")
    second.wait_for_function("() => document.querySelector('#check').innerText.includes('2 of 6 answered, 2 right')")


def test_the_opening_figure_ties_by_button_and_by_scrolling(visit):
    place = "(name) => document.querySelector(`.hero-matrix.${name}`).getAttribute('transform')"
    for reduced in (False, True):
        page = visit(reduced=reduced).go()
        assert page.locator(".hero-count").inner_text() == "Untied: V × D + V × D = 56,623,104 numbers"
        assert page.evaluate(place, "tied") != page.evaluate(place, "untied")
        page.get_by_role("button", name="Tie them").click()
        assert page.locator(".hero-count").inner_text() == "Tied: V × D = 28,311,552 numbers"
        page.wait_for_function(f"() => ({place})('tied') === ({place})('untied')")
        page.get_by_role("button", name="Untie them").click()
        page.wait_for_function(f"() => ({place})('tied') !== ({place})('untied')")
    scrolled = visit().go()
    scrolled.mouse.wheel(0, 500)
    scrolled.wait_for_function("() => document.querySelector('.hero-count').innerText.startsWith('Tied:')")


def test_the_chapter_rail_marks_the_chapter_on_the_screen(visit):
    page = visit(width=1440).go()
    page.locator(".rail a").nth(5).click()
    page.wait_for_selector(".rail a[aria-current] >> text=E·Eᵀ is always symmetric")
    assert page.locator(".rail a[aria-current]").count() == 1


def test_formulas_are_mathml(visit):
    page = visit().go()
    assert (
        page.evaluate("document.querySelector('#symmetry math').namespaceURI") == "http://www.w3.org/1998/Math/MathML"
    )
    assert page.locator("math").count() >= 7


def test_real_slices_are_shown_and_the_tied_ones_are_symmetric_without_the_norm(visit):
    page = visit().go("index.html#real")
    panel = page.locator("#real .panel")
    for one in json.loads(SLICES.read_text())["slices"]:
        panel.get_by_role("radio", name=one["title"], exact=True).check()
        panel.get_by_role("radio", name="without the final norm").check()
        page.wait_for_selector(f"#real strong >> text={one['title']}")
        verdict = panel.locator(".checks b").first.inner_text()
        assert verdict == ("Symmetric" if one["tied"] else "Not symmetric")
        panel.get_by_role("radio", name="with the final norm", exact=True).check()
        assert panel.locator(".checks b").first.inner_text() == "Not symmetric"


def test_a_model_of_the_studio_is_shown_between_the_tokens_of_a_text(visit):
    page = visit().go("index.html#real")
    form = page.locator("#real form")
    form.get_by_label("Your model").select_option(label="models/untied")
    type_into(page, form.get_by_label("Your text"), "New York City")
    page.keyboard.press("Enter")
    page.wait_for_selector("#real strong >> text=models/untied")
    assert page.locator("#real table.grid thead th").all_inner_texts() == ["New", "York", "City"]


def test_the_theme_switch_overrides_the_system_and_is_kept(visit):
    one = visit(dark=True)
    page = one.go()
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="theme: auto").click()
    light = page.evaluate(background)
    assert light != dark
    one.go("calculator.html")
    assert page.evaluate(background) == light
    page.get_by_role("button", name="theme: light").click()
    assert page.evaluate(background) == dark


def test_a_missing_page_follows_the_theme_switch(visit):
    one = visit(dark=True)
    page = one.go()
    page.get_by_role("button", name="theme: auto").click()
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.goto(one.address + "nothing.html")
    one.console_errors.clear()  # the browser logs the 404
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == light
    page.get_by_role("button", name="theme: light").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    one.go("calculator.html")
    assert page.get_by_role("button", name="theme: dark").count() == 1


def test_back_undoes_a_preset_of_the_calculator(visit):
    page = visit().go("calculator.html")
    page.get_by_label("Start from a known model").select_option(value="gpt-2-small")
    page.wait_for_selector("h2 >> text=GPT-2 small")
    page.go_back()
    page.wait_for_selector("h2 >> text=TinyLlama")
    assert page.get_by_label("Vocabulary", exact=True).input_value() == "32,000"
