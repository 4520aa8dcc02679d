"""The calculator page: exactly the numbers of the library, and its state in the URL."""

import random

import pytest

from tiebeam import price
from tiebeam.budget import human, human_bytes, parse_count, percent
from tiebeam.catalog import find, within_sizes
from tiebeam.errors import BadRequest

pytestmark = pytest.mark.xdist_group("browser")

MANY = """async (cases) => {
    const { price, within } = await import('/lib/budget.js');
    const { human, humanBytes, percent } = await import('/lib/numbers.js');
    const plain = (x) => JSON.parse(JSON.stringify(x, (_, v) => typeof v === 'bigint' ? `${v}n` : v));
    return cases.map(([vocab, dim, trunk]) => {
        const budget = price(BigInt(vocab), BigInt(dim), trunk === null ? null : BigInt(trunk));
        const total = budget.untied_total ?? budget.matrix;
        return { budget: plain(budget), within: within(budget.matrix), human: human(total), bytes: humanBytes(total),
                 percent: budget.head_share === null ? null : percent(budget.head_share) };
    });
}"""


def whole(value):
    """BigInts come back as '123n'."""
    if isinstance(value, dict):
        return {key: whole(one) for key, one in value.items()}
    return int(value[:-1]) if isinstance(value, str) else value


def test_numbers_equal_the_library_for_random_inputs(visit):
    draw = random.Random(0)

    def count(most):
        return draw.choice(
            [1, 64, 768, draw.randint(1, most), int(10 ** draw.uniform(0, 18)), 2 ** draw.randint(0, 50)]
        )

    cases = [(count(300_000), count(20_000), draw.choice([None, 0, count(10**12)])) for _ in range(2000)]
    page = visit().go("calculator.html")
    answers = page.evaluate(MANY, [[str(v), str(d), None if t is None else str(t)] for v, d, t in cases])
    for (vocab, dim, trunk), answer in zip(cases, answers, strict=True):
        budget = price(vocab, dim, trunk)
        assert whole(answer["budget"]) == budget.to_dict()
        assert answer["within"] == {name: inside and inside.head_share for name, inside in within_sizes(budget)}
        total = budget.untied_total or budget.matrix
        assert answer["human"] == human(total)
        assert answer["bytes"] == human_bytes(total)
        assert answer["percent"] == (None if budget.head_share is None else percent(budget.head_share))


TYPED = ["50257", "50,257", "50k", "3.2B", "135M", "1_000", "1e9", "1.5e3", " 7B ", "0", "0.0005B", "1 T",
         "", "x", "1.5", "5,02", "-3", "1e99", "9T", "2000000T", "1.2345k", "1,000,000.5M", "٣", "1__0"]  # fmt: skip


def test_typed_counts_are_parsed_as_in_the_library(visit):
    page = visit().go("calculator.html")
    script = """async (texts) => {
        const { parseCount } = await import('/lib/numbers.js');
        const read = (text) => { try { return String(parseCount(text)); } catch (error) { return error.message; } };
        return texts.map(read);
    }"""
    for text, answer in zip(TYPED, page.evaluate(script, TYPED), strict=True):
        try:
            expected = str(parse_count(text))
        except BadRequest as error:
            expected = str(error)
        assert answer == expected


def test_a_preset_fills_the_page_and_the_url(visit):
    one = visit()
    page = one.go("calculator.html")
    page.get_by_label("Start from a known model").select_option("phi-4-mini")
    phi = find("phi-4-mini").budget
    assert phi is not None
    assert phi.head_share is not None
    text = page.locator("#numbers").inner_text()
    for number in (phi.matrix, phi.tied_total, phi.untied_total):
        assert f"{number:,}" in text
    assert percent(phi.head_share) in text
    page.wait_for_function("location.search.includes('vocab=200064')")
    again = page.url.removeprefix(one.address)
    page = one.go(again)
    assert page.locator("#numbers").inner_text() == text
    assert page.get_by_label("Start from a known model").input_value() == "phi-4-mini"


def test_the_url_is_the_state_and_invalid_input_shows_an_error(visit):
    page = visit().go("calculator.html?vocab=50k&dim=4096")
    text = page.locator("#numbers").inner_text()
    assert "204,800,000" in text
    assert "20.5%" in text
    assert "Enter the non-embedding parameters" in text
    page.get_by_label("Width", exact=True).fill("many")
    page.wait_for_selector("text='many' is not a count")
    assert page.get_by_label("Width", exact=True).get_attribute("aria-invalid") == "true"
    page.get_by_label("Width", exact=True).fill("1k")
    page.wait_for_selector("text=50,000 × 1,000 = 50,000,000")


def test_a_slider_works_with_the_keyboard(visit):
    page = visit().go("calculator.html")
    slider = page.get_by_label("Width, by slider")
    before = page.get_by_label("Width", exact=True).input_value()
    slider.focus()
    for _ in range(20):
        page.keyboard.press("ArrowRight")
    after = page.get_by_label("Width", exact=True).input_value()
    assert int(after.replace(",", "")) > int(before.replace(",", ""))
    assert int(after.replace(",", "")) % 64 == 0


def test_every_known_model_is_in_the_chart(visit):
    from tiebeam.catalog import known_models

    page = visit().go("calculator.html")
    shares = [model for model in known_models() if model.head_share is not None]
    assert page.locator("svg .mark").count() == len(shares)
    assert page.locator("svg .mark.tied").count() == sum(model.tied for model in shares)
    assert page.locator("svg .yours").count() == 1


def test_the_palette_equals_the_terminal(visit):
    from tiebeam.cli import render

    page = visit().go("calculator.html")
    for name, colour in (("--tied", render.TIED), ("--untied", render.UNTIED)):
        style = f"getComputedStyle(document.documentElement).getPropertyValue('{name}').trim()"
        assert page.evaluate(style) == colour


def test_the_chart_of_known_models_is_used_by_keyboard_and_by_pointing_near_a_model(visit):
    page = visit().go("calculator.html")
    chart = page.locator("svg[aria-label*='known models']")
    chart.focus()
    page.keyboard.press("ArrowRight")
    first = page.locator(".tip strong").inner_text()
    page.keyboard.press("ArrowRight")
    second = page.locator(".tip strong").inner_text()
    assert first != second
    page.keyboard.press("Enter")
    page.wait_for_selector(f"h2 >> text={second}")
    assert page.evaluate("document.activeElement.tagName") == "svg"
    page.locator("svg .mark").first.scroll_into_view_if_needed()
    mark = page.locator("svg .mark").first.bounding_box()
    page.mouse.move(mark["x"] + 9, mark["y"] + 9)  # beside the mark
    page.wait_for_selector(".tip strong")
