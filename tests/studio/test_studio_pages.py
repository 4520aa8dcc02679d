"""Every view in a real browser: it works, by keyboard and on a phone, and no serious barrier stands in it."""

import hashlib
import json
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("browser")

VENDOR = Path(__file__).parent / "vendor" / "axe-core-4.14.0"
VIEWS = ["index.html", "calculator.html", "models.html", "runs.html", "generate.html"]


def axe(page):
    """Serious and critical violations, as readable lines."""
    page.evaluate((VENDOR / "axe.min.js").read_text())
    found = page.evaluate("axe.run({resultTypes: ['violations']})")
    return [
        f"{violation['id']}: {node['target']} {node['failureSummary']}"
        for violation in found["violations"]
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def test_the_vendored_checker_is_what_was_pinned():
    for line in (VENDOR / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split()
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("view", VIEWS)
def test_no_serious_accessibility_violation(visit, view, dark):
    page = visit(dark=dark).go(view)
    if view == "generate.html":
        page.get_by_label("Prompt").fill("New York")
        page.get_by_role("button", name="Generate").click()
        page.wait_for_selector("text=32 tokens")
    if view == "models.html":
        page.get_by_role("button", name="Look").click()
        page.wait_for_selector("text=direct path likes")
    if view == "runs.html":
        page.wait_for_selector("svg path.line")
    assert axe(page) == []


@pytest.mark.parametrize("view", VIEWS)
def test_fits_a_phone(visit, view):
    page = visit(width=390, height=844).go(view)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert axe(page) == []


def test_the_lesson_is_scroll_synced(visit):
    page = visit().go()
    stage = page.locator("#rows .stage")
    assert stage.count() == 1
    page.locator("#rows .step").nth(0).scroll_into_view_if_needed()
    page.wait_for_selector("#rows .stage >> text=Every word as a one-hot row")
    page.evaluate("document.querySelectorAll('#rows .step')[2].scrollIntoView({block: 'center', behavior: 'instant'})")
    page.wait_for_selector("#rows .stage >> text=nothing multiplied")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_lesson_shows_static_frames_when_motion_is_reduced(visit, width):
    page = visit(width=width, reduced=True).go()
    assert page.locator("#rows .stage").count() == 3
    assert page.locator(".synced").count() == 0
    moving = page.evaluate(
        "[...document.querySelectorAll('*')].filter(e => parseFloat(getComputedStyle(e).transitionDuration) > 0).length"
    )
    assert moving == 0


def test_the_lesson_can_be_walked_by_keyboard_alone(visit):
    page = visit().go()
    titles = []
    for _ in range(15):
        page.keyboard.press("ArrowRight")
        titles.append(page.evaluate("document.activeElement.querySelector('h2, h3')?.textContent"))
    assert titles[0] == "A vocabulary is a numbered list"
    assert titles[-1] == "Check yourself"
    assert len(set(titles)) == 15
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.querySelector('h2').textContent") == "Who ties"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    assert page.locator("#check .answer").first.text_content().startswith("No.")
    page.keyboard.press("ArrowDown")
    assert page.locator("#check .answer").first.text_content().startswith("Right.")
    page.keyboard.press("Home")


def test_editing_the_embedding_changes_every_picture_of_it(visit):
    page = visit(reduced=True).go()
    page.locator("#rows .stage").nth(1).get_by_label("E of New, column 1").fill("7.5")
    assert "7.5" in page.locator("#rows .stage").nth(1).locator("p.mono").text_content()
    page.wait_for_selector("#logits .stage >> nth=0 >> text=New: 7.5·0.5")


def test_the_symmetry_explorer_keeps_its_promise_whatever_is_typed(visit):
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


def test_the_fit_trains_in_the_browser_and_tells_the_story(visit):
    page = visit().go()
    page.get_by_role("button", name="Train all five").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=60_000)
    found = {name: float(loss) for name, loss in losses(page).items()}
    tied, signs, mapped, untied = (found[name] for name in ("E·Eᵀ", "E·diag(±1)·Eᵀ", "E·M·Eᵀ", "E·Wᵀ"))
    floor, unigram = found["the counts themselves"], found["word frequencies only"]
    assert floor <= untied < mapped + 0.1 < signs < tied < unigram
    assert (tied - mapped) / (tied - untied) > 0.8


def test_the_fit_in_the_page_is_the_library_s(visit):
    """The same counts, the same start, the same gradients: lens.bigrams in NumPy against the page's JavaScript."""
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


def test_the_bounds_in_the_page_are_the_library_s(visit):
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


def test_predictions_and_answers_earn_points_that_stay(visit):
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


def test_every_answer_of_the_check_has_its_reason(visit):
    page = visit().go()
    for question in page.locator("#check .panel").all():
        said = set()
        for choice in question.get_by_role("radio").all():
            choice.check()
            said.add(question.locator(".answer").inner_text())
        assert len(said) == 3
        assert sum(text.startswith("Right.") for text in said) == 1


def test_the_lesson_works_offline_once_loaded(visit):
    one = visit()
    page = one.go()
    page.context.set_offline(True)
    page.get_by_role("button", name="Train this one").click()
    page.wait_for_selector("text=Trained for 400 steps", timeout=60_000)
    page.locator("#direction").get_by_label("The text").first.fill("a b a b a c .")
    page.wait_for_selector("text=7 words, 4 different ones")


def test_a_path_outside_is_refused_in_the_page_with_the_same_sentence(visit):
    one = visit()
    page = one.go("models.html")
    page.get_by_label("Open a path").fill("/etc/passwd")
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector("text=the studio reads only what is below")
    one.troubles.clear()  # the browser itself writes a refused request to the console


DROP = """([kind, text]) => {
  const data = new DataTransfer();
  if (text) data.setData(kind, text); else data.items.add(new File(["x"], "model.safetensors"));
  document.querySelector("#path").dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
}"""


def test_a_path_can_be_dropped_and_a_bare_file_gets_a_sentence(visit, shelf):
    page = visit().go("models.html")
    model = shelf / "models" / "untied"
    page.evaluate(DROP, ["text/plain", f"{model}\n"])
    page.wait_for_selector("h2 >> text=untied")
    page.evaluate(DROP, ["text/uri-list", model.parent.joinpath("torn").as_uri()])
    page.wait_for_selector("text=TB101 error")
    page.evaluate(DROP, ["", ""])
    page.wait_for_selector("text=A browser hides the path of a dropped file")


def test_models_show_their_tie_and_the_doctor_s_cure(visit, shelf):
    page = visit().go("models.html")
    page.get_by_role("radio", name="models/torn").check()
    page.wait_for_selector("text=TB101 error")
    assert "Cure:" in page.locator("main").inner_text()
    page.get_by_label("Open a path").fill(str(shelf / "models" / "untied"))
    page.get_by_role("button", name="Open").click()
    page.wait_for_selector("h2 >> text=untied")
    page.get_by_role("button", name="Look").click()
    page.wait_for_selector("text=Two tables: this square need not be symmetric")
    page.get_by_role("button", name="Compute the spectrum").click()
    page.wait_for_selector("text=A tied pair could hold neither")
    page.get_by_text("Show them").click()
    page.get_by_label("Names that contain").fill("lm_head")
    page.wait_for_selector("text=1 of 12 tensors")


def test_runs_draw_what_arrives_while_the_page_is_open(visit, shelf):
    from helpers.studio_files import record

    page = visit().go("runs.html")
    page.wait_for_selector("section[aria-label^=validation] path.line.tied")
    page.wait_for_selector("section[aria-label^=validation] path.line.untied")
    with open(shelf / "runs" / "tied" / "metrics.jsonl", "a") as file:
        file.write(json.dumps({**record(300, tied=True), "loss": 1.234}) + "\n")
    page.wait_for_selector("td:text-is('1.234')")


def test_generation_streams_and_explains_a_token(visit):
    page = visit().go("generate.html")
    page.get_by_label("Prompt").fill("New York City is")
    page.get_by_label("New tokens").fill("4")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("text=4 tokens")
    page.get_by_role("button", name="token 1:").click()
    row = page.locator("section[aria-labelledby=behind] tbody tr").first.locator("td").all_inner_texts()
    length, row_length, cosine, logit = (float(text.replace("−", "-")) for text in row[:4])
    assert length * row_length * cosine == pytest.approx(logit, abs=0.02)
