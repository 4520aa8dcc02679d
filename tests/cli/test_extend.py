"""`tiebeam extend` at the command line: report, JSON, dry run, files of tokens, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from helpers.models_with_tokenizers import save_with_tokenizer
from tiebeam.cli import main, tiebeam


def run(*words: Any) -> Result:
    return CliRunner().invoke(tiebeam, ["extend", *map(str, words)], catch_exceptions=False)


def failing(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str]:
    """(exit code, what was printed on stderr) of a command that fails."""
    with pytest.raises(SystemExit) as exit:
        main(["extend", *map(str, words)])
    assert isinstance(exit.value.code, int)
    return exit.value.code, capsys.readouterr().err


@pytest.fixture
def model(tmp_path: Path) -> Path:
    save_with_tokenizer(tmp_path / "m", tie_word_embeddings=True)
    return tmp_path / "m"


def test_the_report_names_the_tokens_the_proof_and_the_peft_lines(model: Path) -> None:
    done = run(model, model.with_name("x"), "--token", "<think>", "--token", "</think>", "--quiet")
    assert done.exit_code == 0
    lines = [" ".join(line.split()) for line in done.output.splitlines()]
    assert lines[0].startswith("● shared x · llama · safetensors")
    assert "config.json vocab_size 300 -> 302" in lines
    assert "model.safetensors model.embed_tokens.weight F32 [300, 32] -> [302, 32]" in lines
    assert "tokenizer.json + <think> = 300, </think> = 301" in lines
    verified = "every unchanged tensor and row, byte for byte; logits equal to the bit on 16 probe tokens"
    assert f"verified {verified}" in lines
    assert any(line.startswith("measured the new rows take ") for line in lines)
    assert "'<think>' id 300 in a new row" in lines
    assert lines[-4:] == [
        "from peft import LoraConfig, get_peft_model",
        'config = LoraConfig(target_modules="all-linear",',
        "trainable_token_indices=[300, 301])",
        "model = get_peft_model(model, config)",
    ]
    card = (model.with_name("x") / "README.md").read_text()
    assert "tokenizer.json: + \\<think> = 300, \\</think> = 301" in card


def test_json_is_one_document(model: Path) -> None:
    done = run(model, model.with_name("x"), "--token", "<a>", "--special", "--json")
    document = json.loads(done.stdout)
    assert document["tokens"] == [{"text": "<a>", "id": 300, "special": True, "row": "new"}]
    assert document["rows"] == {"before": 300, "after": 301}
    assert document["proof"]["largest"] == 0
    assert {"probability", "kl", "tokens", "on"} <= document["measured"].keys()
    dry = json.loads(run(model, "--dry-run", "--token", "<a>", "--json").stdout)
    assert dry["dry_run"]
    assert dry["tokens"] == [{"text": "<a>", "id": 300, "special": False, "row": "new"}]


def test_a_dry_run_writes_nothing_and_nothing_to_do_is_fine(model: Path) -> None:
    done = run(model, "--dry-run", "--rows", "320")
    assert "vocab_size 300 -> 320" in done.output
    assert [path.name for path in model.parent.iterdir()] == ["m"]
    done = run(model, model.with_name("x"), "--rows", "300")
    assert done.exit_code == 0
    assert "has 300 rows already" in done.output
    assert not model.with_name("x").exists()


def test_a_file_of_tokens_is_read_line_by_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words, target = model.with_name("words.txt"), model.with_name("x")
    words.write_bytes("<a>\r\nnew token\n  indented\n漢字".encode())
    document = json.loads(run(model, target, "--tokens", words, "--json", "--no-proof").stdout)
    assert [token["text"] for token in document["tokens"]] == ["<a>", "new token", "  indented", "漢字"]
    for text, code, said in (
        ("<b>\n\n<c>\n", 2, "line 2 is empty"),
        ("<b>\n<c>\n<b>\n", 2, "line 3 repeats '<b>' of line 1"),
        ("", 2, "has no tokens"),
    ):
        words.write_text(text)
        assert failing(capsys, model, model.with_name("y"), "--tokens", words)[0] == code
        assert said in failing(capsys, model, model.with_name("y"), "--tokens", words)[1]
    words.write_bytes(b"\xff\xfe")
    code, said = failing(capsys, model, model.with_name("y"), "--tokens", words)
    assert code == 3
    assert "is not UTF-8" in said
    code, said = failing(capsys, model, model.with_name("y"), "--tokens", model.with_name("none.txt"))
    assert code == 3
    assert not model.with_name("y").exists()


def test_errors_are_one_sentence_with_options(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = model.with_name("x")
    for words, said in (
        (["--token", "hello"], "the token 'hello' exists already (id "),
        (["--token", " "], "is empty or only white space"),
        ([], "nothing to add; give tokens, --rows N"),
        (["--token", "<a>", "--init", "zeros"], "--init must be"),
        (["--token", "<a>", "--init", "like:hello world"], '--init "describe:hello world"'),
        (["--rows", "10"], "--rows 10 is less than"),
        (["--repair", "--token", "<a>"], "--repair changes untrained rows only"),
    ):
        code, text = failing(capsys, model, target, *words)
        assert code == 2, text
        assert said in text
        assert len(text.strip().splitlines()) == 1
    assert failing(capsys, model.with_name("none"), target, "--token", "<a>")[0] == 3
    target.mkdir()
    (target / "notes.txt").write_text("mine")
    assert failing(capsys, model, target, "--token", "<a>", "--force")[0] == 2
    assert [path.name for path in target.iterdir()] == ["notes.txt"]


def test_a_warning_above_one_percent(model: Path) -> None:
    done = run(model, model.with_name("x"), "--token", "<a>", "--token", "<b>", "--rows", "360", "--quiet")
    assert "more than 1% of the probability" in " ".join(done.output.split())


def test_a_full_disk_leaves_nothing(model: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands for the full disk; the source is larger than the limit."""
    program = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n"
        "from tiebeam.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    target = tmp_path / "full"
    done = subprocess.run(
        [sys.executable, "-c", program, "extend", str(model), str(target), "--token", "<a>", "--quiet"],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["m"]
