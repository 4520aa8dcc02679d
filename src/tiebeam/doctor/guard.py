"""The guard: is the tie of a live model still there, after each stage that is known to break it?

`check()` looks at identities, storages and group membership, never at whole tables, so it can stay on: it
costs well under a millisecond on a model of 300 tensors. Errors raise `TieBroken`; warnings are issued once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tiebeam.doctor.codes import Severity
from tiebeam.doctor.findings import Finding
from tiebeam.errors import TieBroken
from tiebeam.surgery.module import find_parameters, unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn

_SCALED = frozenset({"t5", "mt5", "umt5"})  # their output is scaled down by d**-0.5, so unit rows are right


def guard(model: nn.Module, *, embed: str | None = None, head: str | None = None, tied: bool | None = None) -> Guard:
    """Watch the pair of `model`. `embed` and `head` name its parameters where they cannot be found by themselves;
    `tied` says what it should be, where neither the model nor its config tells."""
    return Guard(model, embed, head, tied)


class Guard:
    """Ask it at any point (`check()`), put it around a stage (`with guard.stage("resize"):`), or let it look before
    every optimizer step (`watch(optimizer)`)."""

    def __init__(self, model: nn.Module, embed: str | None, head: str | None, tied: bool | None) -> None:
        self.model = model
        self._names = embed, head
        self._optimizers: list[torch.optim.Optimizer] = []
        self._warned: set[str] = set()
        E, W = self.ends()
        flag = getattr(getattr(unwrap(model), "config", None), "tie_word_embeddings", None)
        self.tied = tied if tied is not None else (W is None or E is W or bool(flag) or _one_storage(E, W))
        self._fresh = E.dim() == 2 and not E.is_meta and self.tied and _is_unit_normal(E)

    def ends(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        """The parameters at the two ends, as the model holds them now; None where there is no head of its own."""
        return _ends(self.model, *self._names)

    def check(self, stage: str = "") -> tuple[Finding, ...]:
        """Look now. Returns the findings; raises nothing."""
        E, W = self.ends()
        after = f" after {stage}" if stage else ""
        found = [*self._identity(E, W, after), *self._training(E, W), *self._groups(E, W)]
        if stage == "save" and E is W and not hasattr(unwrap(self.model), "save_pretrained"):
            found.append(Finding("TB508", f"two names of the state dict are one table of {tuple(E.shape)}"))
        return tuple(found)

    def enforce(self, stage: str = "") -> None:
        """Look now; raise `TieBroken` on an error, warn once about the rest."""
        found = self.check(stage)
        for finding in found:
            if finding.level is Severity.WARNING and finding.code not in self._warned:
                self._warned.add(finding.code)
                warnings.warn(f"{finding.code}: {finding.about.title}: {finding.evidence}", stacklevel=3)
        errors = [f for f in found if f.level is Severity.ERROR]
        if errors:
            worst = errors[0]
            raise TieBroken(f"{worst.code}: {worst.about.title}: {worst.evidence}. {worst.about.cure}")

    @contextmanager
    def stage(self, name: str) -> Iterator[Guard]:
        """Around a stage: load, resize, prepare, shard, compile, save, resume."""
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
        """Look before each of its steps, and at what it holds."""
        self._optimizers.append(optimizer)
        optimizer.register_step_pre_hook(lambda *_: self.enforce("the last step"))
        self.enforce("building the optimizer")
        return optimizer

    def _identity(self, E: nn.Parameter, W: nn.Parameter | None, after: str) -> Iterator[Finding]:
        model = unwrap(self.model)
        keys = getattr(type(model), "_tied_weights_keys", None)
        if isinstance(keys, list) and _transformers_major() >= 5:
            yield Finding("TB509", f"{type(model).__name__}._tied_weights_keys = {keys}")
        if W is None or E is W:
            return
        flag = getattr(getattr(model, "config", None), "tie_word_embeddings", None)
        if not self.tied:
            if flag:
                yield Finding("TB507", "config.tie_word_embeddings is true, the two ends are two parameters")
        elif _one_storage(E, W):
            yield Finding("TB502", f"the ends share {E.numel():,} numbers in two Parameter objects{after}")
        elif _sharded(E) and _sharded(W):
            yield Finding("TB511", f"both ends are sharded, each on its own{after}")
        else:
            where = ", on the meta device" if E.is_meta or W.is_meta else ""
            yield Finding("TB501", f"embed and head are two parameters{after}{where}")

    def _training(self, E: nn.Parameter, W: nn.Parameter | None) -> Iterator[Finding]:
        if not (self.tied and (W is None or E is W)):
            return
        if not E.requires_grad and any(p.requires_grad for p in self.model.parameters()):
            yield Finding("TB506", "the shared table does not require gradients, other parameters do")
        model_type = getattr(getattr(unwrap(self.model), "config", None), "model_type", None)
        if self._fresh and model_type not in _SCALED:
            yield Finding("TB505", f"the shared table is N(0, 1) at width {E.shape[1]:,}")

    def _groups(self, E: nn.Parameter, W: nn.Parameter | None) -> Iterator[Finding]:
        if not self._optimizers:
            return
        ends = [p for p in (E, W) if p is not None]
        ours = {id(p) for p in self.model.parameters()}
        homes: list[str] = []
        for number, optimizer in enumerate(self._optimizers):
            name = type(optimizer).__name__
            for index, group in enumerate(optimizer.param_groups):
                for p in group["params"]:
                    if any(p is end or _one_storage(p, end) for end in ends):
                        homes.append(f"{name} {number} group {index}")
                        if "muon" in name.lower():
                            yield Finding("TB504", f"{name} group {index} holds a table of {tuple(p.shape)}")
                    elif id(p) not in ours and p.shape == E.shape:
                        yield Finding("TB510", f"{name} group {index} holds a {tuple(p.shape)} that the model has not")
        if len(homes) > (1 if W is None or E is W or _one_storage(E, W) else 2):
            yield Finding("TB503", f"the shared table is in {', '.join(homes)}")


def assert_saved(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """After a save: does the checkpoint say what the model is, and does it hold the model's numbers?"""
    import numpy as np

    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.inspection import inspect
    from tiebeam.pair import Tie

    E, W = _ends(model)
    checkpoint = open_checkpoint(path)
    report = inspect(checkpoint)
    tied = W is None or E is W or _one_storage(E, W)
    if tied != (report.tie in (Tie.SHARED, Tie.SWAPPED)) or report.tie in (Tie.TORN, Tie.HEADLESS, Tie.NONE):
        live = "one table" if tied else "two tables"
        raise TieBroken(
            f"the model has {live} but {path} is {report.tie}: {report.tie.meaning}; {report.pair.declared_by}"
        )
    for end, matrix in ((E, report.pair.embed), (W, report.pair.head)):
        if end is None or matrix is None:
            continue
        if tuple(end.shape) != matrix.shape:
            raise TieBroken(f"{matrix.name} was saved as {list(matrix.shape)}, the model has {list(end.shape)}")
        rows = min(64, matrix.rows)
        live_rows = end.detach()[:rows].float().cpu().numpy()
        saved_rows = checkpoint.rows(matrix.name, 0, rows).astype(np.float32)
        if not np.allclose(live_rows, saved_rows, rtol=1e-2, atol=1e-6, equal_nan=True):
            raise TieBroken(f"{matrix.name} in {path} does not hold the model's numbers")


def _ends(
    model: nn.Module, embed: str | None = None, head: str | None = None
) -> tuple[nn.Parameter, nn.Parameter | None]:
    E, W = find_parameters(unwrap(model), embed, head)
    return E.parameter, None if W is None else W.parameter


def _one_storage(a: torch.Tensor, b: torch.Tensor | None) -> bool:
    if b is None or a.is_meta or b.is_meta or a.shape != b.shape:
        return False
    try:
        return a.data_ptr() == b.data_ptr() and a.data_ptr() != 0
    except RuntimeError:  # wrapped tensors without a storage of their own
        return False


def _sharded(p: Any) -> bool:
    return hasattr(p, "device_mesh")


def _is_unit_normal(E: torch.Tensor) -> bool:
    """Does a sample of rows look like nn.Embedding's own initialisation?"""
    sample = E.detach()[:: max(1, E.shape[0] // 64)][:64].float()
    if sample.numel() < 256:
        return False
    return abs(float(sample.std()) - 1) < 0.08 and abs(float(sample.mean())) < 0.08


def _transformers_major() -> int:
    import sys

    module = sys.modules.get("transformers")
    return int(module.__version__.split(".")[0]) if module is not None else 0
