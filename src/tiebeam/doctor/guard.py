"""Guard the tie of a model in memory: check it after every stage that is known to break it.

`check()` looks at identities, storages and optimizer groups, never at whole matrices, so it can stay on: it
takes well under a millisecond for a model of 300 tensors. Errors raise `TieBroken`; warnings are issued once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from tiebeam.doctor.diagnosis import run_rules
from tiebeam.doctor.examined import ExaminedModule, same_storage
from tiebeam.doctor.rule import Finding, Names, Severity
from tiebeam.errors import TieBroken
from tiebeam.families.config_levels import FLAG
from tiebeam.surgery.module import find_parameters, unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn


def guard(model: nn.Module, *, embed: str | None = None, head: str | None = None, tied: bool | None = None) -> Guard:
    """Guard the pair of `model`.

    `embed` and `head` name its parameters if they cannot be found without help. `tied` is what the pair should be,
    if neither the model nor its config declares it.

        >>> import tiebeam, torch
        >>> model = tiebeam.nn.GPT(tiebeam.nn.GPTConfig(vocab=64, dim=16, layers=1, heads=2))
        >>> guard = tiebeam.guard(model)
        >>> optimizer = guard.watch(torch.optim.AdamW(model.parameters()))  # checks before every step
        >>> with guard.stage("resume"):
        ...     _ = model.load_state_dict(model.state_dict())
    """
    return Guard(model, embed, head, tied)


class Guard:
    """Checks on demand (`check()`), around a stage (`with guard.stage("resize"):`), or before every optimizer step
    (`watch(optimizer)`)."""

    def __init__(self, model: nn.Module, embed: str | None, head: str | None, tied: bool | None) -> None:
        self.model = model
        self._names = embed, head
        self._optimizers: list[torch.optim.Optimizer] = []
        self._warned: set[str] = set()
        E, W = self.parameters()
        flag = getattr(getattr(unwrap(model), "config", None), FLAG, None)
        self.tied = tied if tied is not None else (_one_matrix(E, W) or bool(flag))
        self._unit_normal = E.dim() == 2 and not E.is_meta and self.tied and _is_unit_normal(E)

    def parameters(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        """Embedding and head, as the model holds them now; None if it has no head of its own."""
        return _pair(self.model, *self._names)

    def check(self, stage: str = "") -> tuple[Finding, ...]:
        """Check now and return the findings; raises nothing."""
        E, W = self.parameters()
        optimizers = tuple(self._optimizers)
        examined = ExaminedModule(unwrap(self.model), E, W, self.tied, self._unit_normal, optimizers, stage)
        return run_rules("module", examined, Names())

    def enforce(self, stage: str = "") -> None:
        """Check now; raise `TieBroken` on an error, warn once about the rest."""
        found = self.check(stage)
        for finding in found:
            if finding.severity is Severity.WARNING and finding.code not in self._warned:
                self._warned.add(finding.code)
                warnings.warn(f"{finding.code}: {finding.title}: {finding.evidence}", stacklevel=3)
        if found and found[0].severity is Severity.ERROR:
            worst = found[0]
            raise TieBroken(f"{worst.code}: {worst.title}: {worst.evidence}. {worst.fix}")

    @contextmanager
    def stage(self, name: str) -> Iterator[Guard]:
        """Check after a stage: load, resize, prepare, shard, compile, save, resume."""
        yield self
        self.enforce(name)

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.enforce()

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Check what the optimizer holds, now and before each of its steps.

        An optimizer that Accelerate wrapped, as a Trainer does, is unwrapped: hooks belong to the one inside.
        """
        inner = getattr(optimizer, "optimizer", optimizer)
        self._optimizers.append(inner)
        inner.register_step_pre_hook(lambda *_: self.enforce("the last step"))
        self.enforce("building the optimizer")
        return optimizer


def assert_saved(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """After a save: raise `TieBroken` unless the checkpoint at `path` has the model's tie and its values.

        model.save_pretrained("checkpoint")
        tiebeam.assert_saved(model, "checkpoint")

    Raises TieBroken with the finding, UnreadableInput if nothing readable was saved.
    """
    import numpy as np

    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.inspection import inspect
    from tiebeam.pair import Tie

    E, W = _pair(model)
    checkpoint = open_checkpoint(path)
    report = inspect(checkpoint)
    tied = _one_matrix(E, W)
    if tied != (report.tie in (Tie.SHARED, Tie.SWAPPED)) or report.tie in (Tie.TORN, Tie.HEADLESS, Tie.NONE):
        live = "one matrix" if tied else "two matrices"
        raise TieBroken(
            f"the model has {live} but {path} is {report.tie}: {report.tie.meaning}; {report.pair.declared_by}"
        )
    for parameter, matrix in ((E, report.pair.embed), (W, report.pair.head)):
        if parameter is None or matrix is None:
            continue
        if tuple(parameter.shape) != matrix.shape:
            raise TieBroken(f"{matrix.name} was saved as {list(matrix.shape)}, the model has {list(parameter.shape)}")
        rows = min(64, matrix.rows)
        live_rows = parameter.detach()[:rows].float().cpu().numpy()
        saved_rows = checkpoint.rows(matrix.name, 0, rows).astype(np.float32)
        if not np.allclose(live_rows, saved_rows, rtol=1e-2, atol=1e-6, equal_nan=True):
            raise TieBroken(f"{matrix.name} in {path} does not hold the model's values")


def _pair(
    model: nn.Module, embed: str | None = None, head: str | None = None
) -> tuple[nn.Parameter, nn.Parameter | None]:
    E, W = find_parameters(unwrap(model), embed, head)
    return E.parameter, None if W is None else W.parameter


def _one_matrix(E: nn.Parameter, W: nn.Parameter | None) -> bool:
    return W is None or E is W or same_storage(E, W)


def _is_unit_normal(E: torch.Tensor) -> bool:  # [V, D]
    """Whether a sample of rows looks like nn.Embedding's default initialization."""
    sample = E.detach()[:: max(1, E.shape[0] // 64)][:64].float()
    if sample.numel() < 256:
        return False
    return abs(float(sample.std()) - 1) < 0.08 and abs(float(sample.mean())) < 0.08
