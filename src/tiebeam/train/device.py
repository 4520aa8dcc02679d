"""What a run takes of the machine: the device, the arithmetic on it, and on a CPU the threads that are free."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext

import torch

from tiebeam.errors import BadRequest

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """The device of that name, "cuda:1" included; "auto" is CUDA, else Apple's GPU, else the CPU."""
    there = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device(next(kind for kind in ("cuda", "mps", "cpu") if there[kind]))
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadRequest(f"--device is {name!r}; it is one of {', '.join(DEVICES)}, or like cuda:1") from None
    if not there.get(device.type, False) or (device.index or 0) >= max(1, torch.cuda.device_count()):
        found = ", ".join(kind for kind, is_there in there.items() if is_there)
        raise BadRequest(f"--device is {name!r}, which this machine or this torch does not have; it has: {found}")
    return device


def arithmetic(device: torch.device) -> AbstractContextManager[object]:
    """bf16 autocast where the device multiplies bf16 faster than fp32, as GPUs do; plain fp32 elsewhere.

    On a CPU fp32 stands: without instructions for bf16 its products are several times slower. An old GPU that
    only emulates bf16 stays in fp32 too.
    """
    if device.type == "mps" or (device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()


def free_threads() -> int:
    """Cores that this process may use, less those that others have kept busy over the last minute.

    Two OpenMP threads on one free core fall to a third of one thread's speed, because each waits for the other.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS or Windows
        cores = os.cpu_count() or 1
    try:
        busy = os.getloadavg()[0]
    except OSError:
        busy = 0.0
    return max(1, min(cores, round(cores - busy + 0.5)))
