"""A run of transformers' Trainer under TiebeamCallback: plain or DDP, FSDP2, or DeepSpeed ZeRO-3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from helpers.breaking_ties import inner, resize_anew, rows, tamper, tied_model, untie
from helpers.sharding_on_cpu import assert_sharded, training_arguments

STEPS = 3


def trainer_run(broken: str, where: Path, sharded: str = "") -> dict[str, float]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tiebeam.integrations.transformers import TiebeamCallback

    sharding = training_arguments(sharded)

    class Breaks(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            assert_sharded(inner(kwargs["model"]), sharded)
            if broken == "step" and state.global_step == 2:
                untie(kwargs["model"])

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if broken == "save":
                tamper(where)

    class Careless(Trainer):
        def _wrap_model(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            if broken == "prepare":
                untie(model)
            return super()._wrap_model(model, *args, **kwargs)

        def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
            super()._load_optimizer_and_scheduler(checkpoint)
            if broken == "resume" and checkpoint is not None:
                untie(self.model)

    def train(steps: int, resume: str | None = None) -> dict[str, float]:
        arguments = TrainingArguments(
            output_dir=str(where), max_steps=steps, per_device_train_batch_size=2, report_to=[],
            disable_tqdm=True, save_strategy="steps", save_steps=STEPS, logging_steps=1, **sharding,
        )  # fmt: skip
        run = Careless(tied_model(broken), arguments, train_dataset=rows(24), callbacks=[Breaks(), TiebeamCallback()])
        if broken == "resize":
            resize_anew(run.model)
        run.train(resume_from_checkpoint=resume)
        return run.state.log_history[0]

    found = train(STEPS)
    if broken in ("none", "resume"):
        train(STEPS + 1, str(where / f"checkpoint-{STEPS}"))
    return found
