"""`tiebeam compare`: one directory with a report; the same command resumes it."""

import json

import pytest

SMALL = ("--max-bytes", "100000", "--vocab", "300", "--dim", "16", "--heads", "2", "--kv-heads", "1", "--mlp-dim", "32",
         "--layers", "1", "--context", "32", "--batch-tokens", "128", "--steps", "6", "--bigram-steps", "5",
         "--threads", "1")  # fmt: skip


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
def test_prints_the_verdict_the_report_path_and_the_next_command(run, tmp_path):
    out = tmp_path / "R"
    code, shown, err = run("compare", *SMALL, "--out", out, "--quiet")
    assert code == 0, err
    verdict = json.loads((out / "report.json").read_text())["verdict"]["sentences"]
    assert " ".join(shown.split()).startswith(" ".join(verdict))
    *_, report, following = shown.splitlines()
    assert report == f"report: {out / 'report.html'}"
    assert following == "next: tiebeam compare --seeds 3"
    assert (out / "report.html").is_file()
    document = json.loads((out / "report.json").read_text())
    code, shown, _ = run("compare", *SMALL, "--out", out, "--json")
    again = json.loads(shown)
    assert code == 0
    assert again["runs"] == document["runs"]
    code, _, err = run("compare", *SMALL, "--layers", "2", "--out", out, "--quiet")
    assert code == 2
    assert "layers" in err
    assert "pass another" in err


@pytest.mark.parametrize(
    ("arguments", "word"),
    [(("--variants", "tied,loose"), "loose"), (("--match", "time"), "minutes"), (("--dim", "15"), "not divisible")],
)
@pytest.mark.usefixtures("cache")
def test_invalid_options_exit_with_2(run, tmp_path, arguments, word):
    code, _, err = run("compare", *SMALL, *arguments, "--out", tmp_path / "R", "--quiet")
    assert code == 2
    assert word in err
