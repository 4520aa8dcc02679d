"""Plan the files of a joint tie: the table and its two maps, or, expanded, two ordinary matrices.

The joint form is read by tiebeam, and by transformers through `modeling_tiebeam.py`, which is written beside it
(`auto_map` in config.json). Its weight files are of the variant "tiebeam" (model.tiebeam.safetensors): a loader that
does not know the table reports missing weights instead of starting two matrices with random numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._version import __version__
from tiebeam.checkpoint import Checkpoint, dtypes
from tiebeam.checkpoint.write.copy_bytes import Made
from tiebeam.checkpoint.write.safetensors import INDEX, Entry
from tiebeam.errors import BadRequest
from tiebeam.inspection import JOINT_TABLE, Report, inspect, is_joint
from tiebeam.pair import Tie
from tiebeam.surgery.edits import Edit
from tiebeam.surgery.joint.decomposition import Factors, Rows, row_blocks
from tiebeam.surgery.joint.fit import Fit
from tiebeam.surgery.pair_edits import set_flag
from tiebeam.surgery.plan import Plan
from tiebeam.surgery.source import Source

if TYPE_CHECKING:
    from tiebeam.decode import Table

Array = NDArray[Any]
TABLE, EMBED_MAP, HEAD_MAP = JOINT_TABLE, "tiebeam.embed_map", "tiebeam.head_map"
EXACT_ROWS, EXACT_EMBED = "tiebeam.exact_rows", "tiebeam.exact_embed"


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
    if len(factors.exact):
        ids = np.ascontiguousarray(factors.exact, "<i8")
        entries.append(Entry(EXACT_ROWS, "I64", ids.shape, Made.of(ids.tobytes())))
        exact = Made(_size(dtype, (len(ids), D)), partial(_encoded, dtype, partial(factors.exact_embed, rows, V, D)))
        entries.append(Entry(EXACT_EMBED, dtype, (len(ids), D), exact))
    assert source.embed
    assert source.head
    about = {"joint": {"rank": R, "rows": V, "exact_embed": len(factors.exact), "version": __version__}}
    code, config = _modeling_code(source)
    edit = Edit(
        drop=frozenset({source.embed, source.head}), add=tuple(entries), config={("tiebeam",): about, **config},
        documents=code, documented=dict.fromkeys(code, "is written; transformers loads the model through it"),
    )  # fmt: skip
    shards = tuple(replace(s, name=_renamed(s.name)) for s in source.layout.shards)
    source = replace(source, layout=replace(source.layout, shards=shards, index=INDEX.replace("json", "tiebeam.json")))
    return Plan("tie --joint", source, edit, _is_joint, exact=False)


def plan_expand(source: Source, fitted: Fit) -> Plan:
    """Plan to replace the pair by the two matrices S A and S B, which any loader reads."""
    rows, V, D = pair_rows(source)
    factors = fitted.factors
    assert source.embed
    assert source.head
    stored = {entry.name: entry for shard in source.layout.shards for entry in shard.entries}
    entries = []
    for name, through, which in ((source.embed, factors.embed_map, 0), (source.head, factors.head_map, 1)):
        dtype = _float_dtype(source, name)
        made = _expanded(rows, V, D, factors, _float_dtype(source), through, which)
        content = Made(stored[name].nbytes, partial(_encoded, dtype, made))
        entries.append(Entry(name, dtype, (V, D), content))
    edit = Edit(drop=frozenset({source.embed, source.head}), add=tuple(entries)) | set_flag(source, False)
    return Plan("tie --joint --expand", source, edit, _is_expanded, exact=False)


def stored_tables(result: Checkpoint) -> tuple[Table, Table]:
    """The embedding and the head of a written model, in either form, without its layers."""
    from tiebeam.decode import Table
    from tiebeam.decode.numpy.load_weights import Weights
    from tiebeam.decode.numpy.vocab_tables import exact_ids

    def read(name: str) -> Array:
        return result.tensor(name).astype(np.float32, copy=False)

    if not is_joint(result):
        pair = inspect(result).pair
        assert pair.embed
        assert pair.head
        return Table(read(pair.embed.name)), Table(read(pair.head.name))
    rows = read(TABLE)
    ids = exact_ids(result, len(rows))
    exact = None
    if ids is not None:
        exact = Weights(result).rows_on_demand(EXACT_EMBED, (len(ids), result.tensors[EXACT_EMBED].shape[1]))
    return Table(rows, read(EMBED_MAP), ids, exact), Table(rows, read(HEAD_MAP))


def _modeling_code(source: Source) -> tuple[dict[str, bytes], dict[tuple[str, ...], Any]]:
    """The file that makes transformers load the joint form, and the config entries that name its class."""
    architectures = (source.layout.config or {}).get("architectures")
    base = architectures[0] if isinstance(architectures, list) and len(architectures) == 1 else None
    if not isinstance(base, str) or not base.isidentifier():
        return {}, {}
    path = Path(__file__).parents[2] / "decode" / "modeling_tiebeam.py"
    name = f"Joint{base}"
    entries: dict[tuple[str, ...], Any] = {
        ("architectures",): [name],
        ("auto_map",): {"AutoModelForCausalLM": f"{path.stem}.{name}"},
    }
    return {path.name: path.read_bytes()}, entries


def _renamed(name: str) -> str:
    return f"model.tiebeam{name.removeprefix('model')}" if name.startswith("model") else f"model.tiebeam-{name}"


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
    rows: Rows, vocab: int, dim: int, factors: Factors, stored: str, through: Array, which: int
) -> Callable[[], Iterator[Array]]:
    """Rows of the embedding (`which` 0) or head (1) as the joint form gives them, its table rounded to `stored`."""

    def blocks() -> Iterator[Array]:
        for start, stop in row_blocks(vocab, dim):
            raw = dtypes.encode(stored, factors.rows(rows, start, stop))
            block = dtypes.decode(stored, raw, (stop - start, factors.rank)).astype(np.float32) @ through
            here = factors.exact_between(start, stop)
            if which == 0 and len(here):
                block[here] = rows(start, stop)[0][here]
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
