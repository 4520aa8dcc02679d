"""Guard the tie of a model in memory: check it after every stage that is known to break it.

`check()` looks at identities, storages and optimizer groups, never at whole matrices, so it can stay on: it takes well
under a millisecond for a model of 300 tensors. Around a stage, up to 80 rows of each matrix are compared too. Errors
raise `TieBroken`; warnings are issued once.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from tiebeam.doctor.diagnosis import run_rules
from tiebeam.doctor.examined_module import ExaminedModule, same_storage
from tiebeam.doctor.row_samples import RowChange, RowSample, row_change, sample_rows, whole_shape
from tiebeam.doctor.rule import Finding, Names, Severity
from tiebeam.doctor.rules import RULES
from tiebeam.errors import TieBroken
from tiebeam.families.config_levels import FLAG
from tiebeam.surgery.module import find_parameters, unwrap

if TYPE_CHECKING:
    import torch
    from torch import nn

_ROLES = ("embedding", "head")
_LOADS = ("load", "resume")  # stages that bring other values


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
        self._samples: dict[str, RowSample] = {}
        E, W = self.parameters()
        flag = getattr(getattr(unwrap(model), "config", None), FLAG, None)
        self.tied = tied if tied is not None else (_one_matrix(E, W) or bool(flag))
        readable = E.dim() == 2 and not E.is_meta and not hasattr(E, "ds_shape")
        self._unit_normal = readable and self.tied and _is_unit_normal(E)

    def parameters(self) -> tuple[nn.Parameter, nn.Parameter | None]:
        """Embedding and head, as the model holds them now; None if it has no head of its own."""
        return _pair(self.model, *self._names)

    def check(self, stage: str = "") -> tuple[Finding, ...]:
        """Check now and return the findings; raises nothing.

        After `remember()`, sampled values are compared too, unless the stage is one that loads others.
        """
        return run_rules("module", self._examined(stage), Names())

    def check_copy(self, copy: nn.Module, stage: str = "weight sync") -> tuple[Finding, ...]:
        """Check that `copy` (a rollout engine's model, a reference model) has this model's embedding and head."""
        samples = self._sample()
        theirs = dict(zip(_ROLES, _pair(copy), strict=True))
        if theirs["head"] is None or samples.keys() == {"embedding"}:  # a tied side: its embedding is its head
            samples["head"] = samples.get("head", samples["embedding"])
            theirs["head"] = theirs["embedding"] if theirs["head"] is None else theirs["head"]
        changes = _changes(samples, theirs)
        examined = replace(self._examined(""), stage=stage, changes={}, copy_changes=changes)
        return run_rules("module", examined, Names())

    def enforce(self, stage: str = "") -> None:
        """Check now; raise `TieBroken` on an error, warn once about the rest."""
        self.act_on(self.check(stage))

    def act_on(self, found: tuple[Finding, ...]) -> None:
        """Raise `TieBroken` on an error among the findings, warn once about each of the rest."""
        for finding in found:
            if finding.severity is Severity.WARNING and finding.code not in self._warned:
                self._warned.add(finding.code)
                warnings.warn(f"{finding.code}: {finding.title}: {finding.evidence}", stacklevel=3)
        raise_errors(found)

    def remember(self) -> None:
        """Sample the values, to compare them at the next check: only between two checks without an optimizer step."""
        self._samples = self._sample()

    def forget(self) -> None:
        """Compare no values at the next check."""
        self._samples = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[Guard]:
        """Check after a stage: load, resize, prepare, shard, compile, save, resume.

        A stage that loads no other weights must also keep the values of the rows that are there before and after it.
        """
        self.remember()
        yield self
        try:
            self.enforce(name)
        finally:
            self.forget()

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.enforce()

    def watch(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Check what the optimizer holds, now and before each of its steps."""
        inner = self.follow(optimizer)
        inner.register_step_pre_hook(lambda *_: self.enforce("the last step"))
        self.enforce("building the optimizer")
        return optimizer

    def follow(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Include the optimizer in every check; returns the one inside.

        An optimizer that Accelerate, Lightning or DeepSpeed wrapped is unwrapped: the groups belong to the one inside.
        """
        inner = optimizer
        while hasattr(inner, "optimizer"):
            inner = inner.optimizer
        if not any(inner is known for known in self._optimizers):
            self._optimizers.append(inner)
        return inner

    def _examined(self, stage: str) -> ExaminedModule:
        E, W = self.parameters()
        keeps = bool(self._samples) and not stage.startswith(_LOADS)
        changes = _changes(self._samples, dict(zip(_ROLES, (E, W), strict=True))) if keeps else {}
        model, optimizers = unwrap(self.model), tuple(self._optimizers)
        return ExaminedModule(model, E, W, self.tied, self._unit_normal, optimizers, stage, changes)

    def _sample(self) -> dict[str, RowSample]:
        E, W = self.parameters()
        pair = {"embedding": E, **({} if _one_matrix(E, W) else {"head": W})}
        return {role: sample for role, p in pair.items() if (sample := sample_rows(p)) is not None}


def raise_errors(found: tuple[Finding, ...]) -> None:
    """Raise `TieBroken` with the worst finding if it is an error."""
    if found and found[0].severity is Severity.ERROR:
        worst = found[0]
        raise TieBroken(f"{worst.code}: {worst.title}: {worst.evidence}. {worst.fix}")


def assert_saved(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """After a save: raise `TieBroken` unless the checkpoint at `path` has the model's tie and its values.

        model.save_pretrained("checkpoint")
        tiebeam.assert_saved(model, "checkpoint")

    Raises TieBroken with the finding, UnreadableInput if nothing readable was saved.
    """
    raise_errors(saved_findings(model, path, "save"))


def assert_synced(model: nn.Module, copy: nn.Module) -> None:
    """After a weight sync: raise `TieBroken` unless embedding and head of `copy` have the values of the model's.

    tiebeam.assert_synced(policy, rollout_model)
    """
    raise_errors(guard(model).check_copy(copy))


def saved_findings(model: nn.Module, path: str | os.PathLike[str], stage: str) -> tuple[Finding, ...]:
    """TB514 if the checkpoint at `path` is not the model; nothing else is checked."""
    return difference_findings(model, _saved_difference(*_pair(model), path), stage)


def difference_findings(model: nn.Module, difference: str, stage: str) -> tuple[Finding, ...]:
    """TB514 if what was saved differs from the model, as `difference` says."""
    E, W = _pair(model)
    examined = ExaminedModule(unwrap(model), E, W, _one_matrix(E, W), stage=stage, saved=difference)
    return tuple(RULES["TB514"].findings(examined, Names()))


def _saved_difference(E: nn.Parameter, W: nn.Parameter | None, path: str | os.PathLike[str]) -> str:
    """How the checkpoint differs from the pair in memory; empty if it does not."""
    import numpy as np

    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.doctor.diagnosis import diagnosis_of
    from tiebeam.inspection import inspect
    from tiebeam.pair import Tie

    checkpoint = open_checkpoint(path)
    report = inspect(checkpoint)
    tied = _one_matrix(E, W)
    fitting = {Tie.SHARED, Tie.SWAPPED} if tied else {Tie.UNTIED, Tie.TWIN}
    if tied and report.pair.declared is not False:  # a copy per name, as FSDP gathers it: loaded, it is one matrix
        fitting.add(Tie.TWIN)
    if report.tie not in fitting:
        live = "one matrix" if tied else "two matrices"
        codes = [f.code for f in diagnosis_of(checkpoint, report).findings if f.severity is not Severity.NOTE]
        also = f" ({', '.join(codes)})" if codes else ""
        return f"the model has {live} but {path} is {report.tie}{also}: {report.tie.meaning}; {report.pair.declared_by}"
    for parameter, matrix in ((E, report.pair.embed), (W, report.pair.head)):
        if parameter is None or matrix is None:
            continue
        if whole_shape(parameter) != matrix.shape:
            return f"{matrix.name} was saved as {list(matrix.shape)}, the model has {list(whole_shape(parameter))}"
        sample = sample_rows(parameter)
        for row, values in zip(sample.rows, sample.values.numpy(), strict=True) if sample else ():
            stored = checkpoint.rows(matrix.name, row, row + 1)[0].astype(np.float32)
            if not np.allclose(values, stored, rtol=1e-2, atol=1e-6, equal_nan=True):
                what = "is zero" if not stored.any() else "differs"
                return f"{matrix.name} in {path} does not hold the model's values: row {row} {what}"
    return ""


def _changes(samples: Mapping[str, RowSample], now: Mapping[str, nn.Parameter | None]) -> dict[str, RowChange]:
    found = {role: row_change(sample, now[role]) for role, sample in samples.items() if now.get(role) is not None}
    return {role: change for role, change in found.items() if change is not None}


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
