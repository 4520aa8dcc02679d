"""A checkpoint -> the Report on its pair: where it is, whether it is tied, what it costs.

`total` counts unique parameters as the model runs, `stored` what the files hold, both by storage and never
by name. Buffers that old files carry beside the weights (causal masks, rotary tables) are not parameters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from math import prod
from typing import Any

from tiebeam import families
from tiebeam.checkpoint import Checkpoint, TensorInfo, open_checkpoint
from tiebeam.equality import Difference, Equality, compare
from tiebeam.errors import NumbersNotRead, UnreadableInput
from tiebeam.pair import Matrix, Pair, Tie

_BUFFER = re.compile(
    r"(^|\.)(inv_freq|masked_bias|position_ids|token_type_ids|num_batches_tracked|running_(mean|var)"
    r"|final_logits_bias|rope_freqs\.weight|rope_factors_(long|short)\.weight)$"
)
_MASK = re.compile(r"(^|\.)(attn|attention|self_attention)\.bias$")
_PADDING = 1024  # rows that a table may have beyond the declared vocabulary, for alignment


JOINT_TABLE = "tiebeam.table"


@dataclass(frozen=True, slots=True)
class Params:
    """Parameter counts. `head_share` is one matrix over the untied total."""

    total: int
    stored: int
    trunk: int
    embed: int
    head: int
    tied_total: int
    untied_total: int
    saved_by_tying: int
    head_share: float


@dataclass(frozen=True, slots=True)
class Report:
    """What `tiebeam inspect` knows. `how` says how the numbers were compared, `notes` what else to know."""

    model: str
    format: str
    architecture: str | None
    nbytes: int
    pair: Pair
    params: Params
    how: str = ""
    difference: Difference | None = None
    guessed: bool = False
    packed: tuple[str, ...] = ()
    """The ends that a quantiser packed: their stored shape is not the matrix's."""
    notes: tuple[str, ...] = ()

    @property
    def tie(self) -> Tie:
        return self.pair.tie

    def to_dict(self) -> dict[str, Any]:
        pair = self.pair
        return {
            "model": self.model,
            "format": self.format,
            "architecture": self.architecture,
            "bytes": self.nbytes,
            "tie": str(self.tie),
            "declared": pair.declared,
            "declared_by": pair.declared_by,
            "stored": list(pair.stored),
            "equal": pair.equal,
            "embed": pair.embed.to_dict() if pair.embed else None,
            "head": pair.head.to_dict() if pair.head else None,
            "params": asdict(self.params),
            "difference": self.difference.to_dict() if self.difference else None,
            "guessed": self.guessed,
            "packed": list(self.packed),
            "notes": list(self.notes),
        }


def inspect(
    source: str | os.PathLike[str] | Checkpoint, *, embed: str | None = None, head: str | None = None
) -> Report:
    """The pair of a model and its tie, from headers, and from the numbers only where two matrices are stored.

    `embed` and `head` name the tensors where the architecture is unknown or the guess is wrong.
    """
    checkpoint = source if isinstance(source, Checkpoint) else open_checkpoint(source)
    architecture = families.lookup(checkpoint.architecture)
    shapes = {name: info.shape for name, info in checkpoint.tensors.items()}
    joint = embed is None and head is None and is_joint(checkpoint)
    if joint:
        found = families.named_pair(shapes, JOINT_TABLE, None)
    elif embed is None and head is None:
        found = families.find_pair(shapes, checkpoint.config, architecture)
    else:
        found = families.named_pair(shapes, embed, head)
    if joint:
        declared = families.Declared(True, f"{checkpoint.config_name}: tiebeam.joint")
    elif checkpoint.format == "gguf":
        declared = families.declared_in_gguf(checkpoint.tensors, checkpoint.architecture)
    else:
        declared = families.resolve_declared(checkpoint.config, architecture, checkpoint.config_name)
    E, W = (checkpoint.tensors[name] if name else None for name in (found.embed, found.head))
    if found.candidates and declared.value is None and not (E and W):
        E = W = None  # an end that could be one of several: half a pair would be a verdict on nothing
    notes = [*checkpoint.notes, *([found.why] if found.guessed and found.why else [])]
    if not (embed or head or found.packed):
        notes += _check_vocabulary(
            checkpoint, families.vocabulary(checkpoint.config, architecture), [t for t in (E, W) if t]
        )
    for end, other in ((found.embed, found.head), (found.head, found.embed)):
        alias = next((name for name, kept in checkpoint.aliases.items() if kept == end), None)
        if alias and other is None:
            notes.append(f"the file's metadata says that {alias} is the same tensor as {end}")
    verdict = _compared(checkpoint, E, W) if E and W else None
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
            "torch writes a matrix once for each of its names: a tied model looks like this until consolidated"
        )
    return Report(
        model=checkpoint.source,
        format=checkpoint.format,
        architecture=checkpoint.architecture,
        nbytes=checkpoint.nbytes,
        pair=pair,
        params=_count(checkpoint.tensors.values(), pair, found.packed),
        how=verdict.how if verdict else "",
        difference=verdict.difference if verdict else None,
        guessed=found.guessed,
        packed=found.packed,
        notes=tuple(notes),
    )


