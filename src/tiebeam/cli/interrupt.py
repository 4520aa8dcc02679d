"""Ctrl-C as a question that long work asks between its steps."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


class Interrupt:
    """True once Ctrl-C was pressed; a second Ctrl-C ends the program at once.

    `launched` is for a process that torchrun started: it passes Ctrl-C on, so that one press arrives twice, ends its
    processes with SIGTERM, and leaves them half a minute, after which it ends them for good.
    """

    def __init__(self, launched: bool = False) -> None:
        self.pressed, self.launched = False, launched
        with suppress(ValueError):  # not in the main thread: whoever runs us there handles signals
            signal.signal(signal.SIGINT, self._press)
            if launched:
                signal.signal(signal.SIGTERM, self._press)

    def _press(self, *_: Any) -> None:
        if self.pressed and not self.launched:
            raise KeyboardInterrupt
        self.pressed = True

    def __call__(self) -> bool:
        return self.pressed
