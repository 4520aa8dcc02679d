"""A loop with Accelerate under `watch`: plain or DDP, FSDP2, or DeepSpeed ZeRO-3."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import tiebeam
from helpers.breaking_ties import inner, resize_anew, rows, tamper, tied_model, untie
from helpers.sharding_on_cpu import accelerator_options, assert_sharded
from helpers.tiny_models import build

_FORMATS = {"": "safetensors", "fsdp2": "dcp", "zero3": "deepspeed"}
"""What `save_state` writes."""


def accelerate_run(broken: str, where: Path, sharded: str = "") -> dict[str, float]:
    from accelerate import Accelerator

    from tiebeam.integrations.accelerate import watch

    accelerator = Accelerator(**accelerator_options(sharded))
    model = tied_model(broken)
    watched = watch(accelerator, model)
    if broken in ("prepare", "zeroed"):
        _break_prepare(accelerator, broken, sharded)
    if broken == "resize":
        resize_anew(model)
        watched.resized()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = torch.utils.data.DataLoader(rows(), batch_size=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    assert_sharded(inner(model), sharded)
    for number, batch in enumerate(loader):
        accelerator.backward(model(**batch).loss)
        optimizer.step()
        optimizer.zero_grad()
        if broken == "step" and number == 1:
            untie(model)
    found = watched.log()
    if broken in ("save", "resume"):
        _break_inside(accelerator, broken, model, optimizer, sharded)
    saved = str(where / "state")
    accelerator.save_state(saved)
    if broken != "save":
        accelerator.wait_for_everyone()
        accelerator.load_state(saved)
    if broken == "none":
        tiebeam.assert_saved(inner(model), saved)
        assert tiebeam.inspect(saved).format == _FORMATS[sharded]
    if broken == "sync":
        rollout = build("llama", tie_word_embeddings=False)
        rollout.model.load_state_dict(inner(model).model.state_dict())
        watched.checks.synced(model, rollout)
    return found


def _break_prepare(accelerator: Any, broken: str, sharded: str) -> None:
    name = {"zero3": "_prepare_deepspeed", "fsdp2": "_prepare_fsdp2"}.get(sharded, "prepare_model")
    own = getattr(accelerator, name)

    def careless(*objects: Any, **options: Any) -> Any:
        (model,) = [item for item in objects if isinstance(item, torch.nn.Module)]
        if broken == "prepare":
            untie(model)
        done = own(*objects, **options)
        if broken == "zeroed":  # what a rank of ZeRO-3 holds of the matrix
            inner(model).get_input_embeddings().weight.ds_tensor.detach().zero_()
        return done

    setattr(accelerator, name, careless)


def _break_inside(accelerator: Any, broken: str, model: Any, optimizer: Any, sharded: str) -> None:
    """What goes wrong in `save_state` or `load_state` does so inside Accelerate, under our hook."""
    name = "save_state" if broken == "save" else "load_state"
    hooked = getattr(accelerator, name)
    own = hooked.args[0]

    def inside(*arguments: Any, **options: Any) -> Any:
        with _other_values(model, optimizer, sharded if broken == "save" else ""):
            done = own(*arguments, **options)
        if broken == "save":
            tamper(Path(done))
        else:
            untie(model)
        return done

    setattr(accelerator, name, functools.partial(hooked.func, inside))


@contextmanager
def _other_values(model: Any, optimizer: Any, sharded: str) -> Iterator[None]:
    """What a sharded run writes is twice the model: the shards of FSDP2, the float32 copies that ZeRO-3 saves."""
    shards: list[torch.Tensor] = []
    if sharded == "fsdp2":
        shards = [parameter.detach().to_local() for parameter in model.parameters()]
    if sharded == "zero3":
        shards = [flat.detach() for flat in optimizer.optimizer.fp32_partitioned_groups_flat]
    for shard in shards:
        shard.mul_(2)
    yield
    for shard in shards:
        shard.div_(2)
