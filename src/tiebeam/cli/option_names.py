"""Turn Python arguments in an error message into command-line options.

The library writes arguments in backticks: "`batch_tokens=64` is too small" becomes "--batch-tokens 64 is too small".
"""

from __future__ import annotations

import re

_ARGUMENT = re.compile(r"`([a-z]\w*)(?:=([^`]*))?`")
_SPELLED = {"lr_scale": re.compile(r"`LearningRates\.scaled\((.*?)\)`")}


def with_option_names(message: str) -> str:
    """The message as the command line should print it.

    >>> with_option_names("`softcap=15.0` is not supported; drop it or use `arch='golf'`")
    '--softcap 15.0 is not supported; drop it or use --arch golf'
    >>> with_option_names("pass `resume=True` or more `steps`")
    'pass --resume or more --steps'
    """
    for option, pattern in _SPELLED.items():
        message = pattern.sub(rf"`{option}=\1`", message)
    return _ARGUMENT.sub(_option, message)


def _option(found: re.Match[str]) -> str:
    name, value = found.groups()
    option = f"--{name.replace('_', '-')}"
    return option if value in (None, "True") else f"{option} {value.strip(chr(39))}"
