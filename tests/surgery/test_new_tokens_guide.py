"""docs/new-tokens.md: its commands and scripts are run, from a base to a GGUF that gives transformers' greedy text."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import transformers

from helpers.transcripts import transcripts
from peers import environments
from tiebeam.checkpoint import open_checkpoint
from tiebeam.inspection import inspect
from tiebeam.pair import Tie
from tiebeam.tokenizer import open_tokenizer

pytestmark = [pytest.mark.peer, pytest.mark.real, pytest.mark.slow]

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "new-tokens.md"
TEXT = "2 + 3 =<think>two and three</think><answer>5"
PEFT_LINES = re.compile(r"^ *config = LoraConfig\(.*?\)$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Road:
    """A directory in which the commands of the page ran, what each of them printed, and what training warned of."""

    where: Path
    printed: dict[str, str]
    warnings: str


def run(command: str, where: Path, status: int = 0) -> tuple[str, str]:
    """What a command prints, and what it writes to stderr."""
    program, *arguments = shlex.split(command)
    done = subprocess.run(
        [sys.executable, *(["-m", "tiebeam"] if program == "tiebeam" else []), *arguments],
        cwd=where, capture_output=True, text=True,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert done.returncode == status, f"{command}\n{done.stdout}\n{done.stderr[-2000:]}"
    return done.stdout, done.stderr


def write_base(where: Path, gguf: Path, tied: bool) -> None:
    """A tiny llama with the tokenizer of SmolLM2, whose pre-tokenizer llama.cpp's converter knows."""
    backend = open_tokenizer(open_checkpoint(gguf)).backend
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|im_start|>", eos_token="<|im_end|>"
    )
    tokenizer.save_pretrained(where)
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, initializer_range=0.2, tie_word_embeddings=tied,
        bos_token_id=tokenizer.bos_token_id, eos_token_id=tokenizer.eos_token_id,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(where)


@pytest.fixture(scope="module", params=["tied", "untied"])
def road(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, smollm2: Path) -> Road:
    source = os.environ.get("LLAMA_CPP") or environments.llama_cpp()
    if not source:
        pytest.skip("no source of llama.cpp: set LLAMA_CPP or fetch it with tests/peers/environments.py")
    where = tmp_path_factory.mktemp(request.param)
    (where / "llama.cpp").symlink_to(source)
    write_base(where / "base", smollm2, request.param == "tied")
    page = PAGE.read_text(encoding="utf-8")
    for name, script in re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL):
        (where / name).write_text(script, encoding="utf-8")
    (commands,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    printed, warnings = {}, {}
    for command in commands.splitlines():
        printed[command], warnings[command] = run(command, where)
        if command.startswith("tiebeam extend"):  # an untied model gets other lines
            (lines,) = PEFT_LINES.findall(printed[command])
            script = (where / "train.py").read_text(encoding="utf-8")
            (shown,) = PEFT_LINES.findall(script)
            trained = script.replace(shown, lines.strip())
            assert (ast.dump(ast.parse(trained)) == ast.dump(ast.parse(script))) is (request.param == "tied")
            (where / "train.py").write_text(trained, encoding="utf-8")
    return Road(where, printed, warnings["python train.py"])


def last(road: Road, start: str) -> str:
    """What the last command that begins so printed."""
    return [text for command, text in road.printed.items() if command.startswith(start)][-1]


def test_the_gguf_gives_the_greedy_text_of_transformers_with_the_new_tokens(road: Road) -> None:
    assert last(road, "python run.py").rstrip() == TEXT
    assert last(road, "tiebeam generate merged.gguf").rstrip() == TEXT
    untrained, _ = run("tiebeam generate extended '2 + 3 =' -n 12", road.where)
    assert not any(token in untrained for token in ("<think>", "</think>", "<answer>"))


def test_the_pair_stays_what_it_was(road: Road) -> None:
    before, after = inspect(road.where / "base"), inspect(road.where / "merged")
    assert after.tie is before.tie
    assert inspect(road.where / "merged.gguf").tie is before.tie


def test_the_transcripts_are_what_the_commands_print(road: Road) -> None:
    if inspect(road.where / "base").tie is Tie.UNTIED:
        pytest.skip("the page shows the tied model")
    shown = transcripts(PAGE)
    assert len(shown) == 4
    for command, expected in shown:
        pattern = ".*".join(re.escape(part) for part in expected.split("…"))
        assert re.fullmatch(pattern, road.printed[command].rstrip(), re.DOTALL), road.printed[command]


def test_a_merge_into_the_base_without_the_tokens_gives_the_same_model(road: Road) -> None:
    run("tiebeam merge base adapter grown --no-proof", road.where)
    for name in ("model.safetensors", "tokenizer.json"):
        assert (road.where / "grown" / name).read_bytes() == (road.where / "merged" / name).read_bytes()


def test_what_the_page_says_of_the_adapter_and_of_peft(road: Road) -> None:
    tied = inspect(road.where / "base").tie is Tie.SHARED
    touched = re.findall(r"single tokens of (\w+)(?:, (\w+))?", " ".join(last(road, "tiebeam doctor adapter").split()))
    assert {name for names in touched for name in names if name} == {"embed_tokens"} | (set() if tied else {"lm_head"})
    assert "no tied modules are added" not in road.warnings


def test_lost_tokens_are_found_as_the_page_says(road: Road) -> None:
    """Rows lost, then text lost: the tokenizer of one model beside the weights of the other."""
    for weights, tokenizer, status, code in (("base", "merged", 1, "TB702"), ("merged", "base", 0, "TB704")):
        shutil.copytree(road.where / weights, road.where / code)
        shutil.copy(road.where / tokenizer / "tokenizer.json", road.where / code)
        found, _ = run(f"tiebeam doctor {code} --json", road.where, status)
        assert [finding["code"] for finding in json.loads(found)["findings"]] == [code]


def test_an_adapter_without_its_tokenizer_is_reported(road: Road) -> None:
    (note,) = re.findall(r"the report says so: `(.*?)`", PAGE.read_text(encoding="utf-8"))
    shutil.copytree(road.where / "adapter", road.where / "bare", ignore=shutil.ignore_patterns("tokenizer*"))
    assert note in run("tiebeam merge base bare textless --no-proof", road.where)[0]
