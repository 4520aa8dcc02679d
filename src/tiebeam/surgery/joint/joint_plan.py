"""Plan the files of a joint tie: the table and its two maps, or, expanded, two ordinary matrices.

Only tiebeam reads the joint form. Its weight files are named tiebeam*.safetensors, so that other loaders report a
missing model instead of initialising two matrices at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._version import __version__
from tiebeam.checkpoint import dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import Entry
from tiebeam.errors import BadRequest
from tiebeam.inspection import JOINT_TABLE, Report
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.joint.decomposition import Factors, Rows, row_blocks
from tiebeam.surgery.joint.fit import Fit
from tiebeam.surgery.pair_edits import set_flag
from tiebeam.surgery.plan import Plan
from tiebeam.surgery.source import Source

Array = NDArray[Any]
TABLE, EMBED_MAP, HEAD_MAP = JOINT_TABLE, "tiebeam.embed_map", "tiebeam.head_map"
EXACT = "tiebeam.exact_rows", "tiebeam.exact_embed", "tiebeam.exact_head"


def pair_rows(source: Source) -> tuple[Rows, int, int]:
    """A function that reads rows of both matrices, and their shape: (rows, V, D)."""
    pair = source.report.pair
    if pair.embed is None or pair.head is None or pair.one_storage:
        raise BadRequest(f"{source.report.model} is {source.report.tie}: there are no two matrices to fit")
    E, W = pair.embed, pair.head
    if E.shape != W.shape:
        raise BadRequest(
            f"embed is {list(E.shape)} but head is {list(W.shape)}; a joint tie needs two matrices of one shape"
        )

    def rows(start: int, stop: int) -> tuple[Array, Array]:
        e, w = (source.checkpoint.rows(m.name, start, stop).astype(np.float32) for m in (E, W))
        return e, w

    return rows, E.rows, E.dim


def plan_joint(source: Source, fitted: Fit) -> Plan:
    """Plan to replace the pair by tensors named tiebeam.* and to record the rank in config.json."""
    rows, V, D = pair_rows(source)
    factors, dtype, R = fitted.factors, _float_dtype(source), fitted.recipe.rank
    table = Made(_size(dtype, (V, R)), partial(_encoded, dtype, partial(_table_blocks, rows, V, D, factors)))
    entries = [
        Entry(TABLE, dtype, (V, R), table),
        _small(EMBED_MAP, factors.embed_map),
        _small(HEAD_MAP, factors.head_map),
    ]
    if len(fitted.exact):
        ids = np.ascontiguousarray(fitted.exact, "<i8")
        kept = [rows(int(i), int(i) + 1) for i in ids]
        entries.append(Entry(EXACT[0], "I64", ids.shape, Made.of(ids.tobytes())))
        for name, which in zip(EXACT[1:], (0, 1), strict=True):
            raw = dtypes.encode(dtype, np.concatenate([pair[which] for pair in kept]))
            entries.append(Entry(name, dtype, (len(ids), D), Made.of(raw)))
    assert source.embed
    assert source.head
    about = {"joint": {"rank": R, "balance": fitted.recipe.balance, "version": __version__}}
    edit = Edit(drop=frozenset({source.embed, source.head}), add=tuple(entries), config={("tiebeam",): about})
    shards = tuple(replace(s, name=_renamed(s.name)) for s in source.layout.shards)
    source = replace(source, layout=replace(source.layout, shards=shards))
    return Plan("tie --joint", source, edit, _is_joint, exact=False)


def plan_expand(source: Source, fitted: Fit) -> Plan:
    """Plan to replace the pair by the two matrices S A and S B, which any loader reads."""
    rows, V, D = pair_rows(source)
    factors, exact = fitted.factors, fitted.exact
    assert source.embed
    assert source.head
    stored = {entry.name: entry for shard in source.layout.shards for entry in shard.entries}
    entries = []
    for name, through, which in ((source.embed, factors.embed_map, 0), (source.head, factors.head_map, 1)):
        dtype = _float_dtype(source, name)
        made = _expanded(rows, V, D, factors, _float_dtype(source), through, exact, which)
        content = Made(stored[name].nbytes, partial(_encoded, dtype, made))
        entries.append(Entry(name, dtype, (V, D), content))
    edit = Edit(drop=frozenset({source.embed, source.head}), add=tuple(entries)) | set_flag(source, False)
    return Plan("tie --joint --expand", source, edit, _is_expanded, exact=False)


def _renamed(name: str) -> str:
    return f"tiebeam{name.removeprefix('model')}" if name.startswith("model") else f"tiebeam-{name}"


def _float_dtype(source: Source, name: str | None = None) -> str:
    stored = next(e for shard in source.layout.shards for e in shard.entries if e.name == (name or source.embed))
    return stored.dtype if stored.dtype in ("F64", "F32", "F16", "BF16") else "F32"


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    size = dtypes.nbytes(dtype, shape)
    assert size is not None
    return size


def _small(name: str, matrix: Array) -> Entry:
    """The maps are small and are applied to every row, so they are float32 whatever the dtype of the table."""
    return Entry(name, "F32", matrix.shape, Made.of(dtypes.encode("F32", matrix)))


def _table_blocks(rows: Rows, vocab: int, dim: int, factors: Factors) -> Iterator[Array]:
    for start, stop in row_blocks(vocab, dim):
        yield factors.rows(rows, start, stop)


def _encoded(dtype: str, blocks: Callable[[], Iterator[Array]]) -> Iterator[bytes]:
    for block in blocks():
        yield dtypes.encode(dtype, block)


def _expanded(
    rows: Rows, vocab: int, dim: int, factors: Factors, stored: str, through: Array, exact: Array, which: int
) -> Callable[[], Iterator[Array]]:
    """Rows of the embedding (`which` 0) or head (1) as the joint form gives them, its table rounded to `stored`."""
    keep = set(exact.tolist())

    def blocks() -> Iterator[Array]:
        for start, stop in row_blocks(vocab, dim):
            pair = rows(start, stop)
            raw = dtypes.encode(stored, factors.rows(rows, start, stop))
            block = dtypes.decode(stored, raw, (stop - start, factors.rank)).astype(np.float32) @ through
            for i in range(start, stop):
                if i in keep:
                    block[i - start] = pair[which][i - start]
            yield block

    return blocks


def _is_joint(report: Report) -> str | None:
    if report.tie is not Tie.SHARED or report.pair.embed is None or report.pair.embed.name != TABLE:
        return f"its pair is {report.tie}, not one table"
    return None


def _is_expanded(report: Report) -> str | None:
    if report.pair.embed is None or report.pair.head is None:
        return "it does not store both matrices"
    if report.pair.declared is not False:
        return f"its config does not say untied ({report.pair.declared_by})"
    return None
