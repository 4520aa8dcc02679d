"""The commands `tiebeam tie` and `tiebeam untie`: reports, exit codes, errors."""

import json

import numpy as np
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from helpers.building import llama_config, table, write_model
from helpers.tiny_models import build

EMBED, HEAD = "model.embed_tokens.weight", "lm_head.weight"


@pytest.fixture(scope="module")
def untied(tmp_path_factory):
    """A tiny untied llama with a tokenizer, and a text for it."""
    where = tmp_path_factory.mktemp("cli") / "untied"
    build("llama", tie_word_embeddings=False).save_pretrained(where)
    tokenizer = Tokenizer(models.WordLevel({f"w{i}": i for i in range(96)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(where / "tokenizer.json"))
    words = np.random.default_rng(1).integers(0, 96, 1500)
    (where.parent / "text.txt").write_text(" ".join(f"w{i}" for i in words))
    return where


@pytest.fixture
def text(untied):
    return untied.parent / "text.txt"


@pytest.fixture
def shared(tmp_path):
    tensors = {EMBED: table(0), "model.norm.weight": np.ones(8, np.float32)}
    return write_model(tmp_path / "shared", tensors, llama_config(tie_word_embeddings=True))


def test_untie_reports_the_changes_and_the_proof(run, untied, tmp_path):
    build("llama", tie_word_embeddings=True).save_pretrained(tmp_path / "m")
    code, out, err = run("untie", tmp_path / "m", tmp_path / "u")
    assert code == 0
    assert out.startswith("● untied  u · llama · safetensors · ")
    assert "tie_word_embeddings true -> false" in out
    assert f"+ {HEAD} F32 [96, 32], a copy of {EMBED}" in out
    assert "byte for byte; logits equal to the bit on 16 probe tokens" in out
    assert "writing and comparing" in err
    assert out.splitlines()[-1].split(maxsplit=1) == ["next", f"tiebeam inspect {tmp_path / 'u'}"]
    code, out, err = run("tie", tmp_path / "u", tmp_path / "t", "--quiet")
    assert code == 0
    assert out.startswith("● shared  t · ")
    assert err == ""


def test_a_dry_run_writes_nothing(run, shared, tmp_path):
    code, out, _ = run("untie", shared, "--dry-run")
    assert code == 0
    assert "would change" in out
    assert f"+ {HEAD}" in out
    assert [p.name for p in tmp_path.iterdir()] == ["shared"]
    code, out, _ = run("untie", shared, "--dry-run", "--json")
    assert json.loads(out)["dry_run"] is True


def test_json_is_one_document_and_nothing_else(run, shared, tmp_path):
    code, out, err = run("untie", shared, tmp_path / "u", "--json", "--no-proof")
    document = json.loads(out)
    assert code == 0
    assert err == ""
    assert document["after"]["declared"] is False
    assert document["digest_before"] != document["digest_after"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["untie", "{shared}"], 2, "name DST"),
        (["untie", "{shared}", "{shared}"], 2, "is the source itself"),
        (["untie", "{shared}", "{shared}/inside"], 2, "is inside the source"),
        (["untie", "{shared}", "{shared}/.."], 2, "is inside"),
        (["untie", "{tmp}/nowhere", "{tmp}/u"], 3, "does not exist"),
        (["tie", "{shared}", "{tmp}/t", "--joint"], 2, "no two matrices"),
        (["tie", "{untied}", "{tmp}/t"], 2, "so tying them changes the model; choose how"),
        (["tie", "{untied}", "{tmp}/t", "--joint"], 2, "the fit weights rows and directions by text"),
        (["tie", "{untied}", "{tmp}/t", "--joint", "--keep", "embed"], 2, "are alternatives; choose one"),
        (["tie", "{untied}", "{tmp}/t", "--rank", "4"], 2, "4 needs"),
        (["tie", "{untied}", "{tmp}/t", "--joint", "--rank", "4", "--text", "{tmp}/no.txt"], 3, "cannot be read"),
        (["tie", "{untied}", "{tmp}/t.gguf", "--keep", "embed"], 2, "llama.cpp's convert_hf_to_gguf.py"),
    ],
)
def test_an_error_is_one_sentence(run, shared, untied, tmp_path, arguments, code, sentence):
    filled = [a.format(shared=shared, untied=untied, tmp=tmp_path) for a in arguments]
    found, out, err = run(*filled)
    assert found == code
    assert sentence in err
    assert out == ""
    assert not (tmp_path / "t").exists()
    assert not (tmp_path / "u").exists()


