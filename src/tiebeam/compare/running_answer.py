"""The answer so far, at every check while the runs train: the difference to the baseline with its interval."""

from __future__ import annotations

from typing import Any

import numpy as np

from tiebeam.compare.gaps_to_baseline import BASELINE
from tiebeam.compare.held_out_curves import windows_of
from tiebeam.compare.paired_statistics import Estimate, estimate
from tiebeam.compare.train_runs import Run
from tiebeam.compare.verdict import running_text


class RunningAnswer:
    """Collects the checks of runs that take turns. With one seed at a time the interval allows for seed variation."""

    def __init__(self) -> None:
        self._checks: dict[tuple[int, int, int, int], dict[str, tuple[Run, list[float]]]] = {}
        self._bytes: dict[tuple[int, int], Any] = {}

    def add(self, run: Run, record: dict[str, Any]) -> str | None:
        """The text of the answer if this check completes a pair with the baseline, else None."""
        if "val_documents" not in record:
            return None
        number = round(record["done"] / run.settings.validate_every)
        checks = self._checks.setdefault((run.width, run.vocab, run.seed, number), {})
        checks[run.variant] = (run, record["val_documents"])
        baseline = BASELINE if BASELINE in checks else next(iter(checks))
        if len(checks) < 2 or run.variant == baseline:
            return None
        first, found = checks[baseline], self.difference(checks[baseline][1], record["val_documents"], run)
        return running_text((first[0].config.variant.title, run.config.variant.title), found, run.width, record["step"])

    def difference(self, first: list[float], second: list[float], run: Run) -> Estimate:
        key = (id(run.corpus), run.settings.context)
        if key not in self._bytes:
            self._bytes[key] = windows_of(run).bytes
        return estimate((np.array(second) - np.array(first))[None], self._bytes[key])
