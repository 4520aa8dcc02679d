"""The notebooks of docs/notebooks are executed, show results as tables, and are stored without outputs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parent.parent / "docs"
NOTEBOOKS = sorted((DOCS / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.slow


def test_there_are_three_and_the_guides_lead_to_them() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["inspect-and-doctor", "new-tokens", "tied-or-untied"]
    index = (DOCS / "index.md").read_text()
    assert all(f"notebooks/{path.name}" in index for path in NOTEBOOKS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_it_is_stored_without_outputs_and_counts(path: Path) -> None:
    for cell in json.loads(path.read_text())["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_links_of_a_notebook_lead_to_files(path: Path) -> None:
    import re

    text = "".join("".join(cell["source"]) for cell in json.loads(path.read_text())["cells"])
    links = re.findall(r"\]\(([^)#:]+)\)", text)
    assert links
    assert [link for link in links if not (path.parent / link).exists()] == []


def execute(path: Path, where: Path) -> Any:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    book = nbformat.read(path, as_version=4)
    environment = {
        **os.environ, "PYTHONPATH": str(DOCS.parent / "src"), "OMP_NUM_THREADS": "1", "TMPDIR": str(where),
        "IPYTHONDIR": str(where), "HF_HUB_OFFLINE": "1",
    }  # fmt: skip
    nbclient.NotebookClient(book, timeout=280, kernel_name="python3").execute(cwd=str(where), env=environment)
    return book


def shown(book: Any, kind: str) -> str:
    outputs = [output for cell in book.cells for output in cell.get("outputs", [])]
    return "\n".join(output["data"].get(kind, "") for output in outputs if "data" in output)


def test_inspect_and_doctor(tmp_path: Path) -> None:
    book = execute(DOCS / "notebooks" / "inspect-and-doctor.ipynb", tmp_path)
    html = shown(book, "text/html")
    assert "<caption>shared: model" in html
    assert "TB101" in html
    assert "not written yet</caption>" in html
    assert "dataframe" in html


def test_new_tokens(tmp_path: Path) -> None:
    html = shown(execute(DOCS / "notebooks" / "new-tokens.ipynb", tmp_path), "text/html")
    assert "<caption>extend: extended" in html
    assert "<caption>merge: merged" in html


def test_tied_or_untied(tmp_path: Path) -> None:
    html = shown(execute(DOCS / "notebooks" / "tied-or-untied.ipynb", tmp_path), "text/html")
    assert "<caption>comparison</caption>" in html
