"""The page of a model in a real browser: verdict, commands, rows, long work, and the way back."""

from __future__ import annotations

import pytest

from tiebeam.doctor import examine
from tiebeam.lens import Lens

pytestmark = pytest.mark.xdist_group("browser")


def choose(page, name: str) -> None:
    page.get_by_role("radio", name=name).check()
    page.wait_for_selector(f"h2#name >> text={name}")


def test_name_and_verdict_come_first_then_the_vocabulary_numbers(visit):
    page = visit().go("models.html")
    choose(page, "models/torn")
    headings = page.locator("main h2").all_inner_texts()
    assert headings[:4] == ["models/torn", "Vocabulary", "Findings", "Size"]
    assert page.locator("section[aria-labelledby=vocabulary] dd").all_inner_texts() == ["14"] * 4


def test_a_finding_has_its_commands_to_copy(visit, studio_root):
    page = visit().go("models.html")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    choose(page, "models/torn")
    commands = examine(studio_root / "models" / "torn").to_dict()["findings"][0]["commands"]
    assert page.locator(".command code").all_inner_texts() == commands
    page.locator(".command button").first.click()
    page.wait_for_selector(".command button >> text=copied")
    assert page.evaluate("navigator.clipboard.readText()") == commands[0]


def test_a_token_is_found_by_typing_and_its_rows_are_shown_at_both_ends(visit):
    page = visit().go("models.html")
    choose(page, "models/untied")
    field = page.get_by_label("Token text, or ids")
    field.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("York")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=nearest in the LM head")
    assert "norm in the embedding" in page.locator("section[aria-labelledby=rows]").inner_text()
    page.get_by_role("button", name="Check every row").click()
    page.wait_for_selector("section[aria-labelledby=rows] >> text=/every row looks trained|Suspicious|kind/i")


def test_the_direct_path_shows_the_numbers_of_tiebeam_lens(visit, studio_root):
    page = visit().go("models.html")
    choose(page, "models/untied")
    page.get_by_role("button", name="Show", exact=True).click()
    for norm, label in ((True, "with the final norm"), (False, "without (--no-norm)")):
        page.locator("section[aria-labelledby=direct]").get_by_label(label).check()
        lens = Lens.open(studio_root / "models" / "untied", norm=norm)
        matrix = lens.direct([lens.find(word) for word in ("New", "York", "City")]).matrix
        page.wait_for_function(
            """(wanted) => [...document.querySelectorAll("section[aria-labelledby=direct] table.grid td:not(.corner)")]
                 .map((cell) => cell.textContent.replace("−", "-")).join(" ") === wanted""",
            arg=" ".join(f"{x:.2f}" for x in matrix.ravel()),
        )


@pytest.mark.parametrize(("options", "label"), [((), "with the final norm"), (("--no-norm",), "without (--no-norm)")])
def test_the_direct_path_is_what_tiebeam_lens_prints_to_the_digit(visit, studio_root, capsys, options, label):
    from tiebeam.cli import main

    words = ["New", "York", "City"]
    main(["lens", str(studio_root / "models" / "tied"), "--quiet", *options, "--tokens", *words])
    printed = capsys.readouterr().out.splitlines()
    first = next(n for n, line in enumerate(printed) if line.split() == words) + 1
    rows = [line.split()[1:] for line in printed[first : first + 3]]
    page = visit().go("models.html")
    choose(page, "models/tied")
    page.locator("section[aria-labelledby=direct]").get_by_label(label).check()
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_function(
        """(wanted) => [...document.querySelectorAll("section[aria-labelledby=direct] table.grid td:not(.corner)")]
             .map((cell) => cell.textContent.replace("−", "-")).join(" ") === wanted""",
        arg=" ".join(value for row in rows for value in row),
    )


def test_back_opens_the_model_before(visit):
    page = visit().go("models.html")
    first = page.locator("h2#name").inner_text()
    other = "models/torn" if first != "models/torn" else "models/tied"
    choose(page, other)
    page.go_back()
    page.wait_for_selector(f"h2#name >> text={first}")
    assert page.get_by_role("radio", name=first).is_checked()


def test_generation_shows_probabilities_and_what_each_layer_added(visit):
    page = visit().go("generate.html")
    prompt = page.get_by_label("Prompt")
    prompt.click()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("New York")
    page.wait_for_selector("text=Weights in memory:")  # loaded while typing
    page.get_by_label("New tokens").fill("3")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("text=3 tokens")
    behind = page.locator("section[aria-labelledby=behind]")
    assert "%" in behind.locator(".hbars").first.inner_text()
    assert behind.locator(".hbars").last.locator(".name").all_inner_texts() == ["direct path", "layer 1"]


def test_a_missing_page_shows_the_way_back(visit):
    one = visit()
    one.page.goto(one.address + "nothing.html")
    one.page.get_by_role("link", name="Models").click()
    one.page.wait_for_selector("html[data-ready]")
    one.console_errors.clear()  # the browser logs the 404
