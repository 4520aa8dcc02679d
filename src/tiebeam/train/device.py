"""Device and mixed precision of a run."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
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

    A CPU without bf16 instructions multiplies bf16 slower than fp32. A GPU that only emulates bf16 stays
    in fp32 too.
    """
    if device.type == "mps" or (device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)):
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return nullcontext()
