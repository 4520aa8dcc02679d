""".ci/check_release.py: a release goes out only if version, changelog, citation, tag and address agree."""

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load(name: str = "check_release") -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "tiebeam").mkdir(parents=True)
    (tmp_path / "src" / "tiebeam" / "_version.py").write_text('__version__ = "0.2.0"\n')
    for name in load("repository").FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    load("repository").write("some-team", tmp_path)
    citation = tmp_path / "CITATION.cff"
    citation.write_text(re.sub("^version: .*", "version: 0.2.0", citation.read_text(), flags=re.MULTILINE))
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0 (x)\n")
    return tmp_path


def test_a_consistent_release_has_no_problems(tree: Path) -> None:
    assert load().problems("v0.2.0", tree) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("src/tiebeam/_version.py", "0.2.0", "0.2.1", "the tag is v0.2.0, and src/tiebeam/_version.py says 0.2.1"),
        ("src/tiebeam/_version.py", "0.2.0", "0.2", "the version '0.2' is not X.Y.Z"),
        ("CITATION.cff", "\nversion: 0.2.0", "\nversion: 0.1.0", "CITATION.cff says 0.1.0"),
        ("mkdocs.yml", "some-team", "another", "mkdocs.yml names another, and pyproject.toml some-team"),
        ("docs/ci.md", "uses: some-team", "uses: another", "docs/ci.md names another, some-team, and pyproject.toml"),
        ("pyproject.toml", "some-team", "OWNER", "pyproject.toml has no owner of the repository yet"),
        ("CHANGELOG.md", "0.2.0 (2026-12-01)", "0.2.0 (unreleased)", "it should be '0.2.0 (YYYY-MM-DD)'"),
        ("CHANGELOG.md", "0.2.0 (2026-12-01)", "0.1.9 (2026-12-01)", "the first release in CHANGELOG.md is '0.1.9"),
    ],
)
def test_each_disagreement_is_named(tree: Path, file: str, old: str, new: str, said: str) -> None:
    (tree / file).write_text((tree / file).read_text().replace(old, new))
    assert any(said in problem for problem in load().problems("v0.2.0", tree))


def test_the_script_exits_with_1_and_says_why(tree: Path) -> None:
    shutil.copytree(ROOT / ".ci", tree / ".ci", ignore=shutil.ignore_patterns("__pycache__"))
    script = [sys.executable, str(tree / ".ci" / "check_release.py")]
    assert subprocess.run([*script, "v0.2.0"], capture_output=True, text=True).stdout == "v0.2.0 is consistent\n"
    wrong = subprocess.run([*script, "v9.9.9"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "the tag should be v0.2.0" in wrong.stderr


def test_citation_has_the_version_of_the_package() -> None:
    import yaml

    import tiebeam

    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == tiebeam.__version__


def test_the_repository_s_owner_is_written_into_every_file_or_is_the_placeholder_in_all(tree: Path) -> None:
    repository = load("repository")
    assert repository.problems(tree) == []
    name = repository.owner()
    assert name
    problems = repository.problems()
    assert problems == [] if name != repository.PLACEHOLDER else [p for p in problems if "no owner" in p]
    assert (name == repository.PLACEHOLDER) == bool(problems)


def test_no_other_file_has_an_address_of_the_repository() -> None:
    repository = load("repository")
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    readable = [name for name in tracked if Path(name).suffix in (".md", ".yml", ".cff", ".toml", ".py", ".ipynb")]
    pattern = re.compile(r"github\.com/[\w-]+/tiebeam\b|\.github\.io/tiebeam\b")
    found = {name for name in readable if (ROOT / name).exists() and pattern.search((ROOT / name).read_text("utf-8"))}
    assert found - {".ci/repository.py", "tests/project/test_release.py"} <= set(repository.FILES)
