"""Tiny training runs under the checks of tiebeam.integrations, on one rank or several.

    torchrun --nproc-per-node 2 tests/helpers/watched_runs.py accelerate none,step,save /tmp/run

The second word lists the stages at which a run breaks its tie on purpose, one run each; "none" is a healthy run. Every
rank prints one line per run: "rank 0: step: TB501: ..." or "rank 0: none: passed ...". "save" must be the last.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

from helpers.breaking_ties import STAGES
from helpers.watched_accelerate import accelerate_run
from helpers.watched_lightning import lightning_run
from helpers.watched_trainer import trainer_run
from tiebeam.errors import TieBroken

__all__ = ["RUNS", "STAGES", "forget_accelerator"]


RUNS: dict[str, Callable[[str, Path], dict[str, float]]] = {
    "accelerate": accelerate_run,
    "accelerate_fsdp2": lambda broken, where: accelerate_run(broken, where, "fsdp2"),
    "accelerate_zero3": lambda broken, where: accelerate_run(broken, where, "zero3"),
    "trainer": trainer_run,
    "trainer_fsdp2": lambda broken, where: trainer_run(broken, where, "fsdp2"),
    "trainer_zero3": lambda broken, where: trainer_run(broken, where, "zero3"),
    "lightning": lightning_run,
}


def forget_accelerator() -> None:
    """Accelerate keeps one state per process; the next run starts without it."""
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)


def main(library: str, stages: str, directory: str) -> None:
    import torch.distributed as dist

    for stage in stages.split(","):
        try:
            numbers = RUNS[library](stage, Path(directory) / stage)
            known = [numbers.get(f"tie/{name}", -1.0) for name in ("untrained_rows", "head_gradient_share")]
            result = f"passed {known[0]:.0f} {known[1]:.3f}"
        except TieBroken as broken:
            result = str(broken)
        line = f"rank {os.environ.get('RANK', '0')}: {stage}: {result}\n"
        os.write(sys.stdout.fileno(), line.encode())  # in one piece: both ranks write to one pipe
        if stage == "save" and not result.startswith("passed"):
            if library.endswith(("fsdp2", "zero3")):  # every rank looks at its shard: let the other print its line
                with contextlib.suppress(RuntimeError):
                    dist.monitored_barrier(timeout=timedelta(seconds=30))
            os._exit(1)  # rank 0 alone found it, and may be waited for: torchrun ends the others, as in a real run
        forget_accelerator()
        if dist.is_initialized():
            dist.barrier()
    os._exit(0)  # skip interpreter shutdown: gloo threads sometimes abort during teardown


if __name__ == "__main__":
    main(*sys.argv[1:])
