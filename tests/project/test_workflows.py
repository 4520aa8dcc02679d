"""The files that GitHub and pre-commit read, against their schemas; what the workflows run exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = {
    "vendor.github-workflows": WORKFLOWS,
    "vendor.github-actions": [ROOT / "action.yml"],
    "vendor.citation-file-format": [ROOT / "CITATION.cff"],
}


@pytest.mark.slow
@pytest.mark.parametrize("schema", SCHEMAS)
def test_file_has_the_form_that_its_reader_wants(schema: str) -> None:
    pytest.importorskip("check_jsonschema")
    files = [str(path) for path in SCHEMAS[schema]]
    assert files
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, *files]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "file"),
    [("validate-manifest", ".pre-commit-hooks.yaml"), ("validate-config", ".pre-commit-config.yaml")],
)
def test_pre_commit_accepts_the_file(command: str, file: str) -> None:
    pytest.importorskip("pre_commit")
    done = subprocess.run(
        [sys.executable, "-m", "pre_commit", command, str(ROOT / file)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_tests_run_on_three_systems_and_four_pythons() -> None:
    matrix = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())["jobs"]["quick"]["strategy"]
    assert matrix["matrix"]["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]
    assert matrix["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]


def test_paths_and_make_targets_that_workflows_name_exist() -> None:
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M)
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                for word in step.get("run", "").split():
                    if word.startswith(("tests/", ".ci/")):
                        assert (ROOT / word).exists(), word
                if step.get("run", "").startswith("make "):
                    assert step["run"].split()[1] in targets


def test_only_the_publishing_job_may_sign_and_no_secret_is_used() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "secrets." not in text
