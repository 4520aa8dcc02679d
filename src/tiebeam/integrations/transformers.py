"""A callback for transformers' Trainer and for TRL's, which inherits it: the run stops where the tie breaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from tiebeam.integrations.tie_checks import TieChecks


class TiebeamCallback(TrainerCallback):
    """Check the tie when the Trainer is made, before the first step, every `every` steps, before and after each save.

        from tiebeam.integrations.transformers import TiebeamCallback

        trainer = Trainer(model, args, train_dataset=data, callbacks=[TiebeamCallback()])
        trainer.train()

    Raises `tiebeam.errors.TieBroken` with the finding and the stage, for example TB501 after step 200 when something
    untied the model. The Trainer's log gets `tie/head_gradient_share`, `tie/embed_row_norm`, `tie/head_row_norm` (if
    untied) and `tie/untrained_rows`. `attach(trainer)` makes it the first callback, so that trackers get these too.

    every         check after every this many steps; 1 costs well under a millisecond per step
    embed, head   parameter names, for a model whose pair is not found
    tied          what the pair should be, if neither the model nor its config tells
    rows          classify every row when the Trainer logs: about a second per GB of embedding
    """

    def __init__(
        self,
        every: int = 1,
        *,
        embed: str | None = None,
        head: str | None = None,
        tied: bool | None = None,
        rows: bool = True,
    ) -> None:
        self.checks = TieChecks(every, embed=embed, head=head, tied=tied, rows=rows)

    def attach(self, trainer: Any) -> Any:
        """Become the first callback of `trainer`; returns it."""
        handler = trainer.callback_handler
        if self in handler.callbacks:
            handler.callbacks.remove(self)
        else:
            self.checks.load(trainer.model)
        handler.callbacks.insert(0, self)
        return trainer

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if kwargs.get("model") is not None:
            self.checks.load(kwargs["model"])

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        optimizer, step = kwargs.get("optimizer"), state.global_step
        saved = _checkpoint(args, step)
        self.checks.begin(
            kwargs["model"],
            [] if optimizer is None else [optimizer],
            resumed_from=saved if step and saved.is_dir() else None,
            resumed=step > 0,
        )

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step + 1
        if step % max(1, int(state.logging_steps or 1)) == 0 or (step == 1 and args.logging_first_step):
            self.checks.measure_next(kwargs["model"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.checks.step(kwargs["model"], state.global_step)
        self._before_save(state, control, kwargs["model"])

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._before_save(state, control, kwargs["model"])

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs = kwargs.get("logs")
        if logs is None or "loss" not in logs:  # an evaluation, or the summary at the end
            return
        found = self.checks.metrics(kwargs["model"])
        logs.update(found)
        state.log_history[-1].update(found)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.checks.after_save(kwargs["model"], _checkpoint(args, state.global_step), state.is_world_process_zero)

    def _before_save(self, state: Any, control: Any, model: Any) -> None:
        if control.should_save:
            self.checks.before_save(model, state.global_step)


def _checkpoint(args: Any, step: int) -> Path:
    return Path(args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{step}"
