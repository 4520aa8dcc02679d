"""The tie checks around an Accelerate loop: `watched = watch(accelerator, model)` before `prepare`.

Accelerate has no callbacks. `watch` checks the model before `accelerator.prepare`, and hooks into what every loop
calls: `prepare` (the tie and the values survive wrapping), the optimizer's step (every `every` steps), `save_state` and
`save_model` (before, and the written files after), `load_state` (resume).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.errors import BadRequest
from tiebeam.integrations.tie_checks import TieChecks, language_model

if TYPE_CHECKING:
    from torch import nn


class WatchedRun:
    """The checks of one Accelerate loop; made by `watch`."""

    def __init__(self, accelerator: Any, model: nn.Module, checks: TieChecks) -> None:
        self.accelerator, self.model, self.checks = accelerator, model, checks
        self.steps = 0
        self._own: dict[str, Any] = {}
        checks.load(model)
        for name in ("prepare", "save_state", "load_state", "save_model"):
            self._own[name] = getattr(accelerator, name)
            setattr(accelerator, name, functools.partial(getattr(self, f"_{name}"), self._own[name]))

    def log(self, measure_next: bool = True, **values: float) -> dict[str, float]:
        """Send `values` and the pair's metrics to the accelerator's trackers, and return both; call it on every rank.

        `measure_next`: measure the head's share of the gradient in the next backward pass, for the next call.
        """
        found = {**values, **self.checks.metrics(self.model)}
        if self.accelerator.trackers:
            self.accelerator.log(found, step=self.steps)
        if measure_next:
            self.checks.measure_next(self.model)
        return found

    def resized(self) -> None:
        """After a resize: the tie must be there, and the rows that stayed must have their values."""
        self.checks.resized(self.model)

    def stop(self) -> None:
        """Give the accelerator its own methods back."""
        for name in self._own:
            self.accelerator.__dict__.pop(name, None)

    def _prepare(self, own: Any, *objects: Any, **options: Any) -> Any:
        import torch

        prepared = own(*objects, **options)
        together = tuple(prepared) if len(objects) > 1 else (prepared,)  # with FSDP2 it is a list
        for before, after in zip(objects, together, strict=True):
            if isinstance(before, torch.nn.Module) and language_model(before) is language_model(self.model):
                self.model = after
        optimizers = [item for item in together if isinstance(item, torch.optim.Optimizer)]
        self.checks.begin(self.model, optimizers)
        for optimizer in optimizers:
            _after_each_step(optimizer, self._stepped)
        self.checks.measure_next(self.model)
        return prepared

    def _stepped(self, *_: Any) -> None:
        self.steps += 1
        self.checks.step(self.model, self.steps)

    def _load_state(self, own: Any, input_dir: str | None = None, *more: Any, **options: Any) -> Any:
        done = own(input_dir, *more, **options)
        self.checks.begin(self.model, resumed=True)
        return done

    def _save_state(self, own: Any, *arguments: Any, **options: Any) -> Any:
        self.checks.before_save(self.model, self.steps)
        written = own(*arguments, **options)
        if written is not None:
            self.checks.after_save(self.model, written, self.accelerator.is_main_process)
        return written

    def _save_model(self, own: Any, model: nn.Module, save_directory: Any, *more: Any, **options: Any) -> Any:
        self.checks.before_save(model, self.steps)
        done = own(model, save_directory, *more, **options)
        self.checks.after_save(model, Path(save_directory), self.accelerator.is_main_process)
        return done


def _after_each_step(optimizer: Any, function: Callable[..., None]) -> None:
    """Call `function` after every step of the optimizer that Accelerate has wrapped."""
    inner = optimizer
    while hasattr(inner, "optimizer") and not type(inner).__name__.startswith("DeepSpeedZero"):
        inner = inner.optimizer
    if hasattr(inner, "register_step_post_hook"):
        inner.register_step_post_hook(function)
        return
    own = inner.step  # DeepSpeed's: the optimizer inside steps once per group of parameters

    def step(*arguments: Any, **options: Any) -> Any:
        done = own(*arguments, **options)
        function()
        return done

    inner.step = step


def watch(accelerator: Any, model: nn.Module, every: int = 1, **options: Any) -> WatchedRun:
    """Check the tie of `model` at every stage of a loop with `accelerator`; call it before `accelerator.prepare`.

        watched = watch(accelerator, model)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for batch in loader:
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        watched.log(loss=loss.item())
        accelerator.save_state("run")

    Raises `tiebeam.errors.TieBroken` with the finding and the stage.

    every     check after every this many steps
    options   embed, head, tied, rows: as for `TieChecks`
    """
    if not hasattr(accelerator, "prepare"):
        raise BadRequest(f"accelerator must be an accelerate.Accelerator, not {type(accelerator).__name__}")
    return WatchedRun(accelerator, model, TieChecks(every, **options))
