"""Bytes that each rank sends per step because of the vocabulary. Arithmetic only.

N ranks have T tokens each per step, U of them distinct. The embedding is V x D numbers of s bytes. Collectives are
counted per rank, as ring (or direct) algorithms send them: a reduce-scatter, an all-gather or an all-to-all of S bytes
sends (N - 1) / N S, an all-reduce twice that.

ddp          Every rank holds the matrix and all-reduces its gradient: 2 (N - 1) / N V D s. Untied: two matrices.
fsdp         The matrix is gathered once and its gradient reduce-scattered: the same bytes as ddp.
shard_vocab  The rows stay on their rank and the hidden states are sent, forward and backward: 2 (N - 1) T D s for the
             head, 2 (N - 1) / N U D s for the lookup, and at most 40 bytes per token of ids, targets and sums. Neither
             V nor the tie changes it: two matrices cost what one does.

With gradient accumulation, ddp sends once per step; for shard_vocab, T is the sum over micro-batches; fsdp keeps the
gathered matrix or gathers it again, depending on its configuration.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import BadRequest

TOKENS = 8192  # per rank and step, by default
_ID, _SUMS = 8, 12  # bytes of a token id; bytes of a token's three float32 in the log-sum-exp


@dataclass(frozen=True, slots=True)
class BytesSent:
    """Bytes that one rank sends per step."""

    tied: int
    untied: int


@dataclass(frozen=True, slots=True)
class CommunicationVolume:
    """Bytes per rank and step, for each way to distribute the vocabulary matrices."""

    ranks: int
    tokens: int
    ddp: BytesSent
    fsdp: BytesSent
    shard_vocab: BytesSent

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def communication_volume(
    vocab: int, dim: int, ranks: int, tokens: int = TOKENS, *, distinct: int | None = None, itemsize: int = 4
) -> CommunicationVolume:
    """Bytes that each of `ranks` ranks sends per step.

    `tokens` is per rank and step; all of them are distinct unless `distinct` is given. `itemsize` is the size in bytes
    of one number of a gradient or a hidden state.

    >>> from tiebeam.budget import communication_volume
    >>> volume = communication_volume(200_000, 4096, ranks=8)
    >>> volume.ddp.tied, volume.ddp.untied
    (5734400000, 11468800000)
    """
    for name, value in (("vocab", vocab), ("dim", dim), ("ranks", ranks), ("tokens", tokens)):
        if value < 1:
            raise BadRequest(f"{name} must be at least 1, not {value:,}")
    distinct = min(tokens, vocab) if distinct is None else distinct
    others = ranks - 1
    matrix = 2 * others * vocab * dim * itemsize // ranks
    head = others * tokens * (2 * dim * itemsize + _ID + 2 * _SUMS)
    lookup = others * distinct * (2 * dim * itemsize + _ID) // ranks
    replicated, sharded_rows = BytesSent(matrix, 2 * matrix), BytesSent(head + lookup, head + lookup)
    return CommunicationVolume(ranks, tokens, replicated, replicated, sharded_rows)
