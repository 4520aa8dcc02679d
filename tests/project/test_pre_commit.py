"""The hook that others use, with the real pre-commit: a repository that commits models, and this one as its source."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.building import llama_config, table, write_model

ROOT = Path(__file__).parents[2]
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


def git(where: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=Test", "-c", "user.email=test@example.com", "-c", "init.defaultBranch=main"]
    command = ["git", *identity, *arguments]
    return subprocess.run(command, cwd=where, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(scope="module")
def hook_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This tree as a repository of its own, committed: pre-commit clones its source."""
    where = tmp_path_factory.mktemp("source") / "tiebeam"
    where.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", ".pre-commit-hooks.yaml"):
        shutil.copy(ROOT / name, where)
    shutil.copytree(ROOT / "src", where / "src", ignore=shutil.ignore_patterns("__pycache__"))
    git(where, "init", "-q")
    git(where, "add", ".")
    git(where, "commit", "-qm", "all")
    return where


def test_a_commit_with_a_torn_model_is_refused_and_its_fix_is_accepted(hook_source: Path, tmp_path: Path) -> None:
    pytest.importorskip("pre_commit")
    work = tmp_path / "work"
    write_model(work / "m", {EMBED: table(0), HEAD: table(1)}, llama_config(tie_word_embeddings=True))
    revision = git(hook_source, "rev-parse", "HEAD")
    (work / ".pre-commit-config.yaml").write_text(
        f"repos:\n  - repo: {hook_source}\n    rev: {revision}\n    hooks:\n      - id: tiebeam-doctor\n"
    )
    git(work, "init", "-q")
    git(work, "add", ".")
    environment = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache")}
    environment.pop("PYTHONPATH", None)

    def hook() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pre_commit", "run", "--color", "never"]
        return subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True)

    refused = hook()
    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert "TB101 error" in refused.stdout
    config = (work / "m" / "config.json").read_text()
    (work / "m" / "config.json").write_text(
        config.replace('"tie_word_embeddings": true', '"tie_word_embeddings": false')
    )
    git(work, "add", ".")
    assert "Passed" in hook().stdout
    (work / "notes.md").write_text("no model")
    git(work, "commit", "-qnm", "models")
    git(work, "add", ".")
    assert "Skipped" in hook().stdout
