"""Deferred SIGINT flag, polled between steps."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


class Interrupt:
    """True once Ctrl-C was pressed; a second Ctrl-C ends the program at once.

    `launched` is for a rank that torchrun started. torchrun forwards Ctrl-C, so that one press arrives twice, and ends
    its ranks with SIGTERM, followed by SIGKILL after half a minute.
    """

    def __init__(self, launched: bool = False) -> None:
        self.pressed, self.launched = False, False
        with suppress(ValueError):  # not in the main thread, where Python allows no signal handlers
            signal.signal(signal.SIGINT, self._press)
        if launched:
            self.launch()

    def launch(self) -> None:
        """From now on this is a rank that torchrun started."""
        self.launched = True
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, self._press)

    def _press(self, *_: Any) -> None:
        if self.pressed and not self.launched:
            raise KeyboardInterrupt
        self.pressed = True

    def __call__(self) -> bool:
        return self.pressed
