"""Device, mixed precision and CPU threads of a run."""

from __future__ import annotations

import os
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tiebeam.errors import BadRequest

if TYPE_CHECKING:
    from tiebeam.train.distributed.environment import Distribution

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """The device of that name, such as "cuda:1". "auto" is CUDA, else MPS, else the CPU.

    >>> choose_device("cpu")
    device(type='cpu')
    """
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if available[kind]))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadRequest(f"`device={name!r}` is not a device; use {', '.join(DEVICES)} or cuda:1") from None
    if not available.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        found = ", ".join(kind for kind, there in available.items() if there)
        raise BadRequest(f"`device={name!r}` is not available on this machine with this torch; available: {found}")
    return device


def rank_device(name: str, distribution: Distribution) -> torch.device:
    """The device of this rank: with several ranks on one machine, one GPU each."""
    device = choose_device(name)
    if distribution.world_size == 1 or device.type == "cpu":
        return device
    if device.type == "mps":  # a single GPU, and no collectives on it
        return torch.device("cpu")
    if distribution.local_rank >= torch.cuda.device_count():
        raise BadRequest(
            f"local rank {distribution.local_rank} has no GPU, this machine has {torch.cuda.device_count()}; "
            "lower --nproc-per-node or use `device='cpu'`"
        )
    return torch.device("cuda", distribution.local_rank)


def autocast(device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the device multiplies bf16 faster than fp32, as GPUs do; plain fp32 elsewhere.

    A CPU without bf16 instructions multiplies bf16 several times slower than fp32. A GPU that only emulates bf16 stays
    in fp32 too.
    """
    if device.type == "mps" or (device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def rank_threads() -> int:
    """CPU threads for this rank: the free cores divided among the ranks of this machine."""
    return max(1, free_threads() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def free_threads() -> int:
    """Cores that this process may use, minus those that other work keeps busy now.

    Two OpenMP threads on one free core run at a third of the speed of one thread, because each waits for the other.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        cores = os.cpu_count() or 1
    return max(1, min(cores, round(cores - busy_cores() + 0.25)))


def busy_cores(seconds: float = 0.3, stat: Path = Path("/proc/stat")) -> float:
    """Cores in use over a short sample. The load average lags by a minute: right after an installation it would say
    that a free machine is busy. It is used only where there is no /proc."""
    before = _cpu_times(stat)
    if before is None:
        try:
            return os.getloadavg()[0]
        except (OSError, AttributeError):  # not on Windows
            return 0.0
    time.sleep(seconds)
    after = _cpu_times(stat) or before
    idle, total = (new - old for old, new in zip(before, after, strict=True))
    return (os.cpu_count() or 1) * (1 - idle / total) if total > 0 else 0.0


def _cpu_times(stat: Path) -> tuple[int, int] | None:
    """Ticks in which the machine was idle, and all ticks, since it started."""
    try:
        times = [int(ticks) for ticks in stat.read_text().split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return None
    return (times[3] + times[4], sum(times)) if len(times) == 8 else None
