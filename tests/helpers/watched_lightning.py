"""A fit of Lightning's Trainer under TiebeamCallback, on one device or with DDP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from helpers.breaking_ties import resize_anew, rows, tied_model, untie


def lightning_run(broken: str, where: Path) -> dict[str, float]:
    import lightning
    from lightning.pytorch.loggers import CSVLogger
    from lightning.pytorch.plugins.io import TorchCheckpointIO

    from tiebeam.integrations.lightning import TiebeamCallback

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = tied_model(broken)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            if broken == "prepare":
                untie(self.model)
            if broken == "resize":
                resize_anew(self.model)
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            if broken == "step" and self.global_step == 2:
                untie(self.model)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if broken == "state dict":
                checkpoint["state_dict"] = _changed(checkpoint["state_dict"])

    class OtherValues(TorchCheckpointIO):
        def save_checkpoint(self, checkpoint: dict[str, Any], *args: Any, **kwargs: Any) -> None:
            if broken == "save":
                checkpoint = {**checkpoint, "state_dict": _changed(checkpoint["state_dict"])}
            super().save_checkpoint(checkpoint, *args, **kwargs)

    class Break(lightning.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if broken == "resume" and trainer.ckpt_path is not None:
                untie(pl_module)

    class Numbers(CSVLogger):  # the second of two: both get every number
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            seen.update(metrics)

    seen: dict[str, float] = {}
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    saves = lightning.pytorch.callbacks.ModelCheckpoint(where, every_n_train_steps=3)

    def fit(steps: int, resume: str | None = None) -> str:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_steps=steps,
            log_every_n_steps=1, logger=[CSVLogger(where), Numbers(where)], plugins=[OtherValues()],
            callbacks=[saves, Break(), TiebeamCallback()], enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Model(), torch.utils.data.DataLoader(rows(24), batch_size=2), ckpt_path=resume)
        return saves.best_model_path

    written = fit(3)
    if broken in ("none", "resume"):
        fit(4, written)
    return seen


def _changed(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value + 1 for name, value in state.items()}
