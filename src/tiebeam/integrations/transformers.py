"""A callback for transformers' Trainer: the run stops at the step where the tie breaks, with the finding's code.

The Trainer moves, wraps and saves the model between our calls, so the callback looks at the model it is handed each
time and never keeps a parameter.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from tiebeam.doctor.guard import Guard, assert_saved, guard
from tiebeam.errors import BadRequest


class TiebeamCallback(TrainerCallback):
    """Check the tie at the start of training, every `every` steps, and in every checkpoint that was saved.

        from tiebeam.integrations.transformers import TiebeamCallback

        trainer = Trainer(model, args, train_dataset=data, callbacks=[TiebeamCallback()])
        trainer.train()

    Raises `tiebeam.errors.TieBroken` with the finding, for example TB501 when something untied the model.

    every         check after every this many steps; 1 costs well under a millisecond per step
    embed, head   parameter names, for a model whose pair is not found
    tied          what the pair should be, if neither the model nor its config tells
    """

    def __init__(
        self, every: int = 1, *, embed: str | None = None, head: str | None = None, tied: bool | None = None
    ) -> None:
        if every < 1:
            raise BadRequest(f"every must be at least 1, not {every}")
        self.every = every
        self._options: dict[str, Any] = {"embed": embed, "head": head, "tied": tied}
        self._guard: Guard | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._guard = guard(kwargs["model"], **self._options)
        if kwargs.get("optimizer") is not None:
            self._guard.watch(kwargs["optimizer"])
        self._guard.enforce("resume" if state.global_step else "prepare")

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._guard is not None and state.global_step % self.every == 0:
            self._guard.enforce(f"step {state.global_step}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        saved = Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if state.is_world_process_zero and (saved / "config.json").is_file():
            assert_saved(kwargs["model"], saved)
