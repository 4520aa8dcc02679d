"""Parameter counts from a table of tensors.

`total` counts the parameters of the running model, `stored` those in the files. Both count each storage once, however
many names it has, and a packed matrix unpacked: its scales are not parameters. Buffers that old files store beside the
weights (causal masks, rotary frequencies) are not counted. Tables that have the vocabulary as a dimension are not
non-embedding parameters; a head bias is, because it is no matrix that could be tied.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.checkpoint.quantized.packed import is_quantized, unpacked_size
from tiebeam.inspection.report import Params, runs_tied
from tiebeam.inspection.vocabulary_tensors import VocabularyTensor
from tiebeam.pair import Pair, Tie

# Last levels of a name, without a regular expression: every tensor is asked.
_BUFFERS = (
    *(".inv_freq", ".masked_bias", ".position_ids", ".token_type_ids", ".num_batches_tracked", ".running_mean"),
    *(".running_var", ".final_logits_bias", ".d2t", ".t2d", ".rope_freqs.weight", ".rope_factors_long.weight"),
    ".rope_factors_short.weight",
)
_MASKS = (".attn.bias", ".attention.bias", ".self_attention.bias")


def count_parameters(checkpoint: Checkpoint, pair: Pair, tables: Iterable[VocabularyTensor]) -> Params:
    """All counts of a report. `tables` are the tensors with the vocabulary as a dimension, the pair among them."""
    stored = _unique(checkpoint)
    embed = prod(pair.embed.shape) if pair.embed else 0
    head = prod(pair.head.shape) if pair.head and not pair.one_storage else 0
    known = {checkpoint.tensors[m.name].storage for m in (pair.embed, pair.head) if m is not None}
    further = {checkpoint.tensors[t.name].storage: t.params for t in tables if t.is_table}
    more = sum(params for storage, params in further.items() if storage not in known)
    trunk = stored - embed - head - more
    matrix = embed or head
    untied_total = trunk + more + (embed or matrix) + (head or matrix)
    tied_total = trunk + more + matrix
    if pair.tie is Tie.NONE:
        trunk, untied_total, tied_total = stored - embed - more, stored, stored
    return Params(
        total=tied_total if runs_tied(pair) else untied_total,
        stored=stored,
        trunk=trunk,
        embed=embed,
        head=head,
        tied_total=tied_total,
        untied_total=untied_total,
        saved_by_tying=untied_total - tied_total,
        further_vocabulary=more,
        head_share=(head or matrix) / untied_total if untied_total and pair.tie is not Tie.NONE else 0.0,
    )


def _unique(checkpoint: Checkpoint) -> int:
    """Parameters counted by storage: a range with two names counts once, an overlapping view by what it adds."""
    total, quantized = 0, is_quantized(checkpoint)
    spans: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
    for t in checkpoint.tensors.values():
        if not _is_buffer(t):
            size = unpacked_size(checkpoint, t) if quantized else t.size
            spans.setdefault((t.file, t.packing), []).append((t.begin, t.end, size))
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
    name = f".{info.name}"
    return name.endswith(_BUFFERS) or (len(info.shape) == 4 and name.endswith(_MASKS))
