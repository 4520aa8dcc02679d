"""What every integration does: check the pair at each stage of a training run, and measure it for the log.

A loop moves, wraps, resizes and saves the model between our calls, so a check looks at the model it is handed and never
keeps a parameter. The stage in an error is where the tie broke: "load" before training, "resize" if the number of rows
changed since the last look, "resume" if a checkpoint was loaded, else "prepare"; then "step N" and "save".
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.distributed.detect import is_distributed_model
from tiebeam.doctor.guard import Guard, difference_findings, guard, raise_errors, saved_findings
from tiebeam.doctor.row_samples import is_partitioned, local_rows, whole_shape
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.integrations.head_gradient import HeadGradient
from tiebeam.integrations.saved_state import file_difference, state_difference
from tiebeam.surgery.module import find_parameters, unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn


class TieChecks:
    """The checks of one run.

    every         check after every this many steps; one check takes well under a millisecond
    embed, head   parameter names, for a model whose pair is not found
    tied          what the pair should be, if neither the model nor its config tells
    rows          classify every row when logging: about a second per GB of embedding
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
        if every < 1:
            raise BadRequest(f"every must be at least 1, not {every}")
        self.every, self.rows = every, rows
        self._names = {"embed": embed, "head": head}
        self._tied = tied
        self._guard: Guard | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._gradient = HeadGradient()

    def load(self, model: nn.Module) -> None:
        """The first look, before training: the tie must be what the config says. Values are remembered."""
        self._look(model, "load")
        assert self._guard is not None
        self._guard.remember()

    def begin(
        self,
        model: nn.Module,
        optimizers: Iterable[torch.optim.Optimizer] = (),
        resumed_from: str | os.PathLike[str] | None = None,
        resumed: bool = False,
    ) -> None:
        """Before the first step, after the loop has prepared the model and loaded what it resumes from."""
        stage = "resume" if resumed or resumed_from is not None else "prepare"
        if self._guard is not None and _shapes(model, self._names) != self._shapes:
            stage = "resize"
        for optimizer in optimizers:
            self._of(model).follow(optimizer)
        self._look(model, stage)
        if resumed_from is not None and _is_model(resumed_from):
            raise_errors(saved_findings(language_model(model), resumed_from, stage))
        self._of(model).forget()  # the optimizer changes values from here on

    def resized(self, model: nn.Module) -> None:
        """After a resize, if no step came since `load` or `begin`: the rows that stayed must have their values."""
        self._look(model, "resize")
        self._of(model).remember()

    def step(self, model: nn.Module, number: int) -> None:
        """After optimizer step `number`."""
        if number % self.every == 0:
            self._look(model, self._named(model, f"step {number}"))

    def before_save(self, model: nn.Module, number: int) -> None:
        """Before a checkpoint is written, whatever `every` says."""
        self._look(model, self._named(model, f"step {number}, before the save"))

    def after_save(self, model: nn.Module, path: str | os.PathLike[str], main: bool = True) -> None:
        """The written checkpoint must be the model. An adapter's directory holds no model and is left alone.

        Shards of FSDP and DeepSpeed are read too, as far as tiebeam can: else there is a warning. `main` is whether
        this is the main rank. Where the pair is sharded every rank must call this, and compares the rows that it holds.
        """
        if any(is_partitioned(p) for p in self._of(model).parameters() if p is not None):
            _wait_for_every_rank()  # one of them may still be writing
        elif not main:
            return
        if _is_model(path):
            raise_errors(saved_findings(language_model(model), path, "save"))
        elif _is_sharded(path):
            try:
                found = saved_findings(language_model(model), path, "save")
            except UnreadableInput as error:
                warnings.warn(f"the written checkpoint was not checked: {error}", stacklevel=2)
                return
            raise_errors(found)

    def saving(self, model: nn.Module, owner: nn.Module, state: Mapping[str, Any]) -> None:
        """A state dict of `owner` that will be written must hold the pair of `model`, under every name that it has."""
        difference = state_difference(self._of(model).parameters(), owner, state)
        raise_errors(difference_findings(language_model(model), difference, "save"))

    def written(self, model: nn.Module, owner: nn.Module, path: str | os.PathLike[str]) -> None:
        """A file of `owner`'s state dict that was written must hold it too. One in a format of its own is left alone,
        with a warning."""
        try:
            difference = file_difference(self._of(model).parameters(), owner, path)
        except UnreadableInput as error:
            warnings.warn(f"the written checkpoint was not checked: {error}", stacklevel=2)
            return
        raise_errors(difference_findings(language_model(model), difference, "save"))

    def synced(self, model: nn.Module, copy: nn.Module) -> None:
        """After a weight sync: the copy must have the model's embedding and head."""
        watched = self._of(model)
        watched.act_on(watched.check_copy(language_model(copy)))

    def measure_next(self, model: nn.Module) -> None:
        """Measure the next backward pass for `metrics`."""
        self._gradient.arm(*find_parameters(language_model(model), **self._names))

    def metrics(self, model: nn.Module) -> dict[str, float]:
        """What to log. If the pair is sharded, every rank must call this at the same step."""
        found: dict[str, float] = {}
        if self._gradient.result is not None:
            found["tie/head_gradient_share"] = self._gradient.result.head_share
            self._gradient.result = None
        if not self.rows:
            return found
        inner = language_model(model)
        E, W = (None if slot is None else slot.parameter for slot in find_parameters(inner, **self._names))
        untrained = 0
        for role, parameter in (("embed", E), ("head", None if W is E else W)):
            if parameter is None or parameter.is_meta:
                continue
            norm, count = _row_figures(parameter, inner)
            found[f"tie/{role}_row_norm"] = norm
            untrained += count
        return {**found, "tie/untrained_rows": float(untrained)}

    def _look(self, model: nn.Module, stage: str) -> None:
        self._of(model).enforce(stage)
        self._shapes = _shapes(model, self._names)

    def _named(self, model: nn.Module, stage: str) -> str:
        return stage if _shapes(model, self._names) == self._shapes else f"resize before {stage}"

    def _of(self, model: nn.Module) -> Guard:
        """The guard of this run, looking at the model as it is wrapped now."""
        inner = language_model(model)
        if self._guard is None:
            self._guard = guard(inner, tied=self._tied, **self._names)
        self._guard.model = inner
        return self._guard


