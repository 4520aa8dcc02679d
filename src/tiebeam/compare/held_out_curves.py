"""The held-out checks of a run as arrays: the loss of every document at every check, and the run's own clock."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.compare.paired_statistics import interpolation_weights
from tiebeam.compare.train_runs import Run
from tiebeam.train import RunDirectory
from tiebeam.train.held_out_windows import HeldOutWindows

Array = NDArray[np.float64]


@dataclass(frozen=True)
class HeldOutCurve:
    """Checks of one run. `losses` are summed nats per document, `slices` training seconds by the step they end at."""

    run: Run
    steps: Array  # [K]
    seconds: Array  # [K]
    losses: Array  # [K, G]
    text_bytes: Array  # [G]
    slices: dict[int, float]
    train_losses: tuple[dict[str, Any], ...]

    @property
    def bpb(self) -> Array:  # [K]
        return self.bits(self.losses)

    def bits(self, nats: Array) -> Array:  # [..., G] -> [...]
        """Bits per byte of summed nats per document."""
        return np.asarray(nats.sum(axis=-1) / self.text_bytes.sum() / log(2))

    def at_step(self, step: float) -> Array:  # -> [G]
        """The loss of every document at a step: measured at a check, interpolated between checks."""
        return np.asarray(interpolation_weights(self.steps.tolist(), step) @ self.losses)


def windows_of(run: Run) -> HeldOutWindows:
    return HeldOutWindows(run.corpus, run.settings.context, run.settings.validation_tokens)


def read_curve(run: Run, windows: HeldOutWindows | None = None) -> HeldOutCurve:
    """Read the checks of a run from its metrics.jsonl."""
    windows = windows or windows_of(run)
    records = list(RunDirectory.open(run.path).metrics())
    checks = {r["step"]: r for r in records if "val_documents" in r}  # a later record of a step replaces it
    logged = [r for r in records if "loss" in r]
    return HeldOutCurve(
        run,
        np.array([r["step"] for r in checks.values()], np.float64),
        np.array([r["seconds"] for r in checks.values()], np.float64),
        np.array([r["val_documents"] for r in checks.values()], np.float64).reshape(len(checks), -1),
        windows.bytes,
        {b["step"]: b["seconds"] - a["seconds"] for a, b in pairwise(logged)},
        tuple(
            {"step": r["step"], "seconds": r["seconds"], "tokens": r["step"] * run.settings.step_tokens,
             "loss": r["loss"]} for r in logged
        ),
    )  # fmt: skip
