"""DeepSpeed's own ZeRO-3 on two CPU ranks, under Accelerate and the Trainer: a broken tie is named at every stage.

DeepSpeed runs in its own environment. None of its operators is compiled: gloo carries the collectives, and the
optimizer is torch's. A healthy run's checkpoint is read back from DeepSpeed's shards on each rank.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.two_ranks import EVERY_STAGE, SHARDED_STAGES, assert_named, watched
from peers.environments import python

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def interpreter() -> str:
    found = python("deepspeed")
    if found is None:
        pytest.skip("build the peers first: python tests/peers/environments.py deepspeed")
    return str(found)


def test_rows_that_became_zero_under_zero_3_are_named(interpreter: str, tmp_path: Path) -> None:
    assert_named(watched("accelerate_zero3", ("zeroed",), tmp_path, interpreter))


@pytest.mark.parametrize("library", ["accelerate_zero3", "trainer_zero3"])
def test_a_tie_broken_under_zero_3_is_named_with_its_stage(library: str, interpreter: str, tmp_path: Path) -> None:
    stages = SHARDED_STAGES if library == "accelerate_zero3" else EVERY_STAGE
    assert_named(watched(library, stages, tmp_path, interpreter))
