"""Every view in a real browser: what it does, by pointer and by keyboard. Layout and axe are in test_layout.py."""

import hashlib
import re

import pytest

from helpers.accessibility import VENDOR

pytestmark = pytest.mark.xdist_group("browser")


def test_vendored_axe_matches_its_checksum():
    for line in (VENDOR / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


def test_the_lesson_is_scroll_synced(visit):
    page = visit().go()
    stage = page.locator("#rows .stage")
    assert stage.count() == 1
    page.locator("#rows .step").nth(0).scroll_into_view_if_needed()
    page.wait_for_selector("#rows .stage >> text=Every word as a one-hot row")
    page.evaluate("document.querySelectorAll('#rows .step')[2].scrollIntoView({block: 'center', behavior: 'instant'})")
    page.wait_for_selector("#rows .stage >> text=nothing is multiplied")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_lesson_shows_static_frames_when_motion_is_reduced(visit, width):
    page = visit(width=width, reduced=True).go()
    assert page.locator("#rows .stage").count() == 3
    assert page.locator(".synced").count() == 0
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    assert moving == 0


def test_every_lesson_step_can_be_reached_by_keyboard(visit):
    page = visit().go()
    titles = []
    for _ in range(19):
        page.keyboard.press("ArrowRight")
        titles.append(page.evaluate("document.activeElement.querySelector('h2, h3')?.textContent"))
    assert titles[0] == "A vocabulary is a numbered list"
    assert titles[-2:] == ["Quiz", "Sources"]
    assert len(set(titles)) == 19
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.querySelector('h2').textContent") == "Quiz"
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator("#check .answer").first.text_content().startswith("No.")
    page.keyboard.press("ArrowDown")
    assert page.locator("#check .answer").first.text_content().startswith("Right.")
    page.keyboard.press("Home")


def test_editing_the_embedding_updates_every_figure(visit):
    page = visit(reduced=True).go()
    page.locator("#rows .stage").nth(1).get_by_label("E of New, column 1").fill("7.5")
    assert "7.5" in page.locator("#rows .stage").nth(1).locator("p.mono").text_content()
    page.wait_for_selector("#logits .stage >> nth=0 >> text=New: 7.5·0.5")


def test_the_symmetry_explorer_is_symmetric_for_any_input(visit):
    page = visit().go()
    explorer = page.locator("#symmetry .panel").first
    cells = explorer.get_by_role("spinbutton")
    for place, value in ((0, "-3"), (1, "2.5"), (3, "-0.7"), (6, "9")):
        cells.nth(place).fill(value)
        assert "Symmetric" in explorer.locator(".checks").text_content()
        assert "Positive semidefinite" in explorer.locator(".checks").text_content()
    explorer.get_by_role("radio", name="E·diag(1,−1)·Eᵀ").check()
    text = explorer.locator(".checks").text_content()
    assert "Symmetric" in text
    assert "negative eigenvalue" in text
    for form in ("E·M·Eᵀ", "E·Wᵀ"):
        explorer.get_by_role("radio", name=form, exact=True).check()
        assert "Not symmetric" in explorer.locator(".checks").text_content()


def losses(page):
    rows = page.locator("#untie table.data tbody tr").all_inner_texts()
    return {re.split("[\n\t]", row)[0].strip(): row.split()[-1] for row in rows}


def test_the_fit_trains_in_the_browser_with_the_expected_order_of_losses(visit):
    page = visit().go()
    page.get_by_role("button", name="Train all five").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=60_000)
    found = {name: float(loss) for name, loss in losses(page).items()}
    tied, signs, mapped, untied = (found[name] for name in ("E·Eᵀ", "E·diag(±1)·Eᵀ", "E·M·Eᵀ", "E·Wᵀ"))
    floor, unigram = found["the counts themselves"], found["word frequencies only"]
    assert floor <= untied < mapped + 0.1 < signs < tied < unigram
    assert (tied - mapped) / (tied - untied) > 0.8


def test_gradients_in_the_page_equal_the_library(visit):
    """Same counts and weights: gradients of lens.bigrams (NumPy) and of the page (JavaScript) agree."""
    import numpy as np

    from tiebeam.lens.bigrams import FORMS, _gradients

    page = visit().go()
    for form in FORMS:
        answer = page.evaluate(
            """async (form) => {
                const { Fit, read, TEXT } = await import('/lib/bigrams.js');
                const fit = new Fit(form, read(TEXT).counts, 3);
                return { counts: fit.counts, weights: fit.weights, gradients: fit.gradients() };
            }""",
            form,
        )
        weights = {key: np.array(value, np.float32) for key, value in answer["weights"].items()}
        expected = _gradients(form, weights, np.array(answer["counts"], np.float32))
        assert expected.keys() == answer["gradients"].keys()
        for key, gradient in expected.items():
            np.testing.assert_allclose(answer["gradients"][key], gradient, atol=2e-6)


