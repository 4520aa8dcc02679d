"""`tiebeam inspect`: text, JSON, exit codes; the verbs overview and `help`."""

import json
import os
import re
import subprocess
import sys

import click
import numpy as np
import pytest

import tiebeam
from helpers.building import VOCAB, llama_config, table, write_model
from tiebeam.cli import GROUPS, VERBS
from tiebeam.cli.option_names import to_options
from tiebeam.doctor.examples import write_vocab

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def model(tmp_path):
    def write(name="m", embed=0, head=1, tied=False):
        tensors = {"model.norm.weight": np.ones(8, np.float32)}
        if embed is not None:
            tensors[EMBED] = table(embed)
        if head is not None:
            tensors[HEAD] = table(head)
        return str(write_model(tmp_path / name, tensors, llama_config(tie_word_embeddings=tied)))

    return write


def test_verdict_is_on_the_first_line(run, model):
    done = run("inspect", model())
    assert done.exit_code == 0
    verdict, facts, *rest = done.stdout.splitlines()
    assert verdict.startswith("● untied  m · llama · safetensors")
    assert facts == "  declared untied (config.json: tie_word_embeddings) · stored twice · different"
    assert any(line.split()[0] == "embedding" and EMBED in line for line in rest)
    assert any(line.split() == ["vocabulary", "640,", "separate", "(320", "if", "tied)"] for line in rest)
    assert any(line.split()[0] == "total" for line in rest)


def test_tied_model_says_what_untying_would_cost(run, model):
    out = run("inspect", model(head=None, tied=True)).stdout
    assert "320, shared (640 if untied)" in out


def test_text_is_that_of_the_library(run, model):
    where = model(head=None, tied=True)
    assert run("inspect", where).stdout.rstrip("\n") == str(tiebeam.inspect(where))


@pytest.mark.parametrize(("arguments", "colour"), [({"head": None, "tied": True}, "42;134;200"), ({}, "0;158;115"),
                                                   ({"tied": True}, "1;31")])  # fmt: skip
def test_healthy_states_are_neither_yellow_nor_red(model, arguments, colour):
    # A process of its own: rich keeps the escape codes of a style from whichever terminal it saw first.
    environment = {**os.environ, "FORCE_COLOR": "1", "COLORTERM": "truecolor", "TERM": "xterm-256color"}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "tiebeam", "inspect", str(model(**arguments))]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert re.match(rf"\x1b\[(38;2;)?{colour}m● ", shown)


def test_report_fits_on_half_a_screen(run, model):
    assert len(run("inspect", model()).stdout.splitlines()) <= 12


def test_json_is_one_document_with_the_documented_keys(run, model):
    done = run("inspect", model(tied=True, head=None), "--json")
    document = json.loads(done.stdout)
    assert document["tie"] == "shared"
    assert document["head"] is None
    assert set(document) >= {
        "model", "format", "architecture", "tie", "declared", "declared_by", "stored", "equal", "embed", "head",
        "params", "findings",
    }  # fmt: skip
    assert set(document["params"]) >= {
        "total", "stored", "trunk", "embed", "head", "tied_total", "untied_total", "saved_by_tying", "head_share",
    }  # fmt: skip


def test_findings_are_listed_with_the_next_command(run, model):
    done = run("inspect", model(tied=True))
    assert done.exit_code == 0  # only `doctor` exits 1
    assert "TB101" in done.stdout
    assert "tiebeam doctor" in done.stdout
    assert json.loads(run("inspect", model(tied=True), "--json").stdout)["findings"][0]["code"] == "TB101"


def test_unreadable_input_is_one_sentence_and_exit_3(run, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"garbage that is no header")
    done = run("inspect", str(tmp_path / "m.safetensors"))
    assert done.exit_code == 3
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tiebeam: ")


def test_wrong_usage_is_exit_2(run, model):
    assert run("inspect", model(), "--nonsense").exit_code == 2
    assert run("inspect").exit_code == 2
    assert run("inspect", model(), "--embed", "model.embed_tokns.weight").exit_code == 2


def test_unknown_verb_suggests_a_similar_one(run):
    done = run("inspcet", "x")
    assert done.exit_code == 2
    assert "did you mean 'inspect'" in done.stderr


def test_help_groups_the_verbs(run):
    out = run("--help").stdout
    headings = re.findall(r"^(\w+):$", out, re.M)
    assert headings == ["Options", "Look", "Change", "Run", "Train", "Studio"]
    assert list(GROUPS["Look"]) == ["inspect", "doctor", "plan", "models", "lens"]
    assert re.findall(r"^  ([a-z]+)  ", out, re.M) == list(VERBS)


def test_help_verb_prints_what_the_help_option_prints(run):
    assert run("help") == run("--help")
    for verb in ("plan", "inspect"):
        assert run("help", verb) == run(verb, "--help")


def test_help_of_an_unknown_verb_is_exit_2(run):
    done = run("help", "plam")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "did you mean 'plan'" in done.stderr


@click.command()
@click.option("--force", is_flag=True)
@click.option("--no-proof", is_flag=True)
@click.option("--keep")
@click.option("--exact-rows", type=int)
def example() -> None: ...


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("DST exists; pass force=True to replace it", "DST exists; pass --force to replace it"),
        ("choose keep=\"head\" or keep='mean'", "choose --keep head or --keep mean"),
        ("skip it with proof=False", "skip it with --no-proof"),
        ('keep="two words"', '--keep "two words"'),
        ("use exact_rows=64, not 65", "use --exact-rows 64, not 65"),
        ("embed='wte.weight' is not an option here", "embed='wte.weight' is not an option here"),
        ("keep must be one of embed, head", "--keep must be one of embed, head"),
        ("force=False has no option", "force=False has no option"),
        ("tie_word_embeddings=true, a=b and 2=3", "tie_word_embeddings=true, a=b and 2=3"),
    ],
)
def test_python_arguments_become_options(message, expected):
    assert to_options(message, example) == expected
    assert to_options(message, None) == message


def test_library_errors_name_the_options_of_the_verb(run, tmp_path):
    where = write_model(tmp_path / "m", {EMBED: table()}, llama_config())
    done = run("inspect", where, "--embed", "nothing")
    assert done.exit_code == 2
    assert "--embed nothing" in done.stderr
    with pytest.raises(tiebeam.TiebeamError, match='embed="nothing"'):
        tiebeam.inspect(where, embed="nothing")


def test_the_four_numbers_are_shown_together(run, tmp_path):
    where = write_model(tmp_path / "m", {EMBED: table()}, llama_config(vocab_size=5000, tie_word_embeddings=True))
    write_vocab(where, VOCAB - 2)
    done = run("inspect", where)
    assert done.exit_code == 0
    assert f"ids and rows   tokenizer {VOCAB - 2} · vocab_size 5,000 · embedding {VOCAB} · head {VOCAB}" in done.stdout
    assert "TB703 error" in done.stdout
    document = json.loads(run("inspect", where, "--json").stdout)
    assert document["vocabulary"] == {
        "tokenizer_ids": VOCAB - 2, "vocab_size": 5000, "embed_rows": VOCAB, "head_rows": VOCAB, "padding_rows": 2,
    }  # fmt: skip
    assert [t["name"] for t in document["vocabulary_tensors"]] == [EMBED]
