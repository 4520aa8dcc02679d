"""`tiebeam trim` at the command line: the table of sizes, the report, JSON, dry run, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.trimmable_models import save_trimmable, write_prose

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("trim")
    save_trimmable(where / "m", tie_word_embeddings=True, padding=3)
    write_prose(where)
    return where / "m"


def lines(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_without_a_choice_the_table_is_shown_and_nothing_is_written(run: Run, model: Path) -> None:
    before = sorted(model.parent.iterdir())
    done = run("trim", model, "--text", model.with_name("prose.txt"), "--ladder", "512,300", "--tokens", "100")
    assert done.exit_code == 0
    shown = lines(done.stdout)
    assert shown[0].endswith("BPE tokenizer")
    assert shown[2].startswith("rows parameters saved text covered tokens/byte bits/byte")
    assert shown[3].startswith("704 44.2k - 100.00%")
    assert shown[3].endswith("now")
    assert [line.split()[0] for line in shown[4:6]] == ["512", "300"]
    assert "%)" in shown[5]
    assert "nothing was written; next: tiebeam trim" in shown[-1]
    assert "measuring bits per byte" in done.stderr
    assert sorted(model.parent.iterdir()) == before


def test_the_table_as_json_is_one_document(run: Run, model: Path) -> None:
    done = run("trim", model, "--text", model.with_name("prose.txt"), "--tokens", "0", "--json")
    found = json.loads(done.stdout)
    assert (found["rows"], found["fewest_rows"], found["written"]) == (704, 259, False)
    rungs = found["ladder"]["rungs"]
    assert [rung["rows"] for rung in rungs] == [704, 512]
    assert rungs[1]["bits_per_byte"] is None
    assert rungs[1]["parameters_saved"] == (704 - 512) * 32
    assert rungs[1]["bytes_saved"] == (704 - 512) * 32 * 4


def test_the_report_follows_the_table(run: Run, model: Path, tmp_path: Path) -> None:
    text = model.with_name("prose.txt")
    done = run("trim", model, tmp_path / "x", "--text", text, "--keep", "400", "--ladder", "512", "--tokens", "100",
               "--hot-rows", tmp_path / "map.pt", "--quiet")  # fmt: skip
    assert (done.exit_code, done.stderr) == (0, "")
    shown = lines(done.stdout)
    assert any(line.startswith("400 ") and line.endswith("chosen") for line in shown)
    assert any(line.startswith("● shared x · llama · safetensors") for line in shown)
    assert "config.json vocab_size 704 -> 400" in shown
    assert "tokenizer.json 400 of 701 tokens stay" in shown
    assert "id_map.json new id -> old id" in shown
    assert any("equal to the bit on 64 tokens of text" in line for line in shown)
    assert any("none became unknown" in line for line in shown)
    assert len(torch.load(tmp_path / "map.pt", weights_only=True)) == 400


def test_a_dry_run_writes_nothing(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("trim", model, tmp_path / "x", "--text", model.with_name("prose.txt"), "--coverage", "0.95", "--ladder",
               "none", "--dry-run", "--json")  # fmt: skip
    found = json.loads(done.stdout)
    assert found["dry_run"] is True
    assert found["selection"]["coverage"] >= 0.95
    assert found["ladder"] is None
    assert not (tmp_path / "x").exists()


def test_without_the_proof_only_the_logits_are_not_compared(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("trim", model, tmp_path / "x", "--text", model.with_name("prose.txt"), "--keep", "300", "--ladder",
               "none", "--no-proof")  # fmt: skip
    assert done.exit_code == 0
    assert "verified every unchanged tensor and row, byte for byte" in lines(done.stdout)


def test_hot_rows_need_no_target(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("trim", model, "--text", model.with_name("prose.txt"), "--keep", "300", "--ladder", "none", "--hot-rows",
               tmp_path / "map.pt", "--json")  # fmt: skip
    assert done.exit_code == 0
    assert len(torch.load(tmp_path / "map.pt", weights_only=True)) == 300


def test_everything_kept_is_nothing_to_do(run: Run, tmp_path: Path) -> None:
    save_trimmable(tmp_path / "m", tie_word_embeddings=True)
    text = write_prose(tmp_path)
    done = run("trim", tmp_path / "m", tmp_path / "x", "--text", text, "--keep", "9000", "--ladder", "none")
    assert done.exit_code == 0
    assert lines(done.stdout) == [f"● trimmed all 701 rows of {tmp_path / 'm'} stay", "nothing was written"]


def test_wrong_requests_are_one_sentence(run: Run, model: Path, tmp_path: Path) -> None:
    text, target = model.with_name("prose.txt"), tmp_path / "x"
    for words, said in (
        ([model, target, "--text", text], "choose --keep N or --coverage SHARE"),
        ([model, target, "--text", text, "--keep", "9", "--coverage", "0.9"], "exclude each other"),
        ([model, target, "--keep", "9"], "--text"),
        ([model, target, "--text", text, "--keep", "9"], "--keep 9 is less than the 259 tokens that must stay"),
        ([model, "--text", text, "--ladder", "a,b"], "numbers of rows"),
        ([model, "--text", text, "--ladder", "9"], "259 tokens must stay"),
    ):
        done = run("trim", *words)
        assert done.exit_code == 2, done.stderr
        assert said in done.stderr
    assert run("trim", model, "--text", tmp_path / "absent").exit_code == 3
    assert not target.exists()
