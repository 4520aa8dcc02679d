"""Accelerate, Lightning and the Trainer under the checks: a broken tie is named with its stage, on one rank and two."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import watched_runs
from helpers.watched_runs import RUNS
from tiebeam.errors import BadRequest, TieBroken

NAMED = {
    "load": r"^TB501: .*two parameters after load",
    "prepare": r"^TB501: .*two parameters after prepare",
    "resize": r"^TB512: .*rows of the embedding changed after resize",
    "step": r"^TB501: .*two parameters after step (2|3)",
    "resume": r"^TB501: .*two parameters after resume",
    "save": r"^TB514: .*does not hold the model's values.*after save",
}


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    yield
    AcceleratorState._reset_state(True)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_a_healthy_run_passes_and_measures_the_pair(tmp_path: Path, library: str) -> None:
    found = RUNS[library]("none", tmp_path)
    assert 0 < found["tie/head_gradient_share"] < 1
    assert found["tie/embed_row_norm"] > 0
    assert found["tie/untrained_rows"] >= 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", NAMED)
@pytest.mark.parametrize("library", ["accelerate", "lightning"])
def test_a_tie_broken_at_a_stage_is_named_with_its_code(tmp_path: Path, library: str, stage: str) -> None:
    with pytest.raises(TieBroken, match=NAMED[stage]):
        RUNS[library](stage, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_rollout_copy_with_an_old_head_is_named_after_a_weight_sync(tmp_path: Path) -> None:
    with pytest.raises(TieBroken, match=r"^TB515: .*copy's head differ .*after weight sync"):
        RUNS["accelerate"]("sync", tmp_path)


def test_watch_needs_an_accelerator() -> None:
    from tiebeam.integrations.accelerate import watch

    with pytest.raises(BadRequest, match=r"accelerator must be an accelerate\.Accelerator, not int"):
        watch(1, watched_runs.build("llama"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("library", "stage"),
    [
        ("trainer", "none"), ("trainer", "step"), ("trainer", "save"),
        *(("accelerate", stage) for stage in ("none", *NAMED)),
        ("accelerate_fsdp2", "none"), ("accelerate_fsdp2", "load"),
        *(("lightning", stage) for stage in ("none", *NAMED)),
    ],
)  # fmt: skip
def test_two_ranks_agree_on_the_stage(tmp_path: Path, library: str, stage: str) -> None:
    tests = Path(__file__).parents[1]
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", str(tests / "helpers" / "watched_runs.py"),
    ]  # fmt: skip
    path = os.pathsep.join(map(str, (tests.parent / "src", tests)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(
        [*command, library, stage, str(tmp_path)], env=environment, capture_output=True, text=True, timeout=280
    )
    said = dict(re.findall(r"^rank (\d): (.*)$", done.stdout, re.MULTILINE))
    if stage == "none":
        assert said.keys() == {"0", "1"}, done.stderr[-2000:]
        assert all(line.startswith("passed") for line in said.values()), said
    else:
        assert re.search(NAMED[stage], said.get("0", "")), (said, done.stderr[-2000:])
