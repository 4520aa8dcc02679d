"""`tiebeam lens`: readable labels from a real tokenizer, and errors for tokens that cannot be found."""

import json

import pytest

from helpers.building import llama_config, table, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    from tiebeam.corpus.training_tokenizer import train_bpe

    where = tmp_path_factory.mktemp("m")
    tokenizer = train_bpe(["in New York and in New York City and in York"] * 50, 280)
    size = tokenizer.vocab
    tensors = {"model.embed_tokens.weight": table(0, size), "lm_head.weight": table(1, size)}
    import numpy as np

    tensors["model.norm.weight"] = np.ones(8, np.float32)
    write_model(where, tensors, llama_config(vocab_size=size, tie_word_embeddings=False))
    (where / "tokenizer.json").write_bytes(tokenizer.raw)
    return where


def test_chosen_tokens_are_shown(run, model):
    code, out, err = run("lens", model, "--tokens", " New", " York", "--quiet")
    assert code == 0, err
    for word in ("·New", "·York", "symmetric", "self-logits", "angles", "joint", "nearest in head"):
        assert word in out
    assert out.splitlines()[0].startswith(f"{model} · ○ untied · ")
    assert "direct-path logit of the column token after the row token" in out
    assert err == ""


def test_json_has_the_matrix_and_the_neighbours(run, model):
    code, out, _ = run("lens", model, "--tokens", " New", "#5", "--top", "3", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["chosen"]["labels"][0] == " New"
    assert found["chosen"]["ids"][1] == 5
    assert len(found["chosen"]["matrix"]) == 2
    assert all(len(token[kind]) == 3 for token in found["tokens"] for kind in ("next", "embed", "head"))
    assert found["norm"] is True


def test_text_gives_frequent_tokens_and_norms(run, model, tmp_path):
    (tmp_path / "t.txt").write_text("in New York and in New York City\n" * 5)
    code, out, err = run("lens", model, "--text", tmp_path / "t.txt", "--top", "3", "--quiet")
    assert code == 0, err
    assert "rank correlation of row norm and frequency" in out
    _, out, _ = run("lens", model, "--text", tmp_path / "t.txt", "--top", "3", "--json", "--no-norm", "--no-scales")
    found = json.loads(out)
    assert len(found["chosen"]["ids"]) == 3
    assert found["norms"]["unseen"]["tokens"] > 200
    assert (found["norm"], found["scales"]) == (False, False)


def test_text_of_several_tokens_is_refused_with_its_tokens(run, model):
    code, _, err = run("lens", model, "--tokens", "New York", "--quiet")
    assert code == 2
    assert "'New York' is 3 tokens, not one" in err
    assert "#" in err


@pytest.mark.parametrize("token", ["#99999", "#-1"])
def test_ids_out_of_range_are_refused(run, model, token):
    code, _, err = run("lens", model, "--tokens", token, "--quiet")
    assert code == 2
    assert err.startswith("tiebeam:")


def test_a_model_without_a_tokenizer_takes_ids(run, tmp_path):
    where = write_model(tmp_path / "m", {"model.embed_tokens.weight": table(0)}, llama_config(tie_word_embeddings=True))
    code, out, err = run("lens", where, "--tokens", "#3", "#4", "--quiet")
    assert code == 0, err
    assert "● tied" in out
    code, _, err = run("lens", where, "--tokens", "New", "--quiet")
    assert code == 2
    assert "no tokenizer" in err
    code, _, err = run("lens", where, "--text", __file__, "--quiet")
    assert code == 2
    assert "--text cannot be counted" in err


def test_missing_model_is_unreadable(run, tmp_path):
    code, _, err = run("lens", tmp_path / "none")
    assert code == 3
    assert "none" in err
