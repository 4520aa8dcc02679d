"""Errors of a command that torchrun started on several ranks: printed once, although every rank may find them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tiebeam.errors import BadRequest, TiebeamError

if TYPE_CHECKING:
    from tiebeam.train import Distribution

_RANK_0_SECONDS = 5.0  # how long the other ranks wait for rank 0 to report an error that all of them found


@contextmanager
def reported_once(distribution: Distribution) -> Iterator[None]:
    """Print an error once, with option names, although every rank may find it.

    Before the ranks have joined, the others wait: rank 0 reports the error and exits, then torchrun ends them.
    """
    from tiebeam.train.distributed.failures import reports_first

    try:
        yield
    except TiebeamError as error:
        if not distribution.joined:
            time.sleep(0 if distribution.is_main else _RANK_0_SECONDS)
        elif not reports_first(distribution):
            raise click.exceptions.Exit(2 if isinstance(error, BadRequest) else 3) from None
        raise
