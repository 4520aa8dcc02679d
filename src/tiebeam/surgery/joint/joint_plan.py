"""A fit -> the plan that writes it: the shared table and its maps, or, expanded, two ordinary matrices again.

The joint form is read by tiebeam's decoder alone. Its weight files are named tiebeam*.safetensors, so that a loader
that does not know it finds no model and says so, instead of starting two random matrices.
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
from tiebeam.surgery.cases import Case
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.execute import Plan
from tiebeam.surgery.joint.decomposition import Factors, Rows, row_blocks
from tiebeam.surgery.joint.fit import Fit
from tiebeam.surgery.repairs import set_flag

Array = NDArray[Any]
TABLE, EMBED_MAP, HEAD_MAP = JOINT_TABLE, "tiebeam.embed_map", "tiebeam.head_map"
EXACT = "tiebeam.exact_rows", "tiebeam.exact_embed", "tiebeam.exact_head"


def pair_rows(case: Case) -> tuple[Rows, int, int]:
    """A reader of both matrices by rows, and their shape."""
    pair = case.report.pair
    if pair.embed is None or pair.head is None or pair.one_storage:
        raise BadRequest(f"{case.report.model} is {case.report.tie}: there are no two matrices to join")
    E, W = pair.embed, pair.head
    if E.shape != W.shape:
        raise BadRequest(
            f"embed is {list(E.shape)} but head is {list(W.shape)}; two matrices of one shape can be joined"
        )

    def rows(start: int, stop: int) -> tuple[Array, Array]:
        e, w = (case.checkpoint.rows(m.name, start, stop).astype(np.float32) for m in (E, W))
        return e, w

    return rows, E.rows, E.dim


def plan_joint(case: Case, fitted: Fit) -> Plan:
    """The joint form: tensors tiebeam.*, and a config entry that says so."""
    rows, V, D = pair_rows(case)
    factors, dtype, R = fitted.factors, _float_type(case), fitted.recipe.rank
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
        for name, end in zip(EXACT[1:], (0, 1), strict=True):
            raw = dtypes.encode(dtype, np.concatenate([pair[end] for pair in kept]))
            entries.append(Entry(name, dtype, (len(ids), D), Made.of(raw)))
    assert case.embed
    assert case.head
    about = {"joint": {"rank": R, "balance": fitted.recipe.balance, "version": __version__}}
    edit = Edit(drop=frozenset({case.embed, case.head}), add=tuple(entries), config={("tiebeam",): about})
    shards = tuple(replace(s, name=_renamed(s.name)) for s in case.material.shards)
    case = replace(case, material=replace(case.material, shards=shards))
    return Plan("tie --joint", case, edit, _is_joint, exact=False)


def plan_expand(case: Case, fitted: Fit) -> Plan:
    """Two ordinary matrices with the numbers of the joint form, for any loader."""
    rows, V, D = pair_rows(case)
    factors, exact = fitted.factors, fitted.exact
    assert case.embed
    assert case.head
    stored = {entry.name: entry for shard in case.material.shards for entry in shard.entries}
    entries = []
    for name, through, end in ((case.embed, factors.embed_map, 0), (case.head, factors.head_map, 1)):
        dtype = _float_type(case, name)
        made = _expanded(rows, V, D, factors, _float_type(case), through, exact, end)
        content = Made(stored[name].nbytes, partial(_encoded, dtype, made))
        entries.append(Entry(name, dtype, (V, D), content))
    edit = Edit(drop=frozenset({case.embed, case.head}), add=tuple(entries)) | set_flag(case, False)
    return Plan("tie --joint --expand", case, edit, _is_expanded, exact=False)


def _renamed(name: str) -> str:
    return f"tiebeam{name.removeprefix('model')}" if name.startswith("model") else f"tiebeam-{name}"


def _float_type(case: Case, name: str | None = None) -> str:
    stored = next(e for shard in case.material.shards for e in shard.entries if e.name == (name or case.embed))
    return stored.dtype if stored.dtype in ("F64", "F32", "F16", "BF16") else "F32"


def _size(dtype: str, shape: tuple[int, ...]) -> int:
    size = dtypes.nbytes(dtype, shape)
    assert size is not None
    return size


def _small(name: str, matrix: Array) -> Entry:
    """The maps are small and every row goes through them: float32 whatever the table is stored in."""
    return Entry(name, "F32", matrix.shape, Made.of(dtypes.encode("F32", matrix)))


def _table_blocks(rows: Rows, vocab: int, dim: int, factors: Factors) -> Iterator[Array]:
    for start, stop in row_blocks(vocab, dim):
        yield factors.rows(rows, start, stop)


def _encoded(dtype: str, blocks: Callable[[], Iterator[Array]]) -> Iterator[bytes]:
    for block in blocks():
        yield dtypes.encode(dtype, block)


def _expanded(
    rows: Rows, vocab: int, dim: int, factors: Factors, stored: str, through: Array, exact: Array, end: int
) -> Callable[[], Iterator[Array]]:
    """Rows of one end as the joint form would give them, its table rounded to the type that it is stored in."""
    keep = set(exact.tolist())

    def blocks() -> Iterator[Array]:
        for start, stop in row_blocks(vocab, dim):
            pair = rows(start, stop)
            raw = dtypes.encode(stored, factors.rows(rows, start, stop))
            block = dtypes.decode(stored, raw, (stop - start, factors.rank)).astype(np.float32) @ through
            for i in range(start, stop):
                if i in keep:
                    block[i - start] = pair[end][i - start]
            yield block

    return blocks


def _is_joint(report: Report) -> str | None:
    if report.tie is not Tie.SHARED or report.pair.embed is None or report.pair.embed.name != TABLE:
        return f"its pair is {report.tie}, not one shared table"
    return None


def _is_expanded(report: Report) -> str | None:
    if report.pair.embed is None or report.pair.head is None:
        return "it does not hold both matrices"
    if report.pair.declared is not False:
        return f"it does not say untied ({report.pair.declared_by})"
    return None
