"""CONTRIBUTING.md: its recipes are followed on a copy of the tree, and what it names exists."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.building import llama_config, table, write_model

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "docs", tmp_path / "docs", ignore=shutil.ignore_patterns("notebooks", "demo"))
    return tmp_path


def run(tree: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(tree / "src"), "COLUMNS": "100", "NO_COLOR": "1"}
    return subprocess.run([sys.executable, *arguments], cwd=tree, env=environment, capture_output=True, text=True)


def test_each_recipe_is_short() -> None:
    for title in ("a model family", "a rule", "a loader", "a file format"):
        recipe = PAGE.split(f"## Add {title}\n")[1].split("\n## ")[0].strip().splitlines()
        assert len(recipe) <= 10, title


def test_paths_and_targets_that_the_page_names_exist() -> None:
    paths = {path.rstrip(".") for path in re.findall(r"(?:src|docs|tests|fuzz)/[\w./]+", PAGE) if "N" not in path}
    assert [path for path in paths if not (ROOT / path).exists()] == []
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
    assert set(re.findall(r"make ([a-z]+)", PAGE)) <= targets


@pytest.mark.slow
def test_recipe_of_a_rule(tree: Path) -> None:
    rules = tree / "src" / "tiebeam" / "doctor" / "rules"
    source = next(rules.glob("tb104_*.py"))
    text = source.read_text().replace("TB104", "TB199").replace('title="the flag is absent', 'title="no flag at all')
    (rules / "tb199_no_flag_at_all.py").write_text(text)
    where = write_model(tree / "m", {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}, llama_config())
    found = run(tree, "-m", "tiebeam", "doctor", str(where)).stdout
    assert "TB199 warning  no flag at all" in found
    assert run(tree, "docs/generate.py").returncode == 0
    assert (tree / "docs" / "findings" / "TB199.md").read_text().startswith("# TB199: no flag at all")
    assert "[TB199](TB199.md)" in (tree / "docs" / "findings" / "README.md").read_text()


@pytest.mark.slow
def test_recipe_of_a_family(tree: Path) -> None:
    families = tree / "src" / "tiebeam" / "families"
    config = {**llama_config(tie_word_embeddings=False), "model_type": "olmo9", "architectures": ["Olmo9ForCausalLM"]}
    where = write_model(tree / "m", {"model.embed_tokens.weight": table(0), "lm_head.weight": table(1)}, config)
    code = (
        "import sys, tiebeam; from tiebeam import families; r = tiebeam.inspect(sys.argv[1]); "
        "print(r.tie, families.lookup('olmo9') is not None)"
    )
    assert run(tree, "-c", code, str(where)).stdout.split()[1] == "False"
    table_file = families / "architectures.json"
    table_file.write_text(table_file.read_text().replace('"afmoe": {', '"olmo9": {},\n "afmoe": {', 1))
    assert run(tree, "-c", code, str(where)).stdout.split() == ["untied", "True"]
    text = (families / "olmo2.py").read_text().replace("olmo2", "olmo9").replace("Olmo2", "Olmo9")
    (families / "olmo9.py").write_text(text)
    spec = "from tiebeam.families.registry import families; print(families()['olmo9'].architecture)"
    done = run(tree, "-c", spec)
    assert done.stdout.strip() == "Olmo9ForCausalLM", done.stderr
