"""Progress on long work: a live line on a terminal, plain lines in a log, nothing where it is not wanted. On stderr."""

from __future__ import annotations

import sys
import time


class Progress:
    """Call it with (stage, done, total). `quiet` says nothing at all."""

    def __init__(self, quiet: bool = False) -> None:
        self._live = sys.stderr.isatty() and not quiet
        self._quiet = quiet
        self._stage, self._last, self._open = "", 0.0, False

    def __call__(self, stage: str, done: int, total: int) -> None:
        share = f"{100 * done / total:3.0f}%" if total else ""
        self.say(stage, f"{stage} {share}".rstrip(), final=bool(total) and done >= total)

    def say(self, stage: str, text: str, final: bool = False) -> None:
        """One line that stands for `stage`, replaced by the next of the same stage."""
        if self._quiet:
            return
        now, fresh = time.monotonic(), stage != self._stage
        if self._live:
            if fresh or final or now - self._last > 0.1:
                if fresh:
                    self.close()
                sys.stderr.write(f"\r\x1b[2K{text}")
                sys.stderr.flush()
                self._open, self._last, self._stage = True, now, stage
                if final:
                    self.close()
        elif fresh or now - self._last > 15:  # a log keeps every line, so it gets few
            sys.stderr.write(f"{text}\n")
            self._last, self._stage = now, stage

    def close(self) -> None:
        if self._open:
            sys.stderr.write("\n")
            self._open = False
