"""`tiebeam doctor` for people, programs and CI."""

import json
import re

import numpy as np
import pytest

from helpers.building import llama_config, table, write_model
from tiebeam.doctor import RULES

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture
def torn(tmp_path):
    tensors = {EMBED: table(0), HEAD: table(1), "model.norm.weight": np.ones(8, np.float32)}
    return write_model(tmp_path / "zoo" / "torn", tensors, llama_config(tie_word_embeddings=True))


@pytest.fixture
def healthy(tmp_path):
    tensors = {EMBED: table(0), "model.norm.weight": np.ones(8, np.float32)}
    return write_model(tmp_path / "zoo" / "healthy", tensors, llama_config(tie_word_embeddings=True))


def test_a_finding_has_evidence_cause_and_fix_and_exit_code_1(run, torn):
    done = run("doctor", str(torn))
    assert done.exit_code == 1
    for word in (
        "TB101 error",
        "evidence",
        "cause",
        "fix",
        "what each loader will do",
        "vLLM",
        "drops the stored head",
    ):
        assert word in done.stdout


def test_a_healthy_model_is_reported_on_the_first_line(run, healthy):
    done = run("doctor", str(healthy))
    assert done.exit_code == 0
    assert done.stdout.startswith("healthy: no findings · healthy · llama")


def test_the_verdict_is_on_the_first_line_and_the_fix_is_a_command_that_runs(run, torn):
    lines = run("doctor", str(torn)).stdout.splitlines()
    assert lines[0].startswith("1 error · torn · llama")
    command = next(line.strip() for line in lines if line.strip().startswith("tiebeam doctor"))
    assert command == f"tiebeam doctor {torn} --fix --out {torn}-fixed"
    assert run(*command.split()[1:]).stdout.startswith(f"fixed: {torn}-fixed is untied · torn")
    assert run("doctor", f"{torn}-fixed").exit_code == 0


