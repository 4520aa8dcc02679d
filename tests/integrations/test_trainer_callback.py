"""TiebeamCallback in transformers' real Trainer: a healthy run passes, a broken tie stops it with its code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments

import tiebeam
from helpers.tiny_models import VOCAB, build
from tiebeam.errors import BadRequest, TieBroken
from tiebeam.integrations.transformers import TiebeamCallback


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = torch.randint(0, VOCAB, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": ids, "labels": ids}


class UntieAt(TrainerCallback):
    """Gives the head its own parameter after a step, as a careless resize does."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            head = kwargs["model"].lm_head
            head.weight = torch.nn.Parameter(head.weight.detach().clone())


def trainer(where: Path, callbacks: list[Any], tied: bool = True, **changes: Any) -> Trainer:
    arguments = TrainingArguments(
        output_dir=str(where), max_steps=4, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, **{"save_strategy": "no", **changes},
    )  # fmt: skip
    return Trainer(build("llama", tie_word_embeddings=tied), arguments, train_dataset=Sentences(), callbacks=callbacks)


@pytest.mark.parametrize("tied", [True, False])
def test_a_healthy_run_with_checkpoints_passes(tmp_path: Path, tied: bool) -> None:
    run = trainer(tmp_path, [TiebeamCallback()], tied, save_strategy="steps", save_steps=2)
    run.train()
    assert run.state.global_step == 4
    assert tiebeam.inspect(tmp_path / "checkpoint-4").tied is tied


def test_a_run_stops_at_the_step_that_unties_the_model(tmp_path: Path) -> None:
    run = trainer(tmp_path, [UntieAt(2), TiebeamCallback()])
    with pytest.raises(TieBroken, match=r"^TB501: .*step 2"):
        run.train()
    assert run.state.global_step == 2


def test_a_saved_checkpoint_that_lost_the_tie_stops_the_run(tmp_path: Path) -> None:
    class Tamper(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            config = Path(args.output_dir) / f"checkpoint-{state.global_step}" / "config.json"
            config.write_text(config.read_text().replace('"tie_word_embeddings": true', '"tie_word_embeddings": false'))

    run = trainer(tmp_path, [Tamper(), TiebeamCallback()], save_strategy="steps", save_steps=2)
    with pytest.raises(TieBroken, match="headless"):
        run.train()


def test_every_must_be_positive() -> None:
    with pytest.raises(BadRequest, match="every must be at least 1, not 0"):
        TiebeamCallback(every=0)
