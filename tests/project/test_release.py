""".ci/check_release.py: a release goes out only if version, changelog, citation and tag agree."""

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_release", ROOT / ".ci" / "check_release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "tiebeam").mkdir(parents=True)
    (tmp_path / "src" / "tiebeam" / "_version.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("cff-version: 1.2.0\nversion: 0.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-12-01)\n\n## 0.1.0 (x)\n")
    return tmp_path


def test_a_consistent_release_has_no_problems(tree: Path) -> None:
    assert load().problems("v0.2.0", tree) == []


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("src/tiebeam/_version.py", "0.2.0", "0.2.1", "the tag is v0.2.0, and src/tiebeam/_version.py says 0.2.1"),
        ("src/tiebeam/_version.py", "0.2.0", "0.2", "the version '0.2' is not X.Y.Z"),
        ("CITATION.cff", "version: 0.2.0", "version: 0.1.0", "CITATION.cff says 0.1.0"),
        ("CHANGELOG.md", "0.2.0 (2026-12-01)", "0.2.0 (unreleased)", "it should be '0.2.0 (YYYY-MM-DD)'"),
        ("CHANGELOG.md", "0.2.0 (2026-12-01)", "0.1.9 (2026-12-01)", "the first release in CHANGELOG.md is '0.1.9"),
    ],
)
def test_each_disagreement_is_named(tree: Path, file: str, old: str, new: str, said: str) -> None:
    (tree / file).write_text((tree / file).read_text().replace(old, new))
    assert any(said in problem for problem in load().problems("v0.2.0", tree))


def test_the_script_exits_with_1_and_says_why(tree: Path) -> None:
    (tree / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "check_release.py", tree / ".ci")
    script = [sys.executable, str(tree / ".ci" / "check_release.py")]
    assert subprocess.run([*script, "v0.2.0"], capture_output=True, text=True).stdout == "v0.2.0 is consistent\n"
    wrong = subprocess.run([*script, "v9.9.9"], capture_output=True, text=True)
    assert wrong.returncode == 1
    assert "the tag should be v0.2.0" in wrong.stderr


def test_citation_has_the_version_of_the_package() -> None:
    import yaml

    import tiebeam

    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == tiebeam.__version__
