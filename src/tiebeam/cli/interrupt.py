"""Ctrl-C as a question that long work asks between its steps."""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


class Interrupt:
    """True once Ctrl-C was pressed; a second Ctrl-C ends the program at once."""

    def __init__(self) -> None:
        self.pressed = False
        with suppress(ValueError):  # not in the main thread: whoever runs us there handles signals
            signal.signal(signal.SIGINT, self._press)

    def _press(self, *_: Any) -> None:
        if self.pressed:
            raise KeyboardInterrupt
        self.pressed = True

    def __call__(self) -> bool:
        return self.pressed
