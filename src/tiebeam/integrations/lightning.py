"""A callback for Lightning's Trainer (`lightning` or `pytorch_lightning`): the fit stops where the tie breaks."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

from tiebeam.errors import BadRequest
from tiebeam.integrations.tie_checks import TieChecks


def _callback_class() -> type[Any]:
    """Lightning's Callback, of the package that the program uses: the two are different classes."""
    packages = ("lightning.pytorch", "pytorch_lightning")
    for name in sorted(packages, key=lambda name: name not in sys.modules):
        try:
            module = __import__(name, fromlist=["Callback"])
        except ImportError:
            continue
        return module.Callback  # type: ignore[no-any-return]
    raise BadRequest("TiebeamCallback needs Lightning; install it: pip install lightning")


class _TiebeamCallback:
    """Check the tie before the fit, before the first step, every `every` steps, before and after each checkpoint.

        from tiebeam.integrations.lightning import TiebeamCallback

        trainer = lightning.Trainer(callbacks=[TiebeamCallback()])
        trainer.fit(module, loader)

    The pair is the LightningModule's own, or that of the first Hugging Face model in it. Raises
    `tiebeam.errors.TieBroken` with the finding and the stage. `tie/head_gradient_share`, `tie/embed_row_norm`,
    `tie/head_row_norm` (if untied) and `tie/untrained_rows` are logged every `log_every_n_steps` of the Trainer.

    every     check after every this many steps
    options   embed, head, tied, rows: as for `TieChecks`
    """

    def __init__(self, every: int = 1, **options: Any) -> None:
        super().__init__()
        self.checks = TieChecks(every, **options)
        self._step = 0

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.checks.load(pl_module)
            # Lightning has no event after a save, nor one with what is written: the module's own hook may change it.
            strategy = trainer.strategy
            strategy.save_checkpoint = functools.partial(self._save, trainer, pl_module, strategy.save_checkpoint)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        trainer.strategy.__dict__.pop("save_checkpoint", None)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._step = trainer.global_step
        self.checks.begin(_wrapped(trainer), trainer.optimizers, resumed=trainer.ckpt_path is not None)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (self._step + 1) % max(1, trainer.log_every_n_steps) == 0:
            self.checks.measure_next(_wrapped(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:  # a micro-batch of a step that is not finished
            return
        self._step = trainer.global_step
        self.checks.step(_wrapped(trainer), self._step)
        if trainer.loggers and self._step % max(1, trainer.log_every_n_steps) == 0:
            found = self.checks.metrics(_wrapped(trainer))
            # Not pl_module.log: at this point of the loop it accepts only what every batch logs.
            for logger in trainer.loggers:
                logger.log_metrics(found, step=self._step)

    def _save(
        self, trainer: Any, pl_module: Any, own: Any, checkpoint: Any, filepath: Any, *more: Any, **options: Any
    ) -> Any:
        """What is written must hold the model's pair: the state dict before, and the file after."""
        self.checks.before_save(_wrapped(trainer), trainer.global_step)
        state = checkpoint.get("state_dict", {})
        self.checks.saving(_wrapped(trainer), pl_module, state)
        done = own(checkpoint, filepath, *more, **options)
        if trainer.is_global_zero and state and not Path(filepath).is_dir() and not _writes_later(trainer):
            self.checks.written(_wrapped(trainer), pl_module, filepath)
        return done


def _wrapped(trainer: Any) -> Any:
    """The module as the strategy runs it (in DDP or FSDP)."""
    return trainer.strategy.model


def _writes_later(trainer: Any) -> bool:
    """Whether the file is written by a thread, after the save has returned."""
    plugin = trainer.strategy.checkpoint_io
    return any("Async" in kind.__name__ for kind in type(plugin).__mro__)


def __getattr__(name: str) -> Any:
    if name != "TiebeamCallback":
        raise AttributeError(name)
    found = type("TiebeamCallback", (_TiebeamCallback, _callback_class()), {"__doc__": _TiebeamCallback.__doc__})
    globals()[name] = found
    return found
