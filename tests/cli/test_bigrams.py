"""`tiebeam bigrams`: the table, the bounds, the words."""

import json

SMALL = ("--max-bytes", "100000", "--vocab", "300", "--dim", "8", "--steps", "20", "--quiet")


def test_table_bounds_and_words(run, monkeypatch, tmp_path):
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


def test_missing_text_is_unreadable(run, tmp_path):
    code, _, err = run("bigrams", tmp_path / "nothing.txt", "--quiet")
    assert code in (2, 3)
    assert "nothing.txt" in err
