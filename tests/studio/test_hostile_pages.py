"""Pages of a model and a run whose every string is hostile, in a real browser."""

import json
import re

import pytest

from helpers.hostile_models import NAME, TEXT, hostile_llama
from helpers.studio_files import write_run

from .conftest import start

pytestmark = pytest.mark.xdist_group("browser")
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u206f]")


@pytest.fixture(scope="module")
def hostile_studio(tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    hostile_llama(root / NAME)
    run = write_run(root / f"{NAME} run", tied=True)
    (run / "run.json").write_text(json.dumps({"settings": {"tie": True, TEXT: TEXT}}))
    process, address = start("--root", str(root))
    yield address
    process.terminate()
    process.wait(10)


def shown(page) -> str:
    """Everything that the page shows or reads out."""
    names = page.evaluate(
        "[...document.querySelectorAll('[aria-label],[title]')].map(e => e.ariaLabel + e.title).join(' ')"
    )
    return page.locator("html").text_content() + names


def test_hostile_names_and_tokens_are_text(visit, hostile_studio):
    page = visit(address=hostile_studio).go("models.html")
    page.get_by_role("button", name="Show", exact=True).click()
    page.wait_for_selector("text=highest direct-path logits")
    page.get_by_text("Show tensors").click()
    page.wait_for_selector("text=of 13 tensors")
    text = shown(page)
    assert "\\x1b[2J\\x9b1m" in text
    assert "<script>alert(1)</script>" in text
    assert page.locator("main script").count() == 0
    assert not UNSAFE.search(text)


def test_hostile_text_is_generated_as_text_and_the_page_says_what_is_loaded(visit, hostile_studio):
    page = visit(address=hostile_studio).go("generate.html")
    page.get_by_label("Prompt").fill("New York")
    page.get_by_label("New tokens").fill("3")
    page.get_by_role("button", name="Generate").click()
    page.wait_for_selector("text=Weights in memory:")
    text = shown(page)
    assert "\\x1b[2J\\x9b1m" in text
    assert not UNSAFE.search(text)


def test_hostile_runs_are_text(visit, hostile_studio):
    page = visit(address=hostile_studio).go("runs.html")
    page.wait_for_selector(".plot-stage path.plot-line")
    text = shown(page)
    assert "\\u202e" in text
    assert not UNSAFE.search(text)
