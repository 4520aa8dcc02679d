"""`tiebeam train`, `pack` and `unpack` from the command line: options, messages, and the commands they suggest."""

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click import Context
from click.testing import CliRunner, Result

from helpers.small_corpus import small_corpus
from tiebeam.cli import tiebeam as program
from tiebeam.cli.option_names import to_options
from tiebeam.corpus import Corpus
from tiebeam.errors import TiebeamError
from tiebeam.train import LearningRates, RunDirectory

SMALL = ["--layers=1", "--dim=16", "--heads=2", "--kv-heads=1", "--mlp-dim=32", "--context=16", "--batch-tokens=64",
         "--threads=1", "--device=cpu"]  # fmt: skip


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return small_corpus(tmp_path_factory)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(program, list(arguments), catch_exceptions=True)


def message_of(found: Result, verb: str = "train") -> str:
    """The error as the command line prints it."""
    assert isinstance(found.exception, TiebeamError)
    return to_options(str(found.exception), program.get_command(Context(program), verb))


def trained(corpus: Corpus, out: Path, *arguments: str) -> Result:
    found = call("train", str(corpus.path), *SMALL, "--quiet", "--out", str(out), *arguments)
    assert found.exit_code == 0, found.output
    return found


def rates_of(out: Path) -> dict[str, Any]:
    rates: dict[str, Any] = RunDirectory.open(out).read_run()["settings"]["rates"]
    return rates


@pytest.mark.parametrize("option", ["--lr-scale", "--rate-scale"])
def test_both_spellings_scale_every_learning_rate(corpus: Corpus, tmp_path: Path, option: str) -> None:
    trained(corpus, tmp_path / "run", "--steps=1", f"{option}=0.5")
    expected = LearningRates.of("standard", 32).scaled(0.5)
    assert rates_of(tmp_path / "run") == json.loads(json.dumps(expected.to_dict()))


def test_learning_rates_are_set_by_role(corpus: Corpus, tmp_path: Path) -> None:
    trained(corpus, tmp_path / "tied", "--steps=1", "--embedding-lr=0.011", "--matrix-lr=0.012")
    tied = rates_of(tmp_path / "tied")
    assert (tied["table"], tied["matrices"], tied["embed"]) == (0.011, 0.012, LearningRates.of("standard", 32).embed)
    trained(corpus, tmp_path / "untied", "--steps=1", "--tie=no", "--embedding-lr=0.013", "--head-lr=0.014")
    untied = rates_of(tmp_path / "untied")
    assert (untied["embed"], untied["head"], untied["table"]) == (0.013, 0.014, LearningRates.of("standard", 32).table)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps=0"], "--steps must be at least 1, not 0"),
        (["--minutes=0"], "--minutes must be above 0, not 0.0"),
        (["--steps=2", "--zero-head"], "--zero-head is for an untied head, and this one starts tied; drop one of them"),
        (["--steps=2", "--tie=no", "--input-grad-scale=2"],
         "--input-grad-scale 2.0 is for a tied embedding; an untied one has its own learning rate"),
        (["--steps=2", "--tie=maybe"], "--tie maybe is not supported; use yes, no, or a fraction such as 0.67"),
        (["--steps=2", "--head-lr=1"], "--head-lr is for an untied head; use --embedding-lr, or --tie no"),
        (["--steps=2", "--optimizer=adamw", "--matrix-lr=1"],
         "--matrix-lr is not supported by --optimizer adamw; use --lr-scale"),
        (["--steps=2", "--device=toaster"], "--device toaster is not a device; use auto, cpu, cuda, mps or cuda:1"),
    ],
)  # fmt: skip
def test_errors_name_options(corpus: Corpus, tmp_path: Path, arguments: list[str], message: str) -> None:
    found = call("train", str(corpus.path), *SMALL, "--out", str(tmp_path / "run"), *arguments)
    assert message_of(found) == message
    assert not (tmp_path / "run").exists()


