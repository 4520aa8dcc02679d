"""`tiebeam bigrams`: the table, the bounds, the conclusions."""

import json

import pytest

SMALL = ("--max-bytes", "100000", "--vocab", "300", "--dim", "8", "--steps", "20", "--quiet")


def test_table_bounds_and_conclusions(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path))
    code, out, err = run("bigrams", *SMALL)
    assert code == 0, err
    for word in ("unigram", "E.Eᵀ", "E.diag(±1).Eᵀ", "E.M.Eᵀ", "E.MLP.Eᵀ", "E.W", "smoothed bigram", "antisymmetric",
                 "positive semidefinite"):  # fmt: skip
        assert word in out
    assert err == ""


def test_json_is_one_document(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path))
    code, out, err = run("bigrams", *SMALL, "--forms", "ee,ew", "--top", "100", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert list(found["forms"]) == ["EE", "EW"]
    assert found["vocab"] == 101
    assert found["corpus"]["vocab"] == 300


def test_unknown_form_is_wrong_usage(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path))
    code, _, err = run("bigrams", *SMALL, "--forms", "EX")
    assert code == 2
    assert "EX" in err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--dim", "0"), "--dim 0 and --steps 20 must both be at least 1"),
        (("--dim", "5000"), "--dim 5000 exceeds the vocabulary of 300"),
        (("--top", "0"), "--top 0 must be at least 1"),
    ],
)
def test_errors_name_the_options(run, monkeypatch, tmp_path, options, message):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path))
    code, _, err = run("bigrams", *SMALL, *options)
    assert (code, err) == (2, f"tiebeam: {message}\n")


def test_a_form_that_did_not_converge_is_named(run, monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path))
    _, out, _ = run("bigrams", *SMALL, "--steps", "1", "--forms", "EE,EDE,EW")
    assert "against E.Eᵀ" not in out
    assert "Not converged (worse than the unigram): E.Eᵀ, E.diag(±1).Eᵀ, E.W. Raise --steps." in out


def test_missing_text_is_unreadable(run, tmp_path):
    code, _, err = run("bigrams", tmp_path / "nothing.txt", "--quiet")
    assert code == 3
    assert "nothing.txt" in err
