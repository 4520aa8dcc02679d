"""A model -> the Report on its embedding and LM head: where they are, whether they are tied, what they cost.

`inspect` reads headers only, and the numbers only where two matrices are stored. Parameters are counted by storage,
never by name (parameters.py); the vocabulary's four numbers are in vocabulary.py, all tensors with the vocabulary as a
dimension in vocabulary_tensors.py; the text of a report is in report.py; a torch module is read in module_tensors.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from tiebeam import families
from tiebeam.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from tiebeam.checkpoint.quantized.packed import PackedMatrix, packed_matrix
from tiebeam.errors import BadRequest, NumbersNotRead, UnreadableInput, reader
from tiebeam.families.config_levels import flag_levels
from tiebeam.inspection.draft_model import draft_kind, draft_vocab_size
from tiebeam.inspection.parameters import count_parameters
from tiebeam.inspection.report import Params, Report
from tiebeam.inspection.vocabulary import Vocabulary, read_vocabulary
from tiebeam.inspection.vocabulary_tensors import VocabularyTensor, vocabulary_tensors
from tiebeam.pair import Matrix, Pair, Tie

if TYPE_CHECKING:
    from torch import nn

    from tiebeam.equality import Equality, Progress

__all__ = ["JOINT_TABLE", "Params", "Report", "Vocabulary", "VocabularyTensor", "inspect", "is_joint"]

JOINT_TABLE = "tiebeam.table"


def inspect(
    source: str | os.PathLike[str] | Checkpoint | nn.Module,
    *,
    embed: str | None = None,
    head: str | None = None,
    progress: Progress = lambda done, total: None,
) -> Report:
    """Report on the embedding and the LM head of a model: where they are, whether they are tied, what they cost.

    `source` is a path, a Hub id ("org/name"), an opened Checkpoint or a torch nn.Module. `embed` and `head` name the
    tensors if the architecture is unknown or the guess is wrong. `progress` is called with (done, total) while two
    stored matrices are compared; what it raises ends the inspection.

    >>> import tiebeam
    >>> report = tiebeam.inspect("tied")
    >>> report.tied, report.declared, report.tie
    (True, True, <Tie.SHARED: 'shared'>)
    >>> report.params.total < report.params.untied_total
    True
    """
    return _inspect(source, embed, head, progress)


@reader
def _inspect(source: Any, embed: str | None, head: str | None, progress: Progress) -> Report:
    checkpoint, compare = _open(source, progress)
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
    for name, other in ((found.embed, found.head), (found.head, found.embed)):
        alias = next((alias for alias, kept in checkpoint.aliases.items() if kept == name), None)
        if alias and other is None:
            notes.append(f"the file's metadata declares {alias} to be the same tensor as {name}")
    draft, draft_head = draft_kind(checkpoint) if embed is None and head is None else "", W
    if draft:
        W = None  # a draft model has no LM head of its own: it borrows its target's, or scores a part of the tokens
    matrices = _matrix(checkpoint, E), _matrix(checkpoint, W)
    verdict = compare(E.name, W.name) if E and W else None
    if verdict and not verdict.equal and declared.value and _keeps_a_different_head(checkpoint, architecture):
        declared = families.Declared(False, f"{declared.by}; transformers keeps the stored head")
    pair = Pair(
        embed=matrices[0],
        head=matrices[1],
        declared=declared.value,
        declared_by=declared.by,
        equal=verdict.equal if verdict else None,
        one_storage=bool(E and W and E.storage == W.storage and E.strides == W.strides),
        encoder=found.has_head_by_design is False or bool(draft),
    )
    if checkpoint.format == "dcp" and pair.tie is Tie.TWIN:
        notes.append(
            "DCP writes a matrix once for each of its names: a tied model looks like this until it is consolidated"
        )
    rows = [matrix.rows if matrix else None for matrix in (pair.embed, _matrix(checkpoint, draft_head))]
    if pair.tie in (Tie.SHARED, Tie.SWAPPED):
        rows = [rows[0] or rows[1], rows[1] or rows[0]]
    vocabulary, unread = read_vocabulary(checkpoint, *rows)
    sizes = frozenset(n for n in (*rows, vocabulary.vocab_size, draft_vocab_size(checkpoint.config)) if n)
    tables = vocabulary_tensors(
        checkpoint, E.name if E else None, draft_head.name if draft_head else None, sizes, bool(draft)
    )
    return Report(
        model=checkpoint.source,
        format=checkpoint.format,
        architecture=checkpoint.architecture,
        nbytes=checkpoint.nbytes,
        pair=pair,
        params=count_parameters(checkpoint, pair, tables),
        how=verdict.how if verdict else "",
        difference=verdict.difference if verdict else None,
        guessed=found.guessed,
        packed=tuple(
            role
            for role, info in (("embed", E), ("head", W))
            if info and (role in found.packed or packed_matrix(checkpoint, info.name))
        ),
        notes=(*notes, *unread),
        vocabulary=vocabulary,
        vocabulary_tensors=tables,
        draft=draft,
    )


def _keeps_a_different_head(checkpoint: Checkpoint, architecture: families.Architecture | None) -> bool:
    """Whether a stored head that differs is kept although transformers 5 counts the pair as tied.

    The T5 family is always tied in transformers 5, which keeps a head that differs; other loaders follow the flag.
    A multimodal model without any flag: transformers 5 takes the outer class's default, other loaders the text
    config's. Neither drops the head (tests/peers: transformers 4.57.6 and 5.22.2).
    """
    if architecture is None or checkpoint.config is None:
        return False
    flags = flag_levels(checkpoint.config, architecture.legacy_flag)
    if architecture.flag == "forced":
        return flags.get(("tie_word_embeddings",)) is False
    inner = families.lookup(architecture.text_type) if architecture.text else None
    return not flags and inner is not None and inner.tie_default is False


def _open(source: Any, progress: Progress) -> tuple[Checkpoint, Callable[[str, str], Equality]]:
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
    return checkpoint, partial(_compare_stored, checkpoint, progress)


def _compare_stored(checkpoint: Checkpoint, progress: Progress, embed: str, head: str) -> Equality:
    from tiebeam import equality  # here and below: only for two stored matrices

    packed = [packed_matrix(checkpoint, name) for name in (embed, head)]
    try:
        if any(packed):
            return _compare_packed(checkpoint, *packed)
        return equality.compare(checkpoint, embed, head, progress)
    except NumbersNotRead as error:
        shapes = " and ".join(f"{name} {list(checkpoint.tensors[name].shape)}" for name in (embed, head))
        raise UnreadableInput(
            f"{checkpoint.source} names both {shapes}, but whether they are equal is not known: {error}"
        ) from None


def _compare_packed(checkpoint: Checkpoint, E: PackedMatrix | None, W: PackedMatrix | None) -> Equality:
    """Packed matrices are equal if all their parts are. Codes mean nothing without their scales."""
    from tiebeam import equality
    from tiebeam.equality import Equality

    if E is None or W is None:
        return Equality(False, f"only the {'head' if W else 'embedding'} is packed; the numbers were not compared")
    if (E.method, E.bits, E.shape, len(E.parts)) != (W.method, W.bits, W.shape, len(W.parts)):
        how = " and ".join(f"{m.method} {m.bits} bits {list(m.shape)}" for m in (E, W))
        return Equality(False, f"packed differently: {how}")
    parts = list(zip(E.parts, W.parts, strict=True))
    unequal = [e for e, w in parts if not equality.same_bytes(checkpoint, e, w)]
    how = f"{len(parts) - len(unequal)} of {len(parts)} packed parts are equal"
    return Equality(not unequal, how if unequal else f"packed: all {len(parts)} parts were compared, byte by byte")


def is_joint(checkpoint: Checkpoint) -> bool:
    """Whether embedding and head are computed from one stored table by two linear maps (`tiebeam tie --joint`)."""
    entry = (checkpoint.config or {}).get("tiebeam")
    return isinstance(entry, dict) and "joint" in entry and JOINT_TABLE in checkpoint.tensors


def _matrix(checkpoint: Checkpoint, info: TensorInfo | None) -> Matrix | None:
    """The matrix with its logical shape, and the bytes of all its parts."""
    if info is None:
        return None
    packed = packed_matrix(checkpoint, info.name)
    if packed is None and len(info.shape) != 2:
        raise UnreadableInput(
            f"{info.name} has the shape {list(info.shape)} in {info.file}; an embedding or LM head has two dimensions"
        )
    if packed is None:
        return Matrix(info.name, info.shape, info.dtype, info.nbytes, info.file)
    nbytes = sum(checkpoint.tensors[part].nbytes for part in packed.parts)
    return Matrix(info.name, packed.shape, info.dtype, nbytes, info.file)
