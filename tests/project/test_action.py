"""action.yml: its shell steps are run with bash as a runner would, on models with and without findings."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from helpers.building import llama_config, table, write_model

ROOT = Path(__file__).parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
STEPS = {step["id"]: step for step in ACTION["runs"]["steps"] if "id" in step}
EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Runner:
    """The part of GitHub's runner that a composite action sees: inputs, outputs of steps, the environment."""

    def __init__(self, workspace: Path, **inputs: str) -> None:
        self.workspace = workspace
        self.values = {f"inputs.{name}": str(entry["default"]) for name, entry in ACTION["inputs"].items()}
        self.values.update({f"inputs.{name.replace('_', '-')}": value for name, value in inputs.items()})
        self.values["github.action_path"] = str(ROOT)

    def run(self, step: str) -> subprocess.CompletedProcess[str]:
        output = self.workspace.parent / f"{step}.output"
        output.touch()
        filled = {name: self._filled(value) for name, value in STEPS[step].get("env", {}).items()}
        environment = {
            "PATH": os.environ["PATH"], "HOME": str(self.workspace.parent), "RUNNER_TEMP": str(self.workspace.parent),
            "GITHUB_OUTPUT": str(output), "PYTHONPATH": str(ROOT / "src"), **filled,
        }  # fmt: skip
        script = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[step]["run"]]
        done = subprocess.run(script, cwd=self.workspace, env=environment, capture_output=True, text=True)
        for line in output.read_text().splitlines():
            name, _, value = line.partition("=")
            self.values[f"steps.{step}.outputs.{name}"] = value
        return done

    def _filled(self, text: str) -> str:
        return re.sub(r"\$\{\{ *(\S+) *\}\}", lambda match: self.values[match[1]], text)

    def doctor(self) -> tuple[subprocess.CompletedProcess[str], int]:
        """The doctor's step with the installed program, and the exit code of the job."""
        self.values["steps.install.outputs.bin"] = str(Path(sys.executable).parent)
        return self.run("doctor"), self.run("verdict").returncode


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    where = tmp_path / "work space"
    for name, tied in (("torn", True), ("healthy", False)):
        write_model(where / "models" / name, {EMBED: table(0), HEAD: table(1)}, llama_config(tie_word_embeddings=tied))
    return where


@pytest.mark.slow
def test_findings_are_annotated_written_as_sarif_and_fail_the_job(workspace: Path) -> None:
    runner = Runner(workspace)
    done, code = runner.doctor()
    assert done.returncode == 0, done.stderr  # the verdict is the last step, after the upload
    assert code == 1
    assert done.stdout.startswith("::error file=models/torn/config.json,title=TB101")
    document = json.loads((workspace / runner.values["steps.doctor.outputs.sarif"]).read_text())
    assert [result["ruleId"] for result in document["runs"][0]["results"]] == ["TB101"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("inputs", "code"),
    [
        ({"paths": "models/healthy"}, 0),
        ({"fail_on": "never", "sarif": ""}, 0),
        ({"paths": "models/healthy\nmodels/torn", "recursive": "false", "sarif": ""}, 1),
        ({"paths": "models/nothing.gguf", "recursive": "false"}, 3),
        ({"args": "--no-such-option"}, 2),
    ],
)
def test_inputs_reach_the_doctor(workspace: Path, inputs: dict[str, str], code: int) -> None:
    runner = Runner(workspace, **inputs)
    done, verdict = runner.doctor()
    assert done.returncode == 0, done.stderr
    assert verdict == code
    wanted = inputs.get("sarif", "tiebeam.sarif") if code != 2 else ""
    assert runner.values.get("steps.doctor.outputs.sarif", "") == wanted


@pytest.mark.exhaustive
def test_accepted_findings_do_not_fail_the_job(workspace: Path) -> None:
    Runner(workspace, args="--write-baseline", baseline="accepted.json").doctor()
    assert Runner(workspace, baseline="accepted.json").doctor()[1] == 0


def test_an_input_is_data_and_never_part_of_a_script() -> None:
    """A value of an input that is pasted into a script could run anything."""
    assert [step for step, entry in STEPS.items() if "${{" in entry.get("run", "")] == []


def test_a_path_is_not_expanded(workspace: Path) -> None:
    runner = Runner(workspace, paths="$(touch$IFS/tmp/owned)", recursive="false", sarif="")
    done, verdict = runner.doctor()
    assert verdict == 3
    assert "owned" in done.stderr + done.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(600)
def test_the_install_step_installs_this_version(workspace: Path) -> None:
    runner = Runner(workspace)
    done = runner.run("install")
    assert done.returncode == 0, done.stderr
    program = Path(runner.values["steps.install.outputs.bin"]) / "tiebeam"
    assert (
        "tiebeam, version" in subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    )
