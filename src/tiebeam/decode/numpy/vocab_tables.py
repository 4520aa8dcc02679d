"""The embedding and the LM head of the decoder.

`inspect` decides which matrix is which: shared and twin pairs run on one matrix, an untied pair on two (as does a
twin that is equal only up to rounding). Where loaders disagree (torn) the stored head is used, as in transformers,
with a note; a pair without a head (headless) is refused.

A table may be factorised: rows [V, R] and a map [R, D] for embedding and head each. That covers a jointly tied
checkpoint (`tiebeam tie --joint`), a table narrower than the model, and a bridge.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiebeam.checkpoint import Checkpoint
from tiebeam.checkpoint.dtypes import BITS
from tiebeam.decode.numpy.load_weights import LazyRows, Linear, Weights
from tiebeam.decode.numpy.ops import Array, Ids
from tiebeam.errors import UnreadableInput
from tiebeam.families.family import TensorNames
from tiebeam.families.spec import Spec
from tiebeam.inspection import inspect
from tiebeam.pair import Tie

JOINT = "tiebeam"
"""Prefix of the tensors of a jointly tied pair, and its entry in the configuration."""


@dataclass(frozen=True, eq=False, repr=False)
class Table:
    """rows [V, R] times map [R, D]; for a lookup, some ids may have exact rows [N, D] instead."""

    rows: Array | LazyRows
    map: Array | None = None
    exact_ids: Ids | None = None
    """Ascending."""
    exact: Any = None  # [N, D]
    """Indexed by positions in `exact_ids`."""

    @property
    def vocab(self) -> int:
        return int(self.rows.shape[0])

    def lookup(self, ids: Ids) -> Array:  # [T] -> [T, D]
        x: Array = self.rows[ids]  # [T, R]
        if self.map is not None:
            x = x @ self.map  # [T, D]
        if self.exact_ids is not None and self.exact is not None and len(self.exact_ids):
            at = np.minimum(np.searchsorted(self.exact_ids, ids), len(self.exact_ids) - 1)
            hit = self.exact_ids[at] == ids
            x[hit] = self.exact[at[hit]]
        return x

    def scorer(self) -> Scorer:
        assert isinstance(self.rows, np.ndarray)
        return Scorer(self, Linear([self.rows]), None if self.map is None else Linear([self.map]))


@dataclass(frozen=True, eq=False, repr=False)
class Scorer:
    """A table used as LM head."""

    table: Table
    rows: Linear
    map: Linear | None

    def __call__(self, h: Array) -> Array:  # [T, D] -> [T, V]
        return self.rows(h if self.map is None else self.map(h))


def open_tables(
    weights: Weights, spec: Spec, names: TensorNames, config: Mapping[str, Any], embed: str | None, head: str | None
) -> tuple[Table, Table, tuple[str, ...]]:
    """(embed, head, notes) of the checkpoint behind `weights`."""
    joint = (config.get(JOINT) or {}).get("joint") if isinstance(config.get(JOINT), Mapping) else None
    if joint is not None:
        return _open_joint(weights, spec, joint)
    checkpoint = weights.checkpoint
    if embed or head or spec.table_maps:  # one is named: the other has its usual name
        embed = embed or _stored(checkpoint, names.prefix + names.embed)
        head = head or _stored(checkpoint, names.head)
    if embed == head:
        embed = None  # one matrix for both
    pair = inspect(checkpoint, embed=embed, head=head).pair
    one, two = (matrix.name if matrix else None for matrix in (pair.embed, pair.head))
    notes: tuple[str, ...] = ()
    if pair.tie is Tie.NONE and one is None:
        raise UnreadableInput(f'no vocabulary matrix was found in {checkpoint.source}; name it: embed="NAME"')
    if pair.tie is Tie.NONE:
        raise UnreadableInput(
            f'{checkpoint.source} was saved without a head; if {one} is the head too, pass head="{one}"'
        )
    if pair.tie is Tie.HEADLESS:
        raise UnreadableInput(
            f"{checkpoint.source} declares an untied head ({pair.declared_by}) and stores none; "
            f'if {one} is the head too, pass head="{one}"'
        )
    if pair.tie is Tie.TORN:
        notes = (f"declared tied, but {two} differs from {one}: runs with the stored head, as in transformers",)
    rounded = pair.tie is Tie.TWIN and not _exact_twin(checkpoint, one, two)
    if pair.tie is Tie.UNTIED or pair.tie is Tie.TORN or rounded:
        assert one is not None
        assert two is not None
        return _with_maps(
            weights, spec, _lookup_only(weights, spec, config, one), _rows(weights, spec, config, two), notes
        )
    only = one or two
    assert only is not None
    table = _rows(weights, spec, config, only)
    weights.used.update(name for name in (one, two) if name)
    return _with_maps(weights, spec, table, table, notes)


def _stored(checkpoint: Checkpoint, name: str) -> str | None:
    return name if name in checkpoint.tensors else None


def _exact_twin(checkpoint: Checkpoint, one: str | None, two: str | None) -> bool:
    """Different dtypes and GGUF blocks count as equal when they round the same matrix."""
    E, W = (checkpoint.tensors[name].dtype if name else "" for name in (one, two))
    return E == W and E in BITS


def _width(spec: Spec, config: Mapping[str, Any]) -> int:
    narrow = config.get("embed_dim") if spec.table_maps else None
    return narrow if type(narrow) is int and narrow > 0 else spec.dim


def _rows(weights: Weights, spec: Spec, config: Mapping[str, Any], name: str) -> Table:
    return Table(weights.matrix(name, (_padded(weights.checkpoint, spec, name), _width(spec, config))))


def _lookup_only(weights: Weights, spec: Spec, config: Mapping[str, Any], name: str) -> Table:
    shape = (_padded(weights.checkpoint, spec, name), _width(spec, config))
    return Table(weights.rows_on_demand(name, shape))


def _padded(checkpoint: Checkpoint, spec: Spec, name: str) -> int:
    """The rows of a table; `inspect` has already compared them with the declared vocabulary."""
    info = checkpoint.tensors[name]
    return info.shape[0] if info.shape and info.shape[0] >= spec.vocab else spec.vocab


def _with_maps(
    weights: Weights, spec: Spec, embed: Table, head: Table, notes: tuple[str, ...]
) -> tuple[Table, Table, tuple[str, ...]]:
    """The optional maps of our own formats: the two projections of a narrow table, and the bridge before the head."""
    if not spec.table_maps:
        return embed, head, notes
    D, R = spec.dim, embed.rows.shape[1]
    into = out = None
    if weights.has("embed_proj.weight"):
        into = weights.vector("embed_proj.weight", (D, R)).T  # [R, D]
        out = into
    if weights.has("head_proj.weight"):
        out = weights.vector("head_proj.weight", (R, D))
    if weights.has("bridge.weight"):
        bridge = weights.vector("bridge.weight", (D, D))
        out = bridge if out is None else out @ bridge
    if into is None and D != R:
        raise UnreadableInput(f"a table of width {R} needs embed_proj.weight [{D}, {R}] for a model of width {D}")
    return Table(embed.rows, into), Table(head.rows, out), notes


def _open_joint(weights: Weights, spec: Spec, joint: Any) -> tuple[Table, Table, tuple[str, ...]]:
    """S [V, R] with two maps [R, D], and the embeddings that are stored exactly."""
    rank = joint_entry({"joint": joint})["rank"]
    V = _padded(weights.checkpoint, spec, f"{JOINT}.table") if weights.has(f"{JOINT}.table") else spec.vocab
    rows = weights.matrix(f"{JOINT}.table", (V, rank))
    ids = exact_ids(weights.checkpoint, V)
    weights.used.add(f"{JOINT}.exact_rows")
    embed_map, head_map = (weights.matrix(f"{JOINT}.{role}_map", (rank, spec.dim)) for role in ("embed", "head"))
    exact = None
    if ids is not None and len(ids):
        exact = weights.matrix(f"{JOINT}.exact_embed", (len(ids), spec.dim))
    return Table(rows, embed_map, ids, exact), Table(rows, head_map), ()


def joint_entry(entry: Any) -> Mapping[str, Any]:
    """The `joint` part of config.json's tiebeam entry, its rank checked."""
    joint = entry.get("joint") if isinstance(entry, Mapping) else None
    rank = joint.get("rank") if isinstance(joint, Mapping) else None
    if not isinstance(joint, Mapping) or type(rank) is not int or rank <= 0:
        raise UnreadableInput(f"config.json: the joint tie has the rank {rank!r}, not a positive whole number")
    return joint


def exact_ids(checkpoint: Checkpoint, vocab: int) -> Ids | None:
    """The ids of the embeddings that a joint tie stores exactly, ascending; None where it stores none."""
    name = f"{JOINT}.exact_rows"
    if f"{JOINT}.exact_head" in checkpoint.tensors:
        raise UnreadableInput(
            f"{checkpoint.source} is a joint tie of version 0.1, with exact rows of both matrices; write it again from "
            "the original model: tiebeam tie SRC DST --joint --text FILE"
        )
    if name not in checkpoint.tensors:
        return None
    stored = checkpoint.tensor(name)
    if stored.ndim != 1 or stored.dtype.kind not in "iu":
        shape = list(stored.shape)
        raise UnreadableInput(f"{name} must be a list of whole numbers, not {stored.dtype} of shape {shape}")
    ids = stored.astype(np.int64)
    if len(ids) and (ids[0] < 0 or ids[-1] >= vocab or (np.diff(ids) <= 0).any()):
        raise UnreadableInput(f"{name} must ascend within 0 .. {vocab - 1:,}")
    return ids
