"""The number of CPU threads: affinity, quota, what others use now, and its correction while a run trains."""

import os
from pathlib import Path

import pytest

from tiebeam.train import cpu_threads
from tiebeam.train.cpu_threads import ThreadWatch, busy_cores, busy_ticks, choose_threads, cpu_quota, free_threads


@pytest.fixture
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "allowed_cores", lambda: frozenset({0, 1, 2, 3}))
    monkeypatch.setattr(cpu_threads, "cpu_quota", lambda: None)


@pytest.mark.parametrize(("busy", "threads"), [(0.0, 4), (0.2, 4), (0.9, 3), (2.0, 2), (3.9, 1), (1000.0, 1)])
def test_threads_are_the_cores_that_are_free_now(busy, threads, four_cores, monkeypatch):
    monkeypatch.setattr(cpu_threads, "busy_cores", lambda: busy)
    assert free_threads() == threads


def test_the_choice_says_what_it_follows_from(four_cores, monkeypatch):
    monkeypatch.setattr(cpu_threads, "busy_cores", lambda: 1.04)
    assert str(choose_threads()) == "3 CPU threads (4 allowed, 1.0 in use by other processes)"


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_a_process_that_may_use_one_core_gets_one_thread(monkeypatch):
    monkeypatch.setattr(cpu_threads, "busy_cores", lambda: 0.0)
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert free_threads() == 1
    finally:
        os.sched_setaffinity(0, before)


def test_a_quota_limits_the_threads_and_is_not_used_up_by_others(four_cores, monkeypatch):
    monkeypatch.setattr(cpu_threads, "cpu_quota", lambda: 2.0)
    monkeypatch.setattr(cpu_threads, "busy_cores", lambda: 1.0)
    assert free_threads() == 2
    monkeypatch.setattr(cpu_threads, "cpu_quota", lambda: 0.5)
    assert free_threads() == 1


def test_the_quota_of_a_container_is_the_least_of_its_levels(tmp_path: Path):
    membership = tmp_path / "cgroup"
    membership.write_text("0::/outer/inner\n")
    inner = tmp_path / "fs/outer/inner"
    inner.mkdir(parents=True)
    assert cpu_quota(tmp_path / "fs", membership) is None
    (inner / "cpu.max").write_text("max 100000\n")
    (inner.parent / "cpu.max").write_text("150000 100000\n")
    assert cpu_quota(tmp_path / "fs", membership) == 1.5
    (inner / "cpu.max").write_text("50000 100000\n")
    assert cpu_quota(tmp_path / "fs", membership) == 0.5


def test_the_quota_of_version_1(tmp_path: Path):
    membership = tmp_path / "cgroup"
    membership.write_text("7:memory:/x\n3:cpu,cpuacct:/docker/abc\n")
    home = tmp_path / "fs/cpu,cpuacct/docker/abc"
    home.mkdir(parents=True)
    (home / "cpu.cfs_quota_us").write_text("-1\n")
    (home / "cpu.cfs_period_us").write_text("100000\n")
    assert cpu_quota(tmp_path / "fs", membership) is None
    (home / "cpu.cfs_quota_us").write_text("200000\n")
    assert cpu_quota(tmp_path / "fs", membership) == 2.0


def test_only_the_allowed_cores_count_as_busy(tmp_path, monkeypatch):
    """Of four cores two are allowed: one in use for half of the sample. The other two are somebody else's."""
    monkeypatch.setattr(cpu_threads, "allowed_cores", lambda: frozenset({0, 1}))
    stat = tmp_path / "stat"
    stat.write_text("cpu  0 0 0 0 0 0 0 0\ncpu0 100 0 0 900 0 0 0 0 0 0\ncpu1 0 0 0 9 0 0 0 0\ncpu2 0 0 0 9 0 0 0 0\n")

    def later(seconds: float) -> None:
        lines = (
            "cpu  0 0 0 0 0 0 0 0",
            "cpu0 150 0 0 950 0 0 0 0 0 0",
            "cpu1 0 0 0 109 0 0 0 0",
            "cpu2 99 0 0 9 0 0 0 0",
        )
        stat.write_text("\n".join(lines) + "\nintr 5\n")

    monkeypatch.setattr("time.sleep", later)
    assert busy_cores(stat=stat) == pytest.approx(0.5)


def test_the_load_average_is_used_without_proc(tmp_path, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))
    assert busy_cores(stat=tmp_path / "none") == 1.5
    assert busy_ticks(tmp_path / "none") is None


class Machine:
    """A machine with two cores on which this process and others spend CPU time."""

    def __init__(self) -> None:
        self.now, self.own, self.used = 0.0, 0.0, 0.0

    def ticks(self):
        half = round(100 * self.used / 2)
        return {0: (half, round(100 * self.now)), 1: (half, round(100 * self.now))}

    def run(self, seconds: float, ours: float, others: float) -> None:
        self.now += seconds
        self.own += seconds * ours
        self.used += seconds * (ours + others)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_threads, "allowed_cores", lambda: frozenset({0, 1}))
    monkeypatch.setattr(cpu_threads, "cpu_quota", lambda: None)


def watch_of(machine: Machine, threads: int) -> ThreadWatch:
    return ThreadWatch(threads, ticks=machine.ticks, clock=lambda: machine.now, own=lambda: machine.own)


def test_a_run_gives_up_a_core_that_others_take_and_gets_it_back(two_cores):
    machine = Machine()
    watch = watch_of(machine, 2)
    machine.run(11, ours=2.0, others=0.0)  # both cores are busy, with this run
    assert watch.poll() is None
    machine.run(11, ours=1.0, others=1.0)
    assert watch.poll() is None  # a burst changes nothing
    machine.run(11, ours=1.0, others=1.0)
    changed = watch.poll()
    assert changed is not None
    assert (changed.threads, watch.threads) == (1, 1)
    for expected in (None, 2):
        machine.run(11, ours=1.0, others=0.0)
        found = watch.poll()
        assert (found and found.threads) == expected


def test_a_burst_changes_nothing(two_cores):
    machine = Machine()
    watch = watch_of(machine, 2)
    for others in (1.0, 0.0, 1.0, 0.0):
        machine.run(11, ours=1.0, others=others)
        assert watch.poll() is None


def test_a_window_is_not_cut_short(two_cores):
    machine = Machine()
    watch = watch_of(machine, 2)
    for _ in range(9):
        machine.run(1, ours=0.0, others=2.0)
        assert watch.poll() is None
