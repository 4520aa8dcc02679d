"""A pytest plugin for environments without torch: what needs a package that is not installed there is skipped."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

ABSENT = {"torch", "transformers", "peft", "accelerate", "mlx", "matplotlib", "scipy", "pyarrow", "sentencepiece",
          "zstandard", "starlette", "uvicorn", "httpx", "playwright", "schemathesis"}  # fmt: skip


def _missing(error: BaseException | None) -> str:
    """The package whose absence the error comes from: directly, or reported by tiebeam as an extra to install."""
    while error is not None:
        name = (error.name or "").split(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if name in ABSENT:
            return name
        error = error.__cause__ or error.__context__
    return ""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, Any, Any]:
    report = yield
    text = str(report.longrepr) if report.failed else ""
    if any(f"No module named '{name}" in text for name in ABSENT):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, "Skipped: a package is not installed")
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    report = yield
    if report.failed and call.excinfo is not None and (name := _missing(call.excinfo.value)):
        report.outcome, report.longrepr = "skipped", (str(item.path), 0, f"Skipped: {name} is not installed")
    return report
