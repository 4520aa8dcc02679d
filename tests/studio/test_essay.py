"""What the essay must have: figures that move between their states, two columns of purposes, a summary, named models,
linked sources; tables that stack on a phone."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.xdist_group("browser")


def frames(page, click: str, read: str) -> list[str]:
    """What `read` gives at every frame after `click`, until nothing has changed for ten frames."""
    return page.evaluate(f"""() => new Promise((done) => {{
      const read = () => String({read});
      const seen = [read()];
      let same = 0;
      {click};
      const look = () => {{
        const now = read();
        same = now === seen.at(-1) ? same + 1 : 0;
        if (same === 0) seen.push(now);
        if (same < 10) requestAnimationFrame(look);
        else done(seen);
      }};
      requestAnimationFrame(look);
    }})""")


TIE = "document.querySelector('.hero-stage button').click()"
MATRIX = "document.querySelector('.hero-matrix.untied').getAttribute('transform')"


@pytest.mark.parametrize("reduced", [False, True])
def test_two_matrices_become_one_in_small_steps_unless_motion_is_reduced(visit, reduced):
    page = visit(reduced=reduced).go()
    seen = frames(page, TIE, MATRIX)
    assert len(seen) == 2 if reduced else len(seen) > 3
    assert seen[-1] == page.locator(".hero-matrix.tied").get_attribute("transform")


def test_a_bar_of_a_step_moves_to_its_next_value(visit):
    page = visit().go("index.html#logits")
    step = "document.querySelectorAll('#logits .step')[1].scrollIntoView({block: 'center', behavior: 'instant'})"
    width = "document.querySelector('#logits .stage .hbar .fill').getBoundingClientRect().width"
    page.wait_for_selector("#logits .stage >> text=logits: h")
    assert len(frames(page, step, width)) > 3
    assert page.locator("#logits .stage >> text=softmax of the logits").count() == 1


def test_purposes_have_two_columns_and_the_choice_one_table(visit):
    page = visit(width=1440).go()
    for chapter, columns in (
        ("purposes", ["", "a row of the embedding", "a row of the LM head"]),
        ("choose", ["if", "tie", "do not tie"]),
    ):
        table = page.locator(f"#{chapter} table")
        assert table.locator("thead th").all_inner_texts() == columns
        assert table.locator("tbody tr").count() >= 6


def test_models_that_tie_and_that_do_not_are_named_in_view(visit):
    page = visit().go("index.html#who")
    bands = page.locator("#who .band")
    assert bands.count() == 6
    for band in bands.all():
        assert band.locator(".named li:has(.swatch.tied)").count() >= 1
        assert band.locator(".named li:has(.swatch.untied)").count() >= 1
        assert band.locator(".named").is_visible()


def test_sources_are_linked(visit):
    page = visit().go()
    links = page.locator("#sources a").evaluate_all("(all) => all.map((one) => one.href)")
    for paper in ("1608.05859", "1611.01462", "1706.03762", "1711.03953", "2012.14913"):
        assert f"https://arxiv.org/abs/{paper}" in links
    assert page.locator("#purposes a[href$='1608.05859']").count() == 1  # where it is claimed, too


@pytest.mark.parametrize(("width", "stacked"), [(390, True), (768, False), (1440, False)])
def test_tables_stack_on_a_phone_and_every_value_keeps_its_column(visit, width, stacked):
    page = visit(width=width).go("index.html#choose")
    cells = page.locator("#choose tbody tr").first.locator("th, td")
    tops = [cells.nth(i).bounding_box()["y"] for i in range(3)]
    assert (tops == sorted(set(tops))) is stacked
    label = cells.nth(2).evaluate("(cell) => getComputedStyle(cell, '::before').content")
    assert ("do not tie" in label) is stacked


@pytest.mark.parametrize("width", [390, 768])
def test_the_logit_column_of_the_direct_path_is_in_view(visit, width):
    page = visit(width=width).go("index.html#stream")
    box = page.locator("#stream .scroll:has(table)").first
    assert box.evaluate("(one) => one.scrollWidth <= one.clientWidth")
    assert box.locator("thead th").last.inner_text() == "logit"