def _compared(checkpoint: Checkpoint, E: TensorInfo, W: TensorInfo) -> Equality:
    try:
        return compare(checkpoint, E.name, W.name)
    except NumbersNotRead as error:
        shapes = f"{E.name} {list(E.shape)} and {W.name} {list(W.shape)}"
        raise UnreadableInput(
            f"{checkpoint.source} names both {shapes}, but whether they are equal is not known: {error}"
        ) from None


def is_joint(checkpoint: Checkpoint) -> bool:
    """Whether both ends are one table seen through two maps, as `tiebeam tie --joint` writes it."""
    entry = (checkpoint.config or {}).get("tiebeam")
    return isinstance(entry, dict) and "joint" in entry and JOINT_TABLE in checkpoint.tensors


def _matrix(info: TensorInfo | None) -> Matrix | None:
    return Matrix(info.name, info.shape, info.dtype, info.nbytes, info.file) if info else None


def _check_vocabulary(checkpoint: Checkpoint, declared: int | None, ends: list[TensorInfo]) -> list[str]:
    """The declared vocabulary must be the table's, but for a few rows of padding."""
    if declared is None or not ends:
        return []
    rows = [t.shape[0] for t in ends]
    if declared in rows:
        return []
    nearest = min(rows, key=lambda n: abs(n - declared))
    if declared < nearest <= declared + _PADDING:
        return [f"the table has {nearest:,} rows for a vocabulary of {declared:,}: {nearest - declared:,} of padding"]
    raise UnreadableInput(
        f"{checkpoint.config_name} declares a vocabulary of {declared:,} but {ends[0].name} has {ends[0].shape[0]:,} "
        "rows; one of them belongs to another model (name the tensors with --embed and --head to look anyway)"
    )


def is_buffer(info: TensorInfo) -> bool:
    """Stored beside the weights, but not a parameter."""
    return bool(_BUFFER.search(info.name)) or (len(info.shape) == 4 and bool(_MASK.search(info.name)))


def _count(tensors: Iterable[TensorInfo], pair: Pair, packed: tuple[str, ...]) -> Params:
    stored = _unique(tensors)
    embed = prod(pair.embed.shape) if pair.embed else 0
    head = prod(pair.head.shape) if pair.head and not pair.one_storage else 0
    trunk = stored - embed - head
    if packed and embed and head:  # a packed end stands for as many parameters as the plain one
        plain = embed if "head" in packed else head
        embed, head = (plain, plain) if len(packed) == 1 else (embed, head)
    matrix = embed or head
    untied_total = trunk + (embed or matrix) + (head or matrix)
    tied_total = trunk + matrix
    if pair.tie is Tie.NONE:
        trunk, untied_total, tied_total = stored - embed, stored, stored
    runs_as_one = pair.tie in (Tie.SHARED, Tie.NONE) or (pair.declared and pair.tie in (Tie.TWIN, Tie.SWAPPED))
    return Params(
        total=tied_total if runs_as_one else untied_total,
        stored=stored,
        trunk=trunk,
        embed=embed,
        head=head,
        tied_total=tied_total,
        untied_total=untied_total,
        saved_by_tying=untied_total - tied_total,
        head_share=(head or matrix) / untied_total if untied_total and pair.tie is not Tie.NONE else 0.0,
    )


def _unique(tensors: Iterable[TensorInfo]) -> int:
    """Parameters counted by storage: two names for one range count once, an overlapping view by what it adds."""
    total = 0
    spans: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for t in tensors:
        if not is_buffer(t):
            spans.setdefault((t.file, t.packing), []).append((t.begin, t.end, t.size))
    for ranges in spans.values():
        reached = -1
        for begin, end, size in sorted(set(ranges)):
            if begin >= reached:
                total += size
            elif end > reached:  # a view that sticks out of the one before it
                total += size * (end - reached) // (end - begin)
            reached = max(reached, end)
    return total
