"""Fixes of the vocabulary findings that lose nothing, as edits of a checkpoint."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.quantized.packed import HELPERS, layer_of
from tiebeam.doctor.fix import Repair
from tiebeam.inspection.skip_lists import skip_lists, with_head
from tiebeam.inspection.vocabulary import size_paths

if TYPE_CHECKING:
    from tiebeam.surgery.edits import Edit
    from tiebeam.surgery.source import Source

_CODES = ("weight", "qweight", "weight_packed")


def _declare_rows(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit  # here and below: diagnose() needs no surgery

    vocabulary = source.report.vocabulary
    assert vocabulary.vocab_size is not None
    paths = size_paths(source.checkpoint, vocabulary.vocab_size)
    return Edit(config=dict.fromkeys(paths, vocabulary.rows))


def orphaned_parts(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Scales and biases of a packed head or embedding whose codes are not stored."""
    found = []
    for name in checkpoint.tensors:
        layer = layer_of(name)
        if layer is None or layer.rpartition(".")[2] not in ("lm_head", "embed_out", "embed_tokens", "output"):
            continue
        part = name[len(layer) + 1 :]
        if part in HELPERS and not any(f"{layer}.{codes}" in checkpoint.tensors for codes in _CODES):
            found.append(name)
    return tuple(found)


def _drop_orphans(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit

    return Edit(drop=frozenset(orphaned_parts(source.checkpoint)))


def _protect_head(source: Source) -> Edit:
    from tiebeam.surgery.edits import Edit

    lists = skip_lists(source.checkpoint.config or {})
    return Edit(config={path: with_head(listed) for path, listed in lists.items()})


DECLARE_ROWS = Repair("set vocab_size to the rows", _declare_rows)
DROP_ORPHANS = Repair("drop the orphaned parts", _drop_orphans)
PROTECT_HEAD = Repair("add the head to the skip list", _protect_head)
