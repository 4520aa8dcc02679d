"""`tiebeam studio`: export, errors, and imports at start."""

import functools
import http.server
import json
import subprocess
import sys
import threading

import pytest

from helpers.studio_files import SRC
from tiebeam.cli import main

LANDED = """(id) => {
  const top = document.getElementById(id).getBoundingClientRect().top;
  return top > -5 && top < innerHeight / 2;
}"""


@pytest.fixture
def site(tmp_path, capsys):
    main(["studio", "--export", str(tmp_path / "site")])
    assert "files in" in capsys.readouterr().out
    return tmp_path / "site"


@pytest.fixture
def served(site):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


def test_export_contains_only_the_lesson_and_the_calculator(site):
    names = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    assert {"index.html", "calculator.html", "catalog.json", "studio.css", "views/lesson.js"} <= names
    assert not {"models.html", "runs.html", "views/models.js", "page.html"} & names
    assert "models.html" not in (site / "index.html").read_text()
    assert "://" not in (site / "index.html").read_text()


@pytest.mark.xdist_group("browser")
def test_the_exported_site_works_on_any_web_server(visit, site, served):
    one = visit(address=served)
    page = one.go()
    page.wait_for_selector("h1 >> text=Embedding and LM head: one matrix or two?")
    page = one.go("index.html#real")
    page.wait_for_selector("#real strong >> text=SmolLM2 135M, tied")  # real models need no server
    titles = [one["title"] for one in json.loads((site / "lesson" / "real_tokens.json").read_text())["slices"]]
    assert page.locator("#real fieldset").first.locator("label").all_inner_texts() == titles
    assert page.locator("#real .heatmap tbody tr").count() == 24
    page.wait_for_function(LANDED, arg="real")
    assert page.locator("#real form").count() == 0
    page = one.go("calculator.html?vocab=32000&dim=2048&trunk=968976384")
    assert "1,034,512,384" in page.locator("#numbers").inner_text()
    page = one.go("index.html#symmetry")
    page.wait_for_function(LANDED, arg="symmetry")


def test_export_again_works_and_a_directory_with_other_files_is_an_error(site, capsys):
    main(["studio", "--export", str(site)])
    (site / "mine.txt").write_text("keep me")
    with pytest.raises(SystemExit) as stop:
        main(["studio", "--export", str(site)])
    assert stop.value.code == 2
    assert "mine.txt" in capsys.readouterr().err
    assert (site / "mine.txt").read_text() == "keep me"


def test_a_missing_source_is_a_one_line_error(tmp_path, capsys):
    with pytest.raises(SystemExit) as stop:
        main(["studio", str(tmp_path / "nothing"), "--no-open"])
    assert stop.value.code == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_the_server_starts_without_heavy_imports():
    program = (
        "import sys; from tiebeam.studio.app import build; from tiebeam.studio.model_list import ModelList\n"
        "build(ModelList(), 1)\n"
        "print([m for m in ('numpy', 'torch', 'tokenizers', 'transformers', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={"PYTHONPATH": SRC}, check=True
    )
    assert done.stdout.strip() == "[]"


def test_a_missing_extra_is_reported_with_the_install_command(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(SystemExit) as stop:
        main(["studio", "--no-open", "--port", "0"])
    assert stop.value.code == 3
    assert "pip install 'tiebeam[studio]'" in capsys.readouterr().err
