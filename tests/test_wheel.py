"""The wheel in a clean environment, without torch and without the extras."""

import subprocess
import sys
from pathlib import Path

import pytest

from helpers.building import llama_config, table, write_model

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def clean_environment(tmp_path_factory):
    where = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", where, ROOT],
        check=True,
        capture_output=True,
    )
    (wheel,) = where.glob("tiebeam-*.whl")
    subprocess.run([sys.executable, "-m", "venv", where / "venv"], check=True)
    subprocess.run(
        [where / "venv/bin/python", "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", wheel], check=True
    )
    return where / "venv" / "bin"


@pytest.mark.xdist_group("wheel")
def test_help_works_from_the_wheel(clean_environment):
    done = subprocess.run([clean_environment / "tiebeam", "--help"], capture_output=True, text=True, check=True)
    assert "inspect" in done.stdout


@pytest.mark.xdist_group("wheel")
def test_inspect_works_from_the_wheel_without_torch_or_extras(clean_environment, tmp_path):
    tensors = {"model.embed_tokens.weight": table(0), "lm_head.weight": table(0)}
    where = write_model(tmp_path / "m", tensors, llama_config(tie_word_embeddings=True))
    done = subprocess.run([clean_environment / "tiebeam", "inspect", where], capture_output=True, text=True, check=True)
    assert "twin" in done.stdout
    packages = subprocess.run(
        [clean_environment / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True
    ).stdout
    assert not {"torch", "gguf", "transformers"} & {line.split()[0] for line in packages.splitlines()}


@pytest.mark.xdist_group("wheel")
def test_gguf_without_the_extra_names_the_install_command(clean_environment, tmp_path):
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + (3).to_bytes(4, "little") + bytes(16))
    done = subprocess.run(
        [clean_environment / "tiebeam", "inspect", tmp_path / "m.gguf"], capture_output=True, text=True
    )
    assert done.returncode == 3
    assert "pip install 'tiebeam[gguf]'" in done.stderr
