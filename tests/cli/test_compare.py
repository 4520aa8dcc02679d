"""`tiebeam compare` as a person gives it: one directory with a report, the same command to go on."""

import json

import pytest

SMALL = ("--max-bytes", "100000", "--vocab", "300", "--dim", "16", "--heads", "2", "--kv-heads", "1", "--mlp-dim", "32",
         "--layers", "1", "--context", "32", "--batch-tokens", "128", "--steps", "6", "--bigram-steps", "5",
         "--threads", "1")  # fmt: skip


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
def test_report_and_verdict(run, tmp_path):
    out = tmp_path / "R"
    code, shown, err = run("compare", *SMALL, "--out", out, "--quiet")
    assert code == 0, err
    assert shown.startswith("On this text tied")
    assert "one seed" in shown
    assert str(out / "report.html") in shown.replace("\n", "")
    assert (out / "report.html").is_file()
    document = json.loads((out / "report.json").read_text())
    code, shown, _ = run("compare", *SMALL, "--out", out, "--json")
    again = json.loads(shown)
    assert code == 0
    assert again["runs"] == document["runs"]
    code, _, err = run("compare", *SMALL, "--layers", "2", "--out", out, "--quiet")
    assert code == 2
    assert "another --out" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--variants", "tied,loose"), "loose"), (("--match", "time"), "--minutes"), (("--dim", "15"), "divide")],
)
@pytest.mark.usefixtures("cache")
def test_wrong_usage(run, tmp_path, arguments, word):
    code, _, err = run("compare", *SMALL, *arguments, "--out", tmp_path / "R", "--quiet")
    assert code == 2
    assert word in err
