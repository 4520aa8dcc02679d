"""Runs of benches: kept, compared, made into a page; a bench that fails does not stop the others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.bench_files import BENCH, bench_module

driver = bench_module("all")
runs = bench_module("harness.runs")
page = bench_module("harness.page")
peers = bench_module("harness.peers")
rows_ = bench_module("harness.rows")

GOOD = """
from harness import main, row
main(lambda bench: [row("a good row", 1.0, "nothing", "<= 1.5", limited_by="the sun")])
"""
BAD = """
from harness import main, row
def rows(bench):
    bench.say("without peer-of-nobody==1.0: it does not exist")
    yield row("a row before the failure", 9.0, "nothing", "<= 1.5")
    raise RuntimeError("the disk is full")
main(rows)
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("PYTHONPATH", str(BENCH))
    for name, source in (("bad", BAD), ("good", GOOD)):
        (tmp_path / f"{name}.py").write_text(source)
    entries = {name: driver.Entry(str(tmp_path / f"{name}.py"), 30.0) for name in ("bad", "good")}
    monkeypatch.setattr(driver, "BENCHES", entries)
    monkeypatch.setattr(driver, "LONG", {})
    monkeypatch.setattr(driver, "RUNS", tmp_path / "runs")
    monkeypatch.setattr(driver, "PAGE", tmp_path / "benchmarks.md")

    def run(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["all.py", *arguments])
        return int(driver.main())

    return run


