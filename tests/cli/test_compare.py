"""`tiebeam compare`: one directory with a report; the same command resumes it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import tiebeam

SMALL = ("--max-bytes", "100000", "--vocab", "300", "--dim", "16", "--widths", "8,16", "--heads", "2",
         "--kv-heads", "1", "--mlp-dim", "32", "--layers", "1", "--context", "32", "--batch-tokens", "128",
         "--steps", "6", "--bigram-steps", "5", "--threads", "1", "--check-tokens", "2000")  # fmt: skip


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("TIEBEAM_CACHE", str(tmp_path / "cache"))


@pytest.mark.usefixtures("cache")
def test_prints_the_verdict_the_report_path_and_the_next_command(run, tmp_path):
    out = tmp_path / "R"
    code, shown, err = run("compare", *SMALL, "--out", out, "--quiet")
    assert code == 0, err
    verdict = json.loads((out / "report.json").read_text())["verdict"]["sentences"]
    assert len(verdict) == 3
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
    [(("--variants", "tied,loose"), "loose"), (("--match", "time"), "minutes"), (("--widths", "12"), "head size 8"),
     (("--vocabs", "no"), "vocabs"), (("--for", "no-such-model"), "no-such-model")],
)  # fmt: skip
@pytest.mark.usefixtures("cache")
def test_invalid_options_exit_with_2(run, tmp_path, arguments, word):
    code, _, err = run("compare", *SMALL, *arguments, "--out", tmp_path / "R", "--quiet")
    assert code == 2
    assert word in err


@pytest.mark.slow
@pytest.mark.usefixtures("cache")
def test_more_widths_seeds_and_a_plan_add_to_what_is_there(run, tmp_path):
    out = tmp_path / "R"
    code, _, err = run("compare", *SMALL, "--out", out)
    assert code == 0, err
    assert "width 8, step 6: " in err  # the answer at every check
    assert " left" in err
    before = (out / "tied-d8-v300-s0" / "metrics.jsonl").read_bytes()
    more = ("--widths", "8,16,24", "--seeds", "2", "--for", "32000x2048x969M")
    code, shown, err = run("compare", *SMALL, *more, "--out", out, "--quiet")
    assert code == 0, err
    assert (out / "tied-d8-v300-s0" / "metrics.jsonl").read_bytes() == before
    document = json.loads((out / "report.json").read_text())
    assert len(document["ladder"]["cells"]) == 12
    assert "32000x2048x969M: a separate head would be 6.0% of 1.10B parameters" in " ".join(shown.split())


def test_the_live_table_has_a_row_per_variant_and_width(tmp_path):
    from rich.console import Console

    from tiebeam.cli.compare_progress import CompareProgress
    from tiebeam.compare import VARIANTS
    from tiebeam.compare.comparison import base_settings
    from tiebeam.compare.train_runs import plan_runs
    from tiebeam.corpus import build_corpus

    corpus = build_corpus([], tmp_path / "c", vocab=300, max_bytes=50_000)
    base = base_settings(steps=10, dim=16, heads=2, kv_heads=1, mlp_dim=32)
    groups = plan_runs(base, [VARIANTS["tied"], VARIANTS["untied"]], [corpus], [8, 16], [0], tmp_path, match="steps",
                       anchor="tied", threads=1)  # fmt: skip
    runs = [one for group in groups for one in group]
    display = CompareProgress(quiet=False)
    display.planned(runs)
    display.record(runs[0], {"step": 1, "done": 0.1, "loss": 5.0, "tokens_per_second": 1234.0})
    display.record(runs[0], {"step": 5, "done": 0.5, "loss": 3.5, "tokens_per_second": 1234.0})
    console = Console(width=100)
    with console.capture() as shown:
        console.print(display.renderable())
    lines = shown.get().splitlines()
    assert lines[0].split() == ["width", "variant", "step", "loss", "held-out", "bits/byte", "tokens/s"]
    assert lines[1].split() == ["8", "●", "tied", "5", "3.500", "–", "1,234"]
    assert lines[4].split() == ["16", "●", "untied", "–", "–", "–", "–"]
    assert lines[-1].endswith(" left")


def test_the_live_table_shows_what_an_earlier_call_trained(tmp_path):
    from rich.console import Console

    from tiebeam.cli.compare_progress import CompareProgress
    from tiebeam.compare import VARIANTS
    from tiebeam.compare.comparison import base_settings
    from tiebeam.compare.train_runs import plan_runs, train_in_turns
    from tiebeam.corpus import build_corpus

    corpus = build_corpus([], tmp_path / "c", vocab=300, max_bytes=50_000)
    base = base_settings(steps=4, layers=1, dim=16, heads=2, kv_heads=1, mlp_dim=32, context=32, batch_tokens=64,
                         validation_tokens=500)  # fmt: skip
    finished, waiting = plan_runs(base, [VARIANTS["tied"], VARIANTS["untied"]], [corpus], [8, 16], [0], tmp_path,
                                  match="steps", anchor="tied", threads=1)  # fmt: skip
    first, second = CompareProgress(quiet=False), CompareProgress(quiet=False)
    first.planned([*finished, *waiting])
    train_in_turns(finished, report=first.record)
    second.planned([*finished, *waiting])  # the same command again
    shown = []
    for display in (first, second):
        console = Console(width=120)
        with console.capture() as captured:
            console.print(display.renderable())
        shown.append(captured.get().splitlines())
    assert shown[1][:5] == shown[0][:5]  # the table
    assert "–" not in shown[1][1] + shown[1][2]
    assert shown[1][4].split()[3:] == ["–"] * 4
    assert shown[1][5].startswith("width 8, step 4: ")
    assert second.time_left() == ""  # nothing was trained yet by this call
    second.record(waiting[0], {"step": 1, "done": 0.25, "loss": 5.0, "tokens_per_second": 1234.0})
    second.record(waiting[0], {"step": 2, "done": 0.5, "loss": 4.0, "tokens_per_second": 1234.0})
    assert second.time_left().endswith(" left")


@pytest.mark.slow
@pytest.mark.parametrize("at", ["tokenising", "step 40: ", "collecting metrics"])
def test_ctrl_c_says_how_to_resume_and_the_same_command_goes_on(tmp_path, at):
    environment = {**os.environ, "TIEBEAM_CACHE": str(tmp_path / "cache"),
                   "PYTHONPATH": str(Path(tiebeam.__file__).parents[1])}  # fmt: skip
    command = [sys.executable, "-m", "tiebeam", "compare", *SMALL, "--steps", "80", "--out", str(tmp_path / "R")]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    ) as started:
        assert started.stderr
        for line in started.stderr:
            if at in line:
                started.send_signal(signal.SIGINT)
                break
        rest = started.stderr.read()
        assert started.wait(timeout=120) == 130, rest
    assert rest.splitlines()[-1].startswith("interrupted: ")
    assert rest.splitlines()[-1].endswith("run the same command again to resume")
    if at == "tokenising":  # there is little to resume
        return
    done = subprocess.run(command, capture_output=True, env=environment, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "At equal steps (80)" in " ".join(done.stdout.split())
    assert ("step 80: " in done.stderr) == (at != "collecting metrics")  # finished runs are not trained again


@pytest.mark.slow
def test_a_terminal_shows_the_table_alone_while_the_runs_train(tmp_path):
    pty = pytest.importorskip("pty")
    terminal, child = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while part := os.read(terminal, 65536):
                shown.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "100", "TIEBEAM_CACHE": str(tmp_path / "cache"),
                   "PYTHONPATH": str(Path(tiebeam.__file__).parents[1])}  # fmt: skip
    command = [sys.executable, "-m", "tiebeam", "compare", *SMALL, "--steps", "60", "--out", str(tmp_path / "R")]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=child, env=environment, check=True, timeout=300)
    os.close(child)
    reader.join()
    os.close(terminal)
    text = b"".join(shown).decode()
    first, last = text.index("held-out bits/byte"), text.rindex("held-out bits/byte")
    assert "tokenising" in text[:first]
    assert "tokenising" not in text[first:last]
    assert "better than" in text[first:] or "includes 0" in text[first:]  # the answer so far


def test_the_list_has_a_line_per_variant_with_claim_source_and_parameters(run):
    from tiebeam.compare.variants import VARIANTS

    code, shown, _ = run("compare", "--list")
    assert code == 0
    lines = {line.split()[0]: line for line in shown.splitlines()}
    for name, variant in VARIANTS.items():
        assert variant.claim in lines[name]
        assert variant.source in lines[name]
        assert variant.adds in lines[name] or name == "tied"
    code, shown, _ = run("compare", "--list", "--json")
    assert [v["name"] for v in json.loads(shown)["variants"]] == list(VARIANTS)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("cache")
def test_the_frontier_suite_runs_every_variant(run, tmp_path):
    from tiebeam.compare.variants import VARIANTS

    code, _, err = run("compare", *SMALL, "--suite", "frontier", "--out", tmp_path / "R", "--quiet")
    assert code == 0, err
    document = json.loads((tmp_path / "R" / "report.json").read_text())
    assert [v["name"] for v in document["variants"]] == list(VARIANTS)
    assert [claim["variant"] for claim in document["claims"]] == list(VARIANTS)[1:]
    for claim in document["claims"]:
        assert claim["against"] == VARIANTS[claim["variant"]].against
        assert claim["ci_low"] < claim["difference"] < claim["ci_high"]


def test_the_frontier_page_shows_the_list_and_a_verdict_for_every_claim(run):
    import re

    from tiebeam.compare.variants import VARIANTS

    page = (Path(__file__).parents[2] / "docs" / "frontier.md").read_text()
    (block,) = re.findall(r"```console\n\$ tiebeam compare --list\n(.*?)```", page, re.S)
    assert block.split() == run("compare", "--list")[1].split()
    rows = {row[0].strip("` "): row for row in re.findall(r"^\|(.*?)\|(.*)\|$", page, re.M)}
    for name in list(VARIANTS)[1:]:
        assert VARIANTS[name].source in rows[name][1]
        assert re.search(r"[+-]\d\.\d{4} \([+-]\d\.\d{4} to [+-]\d\.\d{4}\)", rows[name][1])
        assert rows[name][1].rsplit("|", 1)[1].strip() in ("holds", "does not hold", "cannot tell at this size")
