"""Light stays light: what the common paths may not import, and that the public names exist."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiebeam
from helpers.building import llama_config, table, write_model

HEAVY = ("torch", "mlx", "transformers", "gguf", "huggingface_hub", "matplotlib", "starlette", "tokenizers")
SRC = str(Path(tiebeam.__file__).parent.parent)


def modules_after(*arguments: str) -> set[str]:
    program = (
        "import sys, json\n"
        "from tiebeam.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC}, check=True,
    )  # fmt: skip
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_help_imports_nothing_heavy():
    assert not modules_after("--help") & {*HEAVY, "numpy", "rich"}


def test_inspect_imports_nothing_heavy(tmp_path):
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=False))
    assert not modules_after("inspect", str(where)) & set(HEAVY)


@pytest.mark.parametrize("name", tiebeam.__all__)
def test_public_name_exists(name):
    assert getattr(tiebeam, name) is not None


def test_importing_the_package_imports_no_room():
    done = subprocess.run(
        [sys.executable, "-c", "import tiebeam, sys; print([m for m in sys.modules if m.startswith('tiebeam.')])"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC}, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "['tiebeam._version']"
