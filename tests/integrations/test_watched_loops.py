"""Accelerate, Lightning and the Trainer under the checks: a broken tie is named with its stage, on one rank and two."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.tiny_models import build
from helpers.two_ranks import EVERY_STAGE, NAMED, SHARDED_STAGES, assert_named, watched
from helpers.watched_runs import RUNS, forget_accelerator
from tiebeam.errors import BadRequest, TieBroken


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    forget_accelerator()
    yield
    forget_accelerator()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("library", ["trainer", "accelerate", "lightning"])
def test_a_healthy_run_passes_and_measures_the_pair(tmp_path: Path, library: str) -> None:
    found = RUNS[library]("none", tmp_path)
    assert 0 < found["tie/head_gradient_share"] < 1
    assert found["tie/embed_row_norm"] > 0
    assert found["tie/untrained_rows"] >= 0


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("stage", NAMED)
@pytest.mark.parametrize("library", ["trainer", "accelerate", "lightning"])
def test_a_tie_broken_at_a_stage_is_named_with_its_code(tmp_path: Path, library: str, stage: str) -> None:
    with pytest.raises(TieBroken, match=NAMED[stage]):
        RUNS[library](stage, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_rollout_copy_with_an_old_head_is_named_after_a_weight_sync(tmp_path: Path) -> None:
    with pytest.raises(TieBroken, match=r"^TB515: .*copy's head differ .*after weight sync"):
        RUNS["accelerate"]("sync", tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_a_state_dict_that_a_hook_of_the_module_changed_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(TieBroken, match=r"^TB514: .*in the state dict does not hold the model's values.*after save"):
        RUNS["lightning"]("state dict", tmp_path)
    assert list(tmp_path.rglob("*.ckpt")) == []


def test_watch_needs_an_accelerator() -> None:
    from tiebeam.integrations.accelerate import watch

    with pytest.raises(BadRequest, match=r"accelerator must be an accelerate\.Accelerator, not int"):
        watch(1, build("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("library", ["trainer", "accelerate", "lightning"])
def test_two_ranks_name_a_broken_step_and_a_broken_save(tmp_path: Path, library: str) -> None:
    assert_named(watched(library, ("none", "step", "save"), tmp_path))


@pytest.mark.slow
def test_two_ranks_of_fsdp2_name_a_broken_prepare_and_a_broken_save(tmp_path: Path) -> None:
    """A healthy run's shards are read back on each rank, too."""
    assert_named(watched("accelerate_fsdp2", ("none", "prepare", "save"), tmp_path), sharded=True)


@pytest.mark.exhaustive
@pytest.mark.parametrize("library", ["trainer", "trainer_fsdp2", "accelerate", "accelerate_fsdp2", "lightning"])
def test_two_ranks_name_every_stage(tmp_path: Path, library: str) -> None:
    stages = SHARDED_STAGES if library == "accelerate_fsdp2" else EVERY_STAGE
    assert_named(watched(library, stages, tmp_path), sharded=library.endswith("fsdp2"))
