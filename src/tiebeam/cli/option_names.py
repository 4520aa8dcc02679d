"""Errors of the library name Python arguments (`top_k=0`); on the command line they name options (`--top-k 0`)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from tiebeam.errors import BadRequest


@contextmanager
def naming_options(*arguments: str) -> Iterator[None]:
    """Re-raise a BadRequest with `arguments` written as options. A bare word counts only if it has an underscore."""
    try:
        yield
    except BadRequest as error:
        text = str(error)
        for name in arguments:
            option = f"--{name.replace('_', '-')}"
            text = re.sub(rf"\b{name}=", f"{option} ", text)
            if "_" in name:
                text = re.sub(rf"\b{name}\b", option, text)
        raise BadRequest(text) from None
