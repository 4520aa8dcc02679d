"""`tiebeam inspect MODEL [--json]` runs without click: it prints and exits as click's path does, its slow twin."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiebeam
import tiebeam.cli.inspect
from helpers.building import llama_config, table, write_model
from tiebeam.cli import main
from tiebeam.cli.verbs import run as run_with_click

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SRC = str(Path(tiebeam.__file__).parent.parent)


@pytest.fixture
def models(tmp_path, monkeypatch):
    """Models and files with every outcome: tied, untied, with findings, with a note, unreadable, missing."""
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "tied", {EMBED: table(0)}, llama_config(tie_word_embeddings=True))
    write_model(tmp_path / "untied", {EMBED: table(0), HEAD: table(1)}, llama_config(tie_word_embeddings=False))
    write_model(tmp_path / "torn", {EMBED: table(0), HEAD: table(1)}, llama_config(tie_word_embeddings=True))
    write_model(tmp_path / "unknown", {"a": table(0), "b": table(1), "c": table(2)}, {"model_type": "new"})
    (tmp_path / "garbage.safetensors").write_bytes(b"garbage that is no header")
    (tmp_path / "empty").mkdir()


def outcome(call, arguments, capsys):
    try:
        code = call(list(arguments)) or 0
    except SystemExit as stop:
        code = stop.code
    return code, *capsys.readouterr()


MODELS = ["tied", "untied", "torn", "unknown", "garbage.safetensors", "empty", "missing", "no/such/path", "", "\x1b[2J"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_both_paths_print_and_exit_the_same(models, capsys, monkeypatch, model, options):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for arguments in (["inspect", model, *options], ["inspect", *options, model]):
        expected = outcome(run_with_click, arguments, capsys)
        assert outcome(main, arguments, capsys) == expected
    assert expected[1] or expected[2]


@pytest.mark.parametrize(
    "arguments",
    [
        *(["inspect"], ["inspect", "--json"], ["inspect", "--json", "--json"], ["inspect", "tied", "untied"]),
        *(["inspect", "--help"], ["inspect", "tied", "--help"], ["inspect", "--", "tied"], ["inspect", "-x"]),
        *(["inspect", "tied", "--json", "--json"], ["inspect", "tied", "--embed", EMBED], ["inspect", "tied", "--jso"]),
        *([], ["inspcet", "tied"], ["--version"]),
    ],
)
def test_unusual_arguments_are_left_to_click(models, capsys, monkeypatch, arguments):
    expected = outcome(run_with_click, arguments, capsys)
    assert tiebeam.cli.inspect.command  # has imported `show`: only `main` meets what replaces it here
    monkeypatch.setattr("tiebeam.cli.inspect_report.show", None)
    assert outcome(main, arguments, capsys) == expected


@pytest.mark.parametrize("error", [KeyboardInterrupt(), BrokenPipeError(32, "Broken pipe"), OSError(5, "I/O error")])
def test_an_interrupted_command_ends_the_same(models, capsys, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("tiebeam.doctor.diagnose", fail)
    streams = sys.stdout, sys.stderr  # click replaces them after a broken pipe
    ends = []
    for call in (run_with_click, main):
        ends.append(outcome(call, ["inspect", "tied"], capsys))
        sys.stdout, sys.stderr = streams
    assert ends[0] == ends[1]
    assert ends[0][0] == {KeyboardInterrupt: 130, BrokenPipeError: 1, OSError: 3}[type(error)]


def test_a_bug_is_raised_as_it_is(models, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr("tiebeam.doctor.diagnose", fail)
    with pytest.raises(ZeroDivisionError):
        main(["inspect", "tied"])


PROGRAMS = {"click": "import sys; from tiebeam.cli.verbs import run; run(sys.argv[1:])",
            "short": "from tiebeam.cli import main; main()"}  # fmt: skip


@pytest.mark.parametrize("environment", [{}, {"NO_COLOR": "1"}, {"FORCE_COLOR": "1"}, {"COLUMNS": "60"},
                                         {"PYTHONIOENCODING": "ascii"}])  # fmt: skip
@pytest.mark.parametrize("model", ["torn", "garbage.safetensors"])
def test_both_paths_honour_the_environment(models, model, environment):
    ends = []
    for program in PROGRAMS.values():
        done = subprocess.run([sys.executable, "-c", program, "inspect", model], capture_output=True,
                              env={**os.environ, "PYTHONPATH": SRC, **environment})  # fmt: skip
        ends.append((done.returncode, done.stdout, done.stderr))
    assert ends[0] == ends[1]


def test_the_short_path_imports_no_click(models):
    program = PROGRAMS["short"] + "; import sys; print('click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program, "inspect", "tied"], capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": SRC}, check=True)  # fmt: skip
    assert done.stdout.splitlines()[-1] == "False"
