"""`tiebeam doctor` on many models: recursion, lists, results that are resumed, accepted findings, exit codes."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from helpers.building import llama_config, table, write_model
from helpers.hub_server import serve
from helpers.transcripts import is_shown, transcripts
from tiebeam.doctor.examples import head_lora, write_adapter

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def torn(where, seed=0):
    tensors = {EMBED: table(seed), HEAD: table(seed + 1), "model.norm.weight": np.ones(8, np.float32)}
    return write_model(where, tensors, llama_config(tie_word_embeddings=True))


def healthy(where):
    return write_model(where, {EMBED: table(0)}, llama_config(tie_word_embeddings=True))


@pytest.fixture
def zoo(tmp_path, monkeypatch):
    torn(tmp_path / "zoo" / "torn")
    healthy(tmp_path / "zoo" / "healthy")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "zoo"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    from huggingface_hub import constants

    with serve(tmp_path / "repos") as hub:
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr("tiebeam.checkpoint.hub.http_ranges._WAITS", (0.0, 0.0))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("NO_PROXY", "*")
        monkeypatch.chdir(tmp_path)
        torn(hub.root / "org" / "a")
        healthy(hub.root / "org" / "b")
        yield hub


def table_rows(done):
    rows = [line.split() for line in done.stdout.splitlines()]
    start = next(i for i, row in enumerate(rows) if row[:2] == ["model", "tie"])
    return {row[0]: row[1:] for row in rows[start + 1 :] if len(row) == 5}


def test_recursive_lists_an_adapter_as_an_adapter(run, zoo):
    write_adapter(zoo / "lora", head_lora(), tied=True)
    done = run("doctor", "--recursive", "zoo")
    rows = table_rows(done)
    assert rows["zoo/healthy"][0] == "shared"
    assert rows["zoo/torn"][0] == "torn"
    (adapter,) = (row for name, row in rows.items() if "adapter" in name)
    assert adapter[0] == "adapter"


def test_recursive_leaves_out_a_config_of_something_else(run, zoo):
    (zoo / "editor").mkdir()
    (zoo / "editor" / "config.json").write_text('{"theme": "dark"}')
    assert set(table_rows(run("doctor", "--recursive", "zoo"))) == {"zoo/healthy", "zoo/torn"}


def test_recursive_reports_a_model_whose_weights_are_missing(run, zoo):
    (zoo / "torn" / "model.safetensors").unlink()
    done = run("doctor", "--recursive", "zoo")
    assert done.exit_code == 3
    assert table_rows(done)["zoo/torn"][0] == "unreadable"


def test_jobs_do_not_change_the_output(run, zoo):
    for i in range(6):
        torn(zoo / f"m{i}", seed=i)
    one, four = (run("doctor", "--recursive", "zoo", "--json", "--jobs", n) for n in (1, 4))
    assert one.stdout == four.stdout
    assert len(json.loads(one.stdout)) == 8
    assert run("doctor", "zoo/torn", "zoo/healthy", "--jobs", 0).exit_code == 2


def test_baseline_accepts_what_is_there_and_reports_what_is_new(run, zoo):
    accept = ("doctor", "--recursive", "zoo", "--baseline", "accepted.json")
    written = run(*accept, "--write-baseline")
    assert written.exit_code == 0
    assert "accepted by accepted.json: 1 finding of 1 model" in written.stdout
    assert "no new findings, accepted TB101 · torn" in written.stdout
    document = json.loads((zoo.parent / "accepted.json").read_text())
    assert document == {"kind": "tiebeam doctor baseline", "accepted": {"zoo/torn": ["TB101"]}}
    again = run(*accept)
    assert again.exit_code == 0
    assert "TB101 error" not in again.stdout
    torn(zoo / "new")
    third = run(*accept)
    assert third.exit_code == 1
    assert table_rows(third)["zoo/torn"] == ["torn", "0", "0", "0"]
    assert table_rows(third)["zoo/new"] == ["torn", "1", "0", "0"]


def test_baseline_is_the_same_from_every_directory(run, zoo, monkeypatch):
    run("doctor", "--recursive", "zoo", "--baseline", "accepted.json", "--write-baseline")
    before = (zoo.parent / "accepted.json").read_bytes()
    monkeypatch.chdir(zoo / "torn")
    assert run("doctor", "--baseline", "../../accepted.json").exit_code == 0
    run("doctor", "--recursive", zoo, "--baseline", zoo.parent / "accepted.json", "--write-baseline")
    assert (zoo.parent / "accepted.json").read_bytes() == before


def test_baseline_in_json_sarif_and_annotations(run, zoo):
    accept = ("doctor", "zoo/torn", "--baseline", "accepted.json")
    run(*accept, "--write-baseline")
    document = json.loads(run(*accept, "--json").stdout)
    assert (document["findings"], document["accepted"]) == ([], ["TB101"])
    assert json.loads(run(*accept, "--format", "sarif").stdout)["runs"][0]["results"] == []
    assert run(*accept, "--format", "github").stdout == ""


def test_baseline_that_is_missing_or_something_else(run, zoo):
    missing = run("doctor", "zoo/torn", "--baseline", "accepted.json")
    assert missing.exit_code == 3
    assert "write it first with --write-baseline" in missing.stderr
    (zoo.parent / "package.json").write_text("{}")
    other = run("doctor", "zoo/torn", "--baseline", "package.json", "--write-baseline")
    assert other.exit_code == 2
    assert (zoo.parent / "package.json").read_text() == "{}"
    assert run("doctor", "zoo/torn", "--write-baseline").exit_code == 2


@pytest.mark.parametrize(("level", "code"), [("error", 0), ("warning", 1), ("note", 1), ("never", 0)])
def test_fail_on_sets_the_severity_that_fails(run, tmp_path, level, code):
    """A stored twin of a tied model is a warning."""
    where = write_model(tmp_path / "m", {EMBED: table(0), HEAD: table(0)}, llama_config(tie_word_embeddings=True))
    assert [f["severity"] for f in json.loads(run("doctor", where, "--json").stdout)["findings"]] == ["warning"]
    assert run("doctor", where, "--fail-on", level).exit_code == code


def test_fail_on_never_keeps_the_exit_code_of_an_unreadable_model(run, zoo):
    assert run("doctor", "zoo/torn", "--fail-on", "never").exit_code == 0
    assert run("doctor", "zoo/torn", "zoo/nothing.gguf", "--fail-on", "never").exit_code == 3


def test_fleet_from_a_file_is_written_line_by_line_and_resumed(run, hub, tmp_path):
    (tmp_path / "ids.txt").write_text("# our models\norg/a\n\norg/b\norg/missing\norg/a\n")
    fleet = ("doctor", "--from-file", "ids.txt", "--jsonl", "results.jsonl", "--jobs", "2")
    done = run(*fleet)
    assert done.exit_code == 1
    assert {name: row[0] for name, row in table_rows(done).items()} == {
        "org/a": "torn", "org/b": "shared", "org/missing": "unreadable"
    }  # fmt: skip
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == ["org/a", "org/b", "org/missing"]
    assert lines[0]["findings"][0]["code"] == "TB101"
    assert "there is no model org/missing" in lines[2]["error"]

    seen = len(hub.front.asked("org/a"))
    healthy(hub.root / "org" / "missing")  # it was uploaded meanwhile
    again = run(*fleet)
    assert "2 of 3 models are in results.jsonl already" in again.stderr
    assert len(hub.front.asked("org/a")) == seen
    assert table_rows(again)["org/missing"][0] == "shared"
    assert again.exit_code == 1  # of the finding that the first run wrote
    documents = json.loads(run(*fleet, "--json").stdout)
    assert [document["id"] for document in documents] == ["org/a", "org/b", "org/missing"]


def test_resume_after_a_kill_in_the_middle_of_a_line(run, hub, tmp_path):
    (tmp_path / "ids.txt").write_text("org/a\norg/b\n")
    fleet = ("doctor", "--from-file", "ids.txt", "--jsonl", "results.jsonl")
    run(*fleet)
    whole = (tmp_path / "results.jsonl").read_bytes()
    (tmp_path / "results.jsonl").write_bytes(whole[:-30])
    assert "1 of 2 models" in run(*fleet).stderr
    assert (tmp_path / "results.jsonl").read_bytes() == whole


def test_results_are_not_appended_to_a_file_of_something_else(run, hub, tmp_path):
    (tmp_path / "ids.txt").write_text("org/a\n")
    for text in ("notes\n", "notes", '{"a": 1}\n', "[]\n"):
        (tmp_path / "notes.jsonl").write_text(text)
        done = run("doctor", "--from-file", "ids.txt", "--jsonl", "notes.jsonl")
        assert done.exit_code == 2
        assert "name another file" in done.stderr
        assert (tmp_path / "notes.jsonl").read_text() == text


def test_list_without_models_or_that_is_missing(run, tmp_path):
    (tmp_path / "ids.txt").write_text("# nothing\n")
    assert "lists no models" in run("doctor", "--from-file", tmp_path / "ids.txt").stderr
    assert run("doctor", "--from-file", tmp_path / "nothing.txt").exit_code == 3
    assert run("doctor", "--from-file", "x", "--jsonl", "y", "--format", "sarif").exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script_for_a_shell(shell, monkeypatch, capsys):
    """What docs/ci.md tells people to put into their shell's start-up file."""
    from tiebeam.cli import tiebeam

    monkeypatch.setenv("_TIEBEAM_COMPLETE", f"{shell}_source")
    with pytest.raises(SystemExit) as stop:
        tiebeam.main([], prog_name="tiebeam")
    assert not stop.value.code
    assert "_TIEBEAM_COMPLETE" in capsys.readouterr().out


def test_completion_lists_verbs_and_options(monkeypatch, capsys):
    from tiebeam.cli import main

    monkeypatch.setenv("_TIEBEAM_COMPLETE", "bash_complete")
    for words, index, expected in (("tiebeam do", "1", "doctor"), ("tiebeam doctor --rec", "2", "--recursive")):
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", index)
        with pytest.raises(SystemExit):
            main([])
        assert expected in capsys.readouterr().out


def test_the_transcript_in_the_ci_guide_is_what_the_program_prints(run, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "ci.md"
    monkeypatch.chdir(tmp_path)
    torn(tmp_path / "zoo" / "torn")
    healthy(tmp_path / "zoo" / "fine")
    for command, expected in transcripts(page):
        shown = run(*shlex.split(command)[1:]).stdout
        assert is_shown(expected, "\n".join(line.rstrip() for line in shown.splitlines()).rstrip()), shown
        torn(tmp_path / "zoo" / "new")  # between the two commands someone adds a model
