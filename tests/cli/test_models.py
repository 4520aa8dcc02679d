"""`tiebeam models`: list, filter, search; sources and doubts."""

import json

import pytest

from tiebeam.catalog import known_models


def listed(run, *arguments):
    code, out, err = run("models", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_all_models_are_listed_with_a_summary(run):
    code, out, _ = run("models")
    assert code == 0
    tied = sum(model.tied for model in known_models())
    assert out.startswith(f"155 known models: {tied} tie, {155 - tied} do not\n")
    assert all(model.name in out for model in known_models())
    assert "15-25%       21 of 24 tie" in out
    assert "--sources" in out.splitlines()[-1]


def test_json_rows_are_complete(run):
    document = listed(run)
    assert (document["count"], document["tied"] + document["untied"]) == (155, 155)
    row = next(row for row in document["models"] if row["slug"] == "qwen1.5-0.5b")
    assert row["total"] + row["matrix"] == row["untied_total"] == row["published_total"]
    assert row["doubt"]
    assert row["source"]


def test_search_and_filters(run):
    assert [row["name"] for row in listed(run, "llama", "3.2")["models"]] == ["Llama-3.2 1B", "Llama-3.2 3B"]
    untied = listed(run, "--untied", "--min-share", "20", "--max-share", "30")["models"]
    assert {row["name"] for row in untied} == {"Pythia 160M", "RWKV-4 169M"}
    assert all(row["tied"] for row in listed(run, "--tied")["models"])
    assert {row["architecture"] for row in listed(run, "--family", "qwen")["models"]} == {
        "qwen2", "qwen3", "qwen3_moe", "qwen3_5",
    }  # fmt: skip
    assert {row["architecture"] for row in listed(run, "--family", "XLM-RoBERTa")["models"]} == {"xlm-roberta"}


def test_orders(run):
    shares = [row["head_share"] for row in listed(run)["models"]]
    assert shares[-1] is None
    assert shares[:-1] == sorted(shares[:-1], reverse=True)
    totals = [row["total"] for row in listed(run, "--sort", "size")["models"]]
    assert totals == sorted(totals, reverse=True)
    names = [row["name"] for row in listed(run, "pythia", "--sort", "name")["models"]]
    assert names.index("Pythia 2.8B") < names.index("Pythia 12B") < names.index("Pythia 70M")


def test_few_models_show_source_doubt_and_note(run):
    _, out, _ = run("models", "qwen1.5", "0.5b")
    text = " ".join(out.split())
    assert text.startswith("1 known model: 1 ties, 0 do not")
    assert "● tied ?" in text
    assert "hub Qwen/Qwen1.5-0.5B" in text
    assert "source hiyouga/LlamaFactory#2492" in text
    assert "doubt declared tied, but the published files store both tables" in text
    assert "published 619,570,176; counted here 463,987,712" in text


def test_sources_on_request_for_many(run):
    _, short, _ = run("models", "--family", "gpt_neox")
    _, whole, _ = run("models", "--family", "gpt_neox", "--sources")
    assert "configuration_gpt_neox.py" not in short
    assert whole.count("source  ") == 9


def test_marks_of_doubt(run):
    _, out, _ = run("models")
    marks = {line.split()[0]: line for line in out.splitlines() if line.startswith("  ")}
    assert "○ untied ??" in marks["RWKV-5"]
    assert "~27.00B" in next(line for line in out.splitlines() if "Qwen3.5 27B" in line)


def test_no_match_is_a_sentence_and_exit_0(run):
    assert run("models", "phi-5") == (0, "No known model matches 'phi-5'. Similar: phi-1.5, phi-2, phi-1.\n", "")
    code, out, _ = run("models", "--min-share", "49")
    assert (code, out) == (0, "No known model matches these filters. `tiebeam models` lists them all.\n")
    assert listed(run, "zzzz") == {"count": 0, "tied": 0, "untied": 0, "models": []}


def test_unknown_family_is_exit_2(run):
    code, out, err = run("models", "--family", "qwem2")
    assert (code, out) == (2, "")
    assert "no known model is of the family 'qwem2'; similar: qwen2" in err


@pytest.mark.parametrize("width", [60, 80, 100, 160])
def test_the_list_fits_the_terminal(run, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = run("models", "--tied")
    assert max(map(len, out.splitlines())) <= width
