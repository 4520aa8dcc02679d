"""Start the runs of watched_runs.py on two ranks, with torchrun, and read what each rank said about each stage."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parents[1]
NAMED = {
    "load": r"^TB501: .*two parameters after load",
    "prepare": r"^TB501: .*two parameters after prepare",
    "resize": r"^TB512: .*rows of the embedding changed after resize",
    "step": r"^TB501: .*two parameters after step (2|3)",
    "resume": r"^TB501: .*two parameters after resume",
    "save": r"^TB514: .*does not hold the model's values.*after save",
}
"""What a run says that breaks its tie at a stage."""
EVERY_STAGE = ("none", *NAMED)
SHARDED_STAGES = tuple(stage for stage in EVERY_STAGE if stage != "step")
"""Of a sharded Accelerate loop: in the next forward pass FSDP2 puts its parameter back under both names, and DeepSpeed
fails, so nothing is left to be named after the step. In the Trainer the check comes before that pass."""
_ZEROED = {"zeroed": r"^TB513: .*sampled rows of the embedding are zero after prepare"}  # under ZeRO-3
_SHARDED = {"prepare": r"^TB511: .*two sharded parameters after prepare"}  # both were sharded after they were untied


def watched(library: str, stages: Iterable[str], where: Path, python: str = sys.executable) -> dict[str, list[str]]:
    """stage: the lines of rank 0 and rank 1. Of "save", which must be the last, there is only that of rank 0, which
    writes, unless the model is sharded."""
    stages = list(stages)
    command = [
        python, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(TESTS / "helpers" / "watched_runs.py"),
        library, ",".join(stages), str(where),
    ]  # fmt: skip
    environment = {
        **os.environ, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent / "src", TESTS))), "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }  # fmt: skip
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    said = {(stage, rank): line for rank, stage, line in re.findall(r"^rank (\d): (\w+): (.*)$", done.stdout, re.M)}
    alone = not library.endswith(("fsdp2", "zero3"))
    ranks = {stage: ("0",) if stage == "save" and alone else ("0", "1") for stage in stages}
    wanted = {(stage, rank) for stage in stages for rank in ranks[stage]}
    assert wanted <= said.keys(), (said, done.stderr[-3000:])
    return {stage: [said[stage, rank] for rank in ranks[stage]] for stage in stages}


def assert_named(said: dict[str, list[str]], sharded: bool = False) -> None:
    """A healthy run passes on every rank; a broken one is named with its stage on every rank."""
    named = {**NAMED, **_ZEROED, **(_SHARDED if sharded else {})}
    for stage, lines in said.items():
        for line in lines:
            if stage == "none":
                assert line.startswith("passed"), (stage, lines)
            else:
                assert re.search(named[stage], line), (stage, lines)
