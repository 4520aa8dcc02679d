"""`tiebeam inspect` as a person and as a program meet it."""

import json

import numpy as np
import pytest

from helpers.building import llama_config, table, write_model

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


def test_the_verdict_comes_first_and_the_numbers_after(run, model):
    done = run("inspect", model())
    assert done.exit_code == 0
    title, verdict, *rest = done.stdout.splitlines()
    assert title.startswith("m · llama · safetensors")
    assert verdict.strip().startswith("● untied")
    assert "declared untied (config.json: tie_word_embeddings) · stored twice · different" in verdict
    assert any(line.split()[0] == "embed" and EMBED in line for line in rest)
    assert any(line.split()[0] == "total" for line in rest)


def test_it_fits_on_half_a_screen(run, model):
    assert len(run("inspect", model()).stdout.splitlines()) <= 12


def test_json_is_one_document_with_the_designs_keys(run, model):
    done = run("inspect", model(tied=True, head=None), "--json")
    document = json.loads(done.stdout)
    assert document["tie"] == "shared"
    assert document["head"] is None
    assert set(document) >= {
        "model", "format", "architecture", "tie", "declared", "declared_by", "stored", "equal", "embed", "head",
        "params", "findings",
    }  # fmt: skip
    assert set(document["params"]) == {
        "total", "stored", "trunk", "embed", "head", "tied_total", "untied_total", "saved_by_tying", "head_share",
    }  # fmt: skip


def test_a_sick_model_is_named_and_the_doctor_pointed_to(run, model):
    done = run("inspect", model(tied=True))
    assert done.exit_code == 0  # inspect reports; the doctor judges
    assert "TB101" in done.stdout
    assert "tiebeam doctor" in done.stdout
    assert json.loads(run("inspect", model(tied=True), "--json").stdout)["findings"][0]["code"] == "TB101"


def test_what_cannot_be_read_is_one_sentence_and_exit_code_3(run, tmp_path):
    (tmp_path / "m.safetensors").write_bytes(b"garbage that is no header")
    done = run("inspect", str(tmp_path / "m.safetensors"))
    assert done.exit_code == 3
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("tiebeam: ")


def test_a_wrong_option_is_exit_code_2(run, model):
    assert run("inspect", model(), "--nonsense").exit_code == 2
    assert run("inspect").exit_code == 2
    assert run("inspect", model(), "--embed", "model.embed_tokns.weight").exit_code == 2


def test_an_unknown_verb_is_answered_with_the_near_one(run):
    done = run("inspcet", "x")
    assert done.exit_code == 2
    assert "did you mean 'inspect'" in done.stderr
