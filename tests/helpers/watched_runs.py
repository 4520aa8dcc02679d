"""Tiny training runs under the checks of tiebeam.integrations, on one rank or several.

    torchrun --nproc-per-node 2 tests/helpers/watched_runs.py accelerate step /tmp/run

The second word is the stage at which the run breaks its tie on purpose; "none" is a healthy run. Every rank prints one
line: "rank 0: TB501: ..." or "rank 0: passed".
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from helpers.tiny_models import VOCAB, build
from tiebeam.errors import TieBroken

STAGES = ("load", "prepare", "resize", "step", "resume", "save", "sync")


def rows(count: int = 16) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    found = [torch.randint(4, VOCAB, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": ids} for ids in found]


def untie(model: Any) -> None:
    """A parameter of its own for the head, as load_state_dict(assign=True) gives it."""
    head = inner(model).get_output_embeddings()
    head.weight = torch.nn.Parameter(head.weight.detach().clone())


def inner(model: Any) -> Any:
    while not hasattr(model, "get_output_embeddings"):
        model = model.module if hasattr(model, "module") else model.model
    return model


def tamper(directory: Path) -> None:
    """Write other values into the saved model."""
    from safetensors.torch import load_file, save_file

    for file in directory.rglob("model.safetensors"):
        tensors = load_file(file)
        save_file({name: value + 1 for name, value in tensors.items()}, file, {"format": "pt"})


def accelerate_run(broken: str, where: Path, fsdp: bool = False) -> dict[str, float]:
    from accelerate import Accelerator, FullyShardedDataParallelPlugin

    from tiebeam.integrations.accelerate import watch

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if fsdp else None
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    model = build("llama", tie_word_embeddings=True).train()
    if broken == "load":
        untie(model)
    watched = watch(accelerator, model)
    if broken == "prepare":
        plain = accelerator.prepare_model

        def careless(model: Any, *args: Any, **kwargs: Any) -> Any:
            untie(model)
            return plain(model, *args, **kwargs)

        accelerator.prepare_model = careless
    if broken == "resize":
        model.resize_token_embeddings(VOCAB + 8)
        model.lm_head.weight = model.model.embed_tokens.weight = torch.nn.Parameter(torch.randn(VOCAB + 8, 32))
        watched.resized()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for number, batch in enumerate(loader):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if broken == "step" and number == 1:
            untie(model)
    if broken in ("save", "resume"):  # what goes wrong does so inside Accelerate, under our hook
        hooked, after = (accelerator.save_state, _tamper) if broken == "save" else (accelerator.load_state, untie)
        own = hooked.args[0]

        def inside(*args: Any, **kwargs: Any) -> Any:
            done = own(*args, **kwargs)
            after(done if broken == "save" else model)
            return done

        setattr(accelerator, f"{broken.replace('resume', 'load')}_state", functools.partial(hooked.func, inside))
    found = watched.log()
    if not fsdp:
        accelerator.save_state(str(where / "state"))
        accelerator.load_state(str(where / "state"))
    if broken == "sync":
        rollout = build("llama", tie_word_embeddings=False)
        rollout.model.load_state_dict(inner(model).model.state_dict())
        watched.checks.synced(model, rollout)
    return found


def _tamper(written: str) -> None:
    if int(os.environ.get("RANK", "0")) == 0:
        tamper(Path(written))


def trainer_run(broken: str, where: Path) -> dict[str, float]:
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from tiebeam.integrations.transformers import TiebeamCallback

    class Break(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if broken == "step" and state.global_step == 2:
                untie(kwargs["model"])

        def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if broken == "save" and state.is_world_process_zero:
                tamper(where)

    arguments = TrainingArguments(
        output_dir=str(where), max_steps=3, per_device_train_batch_size=2, report_to=[], use_cpu=True,
        disable_tqdm=True, save_strategy="steps", save_steps=3, logging_steps=1,
    )  # fmt: skip
    model = build("llama", tie_word_embeddings=True)
    run = Trainer(model, arguments, train_dataset=rows(), callbacks=[Break(), TiebeamCallback()])
    run.train()
    return run.state.log_history[0]


def lightning_run(broken: str, where: Path) -> dict[str, float]:
    import lightning

    from tiebeam.integrations.lightning import TiebeamCallback

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = build("llama", tie_word_embeddings=True).train()
            if broken == "load":
                untie(self.model)

        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
            return self.model(**batch).loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            if broken == "prepare":
                untie(self.model)
            if broken == "resize":
                fresh = torch.nn.Parameter(torch.randn(VOCAB + 8, 32))
                self.model.lm_head.weight = self.model.model.embed_tokens.weight = fresh
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_train_batch_end(self, outputs: Any, batch: Any, index: int) -> None:
            if broken == "step" and self.global_step == 2:
                untie(self.model)

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if broken == "save":
                state = checkpoint["state_dict"]
                checkpoint["state_dict"] = {name: value + 1 for name, value in state.items()}

    class Break(lightning.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if broken == "resume" and trainer.ckpt_path is not None:
                untie(pl_module)

    class Numbers(lightning.pytorch.loggers.CSVLogger):
        def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
            seen.update(metrics)

    seen: dict[str, float] = {}
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    saves = lightning.pytorch.callbacks.ModelCheckpoint(where, every_n_train_steps=3)

    def fit(steps: int, resume: str | None = None) -> str:
        trainer = lightning.Trainer(
            accelerator="cpu", devices=ranks, strategy="ddp" if ranks > 1 else "auto", max_steps=steps,
            log_every_n_steps=1, logger=Numbers(where), callbacks=[saves, Break(), TiebeamCallback()],
            enable_progress_bar=False, enable_model_summary=False,
        )  # fmt: skip
        trainer.fit(Model(), torch.utils.data.DataLoader(rows(24), batch_size=2), ckpt_path=resume)
        return saves.best_model_path

    written = fit(3)
    if broken == "resume":
        fit(4, written)
    return seen


RUNS: dict[str, Callable[[str, Path], dict[str, float]]] = {
    "accelerate": accelerate_run,
    "accelerate_fsdp2": lambda broken, where: accelerate_run(broken, where, fsdp=True),
    "trainer": trainer_run,
    "lightning": lightning_run,
}


if __name__ == "__main__":
    library, stage, directory = sys.argv[1:]
    try:
        numbers = RUNS[library](stage, Path(directory))
        result = f"passed {numbers.get('tie/untrained_rows', -1):.0f} {numbers.get('tie/head_gradient_share', -1):.3f}"
    except TieBroken as broken_tie:
        result = str(broken_tie)
    print(f"rank {os.environ.get('RANK', '0')}: {result}", flush=True)
    os._exit(0)  # skip interpreter shutdown: gloo threads sometimes abort during teardown
