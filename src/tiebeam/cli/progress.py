"""Progress of long work, on stderr: a live display with ETA on a terminal, plain lines in a log.

Every verb uses this one class. It is a callback (stage, done, total), and a context manager that clears the display.

    with Progress(quiet) as progress:
        build_corpus(..., progress=progress)          # calls progress("tokenizing", 3, 100)
        progress.note("the tokenizer has no EOS token")
        with progress.waiting("reading headers"):     # no counts known: a spinner with the elapsed time
            ...
"""

from __future__ import annotations

import atexit
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

from tiebeam._visible import visible
from tiebeam.budget import human, human_bytes

if TYPE_CHECKING:
    from rich.progress import Progress as Live
    from rich.progress import TaskID

DELAY = 1.0  # seconds before `waiting` shows anything: what is over by then needs no display
INTERVAL = 15.0  # seconds between two lines of one stage in a log


class Progress:
    """Call it with (stage, done, total); `total` is 0 if unknown. `quiet` turns it off."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._terminal = not quiet and sys.stderr.isatty()
        self._live: Live | None = None
        self._tasks: dict[str, TaskID] = {}
        self._started: dict[str, float] = {}
        self._finished: set[str] = set()
        self._stage, self._printed = "", 0.0
        self._lock = threading.RLock()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, stage: str, done: int, total: int, *, unit: str = "", detail: str = "") -> None:
        """Report that `done` of `total` is done. `unit` "B" writes bytes; `detail` follows the counts ("loss 3.21")."""
        if self._quiet:
            return
        with self._lock:
            if self._terminal:
                self._show(stage, done, total, unit, detail)
            else:
                self._log(stage, done, total, unit, detail)

    def say(self, stage: str, text: str, final: bool = False) -> None:
        """One line of text for `stage`, replaced by the stage's next line; kept if `final`."""
        if self._quiet:
            return
        with self._lock:
            if final:
                self.note(text)
            elif self._terminal:
                self._show(stage, 0, 0, "", text, label="")
            elif self._due(stage):
                self._write(text)

    def note(self, text: str) -> None:
        """Print a line that stays."""
        if self._quiet:
            return
        if self._live is not None:
            self._live.console.print(visible(text), markup=False, highlight=False)
        else:
            self._write(text)

    @contextmanager
    def waiting(self, stage: str) -> Iterator[None]:
        """Show `stage` while the block runs, if it takes longer than a second."""
        timer = threading.Timer(DELAY, self, (stage, 0, 0))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            with self._lock:
                self._remove(stage)

    def close(self) -> None:
        """Clear the display."""
        with self._lock:
            self._quiet = True  # a late timer must not start it again
            self.clear()

    def clear(self) -> None:
        """Clear the display until the next stage: two live displays would draw over each other."""
        with self._lock:
            if self._live is not None:
                self._live.stop()
                self._live = None
                self._tasks.clear()
                if self in _showing:
                    _showing.remove(self)

    def _show(self, stage: str, done: int, total: int, unit: str, detail: str, label: str | None = None) -> None:
        if self._live is None:
            self._live = _live_display()
            self._live.start()
            _showing.append(self)
        if self._stage not in ("", stage):
            self._remove(self._stage)
        fields: dict[str, Any] = {
            "completed": done,
            "total": total or None,
            "counts": _counts(done, total, unit),
            "detail": visible(detail),
        }
        if stage not in self._tasks:
            self._tasks[stage] = self._live.add_task(visible(stage if label is None else label), **fields)
        else:
            self._live.update(self._tasks[stage], **fields)
        self._stage = stage

    def _remove(self, stage: str) -> None:
        if self._live is not None and stage in self._tasks:
            self._live.remove_task(self._tasks.pop(stage))

    def _log(self, stage: str, done: int, total: int, unit: str, detail: str) -> None:
        now = time.monotonic()
        elapsed = now - self._started.setdefault(stage, now)
        if total and done >= total:
            if stage not in self._finished:
                self._finished.add(stage)
                self._write(f"{stage}: done in {elapsed:.1f} s")
        elif self._due(stage):
            share = f"{100 * done / total:.0f}%" if total else ""
            left = f"{clock(elapsed * (total - done) / done)} left" if total and done and elapsed > 0 else ""
            parts = [part for part in (share, _counts(done, total, unit), left, detail) if part]
            self._write(stage + (": " + ", ".join(parts) if parts else ""))

    def _due(self, stage: str) -> bool:
        """Whether a log gets a line now: at the start of a stage, then every INTERVAL seconds."""
        now = time.monotonic()
        if stage == self._stage and now - self._printed < INTERVAL:
            return False
        self._stage, self._printed = stage, now
        return True

    @staticmethod
    def _write(text: str) -> None:
        sys.stderr.write(f"{visible(text)}\n")
        sys.stderr.flush()


class Closable(Protocol):
    def close(self) -> None: ...


_showing: list[Closable] = []


def close_at_exit(display: Closable) -> None:
    """Have a live display closed before an error message and at exit."""
    _showing.append(display)


@atexit.register
def close_all() -> None:
    """Clear every display: before an error message, and at exit, because a live display hides the cursor."""
    for progress in list(_showing):
        progress.close()


def _live_display() -> Live:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.table import Column

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.fields[counts]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[detail]}", markup=False, table_column=Column(no_wrap=True)),
        console=Console(stderr=True),
        transient=True,
    )


def _counts(done: int, total: int, unit: str) -> str:
    if not unit:
        return ""
    write = human_bytes if unit == "B" else human
    counts = f"{write(done)} of {write(total)}" if total else write(done)
    return counts if unit == "B" else f"{counts} {unit}"


def time_left(done: float, seconds: float) -> str:
    """The time that a run still needs, from the fraction that is done.

    >>> time_left(0.25, 60)
    '3:00 left'
    """
    return f"{clock(seconds * (1 - done) / done)} left" if 0 < done < 1 else ""


def clock(seconds: float) -> str:
    """'1:05', or '2:00:00' from an hour on."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
