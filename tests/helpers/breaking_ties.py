"""What the runs of watched_runs.py share: their data, and the ways in which they break a tie on purpose."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

from helpers.tiny_models import VOCAB, build

STAGES = ("load", "prepare", "resize", "step", "resume", "save")


def rows(count: int = 16) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    found = [torch.randint(4, VOCAB, (8,), generator=generator) for _ in range(count)]
    return [{"input_ids": ids, "labels": ids} for ids in found]


def tied_model(broken: str) -> Any:
    model = build("llama", tie_word_embeddings=True).train()
    if broken == "load":
        untie(model)
    return model


def inner(model: Any) -> Any:
    while not hasattr(model, "get_output_embeddings"):
        model = model.module if hasattr(model, "module") else model.model
    return model


def untie(model: Any) -> None:
    """A parameter of its own for the head, as load_state_dict(assign=True) gives it."""
    head = inner(model).get_output_embeddings()
    head.weight = torch.nn.Parameter(_whole(head.weight))


def _whole(parameter: Any) -> torch.Tensor:
    """A copy of the whole matrix, also of one that FSDP2 or ZeRO-3 has sharded."""
    if hasattr(parameter, "ds_shape"):
        import deepspeed

        with deepspeed.zero.GatheredParameters([parameter]):
            return parameter.detach().clone()
    whole = parameter.detach()
    return whole.full_tensor().clone() if hasattr(whole, "full_tensor") else whole.clone()


def resize_anew(model: Any) -> None:
    """Eight rows more, and all of them drawn anew."""
    model = inner(model)
    model.lm_head.weight = model.model.embed_tokens.weight = torch.nn.Parameter(torch.randn(VOCAB + 8, 32))
    model.config.vocab_size = VOCAB + 8
    model.vocab_size = VOCAB + 8


def tamper(directory: Path) -> None:
    """Write other values into the saved model, on one rank."""
    from safetensors.torch import load_file, save_file

    if int(os.environ.get("RANK", "0")) != 0:
        return
    for file in directory.rglob("model.safetensors"):
        tensors = load_file(file)
        save_file({name: value + 1 for name, value in tensors.items()}, file, {"format": "pt"})