def test_a_failing_bench_is_named_the_others_go_on_and_the_exit_code_is_1(
    bench: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench() == 1
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert [row["name"] for row in run["benches"]["bad"]["rows"]] == ["a row before the failure"]
    assert [row["verdict"] for row in run["benches"]["good"]["rows"]] == ["met"]
    assert "the disk is full" in run["failed"]["bad"]
    assert run["benches"]["bad"]["said"] == ["without peer-of-nobody==1.0: it does not exist"]
    assert {"cpu", "caches", "instruction_sets", "threads", "versions", "stolen"} <= run["machine"].keys()
    shown = capsys.readouterr().err
    assert "[1/2] bad: 0:00 elapsed, about 1:00 left" in shown
    assert "bad FAILED: exit code 1" in shown
    written = (tmp_path / "benchmarks.md").read_text()
    assert "| a good row | 1.000 | nothing | <= 1.5 |  | met | the sun |" in written
    assert "**bench/bad failed**" in written
    assert "without peer-of-nobody==1.0" in written


def test_the_page_of_a_run_names_only_the_long_benches_that_it_lacks(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = {f"the long bench {name}": f"python bench/all.py --only {name}" for name in ("good", "longer")}
    monkeypatch.setattr(driver, "NOT_RUN", commands)
    bench("--only", "good")
    (tmp_path / "benchmarks.md").unlink()
    assert bench("--page", str(next((tmp_path / "runs").glob("*.json")))) == 0
    written = (tmp_path / "benchmarks.md").read_text()
    assert "the long bench longer" in written
    assert "the long bench good" not in written


MEMORY = """
from pathlib import Path
from harness import KEEP_FREED, in_child, main, row
CHILD = "import json, os; print(json.dumps({'has': float('MALLOC_MMAP_MAX_' in os.environ)}))"
def rows(bench):
    started = Path("/proc/self/environ").read_bytes()
    own = all(f"{name}={value}".encode() in started for name, value in KEEP_FREED.items())
    yield row("own", float(own), "nothing", ">= 1")
    yield row("child", in_child(CHILD)["has"], "nothing", "<= 0")
main(rows)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/environ")
def test_a_bench_keeps_freed_memory_and_its_measured_processes_do_not(bench: Any, tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(MEMORY)
    assert bench("--only", "good") == 0
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert [row["verdict"] for row in run["benches"]["good"]["rows"]] == ["met", "met"]


def test_one_bench_can_be_run_again_and_replaces_its_rows_in_the_last_run(bench: Any, tmp_path: Path) -> None:
    bench()
    (tmp_path / "bad.py").write_text(GOOD.replace("a good row", "a mended row"))
    assert bench("--only", "bad") == 0
    [kept] = (tmp_path / "runs").glob("*.json")
    run = runs.read(kept)
    assert run["failed"] == {}
    assert [row["name"] for row in run["benches"]["bad"]["rows"]] == ["a mended row"]
    assert [row["name"] for row in run["benches"]["good"]["rows"]] == ["a good row"]


def test_the_time_that_the_host_took_away_is_on_the_page() -> None:
    machine = bench_module("harness.machine")
    assert machine.stolen((10, 1000), (60, 2000)) == 0.05
    assert machine.stolen(None, None) is None
    facts = {**machine.facts(2), "stolen": 0.05}
    assert "the host took 5.0% of the cores' time during the run" in "\n".join(machine.describe(facts))
    assert "the host took" not in "\n".join(machine.describe({**facts, "stolen": None}))


def test_a_quick_run_does_not_replace_the_page(bench: Any, tmp_path: Path) -> None:
    bench("--quick")
    assert not (tmp_path / "benchmarks.md").exists()


def a_run(*rows: Any) -> dict[str, Any]:
    return {"schema": 1, "benches": {"b": {"seconds": 1.0, "rows": [row.to_dict() for row in rows]}}}


def test_two_runs_agree_where_their_intervals_overlap() -> None:
    def make(*values: tuple[float, float, float]) -> dict[str, Any]:
        rows = [rows_.Row(f"row {i}", v, "x", "<= 2.0", lo, hi, control=(0.999, 1.0, 1.001))
                for i, (lo, v, hi) in enumerate(values)]  # fmt: skip
        return a_run(*rows)

    found = runs.agreement(make((1.0, 1.1, 1.2), (1.0, 1.01, 1.02)), make((1.15, 1.2, 1.3), (1.1, 1.11, 1.12)))
    assert (found.agree, found.compared) == (1, 2)
    assert "row 1" in found.differences[0]
    assert str(found).endswith("1 of 2 rows agree within their intervals (50%)")


def test_an_interval_is_never_narrower_than_the_noise_of_its_control() -> None:
    sure = rows_.Row("a", 1.0, "x", "<= 2.0", 0.999, 1.001, control=(0.95, 1.0, 1.05))
    other = rows_.Row("a", 1.04, "x", "<= 2.0", 1.039, 1.041, control=(0.99, 1.0, 1.01))
    assert runs.overlap(sure, other)
    assert not runs.overlap(rows_.Row(**{**sure.__dict__, "control": (0.99, 1.0, 1.01)}), other)


def test_values_without_intervals_agree_within_two_percent() -> None:
    a, near, far = (rows_.row("a", value, "MB") for value in (100.0, 101.5, 104.0))
    assert runs.overlap(a, near)
    assert not runs.overlap(a, far)


def test_rows_of_one_run_only_are_named() -> None:
    found = runs.agreement(a_run(rows_.row("a", 1.0, "x")), a_run(rows_.row("c", 1.0, "x")))
    assert found.compared == 0
    assert len(found.unmatched) == 2


@pytest.mark.parametrize("text", [None, "", "{", "\x00"])
def test_a_file_that_is_no_run_is_refused_in_one_sentence(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "run.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(SystemExit, match=r"run\.json is not a run that can be read"):
        runs.read(path)


@pytest.mark.parametrize("given", [[], ["x"], ["1,2"], ["0,1,1"]])
def test_a_shape_that_is_none_is_refused_in_one_sentence(given: list[str]) -> None:
    done = subprocess.run([sys.executable, BENCH / "loss.py", "--shape", *given], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "is not V,D,N; an example is --shape 50257,768,1024" in done.stderr


def test_compare_exits_with_1_below_nine_rows_of_ten(bench: Any, tmp_path: Path) -> None:
    rows = [rows_.row(str(i), 1.0, "x") for i in range(10)]
    changed = [*rows[:8], *(rows_.row(str(i), 2.0, "x") for i in (8, 9))]
    for name, made in (("a", rows), ("b", changed), ("c", [*rows[:9], changed[9]])):
        runs.write(tmp_path / f"{name}.json", a_run(*made))
    assert bench("--compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")) == 1
    assert bench("--compare", str(tmp_path / "a.json"), str(tmp_path / "c.json")) == 0


def test_a_peer_that_the_registry_does_not_have_is_missing_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIEBEAM_PEERS", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setitem(peers.REQUIREMENTS, "nobody", "peer-of-nobody==1.0")
    with pytest.raises(peers.Missing, match=r"without peer-of-nobody==1\.0: "):
        peers.load("nobody")


def test_every_bench_file_is_run_by_the_driver() -> None:
    """A bench that no one runs measures nothing."""
    fresh = {entry.file for entry in {**driver.BENCHES, **driver.LONG}.values()}
    files = {path.name for path in BENCH.glob("*.py") if path.name[0] != "_" and path.name != "all.py"}
    assert files == fresh


@pytest.mark.parametrize("goal", page.GOALS)
def test_every_goal_is_the_job_of_a_row(goal: str) -> None:
    assert any(f'"{goal}"' in path.read_text() for path in BENCH.glob("*.py"))


def test_no_bench_has_more_than_five_minutes_and_all_have_under_forty() -> None:
    assert max(entry.budget for entry in driver.BENCHES.values()) <= driver.LONGEST == 300
    assert driver.SETUP * sum(entry.budget for entry in driver.BENCHES.values()) < driver.TOTAL < 40 * 60


def test_benches_get_less_time_for_rounds_when_the_run_is_late() -> None:
    budget = driver.TOTAL / driver.SETUP / 10
    elapsed, shares = 0.0, []
    for i in range(10):
        shares.append(driver.share_of_time(elapsed, budget * (10 - i)))
        elapsed += budget * (1.0 + shares[-1])  # a slow machine, whose set-ups take as long as the rounds
    assert shares[0] == 1.0
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == driver.LEAST


def test_a_bench_that_hangs_is_stopped_and_keeps_its_rows(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "LONGEST", 5.0)
    monkeypatch.setattr(driver, "BENCHES", {"bad": driver.Entry(driver.BENCHES["bad"].file, 1.0)})
    (tmp_path / "bad.py").write_text(BAD.replace("raise RuntimeError", "__import__('time').sleep(600); print"))
    assert bench() == 1
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert run["failed"] == {"bad": "stopped after 5 s"}
    assert [row["name"] for row in run["benches"]["bad"]["rows"]] == ["a row before the failure"]


def test_a_bench_of_two_parts_is_one_section_with_the_rows_of_both(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "good.py").write_text(GOOD.replace('"a good row"', '" ".join(__import__("sys").argv[1:])'))
    entry = driver.Entry(driver.BENCHES["good"].file, 30.0, (("--shape", "1"), ("--shape", "2")))
    monkeypatch.setattr(driver, "BENCHES", {"parts": entry})
    assert bench() == 0
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert [row["name"] for row in run["benches"]["parts"]["rows"]] == ["--shape 1", "--shape 2"]


def test_a_row_of_two_launches_covers_both() -> None:
    one = rows_.Row("a", 1.0, "b", "<= 1.05", 0.99, 1.01, rounds=6, control=(0.98, 1.0, 1.01), limit=0.9,
                    excess=1.1)  # fmt: skip
    two = rows_.Row("a", 1.2, "b", "<= 1.05", 1.18, 1.21, rounds=7, control=(0.99, 1.02, 1.04), limit=1.1,
                    excess=1.2)  # fmt: skip
    both = one.joined(two)
    assert (both.value, both.low, both.high, both.rounds, both.limit) == (1.1, 0.99, 1.21, 13, 1.0)
    assert (both.control, both.excess) == ((0.98, 1.01, 1.04), 1.2)
    assert both.verdict == "unstable"  # one launch meets the goal, the other does not
    bare = rows_.Row("a", 1.0, "b").joined(rows_.Row("a", 1.2, "b"))
    assert (bare.value, bare.low, bare.high) == (1.1, 1.0, 1.2)


def test_a_bench_of_two_launches_is_launched_again_after_the_others(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    twice = driver.Entry(driver.BENCHES["good"].file, 30.0, launches=2)
    monkeypatch.setattr(driver, "BENCHES", {"twice": twice, "good": driver.BENCHES["good"]})
    assert bench() == 0
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert [len(run["benches"][name]["rows"]) for name in ("twice", "good")] == [1, 1]
    assert run["benches"]["twice"]["rows"][0]["rounds"] == 2
    said = capsys.readouterr().err
    assert said.index("[1/3] twice") < said.index("[2/3] good") < said.index("[3/3] twice")


def test_a_second_launch_is_left_out_when_the_run_is_late(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(driver, "TOTAL", 0.0)
    twice = driver.Entry(driver.BENCHES["good"].file, 30.0, launches=2)
    monkeypatch.setattr(driver, "BENCHES", {"twice": twice, "good": driver.BENCHES["good"]})
    assert bench() == 0
    run = runs.read(next((tmp_path / "runs").glob("*.json")))
    assert run["benches"]["twice"]["rows"][0]["rounds"] == 1
    assert "[3/3] twice: not launched again, the run is late" in capsys.readouterr().err