def in_colour(monkeypatch):
    """Always the same colour system: rich keeps the codes of a style that it rendered once."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in (("FORCE_COLOR", "1"), ("COLORTERM", "truecolor"), ("TERM", "xterm-256color")):
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_verdict_is_neither_yellow_nor_red(run, tmp_path, monkeypatch, tied):
    """Untied but equal is a note, and a note does not make a model unhealthy."""
    in_colour(monkeypatch)
    pair = {EMBED: table(0)} if tied else {EMBED: table(0), HEAD: table(0)}
    where = write_model(tmp_path / "m", pair, llama_config(tie_word_embeddings=tied))
    first = run("doctor", str(where)).stdout.splitlines()[0]
    assert "\x1b[1;32mhealthy: " in first
    assert "\x1b[1;33m" not in first
    assert "\x1b[1;31m" not in first


def test_an_adapter_without_a_base_shows_what_it_touches_and_names_the_option(run, tmp_path):
    from tiebeam.doctor.examples import head_lora, write_adapter

    adapter = write_adapter(tmp_path, head_lora(), tied=True, base_model_name_or_path=None)
    done = run("doctor", str(adapter))
    assert done.exit_code == 0
    assert done.stdout.startswith("no verdict without the base")
    assert "LoRA of rank 2 on lm_head" in done.stdout
    assert "pass --base MODEL" in done.stdout


def test_the_next_command_is_last_and_runs(run, torn, healthy):
    lines = run("doctor", str(torn)).stdout.rstrip().splitlines()
    assert lines[-1] == f"  next: tiebeam doctor {torn} --fix --out {torn}-fixed"
    assert run(*lines[-1].split()[2:]).exit_code == 0
    assert "next:" not in run("doctor", str(healthy)).stdout
    planned = run("doctor", str(torn), "--fix").stdout.rstrip().splitlines()
    assert planned[-1] == lines[-1]


def test_a_report_with_one_finding_fits_half_a_screen(run, torn, healthy):
    """25 lines of a screen of 50; a healthy one is shorter."""
    assert len(run("doctor", str(torn)).stdout.splitlines()) <= 25
    assert len(run("doctor", str(healthy)).stdout.splitlines()) <= 15


def test_a_twin_that_is_declared_untied_is_neither_yellow_nor_red(run, tmp_path, monkeypatch):
    """In `inspect` and in every line of the doctor: it is only a note."""
    in_colour(monkeypatch)
    pair = {EMBED: table(0), HEAD: table(0)}
    where = write_model(tmp_path / "m", pair, llama_config(tie_word_embeddings=False))
    for verb in ("inspect", "doctor"):
        shown = run(verb, str(where)).stdout
        assert re.search(r"\x1b\[(38;2;)?0;158;115m● twin", shown)
        assert not re.search(r"\x1b\[(1;)?3[13]m", shown)


def test_a_dry_run_shows_exactly_what_would_change_and_writes_nothing(run, torn):
    before = {p.name: p.read_bytes() for p in torn.iterdir()}
    done = run("doctor", str(torn), "--fix")
    assert done.exit_code == 1
    assert "tie_word_embeddings" in done.stdout
    assert "--out" in done.stdout
    assert {p.name: p.read_bytes() for p in torn.iterdir()} == before


def test_fix_writes_the_fixed_model_and_refuses_to_overwrite(run, torn, tmp_path):
    target = str(tmp_path / "fixed")
    assert run("doctor", str(torn), "--fix", "--out", target).exit_code == 0
    assert run("doctor", target).exit_code == 0
    again = run("doctor", str(torn), "--fix", "--out", target)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert run("doctor", str(torn), "--fix", "--out", target, "--force").exit_code == 0


def test_several_models_end_in_a_table(run, torn, healthy):
    done = run("doctor", str(torn), str(healthy))
    assert done.exit_code == 1
    rows = [line.split() for line in done.stdout.splitlines()[-3:]]
    assert rows[0] == ["model", "tie", "errors", "warnings", "notes"]
    assert rows[1][1:3] == ["torn", "1"]
    assert rows[2][1:3] == ["shared", "0"]


def test_recursive_finds_every_model_and_continues_after_an_unreadable_one(run, torn, healthy):
    broken = torn.parent / "broken"
    broken.mkdir()
    (broken / "model.safetensors").write_bytes(b"nonsense")
    done = run("doctor", "--recursive", str(torn.parent), "--json")
    documents = json.loads(done.stdout)
    assert len(documents) == 3
    assert sum("error" in d for d in documents) == 1
    assert done.exit_code == 1


def test_sarif_names_the_rule_and_the_file(run, torn):
    document = json.loads(run("doctor", str(torn), "--format", "sarif").stdout)
    assert document["version"] == "2.1.0"
    (result,) = document["runs"][0]["results"]
    assert result["ruleId"] == "TB101"
    assert result["level"] == "error"
    assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("torn/config.json")
    assert document["runs"][0]["tool"]["driver"]["rules"][0]["id"] == "TB101"


def test_github_annotations_are_one_line_each(run, torn):
    (line,) = run("doctor", str(torn), "--format", "github").stdout.splitlines()
    assert line.startswith("::error file=")
    assert "title=TB101 " in line


def test_every_code_can_be_listed_and_explained(run):
    listed = run("doctor", "--list").stdout
    assert all(code in listed for code in RULES)
    done = run("doctor", "--explain", "tb101")
    assert done.exit_code == 0
    assert "## Cause" in done.stdout
    assert run("doctor", "--explain", "TB999").exit_code == 2


def test_an_adapter_is_diagnosed_beside_its_base(run, tmp_path):
    import peft

    from helpers.tiny_models import build

    base = build("llama", tie_word_embeddings=True)
    base.save_pretrained(tmp_path / "base")
    base.name_or_path = str(tmp_path / "base")  # what a base that was loaded from disk carries
    config = peft.LoraConfig(r=2, target_modules=["lm_head"])
    peft.get_peft_model(base, config).save_pretrained(tmp_path / "adapter")
    done = run("doctor", str(tmp_path / "adapter"))
    assert "TB401" in done.stdout
    assert "merge" in done.stdout


def test_without_an_argument_the_current_directory_is_examined(run, torn, monkeypatch):
    monkeypatch.chdir(torn)
    done = run("doctor")
    assert done.exit_code == 1
    assert done.stdout.splitlines()[-2] == "  next: tiebeam doctor . --fix --out ../torn-fixed"
    assert run("doctor", ".", "--fix", "--out", "../torn-fixed").exit_code == 0
    monkeypatch.chdir(torn.parent)
    assert "holds no weights, only folders (torn, torn-fixed)" in run("doctor").stderr
    assert "TB101" in run("doctor", "--recursive").stdout


def test_the_hook_finds_the_models_of_a_commit(tmp_path, torn, healthy):
    from tiebeam.cli.hook import models_of

    files = [str(torn / "config.json"), str(torn / "model.safetensors"), str(tmp_path / "notes" / "config.json")]
    assert models_of(files) == [str(torn)]
    assert models_of(["a/model.gguf"]) == ["a/model.gguf"]


@pytest.fixture
def partly_fixable(tmp_path):
    """The levels disagree, which --fix can write; the row counts differ, which needs a decision."""
    text = llama_config(tie_word_embeddings=True)
    config = {
        "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "text_config": text,
        "tie_word_embeddings": False,
    }  # fmt: skip
    tensors = {"model.language_model.embed_tokens.weight": table(0), HEAD: table(1)[:-2]}
    return write_model(tmp_path / "partly", tensors, config)


def test_a_model_that_still_has_an_error_is_not_called_fixed(run, partly_fixable, tmp_path):
    done = run("doctor", str(partly_fixable), "--fix", "--out", str(tmp_path / "out"))
    assert done.exit_code == 1
    assert done.stdout.startswith(f"not all fixed: {tmp_path / 'out'} is untied and still has TB204")
    assert run("doctor", str(tmp_path / "out")).exit_code == 1
    again = run("doctor", str(partly_fixable), "--fix", "--out", str(tmp_path / "out2"), "--json")
    document = json.loads(again.stdout)
    assert again.exit_code == 1
    assert [finding["code"] for finding in document["fix"]["remaining"]] == ["TB204"]


def test_rows_lists_untrained_rows_with_their_tokens(run, tmp_path):
    from tiebeam.doctor import RULES

    where = RULES["TB707"].example(tmp_path / "m")
    done = run("doctor", where, "--rows")
    assert done.exit_code == 0
    assert "TB707 warning" in done.stdout
    assert "4 are zero; the tokenizer can produce 4" in done.stdout
    assert "36  'w36'" in done.stdout
    assert "ids and rows tokenizer 40 · vocab_size 40 · embedding 40 · head 40" in done.stdout
    (matrix,) = json.loads(run("doctor", where, "--rows", "--json").stdout)["rows"]["matrices"]
    assert matrix["groups"] == [{"kind": "zero", "rows": [36, 37, 38, 39], "producible": [36, 37, 38, 39]}]
    assert "rows" not in json.loads(run("doctor", where, "--json").stdout)


def test_a_vocab_size_that_contradicts_the_rows_exits_with_1(run, tmp_path):
    from tiebeam.doctor import RULES

    done = run("doctor", RULES["TB703"].example(tmp_path / "m"))
    assert done.exit_code == 1
    assert "TB703 error" in done.stdout


def test_rows_that_matter_are_found_without_asking(run, tmp_path):
    from tiebeam.doctor import RULES

    found = run("doctor", RULES["TB707"].example(tmp_path / "untrained"))
    assert found.exit_code == 0
    assert "TB707 warning" in found.stdout
    assert "36  'w36'" not in found.stdout  # the list needs --rows
    found = run("doctor", RULES["TB706"].example(tmp_path / "broken"))
    assert found.exit_code == 1
    assert "TB706 error" in found.stdout


def test_a_model_that_was_never_trained_has_no_finding_without_asking(run, tmp_path):
    from helpers.tiny_models import build
    from helpers.tiny_tokenizers import write_tokenizer

    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m")
    write_tokenizer(tmp_path / "m")
    assert "TB707" not in run("doctor", tmp_path / "m").stdout
    assert "TB707" in run("doctor", tmp_path / "m", "--rows").stdout
