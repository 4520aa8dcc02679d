"""Weights and optimizer states as named tensors and plain facts: what an interrupted run needs to go on.

The names do not depend on how many processes there are or how they share the model out, so a state saved by some can
be taken up by others. One process keeps it in a safetensors file, several in a directory of torch's distributed
checkpoint, written as safetensors too: each process its part, and nothing pickled.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiebeam.errors import UnreadableInput
from tiebeam.nn import GPT, ShardedEmbedding, sharded_parameters
from tiebeam.train.distributed_muon import local_part
from tiebeam.train.run_directory import FACTS

Optimizers = Sequence[torch.optim.Optimizer]


def state_of(model: GPT, optimizers: Optimizers) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, each under its global shape, and the numbers that are not tensors."""
    blocks = sharded_parameters(model)
    tensors = {
        f"model.{name}": _global(model, tensor) if name in blocks else tensor
        for name, tensor in model.state_dict().items()
    }
    held = {id(block) for block in blocks.values()}
    scalars: list[dict[str, dict[str, Any]]] = []
    for number, optimizer in enumerate(optimizers):
        plain: dict[str, dict[str, Any]] = {}
        parameters = _parameters(optimizer)
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    parameter = parameters[int(index)]
                    part = id(parameter) in held and value.shape == parameter.shape
                    tensors[f"optimizer.{number}.{index}.{key}"] = _global(model, value) if part else value
                else:
                    plain.setdefault(str(index), {})[key] = value
        scalars.append(plain)
    return tensors, {"scalars": scalars}


def load_into(
    model: torch.nn.Module, optimizers: Optimizers, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """The way back, into a model and optimizers built the same way."""
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    try:
        model.load_state_dict(weights)
        for number, optimizer in enumerate(optimizers):
            state: dict[int, dict[str, Any]] = {
                int(index): dict(values) for index, values in facts["scalars"][number].items()
            }
            for name, tensor in tensors.items():
                kind, _, rest = name.partition(".")
                if kind == "optimizer" and rest.startswith(f"{number}."):
                    _, index, key = rest.split(".", 2)
                    state.setdefault(int(index), {})[key] = tensor
            optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    except (RuntimeError, KeyError, ValueError, IndexError) as error:
        raise UnreadableInput(f"the saved state does not fit this run: {str(error).splitlines()[0]}") from None


def read_facts(saved: Path) -> dict[str, Any]:
    """The numbers beside the tensors, of a file or a directory."""
    from safetensors import SafetensorError, safe_open

    try:
        if saved.is_dir():
            text = (saved / FACTS).read_text()
        else:
            with safe_open(saved, "pt") as file:
                text = (file.metadata() or {})["facts"]
        facts: dict[str, Any] = json.loads(text)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None
    return facts


def read_whole(saved: Path) -> dict[str, Tensor]:
    """Every tensor, whole, by a process that is alone."""
    from safetensors import SafetensorError, safe_open

    if saved.is_dir():
        room = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in _parts(saved).items()}
        _fill(room, saved, alone=True)
        return room
    try:
        with safe_open(saved, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None


def read_shared(saved: Path, model: GPT, optimizers: Optimizers) -> dict[str, Tensor]:
    """Every tensor, shared out as this run's model is; called by all processes."""
    whole = {} if saved.is_dir() else read_whole(saved)
    parts = _parts(saved) if saved.is_dir() else {name: (t.shape, t.dtype) for name, t in whole.items()}
    weights: dict[str, Tensor] = model.state_dict()
    parameters: list[list[Tensor]] = [_parameters(optimizer) for optimizer in optimizers]
    held = {id(block): _global(model, block) for block in sharded_parameters(model).values()}
    weights |= {name: held[id(block)] for name, block in sharded_parameters(model).items()}
    room: dict[str, Tensor] = {}
    for name, (shape, dtype) in parts.items():
        kind, _, rest = name.partition(".")
        try:
            if kind == "model":
                like = weights[rest]
            else:
                number, index, _ = rest.split(".", 2)
                like = parameters[int(number)][int(index)]
                like = held.get(id(like), like)
        except (KeyError, ValueError, IndexError):
            raise UnreadableInput(f"the saved state does not fit this run, which has no {name}") from None
        if kind == "model" and like.shape != shape:
            raise UnreadableInput(
                f"the saved state does not fit this run: {rest} is {list(shape)} there and {list(like.shape)} here"
            )
        # What has not its parameter's shape is a counter, and everyone has all of it.
        room[name] = torch.zeros_like(like, dtype=dtype) if like.shape == shape else torch.zeros(shape, dtype=dtype)
        room[name].requires_grad_(False)
    if saved.is_dir():
        _fill(room, saved, alone=False)
    for name, tensor in whole.items():
        room[name].copy_(_shared_like(tensor.to(room[name].device), room[name]))
    if held:
        return {name: local_part(tensor) for name, tensor in room.items()}
    return room


def write_shared(beside: Path, tensors: Mapping[str, Tensor]) -> None:
    """Each process its part; called by all of them, and complete when it returns."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(beside), save_distributed=True))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """In the order in which its state numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _global(model: GPT, block: Tensor) -> Tensor:  # [V/N, D] -> [V, D], without a copy
    assert isinstance(model.table, ShardedEmbedding)
    return model.table.as_dtensor(block)


def _parts(saved: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    from safetensors import SafetensorError
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        found: dict[str, Any] = dict(HuggingFaceStorageReader(str(saved)).read_metadata().state_dict_metadata)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None
    return {name: (about.size, about.properties.dtype) for name, about in found.items()}


def _fill(room: dict[str, Tensor], saved: Path, alone: bool) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(room, storage_reader=HuggingFaceStorageReader(str(saved)), no_dist=alone)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise UnreadableInput(f"{saved} is damaged: {str(reason).splitlines()[0]}") from None


def _shared_like(whole: Tensor, like: Tensor) -> Tensor:
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return whole
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(whole, mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
