"""How many CPU threads a run uses: the cores that are free now, corrected while it runs.

Cores that the process may use come from its affinity and the CPU quota of its cgroup (a container's limit). Those that
other processes keep busy come from a short sample of /proc/stat. Two OpenMP threads on one free core run at a third of
the speed of one thread, because each waits for the other; one thread on two free cores wastes half the machine.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_SAMPLE = 0.3  # seconds
_WINDOW = 10.0  # seconds between two looks while a run trains
_STAT = Path("/proc/stat")
_CGROUP, _MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@dataclass(frozen=True, slots=True)
class ThreadChoice:
    """The number of threads and what it follows from."""

    threads: int
    cores: float
    """That the process may use."""
    busy: float
    """Of these, in use by other processes."""

    def __str__(self) -> str:
        noun = "thread" if self.threads == 1 else "threads"
        return f"{self.threads} CPU {noun} ({self.cores:g} allowed, {self.busy:.1f} in use by other processes)"


def rank_threads() -> int:
    """CPU threads for this rank: the free cores divided among the ranks of this machine."""
    return max(1, free_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def free_threads() -> int:
    """Cores that this process may use, minus those that other work keeps busy now."""
    return choose_threads().threads


def choose_threads() -> ThreadChoice:
    """The choice from a sample of about a third of a second."""
    return _choice(busy_cores())


def _choice(busy: float) -> ThreadChoice:
    cores, quota = float(len(allowed_cores())), cpu_quota()
    if quota is not None:
        cores = min(cores, max(quota, 1.0))
    free = len(allowed_cores()) - busy  # a quota is ours alone: what others use does not count against it
    return ThreadChoice(max(1, min(int(cores), round(free + 0.25))), cores, busy)


def allowed_cores() -> frozenset[int]:
    """The numbers of the cores that this process may run on."""
    try:
        return frozenset(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        return frozenset(range(os.cpu_count() or 1))


def cpu_quota(root: Path = _CGROUP, membership: Path = _MEMBERSHIP) -> float | None:
    """Cores' worth of time that the cgroups of this process allow; None without a limit.

    Version 2 has cpu.max ("200000 100000") at every level; version 1 has cpu.cfs_quota_us (-1: none) below cpu/.
    """
    limits = []
    for line in _lines(membership):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        for level in (PurePosixPath(path), *PurePosixPath(path).parents):
            inside = str(level).lstrip("/")
            if controllers:
                for name in ("cpu", "cpu,cpuacct"):
                    texts = (_lines(root / name / inside / f"cpu.cfs_{what}_us") for what in ("quota", "period"))
                    limits.append(_quotient([line for lines in texts for line in lines]))
            else:
                limits.append(_quotient(" ".join(_lines(root / inside / "cpu.max")).split()))
    return min((limit for limit in limits if limit is not None), default=None)


def _quotient(numbers: list[str]) -> float | None:
    if len(numbers) != 2 or not all(number.isdecimal() for number in numbers) or numbers[1] == "0":
        return None  # "max", -1, or not there
    return int(numbers[0]) / int(numbers[1])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().split("\n")[:-1]
    except OSError:
        return []


def busy_cores(seconds: float = _SAMPLE, stat: Path = _STAT) -> float:
    """How many of the allowed cores are in use, over a short sample. The load average lags by a minute: right after an
    installation it would say that a free machine is busy. It is used only where there is no /proc."""
    before = busy_ticks(stat)
    if before is None:
        try:
            return os.getloadavg()[0]
        except (OSError, AttributeError):  # not on Windows
            return 0.0
    time.sleep(seconds)
    return _busy_between(before, busy_ticks(stat) or before)


Ticks = dict[int, tuple[int, int]]  # core -> ticks in use, all ticks


def busy_ticks(stat: Path = _STAT) -> Ticks | None:
    """The ticks of every allowed core since the machine started; None where the system does not say."""
    found: Ticks = {}
    allowed = allowed_cores()
    for line in _lines(stat):
        name, *ticks = line.split()
        number = name.removeprefix("cpu")
        if name.startswith("cpu") and number.isdecimal() and int(number) in allowed and len(ticks) >= 8:
            times = [int(count) for count in ticks[:8]]
            found[int(number)] = sum(times) - times[3] - times[4], sum(times)  # without idle and iowait
    return found or None


def _busy_between(before: Ticks, after: Ticks) -> float:
    shares = []
    for core, (used, total) in after.items():
        old_used, old_total = before.get(core, (used, total))
        shares.append((used - old_used) / (total - old_total) if total > old_total else 0.0)
    return sum(shares)


class ThreadWatch:
    """Corrects the number of threads while a run trains: call `poll` between steps.

    Over each window it subtracts the run's own CPU time from that of the allowed cores. A new number is returned when
    two windows in a row agree on it, so that a short burst changes nothing.
    """

    def __init__(
        self, threads: int, *, ticks: Callable[[], Ticks | None] = busy_ticks,
        clock: Callable[[], float] = time.monotonic, own: Callable[[], float] = time.process_time,
    ) -> None:  # fmt: skip
        self.threads = threads
        self._ticks, self._clock, self._own = ticks, clock, own
        self._last = ticks(), clock(), own()
        self._wanted = threads

    def poll(self) -> ThreadChoice | None:
        """The new choice if the number should change now."""
        now = self._clock()
        ticks, then, own = self._last
        if ticks is None or now - then < _WINDOW:
            return None
        self._last = self._ticks(), now, self._own()
        if self._last[0] is None:
            return None
        others = _busy_between(ticks, self._last[0]) - (self._last[2] - own) / (now - then)
        found = _choice(max(0.0, others))
        agreed, self._wanted = found.threads == self._wanted, found.threads
        if not agreed or found.threads == self.threads:
            return None
        self.threads = found.threads
        return found
