"""`tiebeam merge`: arguments, reports, exit codes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.trained_adapters import Trained, train_adapter
from tiebeam.cli import main, tiebeam


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """LoRA on a layer and on the head of a tied base."""
    return train_adapter(tmp_path_factory.mktemp("merge"), target_modules=["q_proj", "lm_head"])


def run(*words: Any) -> Result:
    return CliRunner().invoke(tiebeam, ["merge", *map(str, words)])


def test_the_report_says_what_became_of_the_pair_and_how_it_was_verified(trained: Trained, tmp_path: Path) -> None:
    done = run(trained.base, trained.adapter, tmp_path / "merged", "--quiet")
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[0]
    assert first.startswith("● untied")
    text = " ".join(done.output.split())
    assert "only the head of a tied base, so the result is untied: both matrices are stored" in text
    assert "(rounding) of the base with the adapter on 16 probe tokens" in text
    assert f"next tiebeam inspect {tmp_path / 'merged'}".replace(" ", "") in text.replace(" ", "")


def test_the_report_in_the_guide_is_what_the_program_prints(trained: Trained, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "merge.md").read_text()
    (block,) = re.findall(r"```console\n(.*?)```", guide, re.S)
    words = ["merge", str(trained.base), str(trained.adapter), str(tmp_path / "merged"), "--quiet"]
    done = CliRunner().invoke(tiebeam, words, env={"COLUMNS": "120"})
    number = re.compile(r"\d\.\de-\d+")
    assert number.sub("N", done.output).startswith(number.sub("N", block))


def test_a_dry_run_writes_nothing_and_needs_no_target(trained: Trained, tmp_path: Path) -> None:
    before = set(tmp_path.iterdir())
    for words in ([trained.base, trained.adapter], [trained.base, trained.adapter, tmp_path / "merged"]):
        done = run(*words, "--dry-run")
        assert done.exit_code == 0, done.output
        assert "lm_head.weight" in done.output
    assert set(tmp_path.iterdir()) == before


def test_json_has_the_proof_and_the_measured_cost(trained: Trained, tmp_path: Path) -> None:
    done = run(trained.base, trained.adapter, tmp_path / "merged", "--pair", "head", "--json")
    document = json.loads(done.stdout)
    assert document["verb"] == "merge"
    assert document["after"]["tie"] == "shared"
    assert document["proof"]["ran"] is True
    assert document["measured"]["divergence"]["kl"] > 0


def test_the_measured_cost_is_in_the_report(trained: Trained, tmp_path: Path) -> None:
    done = run(trained.base, trained.adapter, tmp_path / "merged", "--pair", "embed", "--quiet")
    assert done.output.startswith("● shared")
    assert "KL" in done.output
    assert "it stays tied with the matrix of the embedding, so the head is not what was trained" in " ".join(
        done.output.split()
    )


def test_weights_are_one_per_adapter(trained: Trained, tmp_path: Path) -> None:
    adapters = [trained.adapter, trained.adapter]
    assert run(trained.base, *adapters, tmp_path / "m", "--weight", 0.5, "--weight", 0.5).exit_code == 0
    assert "2 adapters and 1 weights" in str(run(trained.base, *adapters, tmp_path / "n", "--weight", 1).exception)


@pytest.mark.parametrize("words", [["base"], ["base", "adapter"], []])
def test_missing_arguments_are_a_usage_error(trained: Trained, words: list[str], tmp_path: Path) -> None:
    paths = {"base": trained.base, "adapter": trained.adapter}
    assert run(*(paths[word] for word in words)).exit_code == 2


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"peft_type": "LOHA"}, 2, "type LOHA"),
        ({"r": 64}, 3, "64 by adapter_config.json and 4"),
    ],
)
def test_errors_are_one_sentence_with_an_exit_code(
    change: dict[str, Any], code: int, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = train_adapter(tmp_path, target_modules=["q_proj"])
    config = bad.adapter / "adapter_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(SystemExit) as ended:
        main(["merge", str(bad.base), str(bad.adapter), str(tmp_path / "merged")])
    assert ended.value.code == code
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith("tiebeam: ")
    assert said in message
    assert not (tmp_path / "merged").exists()


def test_an_existing_target_is_not_replaced_without_force(trained: Trained, tmp_path: Path) -> None:
    assert run(trained.base, trained.adapter, tmp_path / "merged").exit_code == 0
    assert run(trained.base, trained.adapter, tmp_path / "merged").exit_code != 0
    assert run(trained.base, trained.adapter, tmp_path / "merged", "--force").exit_code == 0
