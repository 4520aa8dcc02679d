"""The display of `tiebeam compare` while it trains: a live table of variants and widths, or short lines in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tiebeam._visible import visible
from tiebeam.cli.progress import clock, close_at_exit
from tiebeam.compare.running_answer import RunningAnswer
from tiebeam.train import RunDirectory

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live

    from tiebeam.compare.train_runs import Run

_REFRESH = 4  # per second
_COST_EXPONENT = 0.7  # step time of small models grows about like this power of their parameters


class CompareProgress:
    """`planned` gets all runs, `record` every training record. Without a terminal there is one line per check."""

    def __init__(self, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty()
        self._live: Live | None = None
        self._runs: list[Run] = []
        self._last: dict[str, dict[str, Any]] = {}
        self._held_out: dict[str, float] = {}
        self._done: dict[str, float] = {}
        self._resumed_at: dict[str, float] = {}
        self._answers: dict[tuple[int, int], str] = {}
        self._running = RunningAnswer()
        self._started = time.monotonic()

    def planned(self, runs: Sequence[Run]) -> None:
        self._runs, self._started = list(runs), time.monotonic()
        if not self._quiet:
            for run in runs:
                self._read(run)
        threads = runs[0].settings.threads if runs else None
        if threads and not self._quiet:
            self._write(
                f"{threads} CPU thread{'s' if threads > 1 else ''}, corrected while it runs unless --threads is given"
            )
        first = {(run.width, run.variant): run for run in reversed(runs)}  # vocabularies and seeds have the same
        if len({run.variant for run in runs}) <= 2 and not self._quiet:
            for (width, variant), run in sorted(first.items()):
                self._write(f"width {width}, {variant}: peak learning rates {run.settings.peak_rates}")

    def record(self, run: Run, record: dict[str, Any]) -> None:
        if self._quiet:
            return
        text = self._keep(run, record)
        if self._terminal:
            self._show()
        elif text is not None:
            self._write(f"{text}  {self.time_left()}".rstrip())

    def _keep(self, run: Run, record: dict[str, Any]) -> str | None:
        """Keep the last numbers of a run; the answer so far if this record changes it."""
        self._done[run.name] = record["done"]
        self._resumed_at.setdefault(run.name, record["done"])
        if "loss" in record:
            self._last[run.name] = record
        if "val_documents" not in record:
            return None
        self._held_out[run.name] = record["val_bpb"]
        text = self._running.add(run, record)
        if text is not None:
            self._answers[run.width, run.vocab] = text
        return text

    def _read(self, run: Run) -> None:
        """What an earlier call trained of this run: its last loss and its last check."""
        records = list(RunDirectory(run.path).metrics())
        last = [found[-1] for key in ("loss", "val_documents") if (found := [r for r in records if key in r])]
        for record in sorted(last, key=lambda record: int(record["step"])):
            self._keep(run, record)
        if run.name in self._done:
            self._resumed_at[run.name] = self._done[run.name]

    def time_left(self) -> str:
        """The time that all runs still need, by the parameters and steps of what is done since the start."""
        work = {run.name: run.config.params**_COST_EXPONENT for run in self._runs}
        done = sum(work[name] * (at - self._resumed_at[name]) for name, at in self._done.items() if name in work)
        if done <= 0:
            return ""
        left = sum(work[run.name] * (1 - self._done.get(run.name, 0.0)) for run in self._runs)
        return f"{clock((time.monotonic() - self._started) * left / done)} left"

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _show(self) -> None:
        from rich.console import Console
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=Console(stderr=True), refresh_per_second=_REFRESH, transient=True)
            self._live.start()
            close_at_exit(self)
        self._live.update(self.renderable())

    def renderable(self) -> Group:
        """The table, and the answer so far below it."""
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="dim")
        for name in ("width", "variant", "step", "loss", "held-out bits/byte", "tokens/s"):
            table.add_column(name, justify="left" if name == "variant" else "right", no_wrap=True)
        rows: dict[tuple[int, int, str], Run] = {}
        for run in self._runs:  # of several seeds the one that trained last
            if run.name in self._last or (run.width, run.vocab, run.variant) not in rows:
                rows[run.width, run.vocab, run.variant] = run
        for run in rows.values():
            record, bpb = self._last.get(run.name), self._held_out.get(run.name)
            table.add_row(
                f"{run.width}", Text(f"● {visible(run.config.variant.title)}", style=run.config.variant.colour),
                *((f"{record['step']:,}", f"{record['loss']:.3f}") if record else ("–", "–")),
                f"{bpb:.4f}" if bpb is not None else "–",
                f"{record['tokens_per_second']:,.0f}" if record else "–",
            )  # fmt: skip
        lines = [Text(visible(text)) for text in self._answers.values()]
        return Group(table, *lines, Text(self.time_left(), style="dim"))

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()