@pytest.mark.parametrize("options", [[], ["--dry-run"]])
def test_nothing_to_do_exits_0_with_the_verdict_first(run, shared, untied, tmp_path, options):
    code, out, err = run("tie", shared, tmp_path / "t", *options)
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"● tied  {shared} is already tied: one matrix is stored, and config.json says tied"
    code, out, _ = run("untie", untied, tmp_path / "t", *options)
    assert code == 0
    assert out.startswith(f"● untied  {untied} is already untied: two tensors are stored")
    assert not (tmp_path / "t").exists()


def test_nothing_to_do_as_json(run, shared, tmp_path):
    code, out, _ = run("tie", shared, tmp_path / "t", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["changes"] == []
    assert document["written"] is False
    assert "already tied" in document["notes"][0]


def test_an_existing_target_is_refused_before_anything_is_measured(run, untied, shared, monkeypatch):
    monkeypatch.setattr("tiebeam.surgery.loss_effect.measure_keep", None)
    code, _, err = run("tie", untied, shared, "--keep", "mean")
    assert code == 2
    assert "exists" in err


def test_keep_needs_yes_after_the_effect_on_loss_was_measured(run, untied, text, tmp_path):
    code, _, err = run("tie", untied, tmp_path / "t", "--keep", "mean", "--text", text)
    assert code == 2
    assert "nats per token on the text given" in err
    assert "--yes" in err
    assert not (tmp_path / "t").exists()
    code, out, _ = run("tie", untied, tmp_path / "t", "--keep", "mean", "--text", text, "--yes")
    assert code == 0
    assert "● shared" in out
    assert "3,072 parameters saved" in out


def test_without_text_the_effect_is_measured_on_a_built_in_passage(run, untied, tmp_path):
    _, _, err = run("tie", untied, tmp_path / "t", "--keep", "head")
    assert "on a built-in passage" in err


def test_joint_reports_the_spectrum_and_the_loss(run, untied, text, tmp_path):
    code, out, err = run("tie", untied, "--dry-run", "--joint", "--text", text, "--rank", "24")
    assert code == 0
    assert err.startswith("opening the model")
    header, *lines = out[out.index("rank  ") :].splitlines()
    assert header.split()[:5] == ["rank", "KL", "same", "next", "token"]
    assert sum(line.endswith("measured") for line in lines) == 1
    assert all(line.endswith("predicted") for line in lines if not line.endswith("measured"))
    code, out, _ = run("tie", untied, tmp_path / "t", "--joint", "--text", text, "--rank", "24", "--exact-rows", "4")
    assert code == 0
    measured = out[out.index("measured  ") :]
    assert measured.split("measured", 1)[1].strip().startswith("KL ")  # first
    assert "nats per token on" in measured
    assert "modeling_tiebeam.py" in out
    assert "parameters saved" in out
    code, out, _ = run("tie", untied, tmp_path / "e", "--joint", "--text", text, "--rank", "64", "--expand", "--json")
    assert json.loads(out)["measured"]["after"]["kl"] < 1e-6


def test_help_has_examples(run):
    for verb in ("tie", "untie"):
        code, out, _ = run(verb, "--help")
        assert code == 0
        assert "DST appears complete or not at all" in out
        assert f"tiebeam {verb} ./" in out
