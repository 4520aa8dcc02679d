"""`tie --keep embed|head|mean`: one plain matrix in the place of two different ones. Loadable anywhere, usually ruinous."""

from __future__ import annotations

import os
from collections.abc import Iterator

from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.checkpoint.copying import Made
from tiebeam.checkpoint.writing import Entry
from tiebeam.errors import BadRequest
from tiebeam.pair import Tie
from tiebeam.surgery.carrying_out import Plan
from tiebeam.surgery.deciding import drop_aliases, drop_followers, is_tied, opened, refuse_fixed, set_flag
from tiebeam.surgery.edits import Edit

CHOICES = ("embed", "head", "mean")
_BLOCK_ROWS = 2048


def plan_keep(
    source: str | os.PathLike[str] | Checkpoint, keep: str, *, embed: str | None = None, head: str | None = None
) -> Plan:
    """Keep one of the two matrices, or their mean, for both ends. Not exact."""
    if keep not in CHOICES:
        raise BadRequest(f"--keep takes {', '.join(CHOICES)}, not {keep!r}")
    checkpoint, report = opened(source, embed, head)
    refuse_fixed(checkpoint, tied=True)
    pair = report.pair
    if report.tie not in (Tie.UNTIED, Tie.TORN, Tie.TWIN) or pair.embed is None or pair.head is None:
        raise BadRequest(f"{report.model} is {report.tie}: there are no two matrices to choose from")
    E, W = pair.embed, pair.head
    if E.shape != W.shape:
        raise BadRequest(
            f"embed is {list(E.shape)} but head is {list(W.shape)}; one matrix cannot serve both ends of different sizes"
        )
    if keep == "embed":
        edit = Edit(drop=frozenset({W.name}))
    elif keep == "head":
        edit = Edit(drop=frozenset({E.name}), rename={W.name: E.name})
    else:
        content = Made(E.nbytes, lambda: _mean_blocks(checkpoint, E.name, W.name))
        edit = Edit(drop=frozenset({E.name, W.name}), add=(Entry(E.name, E.dtype, E.shape, content),))
    edit = edit | drop_followers(checkpoint, report) | set_flag(checkpoint, True) | drop_aliases(checkpoint, report)
    return Plan(f"tie --keep {keep}", checkpoint, report, edit, is_tied(checkpoint), exact=report.tie is Tie.TWIN)


def _mean_blocks(checkpoint: Checkpoint, embed: str, head: str) -> Iterator[bytes]:
    import numpy as np

    info = checkpoint.tensors[embed]
    for start in range(0, info.shape[0], _BLOCK_ROWS):
        stop = min(start + _BLOCK_ROWS, info.shape[0])
        both = (checkpoint.rows(name, start, stop).astype(np.float64) for name in (embed, head))
        yield dtypes.encode(info.dtype, sum(both) / 2)  # type: ignore[arg-type]