def test_rank_bounds_in_the_page_equal_the_library(visit):
    import numpy as np

    from tiebeam.lens.bigram_counts import count_bigrams
    from tiebeam.lens.rank_bounds import bounds, pmi

    page = visit().go()
    answer = page.evaluate(
        """async () => {
            const { pmi, read, TEXT } = await import('/lib/bigrams.js');
            const L = await import('/lib/linalg.js');
            const { words, vocabulary, counts } = read(TEXT);
            const P = pmi(counts);
            return { ids: words.map((w) => vocabulary.indexOf(w)), V: vocabulary.length, P,
                     antisymmetric: L.antisymmetricShare(P), values: L.eigenvalues(L.symmetricPart(P)),
                     negative: L.negativeShare(L.eigenvalues(L.symmetricPart(P))) };
        }"""
    )
    table = pmi(count_bigrams(np.array(answer["ids"]), answer["V"]))
    np.testing.assert_allclose(answer["P"], table, atol=1e-6)
    expected = bounds(table, 3)
    assert answer["antisymmetric"] == pytest.approx(expected.antisymmetric, abs=1e-6)
    assert answer["negative"] == pytest.approx(expected.negative, abs=1e-6)
    np.testing.assert_allclose(answer["values"], np.linalg.eigvalsh((table + table.T) / 2)[::-1], atol=1e-6)


def test_points_persist_after_a_reload(visit):
    one = visit()
    page = one.go()
    assert page.locator("#aside").inner_text().startswith("0 XP")
    page.locator("#symmetry .ask").get_by_role("radio", name="Yes, with enough columns").check()
    assert "at every width" in page.locator("#symmetry .ask .answer").inner_text()
    assert page.locator("#aside").inner_text().startswith("5 XP")
    one.go()
    assert page.locator("#aside").inner_text().startswith("5 XP")
    page.get_by_role("button", name="reset").click()
    assert page.locator("#aside").inner_text().startswith("0 XP")


def test_every_quiz_answer_has_an_explanation(visit):
    page = visit().go()
    for question in page.locator("#check .panel").all():
        explanations = set()
        for choice in question.get_by_role("radio").all():
            choice.check()
            explanations.add(question.locator(".answer").inner_text())
        assert len(explanations) == 3
        assert sum(text.startswith("Right.") for text in explanations) == 1


def test_the_lesson_works_offline_once_loaded(visit):
    one = visit()
    page = one.go()
    page.context.set_offline(True)
    page.get_by_role("button", name="Train this one").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=60_000)
    page.locator("#direction").get_by_label("The text").first.fill("a b a b a c .")
    page.wait_for_selector("text=7 words, 4 different ones")


def test_a_path_outside_the_root_shows_the_error_of_the_api(visit):
    one = visit()
    page = one.go("models.html")
    page.get_by_label("Open a path").fill("/etc/passwd")
    page.get_by_role("button", name="Open", exact=True).click()
    page.wait_for_selector("text=the studio reads only models below")
    one.console_errors.clear()  # the browser logs the rejected request


DROP = """([kind, text]) => {
  const data = new DataTransfer();
  if (text) data.setData(kind, text); else data.items.add(new File(["x"], "model.safetensors"));
  document.querySelector("#path").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""


def test_a_path_can_be_dropped_and_a_file_without_a_path_shows_an_error(visit, studio_root):
    page = visit().go("models.html")
    model = studio_root / "models" / "untied"
    page.evaluate(DROP, ["text/plain", f"{model}\n"])
    page.wait_for_selector("h2 >> text=untied")
    page.evaluate(DROP, ["text/uri-list", model.parent.joinpath("torn").as_uri()])
    page.wait_for_selector("text=TB101 error")
    page.evaluate(DROP, ["", ""])
    page.wait_for_selector("text=Browsers hide the path of a dropped file")


def test_models_show_their_tie_and_the_findings_with_fixes(visit, studio_root):
    page = visit().go("models.html")
    page.get_by_role("radio", name="models/torn").check()
    page.wait_for_selector("text=TB101 error")
    assert "Fix:" in page.locator("main").inner_text()
    assert page.locator("section[aria-labelledby=tie] > p .pill").inner_text() == "1 error"
    page.get_by_label("Open a path").fill(str(studio_root / "models" / "untied"))
    page.get_by_role("button", name="Open", exact=True).click()
    page.wait_for_selector("h2 >> text=untied")
    assert page.locator("section[aria-labelledby=tie] > p .pill").inner_text() == "healthy"
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_selector("text=Untied: this matrix need not be symmetric")
    page.get_by_role("button", name="Compute the spectrum").click()
    page.wait_for_selector("text=A tied model can represent neither")
    page.get_by_text("Show tensors").click()
    page.get_by_label("Filter by name").fill("lm_head")
    page.wait_for_selector("text=1 of 12 tensors")


def test_generation_streams_tokens_and_shows_logit_factors(visit):
    page = visit().go("generate.html")
    page.get_by_label("Prompt").fill("New York City is")
    page.get_by_label("New tokens").fill("4")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("text=4 tokens")
    page.get_by_role("button", name="token 1:").click()
    page.get_by_text("Norms and cosines").click()
    row = page.locator("section[aria-labelledby=behind] tbody tr").first.locator("td").all_inner_texts()
    length, row_length, cosine, logit = (float(text.replace("−", "-")) for text in row[:4])
    assert length * row_length * cosine == pytest.approx(logit, abs=0.02)
