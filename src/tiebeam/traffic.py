"""What the ranks of a job send each other because of the vocabulary, in bytes per rank and step. Pure arithmetic.

N ranks, each with T tokens of its own a step, U of them distinct; a table of V x D numbers of s bytes. Collectives are
counted as the usual ring (or direct) algorithms send them, per rank: a reduce-scatter or an all-gather of S bytes
(N - 1) / N S, an all-reduce twice that, an all-to-all of S bytes (N - 1) / N S.

ddp          every rank holds the table and its gradient is all-reduced: 2 (N - 1) / N V D s. Untied there are two.
fsdp         the table is gathered once and its gradient reduce-scattered: the same bytes. Untied there are two.
shard_vocab  the table stays where it is and the hidden states travel, out and back: 2 (N - 1) T D s for the head and
             2 (N - 1) / N U D s for the lookup, with 40 bytes or less per token of ids, targets and sums. V is not in
             it, and neither is the tie: two tables cost what one does.

A step that accumulates over micro-batches sends for ddp once a step; for shard_vocab T is the sum over micro-batches;
for fsdp the gathered table is kept or gathered again, as it is set up.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from tiebeam.errors import BadRequest

TOKENS = 8192  # per rank and step, where nothing is said
_ID, _SUMS = 8, 12  # bytes of a token id; of a token's three float32 in the log-sum-exp


@dataclass(frozen=True, slots=True)
class Sent:
    """Bytes that one rank sends in a step."""

    tied: int
    untied: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes per rank and step, by how the vocabulary is shared out."""

    ranks: int
    tokens: int
    ddp: Sent
    fsdp: Sent
    shard_vocab: Sent

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def exchanged(
    vocab: int, dim: int, ranks: int, tokens: int = TOKENS, *, distinct: int | None = None, itemsize: int = 4
) -> Traffic:
    """`tokens` per rank and step, all of them distinct unless said; `itemsize` of gradients and hidden states."""
    for name, value in (
        ("vocabulary", vocab),
        ("width", dim),
        ("number of ranks", ranks),
        ("number of tokens", tokens),
    ):
        if value < 1:
            raise BadRequest(f"the {name} is {value:,}; it is at least 1")
    distinct = min(tokens, vocab) if distinct is None else distinct
    others = ranks - 1
    table = 2 * others * vocab * dim * itemsize // ranks
    head = others * tokens * (2 * dim * itemsize + _ID + 2 * _SUMS)
    lookup = others * distinct * (2 * dim * itemsize + _ID) // ranks
    rows = Sent(head + lookup, head + lookup)
    replicas = Sent(table, 2 * table)
    return Traffic(ranks, tokens, replicas, replicas, rows)
