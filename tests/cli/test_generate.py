"""`tiebeam generate`: text on standard output, the rest on standard error, and one sentence for every mistake."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiebeam
from helpers.lively_models import lively, save
from helpers.tiny_tokenizers import write_tokenizer
from tiebeam.decode import Decoder

pytest.importorskip("transformers")

SRC = str(Path(tiebeam.__file__).parent.parent)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    where = save(lively("llama", vocab_size=300, eos_token_id=None), tmp_path_factory.mktemp("llama"))
    write_tokenizer(where, size=300)
    return where


@pytest.fixture(scope="module")
def decoder(model):
    return Decoder.open(model)


@pytest.fixture(scope="module")
def wordless(tmp_path_factory):
    return save(lively("gpt2"), tmp_path_factory.mktemp("gpt2"))


def test_the_prompt_and_its_continuation_are_printed(run, model, decoder):
    code, out, err = run("generate", model, "hello world", "-n", 8)
    text = "".join(token.text for token in decoder.generate("hello world", 8))
    assert (code, out) == (0, f"hello world{text}\n")
    assert err.startswith("8 tokens, ")


def test_json_has_everything_and_nothing_else_is_printed(run, model, decoder):
    code, out, err = run("generate", model, "hello world", "-n", 8, "--top", 3, "--json")
    document = json.loads(out)
    made = list(decoder.generate("hello world", 8))
    assert (code, err) == (0, "")
    assert document["prompt_tokens"] == decoder.encode("hello world")
    assert document["tokens"] == [token.id for token in made]
    assert document["text"] == "".join(token.text for token in made)
    assert document["stopped"] == "length"
    assert document["top"][0]["id"] == made[0].id
    assert set(document["seconds"]) == {"open", "prompt", "new"}


def test_without_a_tokenizer_ids_go_in_and_come_out(run, wordless):
    code, out, _ = run("generate", wordless, "--tokens", "3, 1 4", "-n", 5)
    made = [token.id for token in Decoder.open(wordless).generate([3, 1, 4], 5)]
    assert (code, out) == (0, ",".join(map(str, [3, 1, 4, *made])) + "\n")


def test_the_top_table_alone_makes_no_text(run, model, decoder):
    code, out, err = run("generate", model, "hello", "--top", 4)
    best = np.argsort(-decoder.logits(decoder.encode("hello"))[-1])[:4]
    assert (code, err) == (0, "")
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert [int(row[1]) for row in rows] == best.tolist()
    assert all(row[0].endswith("%") for row in rows)
    assert rows[0][2] == repr(decoder.tokenizer.decode([int(best[0])]))


def test_logits_are_saved_whole(run, model, decoder, tmp_path):
    file = tmp_path / "logits.npy"
    code, out, _ = run("generate", model, "hello world", "--logits", file)
    tokens = decoder.encode("hello world")
    assert (code, out) == (0, f"{file}: float32 [{len(tokens)}, 300]\n")
    np.testing.assert_allclose(np.load(file), decoder.logits(tokens), rtol=0, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["logits.npy"]


def test_a_seed_repeats_a_draw(run, model):
    ask = ("generate", model, "hello", "-n", 12, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--seed", 4)
    assert run(*ask)[1] == run(*ask)[1]
    assert run(*ask[:-1], 5)[1] != run(*ask)[1]


def test_a_prompt_can_come_from_standard_input(run, model, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hello world"))
    assert run("generate", model, "-", "-n", 4)[1] == run("generate", model, "hello world", "-n", 4)[1]


def test_a_vocabulary_larger_than_the_tokenizers_is_one_note(run, wordless, tmp_path):
    for file in wordless.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_tokenizer(tmp_path, size=60)
    code, _, err = run("generate", tmp_path, "hello", "-n", 2)
    assert code == 0
    assert "the model has 96 tokens and its tokenizer 60; the 36 without a spelling are never chosen\n" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give a PROMPT, or its ids with --tokens 1,2,3"),
        (["hi", "--tokens", "1"], 2, "give a PROMPT, or its ids with --tokens 1,2,3, not both"),
        ([""], 2, "the prompt is empty; give it some text, or a start token with --tokens"),
        (["--tokens", "1,x"], 2, "--tokens takes whole numbers, 1,2,3; 'x' is not one"),
        (["--tokens", ","], 2, "there are no tokens to run; give at least one"),
        (["--tokens", "1,300"], 2, "token id 300 is outside the vocabulary of 300"),
        (["hi", "-n", "-1"], 2, "n must be 0 or more, not -1"),
        (["hi", "-n", "100"], 2, "are more than the model's context of 64; ask for at most"),
        (["hi", "--top", "0"], 2, "--top 0 would print nothing"),
        (["hi", "--top-k", "5"], 2, "top-k and top-p need a temperature above 0"),
        (["hi", "--temperature", "-2"], 2, "the temperature must be 0 (greedy) or above; it is -2.0"),
        (["hi", "--logits", "/nowhere/x.npy"], 2, "/nowhere/x.npy cannot be written: No such file or directory"),
        (["hi", "--head", "nonsense"], 2, "is not in this checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_sentence(run, model, arguments, code, message):
    found, out, err = run("generate", model, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_model_that_does_not_exist_is_unreadable_input(run, tmp_path):
    code, _, err = run("generate", tmp_path / "nothing", "hi")
    assert code == 3
    assert "does not exist" in err


@pytest.mark.parametrize(("load", "given", "threads"), [(99.0, None, "1"), (0.0, None, ""), (99.0, "3", "3")])
def test_a_busy_machine_is_shared(model, load, given, threads):
    program = (
        "import os, sys\n"
        f"os.getloadavg = lambda: ({load}, 0, 0)\n"
        "from tiebeam.cli import main\n"
        "main(sys.argv[1:])\n"
        "print(os.environ.get('OPENBLAS_NUM_THREADS', ''))\n"
    )
    settings = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", str(model), "hello", "-n", "1"],
        capture_output=True, text=True,
        env={**settings, "PYTHONPATH": SRC, **({"OPENBLAS_NUM_THREADS": given} if given else {})},
    )  # fmt: skip
    assert done.stdout.splitlines()[-1] == threads


def test_no_torch_is_imported(model):
    program = (
        "import sys\n"
        "from tiebeam.cli import main\n"
        "main(sys.argv[1:])\n"
        "assert not {'torch', 'transformers'} & set(sys.modules), sorted(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "generate", str(model), "hello", "-n", "2"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": SRC},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello")
