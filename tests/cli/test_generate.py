"""`tiebeam generate`: text on standard output, the rest on standard error, one sentence per error."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tiebeam
from helpers.lively_models import lively, save
from helpers.tiny_models import build
from helpers.tiny_tokenizers import write_tokenizer
from tiebeam._visible import visible
from tiebeam.decode import Decoder, open_engine

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
def without_tokenizer(tmp_path_factory):
    return save(lively("gpt2"), tmp_path_factory.mktemp("gpt2"))


@pytest.fixture(scope="module")
def opt(tmp_path_factory):
    """A family that the numpy engine does not have."""
    where = tmp_path_factory.mktemp("opt")
    build("opt", vocab_size=300, eos_token_id=None).save_pretrained(where)
    write_tokenizer(where, size=300)
    return where


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
    assert document["engine"] == "numpy"
    assert set(document["seconds"]) == {"open", "prompt", "new"}


def test_without_a_tokenizer_prompt_and_output_are_ids(run, without_tokenizer):
    code, out, _ = run("generate", without_tokenizer, "--tokens", "3, 1 4", "-n", 5)
    made = [token.id for token in Decoder.open(without_tokenizer).generate([3, 1, 4], 5)]
    assert (code, out) == (0, ",".join(map(str, [3, 1, 4, *made])) + "\n")


def test_top_alone_generates_no_text(run, model, decoder):
    code, out, err = run("generate", model, "hello", "--top", 4)
    best = np.argsort(-decoder.logits(decoder.encode("hello"))[-1])[:4]
    assert (code, err) == (0, "")
    rows = [line.split(maxsplit=2) for line in out.splitlines()]
    assert [int(row[1]) for row in rows] == best.tolist()
    assert all(row[0].endswith("%") for row in rows)
    assert rows[0][2] == repr(decoder.tokenizer.decode([int(best[0])]))


def test_logits_of_all_positions_are_saved(run, model, decoder, tmp_path):
    file = tmp_path / "logits.npy"
    code, out, _ = run("generate", model, "hello world", "--logits", file)
    tokens = decoder.encode("hello world")
    assert (code, out) == (0, f"{file}: float32 [{len(tokens)}, 300]\n")
    np.testing.assert_allclose(np.load(file), decoder.logits(tokens), rtol=0, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["logits.npy"]


def test_a_seed_makes_sampling_repeatable(run, model):
    ask = ("generate", model, "hello", "-n", 12, "--temperature", 1.5, "--top-k", 50, "--top-p", 0.95, "--seed", 4)
    assert run(*ask)[1] == run(*ask)[1]
    assert run(*ask[:-1], 5)[1] != run(*ask)[1]


def test_a_prompt_can_come_from_standard_input(run, model, monkeypatch):
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO("hello world"))
    assert run("generate", model, "-", "-n", 4)[1] == run("generate", model, "hello world", "-n", 4)[1]


def test_a_vocabulary_larger_than_the_tokenizers_gives_a_note(run, without_tokenizer, tmp_path):
    for file in without_tokenizer.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_tokenizer(tmp_path, size=60)
    code, _, err = run("generate", tmp_path, "hello", "-n", 2)
    assert code == 0
    assert "the model has 96 tokens and its tokenizer 60; the 36 without text are never generated\n" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "give a PROMPT, or its ids with --tokens 1,2,3"),
        (["hi", "--tokens", "1"], 2, "give a PROMPT, or its ids with --tokens 1,2,3, not both"),
        ([""], 2, "the prompt is empty; give some text, or a start token with --tokens"),
        (["--tokens", "1,x"], 2, "--tokens takes whole numbers such as 1,2,3; 'x' is not one"),
        (["--tokens", ","], 2, "there are no tokens to run; give at least one"),
        (["--tokens", "1,300"], 2, "token id 300 is outside the vocabulary of 300"),
        (["hi", "-n", "-1"], 2, "n must be 0 or more, not -1"),
        (["hi", "-n", "100"], 2, "are more than the model's context of 64; ask for at most"),
        (["hi", "--top", "0"], 2, "--top is 0; it must be at least 1"),
        (
            ["hi", "--top-k", "5"],
            2,
            "--top-k and --top-p need a temperature above 0; --temperature 0 takes",
        ),
        (["hi", "--temperature", "-2"], 2, "--temperature -2.0 must be 0 (greedy) or above"),
        (["hi", "--temperature", "1", "--top-k", "0"], 2, "--top-k 0 must be at least 1"),
        (["hi", "--seed", "-1"], 2, "--seed -1 must not be negative"),
        (["hi", "--logits", "/nowhere/x.npy"], 3, "/nowhere/x.npy cannot be written: no such file or directory"),
        (["hi", "--head", "nonsense"], 2, "is not in this checkpoint"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_errors_are_one_sentence(run, model, arguments, code, message):
    found, out, err = run("generate", model, *arguments)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_an_architecture_that_numpy_lacks_is_run_by_transformers(run, opt):
    code, out, err = run("generate", opt, "hello", "-n", 4, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["engine"] == "transformers"
    assert document["tokens"] == [token.id for token in open_engine(opt).generate("hello", 4)]
    assert run("generate", opt, "hello", "-n", 4)[1] == visible(f"hello{document['text']}\n", keep="\n\t")


def test_both_engines_print_the_same_text(run, model):
    texts = [run("generate", model, "hello", "-n", 8, "--engine", engine)[1] for engine in ("numpy", "transformers")]
    assert texts[0] == texts[1]


def test_without_transformers_the_missing_extra_is_named(run, opt, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    code, out, err = run("generate", opt, "hello")
    assert (code, out) == (3, "")
    assert "'opt'" in err
    assert "needs the extra [hf]; install it with: pip install 'tiebeam[hf]'" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--engine", "numpy"], 3, "'opt'"),
        (
            ["--engine", "numpy", "--device", "cuda"],
            2,
            "--engine numpy has no --device cuda; use --engine tr",
        ),
        (["--device", "nonsense"], 2, "device 'nonsense' cannot be used"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_engine_or_device_that_cannot_run_the_model_is_refused(run, opt, options, code, message):
    found, out, err = run("generate", opt, "hello", *options)
    assert (found, out) == (code, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_text_prompt_needs_a_tokenizer(run, without_tokenizer):
    code, _, err = run("generate", without_tokenizer, "hello")
    assert code == 3
    assert "has no tokenizer; give the prompt as token ids: --tokens 1,2,3" in err


def test_a_model_that_does_not_exist_is_unreadable_input(run, tmp_path):
    code, _, err = run("generate", tmp_path / "nothing", "hi")
    assert code == 3
    assert "does not exist" in err


@pytest.mark.parametrize(("load", "given", "threads"), [(99.0, None, "1"), (0.0, None, ""), (99.0, "3", "3")])
def test_one_blas_thread_on_a_busy_machine(model, load, given, threads):
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
