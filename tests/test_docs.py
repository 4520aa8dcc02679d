"""The pages that are made from the code are the ones in the tree."""

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parent.parent / "docs"


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", list(load_generator().PAGES))
def test_generated_page_is_up_to_date(page):
    assert (DOCS / page).read_text() == load_generator().PAGES[page](), "run: make docs"
