"""DeepSpeed's own ZeRO-3 on two CPU ranks, under Accelerate: broken ties are named.

DeepSpeed runs in its own environment. None of its operators is compiled: gloo carries the collectives, and the
optimizer is torch's. A tie that is broken while Accelerate prepares the model, and a save of other values, have no test
here, nor has the Trainer (docs/integrations.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.two_ranks import assert_named, watched
from peers.environments import python

pytestmark = [pytest.mark.peer, pytest.mark.slow]


@pytest.fixture(scope="module")
def interpreter() -> str:
    found = python("deepspeed")
    if found is None:
        pytest.skip("build the peers first: python tests/peers/environments.py deepspeed")
    return str(found)


def test_a_tie_broken_under_zero_3_is_named_with_its_stage(interpreter: str, tmp_path: Path) -> None:
    assert_named(watched("accelerate_zero3", ("none", "load", "resize", "step", "resume"), tmp_path, interpreter))