def test_an_existing_run_suggests_resume_and_force(corpus: Corpus, tmp_path: Path) -> None:
    trained(corpus, tmp_path / "run", "--steps=1")
    found = call("train", str(corpus.path), *SMALL, "--steps=1", "--out", str(tmp_path / "run"))
    assert message_of(found).endswith("already holds a run; pass --resume to resume it, or --force to replace it")
    found = call("train", "--resume", "--out", str(tmp_path / "run"))
    assert message_of(found).endswith("is finished after 1 steps; give more --steps or --minutes")


def test_a_diverged_run_suggests_options(corpus: Corpus, tmp_path: Path) -> None:
    found = call("train", str(corpus.path), *SMALL, "--steps=40", "--lr-scale=1e30", "--out", str(tmp_path / "run"))
    advice = "lower the learning rates (--lr-scale 0.5) or use a longer warmup (--warmup-steps 50)"
    assert advice in message_of(found)


def test_the_suggested_command_continues_the_held_out_text(corpus: Corpus, tmp_path: Path) -> None:
    out = tmp_path / "my run"
    shown = trained(corpus, out, "--steps=1").stdout.replace("\n", " ")
    program_name, *suggested = shlex.split(shown.partition("next: ")[2])
    assert program_name == "tiebeam"
    assert suggested[:2] == ["generate", str(out)]
    held_out = corpus.tokenizer.decode([int(token) for token in corpus.val[:512]])
    assert suggested[2] in " ".join(held_out.split())
    assert suggested[2].replace(" ", "").isalpha()  # plain words, no quotes and numbers
    assert call(*suggested, "--new", "2").exit_code == 0


def test_the_log_names_peak_learning_rates_the_time_left_and_one_held_out_set(corpus: Corpus, tmp_path: Path) -> None:
    found = call("train", str(corpus.path), *SMALL, "--steps=20", "--out", str(tmp_path / "run"))
    lines = found.stderr.splitlines()
    start = "training for 20 steps, 64 tokens per step; peak learning rates embedding 0.05, matrices 0.03, scalars 0.03"
    assert start in lines
    assert "left" in next(line for line in lines if line.startswith("step      1 "))
    checks = [record for record in RunDirectory.open(tmp_path / "run").metrics() if "val_bpb" in record]
    assert len({record["val_tokens"] for record in checks if "full" not in record}) == 1
    assert sum("held-out" in line for line in lines) == len(checks)
    assert "peak embedding 0.05" in found.stdout
    adamw = call("train", str(corpus.path), *SMALL, "--steps=1", "--optimizer=adamw", "--out", str(tmp_path / "adamw"))
    assert "peak learning rates 0.003 for all" in adamw.stderr


@pytest.mark.parametrize("limit", ["16MB", "16_000_000", "16,000 kb", "0.016 GB"])
def test_limits_are_sizes(corpus: Corpus, tmp_path: Path, limit: str) -> None:
    trained(corpus, tmp_path / "run", "--steps=1")
    found = call("pack", str(tmp_path / "run"), "--limit", limit, "--json")
    assert found.exit_code == 0, found.output
    assert json.loads(found.stdout)["limit"] == 16_000_000
    refused = call("pack", str(tmp_path / "run"), "--limit", "lots", "--force")
    assert "--limit: 'lots' is not a size" in str(refused.exception)


def test_unpack_replaces_a_checkpoint_only_with_force(corpus: Corpus, tmp_path: Path) -> None:
    trained(corpus, tmp_path / "run", "--steps=1")
    assert call("pack", str(tmp_path / "run")).exit_code == 0
    unpack = ["unpack", str(tmp_path / "run.tbp"), str(tmp_path / "back")]
    assert call(*unpack).exit_code == 0
    assert "--force" in message_of(call(*unpack), "unpack")
    assert call(*unpack, "--force").exit_code == 0
    assert not list(tmp_path.glob(".*"))  # no staging directory is left


def test_importing_train_and_nn_imports_neither_torch_nor_mlx() -> None:
    code = "import sys, tiebeam.train, tiebeam.nn; print(sorted({'torch', 'mlx'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
