"""Model and optimizer states of torch as named tensors, for resuming.

The names and shapes do not depend on the number of ranks or on the layout, so a state saved by some ranks can be loaded
by any other number of ranks in any layout. One rank saves a safetensors file. Several ranks save a directory in the
format of torch.distributed.checkpoint, with one safetensors shard per rank. Nothing is pickled.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiebeam.errors import UnreadableInput
from tiebeam.nn import GPT, ShardedEmbedding, sharded_parameters
from tiebeam.nn.collectives import local_part

Optimizers = Sequence[torch.optim.Optimizer]


def state_tensors(model: GPT, optimizers: Optimizers) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by name, each with its global shape, and the optimizers' values that are not tensors."""
    blocks = sharded_parameters(model)
    tensors = {
        f"model.{name}": _as_global(model, tensor) if name in blocks else tensor
        for name, tensor in model.state_dict().items()
    }
    sharded = {id(block) for block in blocks.values()}
    scalars: list[dict[str, dict[str, Any]]] = []
    for number, optimizer in enumerate(optimizers):
        plain: dict[str, dict[str, Any]] = {}
        parameters = _parameters(optimizer)
        for index, values in optimizer.state_dict()["state"].items():
            for key, value in values.items():
                if isinstance(value, Tensor):
                    parameter = parameters[int(index)]
                    is_block = id(parameter) in sharded and value.shape == parameter.shape
                    tensors[f"optimizer.{number}.{index}.{key}"] = _as_global(model, value) if is_block else value
                else:
                    plain.setdefault(str(index), {})[key] = value
        scalars.append(plain)
    return tensors, {"scalars": scalars}


def load_state_tensors(
    model: torch.nn.Module, optimizers: Optimizers, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]
) -> None:
    """Load what `state_tensors` gave into a model and optimizers that were built the same way."""
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


def read_full(saved: Path) -> dict[str, Tensor]:
    """Every tensor in full, on one rank."""
    from safetensors import SafetensorError, safe_open

    if saved.is_dir():
        tensors = {name: torch.empty(shape, dtype=dtype) for name, (shape, dtype) in _shapes(saved).items()}
        _fill(tensors, saved, single_rank=True)
        return tensors
    try:
        with safe_open(saved, "pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except SafetensorError as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None


def read_sharded(saved: Path, model: GPT, optimizers: Optimizers) -> dict[str, Tensor]:
    """Every tensor, sharded as this run's model is. Called by all ranks."""
    full = {} if saved.is_dir() else read_full(saved)
    shapes = _shapes(saved) if saved.is_dir() else {name: (t.shape, t.dtype) for name, t in full.items()}
    weights: dict[str, Tensor] = model.state_dict()
    parameters: list[list[Tensor]] = [_parameters(optimizer) for optimizer in optimizers]
    blocks = {id(block): _as_global(model, block) for block in sharded_parameters(model).values()}
    weights |= {name: blocks[id(block)] for name, block in sharded_parameters(model).items()}
    tensors: dict[str, Tensor] = {}
    for name, (shape, dtype) in shapes.items():
        kind, _, rest = name.partition(".")
        try:
            if kind == "model":
                like = weights[rest]
            else:
                number, index, _ = rest.split(".", 2)
                like = parameters[int(number)][int(index)]
                like = blocks.get(id(like), like)
        except (KeyError, ValueError, IndexError):
            raise UnreadableInput(f"the saved state does not fit this run, which has no {name}") from None
        if kind == "model" and like.shape != shape:
            raise UnreadableInput(
                f"the saved state does not fit this run: {rest} is {list(shape)} there and {list(like.shape)} here"
            )
        # An optimizer tensor of another shape than its parameter is a counter, which every rank holds in full.
        tensors[name] = torch.zeros_like(like, dtype=dtype) if like.shape == shape else torch.zeros(shape, dtype=dtype)
        tensors[name].requires_grad_(False)
    if saved.is_dir():
        _fill(tensors, saved, single_rank=False)
    for name, tensor in full.items():
        tensors[name].copy_(_sharded_like(tensor.to(tensors[name].device), tensors[name]))
    if blocks:
        return {name: local_part(tensor) for name, tensor in tensors.items()}
    return tensors


def write_shards(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write each rank's shards. Called by all ranks; complete when it returns."""
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """In the order in which the optimizer's state dict numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _as_global(model: GPT, block: Tensor) -> Tensor:  # [V/N, D] -> [V, D], without a copy
    assert isinstance(model.table, ShardedEmbedding)
    return model.table.as_dtensor(block)


def _shapes(saved: Path) -> dict[str, tuple[torch.Size, torch.dtype]]:
    from safetensors import SafetensorError
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    try:
        found: dict[str, Any] = dict(HuggingFaceStorageReader(str(saved)).read_metadata().state_dict_metadata)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None
    return {name: (about.size, about.properties.dtype) for name, about in found.items()}


def _fill(tensors: dict[str, Tensor], saved: Path, single_rank: bool) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader
    from torch.distributed.checkpoint.state_dict_loader import load

    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")
            load(tensors, storage_reader=HuggingFaceStorageReader(str(saved)), no_dist=single_rank)
    except CheckpointException as error:
        reason = next(iter(error.failures.values()))[0]
        raise UnreadableInput(f"{saved} is damaged: {str(reason).splitlines()[0]}") from None


def _sharded_like(full: Tensor, like: Tensor) -> Tensor:
    mesh = getattr(like, "device_mesh", None)
    if mesh is None:
        return full
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(full, mesh, like.placements, src_data_rank=None)  # type: ignore[attr-defined]
