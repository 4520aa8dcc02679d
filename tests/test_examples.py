"""The examples in docs/python.md and in docstrings run and print what they show."""

import doctest
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiebeam
from tiebeam import _html, budget, catalog, inspection

ROOT = Path(__file__).parent.parent
PUBLIC = [getattr(tiebeam, name) for name in tiebeam.__all__ if name != "__version__"]


@pytest.fixture
def in_examples(example_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(example_directory)
    return example_directory


def test_python_page(in_examples: Path) -> None:
    result = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False, optionflags=doctest.REPORT_NDIFF)
    assert result.attempted >= 20
    assert result.failed == 0


def docstring_examples() -> Iterator[doctest.DocTest]:
    """Examples of the public functions and classes, and of everything in these modules."""
    finder, seen = doctest.DocTestFinder(exclude_empty=True), set()
    modules = [_html, inspection, budget.pair_cost, budget.communication, budget.units, catalog.known_models]
    for item in [*modules, *(item for item in PUBLIC if not inspect.ismodule(item))]:
        for test in finder.find(item, getattr(item, "__qualname__", item.__name__)):
            key = test.filename, test.lineno
            if test.examples and key not in seen:
                seen.add(key)
                yield test


@pytest.mark.parametrize("test", list(docstring_examples()), ids=lambda test: test.name)
def test_docstring(test: doctest.DocTest, in_examples: Path) -> None:
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0


def test_every_public_function_has_an_example() -> None:
    """Executed above; those without >>> need a trained model, and their example is code."""
    functions = [item for item in PUBLIC if inspect.isfunction(item)]
    without = {item.__name__ for item in functions if ">>>" not in (item.__doc__ or "")}
    assert without == {"assert_saved", "assert_synced", "extend_", "load", "quantize", "trim"}
    assert all(f"tiebeam.{name}(" in (getattr(tiebeam, name).__doc__ or "") for name in without)


def test_main_functions_have_examples() -> None:
    names = {test.name for test in docstring_examples()}
    assert names >= {"tiebeam.inspection.inspect", "tiebeam.budget.pair_cost.price"}


def test_python_page_mentions_every_public_function() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    functions = [name for name in tiebeam.__all__ if inspect.isfunction(getattr(tiebeam, name))]
    assert [name for name in functions if f"tiebeam.{name}" not in page and name != "open_checkpoint"] == []
