"""A running studio with tiny models, and a real browser."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.studio_files import SRC, write_studio_root


def start(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """Start `tiebeam studio` in a subprocess; returns it and the address it prints."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tiebeam", "studio", "--no-open", "--port", "0", *arguments],
        stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": SRC, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "http://127.0.0.1:" in line, line
    return process, line.split()[2]


@pytest.fixture(scope="package")
def studio_root(tmp_path_factory):
    return write_studio_root(tmp_path_factory.mktemp("studio"))


@pytest.fixture(scope="package")
def studio(studio_root):
    """Address of a studio that serves `studio_root`."""
    process, address = start("--root", str(studio_root))
    yield address
    process.terminate()
    process.wait(10)


class Visit:
    """A page that records console errors and requests."""

    def __init__(self, context, address: str) -> None:
        self.address, self.page = address, context.new_page()
        self.console_errors: list[str] = []
        self.requests: list[str] = []
        self.page.on(
            "console", lambda m: self.console_errors.append(m.text) if m.type in ("error", "warning") else None
        )
        self.page.on("pageerror", lambda error: self.console_errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))

    def go(self, path: str = ""):
        self.page.goto(self.address + path)
        self.page.wait_for_selector("html[data-ready]")
        assert self.page.evaluate("document.documentElement.dataset.ready") == "true"
        return self.page


@pytest.fixture
def visit(browser, studio):
    """visit(width=…, reduced=…, dark=…) -> Visit. After the test: no console errors, no requests to other hosts."""
    opened = []

    def visit(width: int = 1280, height: int = 860, reduced: bool = False, dark: bool = False, address: str = studio):
        context = browser.new_context(
            viewport={"width": width, "height": height},
            reduced_motion="reduce" if reduced else "no-preference",
            color_scheme="dark" if dark else "light",
        )
        context.set_default_timeout(15_000)
        one = Visit(context, address)
        opened.append((context, one))
        return one

    yield visit
    for context, one in opened:
        context.close()
        assert one.console_errors == []
        assert [url for url in one.requests if not url.startswith(one.address)] == []
