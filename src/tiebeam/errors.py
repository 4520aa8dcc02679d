"""What can go wrong that is not our bug.

Every message is one sentence: what, the value, the way out. The command line turns the kind into an exit
code; nothing below it knows about exit codes.
"""


class TiebeamError(Exception):
    """The base of everything that a user's input can cause."""


class UnreadableInput(TiebeamError):
    """The input is missing, damaged, unsafe, or not something that this project can read."""


class BadRequest(TiebeamError):
    """The input is fine; what was asked of it is not."""


class MissingExtra(UnreadableInput):
    """The input needs an optional package that is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs the extra [{extra}]; install it with: pip install 'tiebeam[{extra}]'")


class NumbersNotRead(UnreadableInput):
    """The names and shapes are known, the numbers are not."""


class Unwritable(TiebeamError):
    """The target cannot be written: no room, no permission, no such place."""


class ProofFailed(TiebeamError):
    """A change was made beside its target, checked, and found wrong; the target was not touched."""


class TieBroken(TiebeamError):
    """A live model lost its tie, or will: raised by the guard."""
