"""The site is built strictly without a warning, has every public name, and asks nobody on the network."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tiebeam

ROOT = Path(__file__).parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("site")]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    where = tmp_path_factory.mktemp("site") / "site"
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(where)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return where


def test_every_page_is_there(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs").with_suffix("") for path in (ROOT / "docs").rglob("*.md")]
    folders = [Path(str(page).replace("README", "").replace("index", "")) for page in pages]
    assert [str(page) for page in folders if not (site / page / "index.html").is_file()] == []


def test_the_reference_has_every_public_function_and_class(site: Path) -> None:
    page = (site / "api" / "tiebeam" / "index.html").read_text()
    names = [name for name in tiebeam.__all__ if name not in ("__version__", "examine")]  # examine is diagnose
    wanted = [name for name in names if not inspect.ismodule(getattr(tiebeam, name))]
    assert [name for name in wanted if not re.search(rf">\s*tiebeam\.{name}\s", page)] == []


def test_examples_of_docstrings_are_code(site: Path) -> None:
    page = (site / "api" / "tiebeam" / "index.html").read_text()
    assert '<span class="gp">&gt;&gt;&gt; </span>' in page
    assert "<blockquote>" not in page


def test_notebooks_have_pages_and_can_be_downloaded(site: Path) -> None:
    front = (site / "index.html").read_text()
    for path in (ROOT / "docs" / "notebooks").glob("*.ipynb"):
        assert f'href="notebooks/{path.stem}/"' in front
        page = (site / "notebooks" / path.stem / "index.html").read_text()
        assert f'href="../{path.name}"' in page
        assert (site / "notebooks" / path.name).read_bytes() == path.read_bytes()
        assert page.count("<code>") >= 4


def test_the_lesson_is_on_the_front_page(site: Path) -> None:
    assert '<iframe src="demo/index.html"' in (site / "index.html").read_text()
    assert (site / "demo" / "index.html").is_file()


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    source = r"<(?:script|img|iframe|source)[^>]*\ssrc=[\"']?(https?:)?//"
    link = r"<link[^>]*rel=[\"']?(?:stylesheet|preload|icon|preconnect)[^>]*href=[\"']?(https?:)?//"
    pages = [path for path in site.rglob("*.html") if re.search(f"{source}|{link}", path.read_text())]
    assert pages == []
    styles = [
        path for path in site.rglob("*.css") if re.search(r"url\([\"']?https?:|@import [\"']?https?:", path.read_text())
    ]
    assert styles == []