def language_model(model: nn.Module) -> nn.Module:
    """The model that has the embedding and the head: inside DDP, FSDP, DeepSpeed, torch.compile, and inside a module
    that holds a Hugging Face model as a part (LightningModule)."""
    inner = unwrap(model)
    if hasattr(inner, "get_input_embeddings"):
        return inner
    for child in inner.children():
        child = unwrap(child)
        if hasattr(child, "get_input_embeddings") and hasattr(child, "get_output_embeddings"):
            return child
    return inner


def _shapes(model: nn.Module, names: dict[str, str | None]) -> list[tuple[int, ...]]:
    return [whole_shape(slot.parameter) for slot in find_parameters(language_model(model), **names) if slot is not None]


def _row_figures(parameter: Any, model: Any) -> tuple[float, int]:
    """The median row norm and the number of untrained rows; of shards the mean of the medians, and the sum."""
    import torch
    import torch.distributed as dist

    from tiebeam.inspection.live_rows import live_rows

    _, held = local_rows(parameter)
    config = model.config.to_dict() if hasattr(getattr(model, "config", None), "to_dict") else None
    found = live_rows(held, config)
    if not is_partitioned(parameter) or not dist.is_initialized():
        return found.median_norm, found.untrained
    sums = torch.tensor([found.rows, found.rows * found.median_norm, found.untrained], dtype=torch.float64)
    sums = sums.to(held.device) if held.device.type != "mps" else sums
    dist.all_reduce(sums)
    rows, norms, untrained = sums.tolist()
    return norms / max(1.0, rows), int(untrained)


def _wait_for_every_rank() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.barrier()


def _is_sharded(path: str | os.PathLike[str]) -> bool:
    """Whether several ranks wrote the model here, and one of them saw the end of it."""
    where = Path(path)
    if not where.is_dir() or (where / "adapter_config.json").exists():
        return False
    folders = [folder for folder in where.iterdir() if folder.is_dir()]
    return any(is_distributed_model(folder.name, [entry.name for entry in folder.iterdir()]) for folder in folders)


def _is_model(path: str | os.PathLike[str]) -> bool:
    """Whether there are weights of a whole model: no adapter, no directory of shards."""
    where = Path(path)
    names = [entry.name for entry in where.iterdir()] if where.is_dir() else []
    weights = [name for name in names if name.endswith((".safetensors", ".bin"))]
    return any(name.startswith(("model", "pytorch_model")) for name in weights) and "adapter_config.json" not in names
