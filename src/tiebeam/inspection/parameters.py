"""Parameter counts from a table of tensors.

`total` counts the parameters of the running model, `stored` those in the files. Both count each storage once, however
many names it has. Buffers that old files store beside the weights (causal masks, rotary frequencies) are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import prod

from tiebeam.checkpoint import TensorInfo
from tiebeam.inspection.report import Params, runs_tied
from tiebeam.pair import Pair, Tie

_BUFFER = re.compile(
    r"(^|\.)(inv_freq|masked_bias|position_ids|token_type_ids|num_batches_tracked|running_(mean|var)"
    r"|final_logits_bias|rope_freqs\.weight|rope_factors_(long|short)\.weight)$"
)
_MASK = re.compile(r"(^|\.)(attn|attention|self_attention)\.bias$")


def count_parameters(tensors: Iterable[TensorInfo], pair: Pair, packed: tuple[str, ...]) -> Params:
    """All counts of a report. `packed` names the matrices whose stored shape is not [V, D]."""
    stored = _unique(tensors)
    embed = prod(pair.embed.shape) if pair.embed else 0
    head = prod(pair.head.shape) if pair.head and not pair.one_storage else 0
    trunk = stored - embed - head
    if len(packed) == 1 and embed and head:  # a packed matrix has as many parameters as the plain one
        embed = head = embed if "head" in packed else head
    matrix = embed or head
    untied_total = trunk + (embed or matrix) + (head or matrix)
    tied_total = trunk + matrix
    if pair.tie is Tie.NONE:
        trunk, untied_total, tied_total = stored - embed, stored, stored
    return Params(
        total=tied_total if runs_tied(pair) else untied_total,
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
    """Parameters counted by storage: a range with two names counts once, an overlapping view by what it adds."""
    total = 0
    spans: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for t in tensors:
        if not _is_buffer(t):
            spans.setdefault((t.file, t.packing), []).append((t.begin, t.end, t.size))
    for ranges in spans.values():
        reached = -1
        for begin, end, size in sorted(set(ranges)):
            if begin >= reached:
                total += size
            elif end > reached:  # a view that extends past the one before it
                total += size * (end - reached) // (end - begin)
            reached = max(reached, end)
    return total


def _is_buffer(info: TensorInfo) -> bool:
    """Whether the tensor is a buffer: stored with the weights, but not a parameter."""
    return bool(_BUFFER.search(info.name)) or (len(info.shape) == 4 and bool(_MASK.search(info.name)))
