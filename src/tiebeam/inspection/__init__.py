"""A model -> the Report on its embedding and LM head: where they are, whether they are tied, what they cost.

`inspect` reads headers only, and the numbers only where two matrices are stored. Parameters are counted by storage,
never by name (parameters.py); the text of a report is in report.py; a torch module is read in module_tensors.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tiebeam import equality, families
from tiebeam.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from tiebeam.equality import Equality
from tiebeam.errors import BadRequest, NumbersNotRead, UnreadableInput
from tiebeam.inspection.parameters import count_parameters
from tiebeam.inspection.report import Params, Report
from tiebeam.pair import Matrix, Pair, Tie

if TYPE_CHECKING:
    from torch import nn

__all__ = ["JOINT_TABLE", "Params", "Report", "inspect", "is_joint"]

JOINT_TABLE = "tiebeam.table"
_PADDING = 1024  # rows that a matrix may have beyond the declared vocabulary, for alignment


def inspect(
    source: str | os.PathLike[str] | Checkpoint | nn.Module, *, embed: str | None = None, head: str | None = None
) -> Report:
    """Report on the embedding and the LM head of a model: where they are, whether they are tied, what they cost.

    `source` is a path, a Hub id ("org/name"), an opened Checkpoint or a torch nn.Module. `embed` and `head` name the
    tensors if the architecture is unknown or the guess is wrong.

    >>> import tiebeam
    >>> report = tiebeam.inspect("tied")
    >>> report.tied, report.declared, report.tie
    (True, True, <Tie.SHARED: 'shared'>)
    >>> report.params.total < report.params.untied_total
    True
    """
    checkpoint, compare = _open(source)
    architecture = families.lookup(checkpoint.architecture)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    joint = embed is None and head is None and is_joint(checkpoint)
    if joint:
        found = families.named_pair(shapes, JOINT_TABLE, None)
        declared = families.Declared(True, f"{checkpoint.config_name}: tiebeam.joint")
    else:
        if embed is None and head is None:
            found = families.find_pair(shapes, checkpoint.config, architecture)
        else:
            found = families.named_pair(shapes, embed, head)
        if checkpoint.format == "gguf":
            declared = families.declared_in_gguf(checkpoint.tensors, checkpoint.architecture)
        else:
            declared = families.resolve_declared(checkpoint.config, architecture, checkpoint.config_name)
    E, W = (checkpoint.tensors[name] if name else None for name in (found.embed, found.head))
    if found.candidates and declared.value is None and not (E and W):
        E = W = None  # several tensors could be the missing matrix, so its absence proves nothing
    notes = [*checkpoint.notes, *([found.why] if found.guessed and found.why else [])]
    if not (embed or head or found.packed):
        vocab = families.vocabulary(checkpoint.config, architecture)
        notes += _check_vocabulary(checkpoint, vocab, [t for t in (E, W) if t])
    for name, other in ((found.embed, found.head), (found.head, found.embed)):
        alias = next((alias for alias, kept in checkpoint.aliases.items() if kept == name), None)
        if alias and other is None:
            notes.append(f"the file's metadata declares {alias} to be the same tensor as {name}")
    verdict = compare(E.name, W.name) if E and W else None
    pair = Pair(
        embed=_matrix(E),
        head=_matrix(W),
        declared=declared.value,
        declared_by=declared.by,
        equal=verdict.equal if verdict else None,
        one_storage=bool(E and W and E.storage == W.storage and E.strides == W.strides),
        encoder=found.has_head_by_design is False,
    )
    if checkpoint.format == "dcp" and pair.tie is Tie.TWIN:
        notes.append(
            "DCP writes a matrix once for each of its names: a tied model looks like this until it is consolidated"
        )
    return Report(
        model=checkpoint.source,
        format=checkpoint.format,
        architecture=checkpoint.architecture,
        nbytes=checkpoint.nbytes,
        pair=pair,
        params=count_parameters(checkpoint.tensors.values(), pair, found.packed),
        how=verdict.how if verdict else "",
        difference=verdict.difference if verdict else None,
        guessed=found.guessed,
        packed=found.packed,
        notes=tuple(notes),
    )


def _open(source: Any) -> tuple[Checkpoint, Callable[[str, str], Equality]]:
    """The table of tensors, and the function that compares two of them by name."""
    torch = sys.modules.get("torch")  # if torch is not imported, no module can exist
    if torch is not None and isinstance(source, torch.nn.Module):
        from tiebeam.inspection.module_tensors import compare_parameters, open_module

        return open_module(source), partial(compare_parameters, source)
    if not isinstance(source, str | os.PathLike | Checkpoint):
        raise BadRequest(
            f"source must be a path, a Hub id, a Checkpoint or a torch nn.Module, not {source!r} "
            f"({type(source).__name__})"
        )
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    return checkpoint, partial(_compare_stored, checkpoint)


def _compare_stored(checkpoint: Checkpoint, embed: str, head: str) -> Equality:
    try:
        return equality.compare(checkpoint, embed, head)
    except NumbersNotRead as error:
        shapes = " and ".join(f"{name} {list(checkpoint.tensors[name].shape)}" for name in (embed, head))
        raise UnreadableInput(
            f"{checkpoint.source} names both {shapes}, but whether they are equal is not known: {error}"
        ) from None


def is_joint(checkpoint: Checkpoint) -> bool:
    """Whether embedding and head are computed from one stored table by two linear maps (`tiebeam tie --joint`)."""
    entry = (checkpoint.config or {}).get("tiebeam")
    return isinstance(entry, dict) and "joint" in entry and JOINT_TABLE in checkpoint.tensors


def _matrix(info: TensorInfo | None) -> Matrix | None:
    return Matrix(info.name, info.shape, info.dtype, info.nbytes, info.file) if info else None


def _check_vocabulary(checkpoint: Checkpoint, declared: int | None, stored: list[TensorInfo]) -> list[str]:
    """The declared vocabulary size must be the number of rows, except for a few rows of padding."""
    if declared is None or not stored:
        return []
    rows = [t.shape[0] for t in stored]
    if declared in rows:
        return []
    nearest = min(rows, key=lambda n: abs(n - declared))
    if declared < nearest <= declared + _PADDING:
        padding = nearest - declared
        return [f"the embedding has {nearest:,} rows for a vocabulary of {declared:,}: {padding:,} rows of padding"]
    raise UnreadableInput(
        f"{checkpoint.config_name} declares a vocabulary of {declared:,} but {stored[0].name} has {rows[0]:,} rows; "
        'one of them belongs to another model (to inspect it anyway, pass embed="NAME" and head="NAME")'
    )
