"""The Report that `inspect` returns, and its text: one function lays it out for `print`, notebooks and the CLI."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from tiebeam import _text
from tiebeam.budget import human, human_bytes, percent
from tiebeam.inspection.vocabulary import Vocabulary
from tiebeam.inspection.vocabulary_tensors import VocabularyTensor
from tiebeam.pair import Matrix, Pair, Tie

if TYPE_CHECKING:
    import pandas

    from tiebeam._text import Line
    from tiebeam.equality import Difference

_FORMATS = {
    "gguf": "GGUF",
    "pytorch": "PyTorch",
    "dcp": "PyTorch DCP",
    "deepspeed": "DeepSpeed",
    "ranks": "PyTorch ranks",
    "module": "nn.Module",
}
_STYLES = {
    Tie.SHARED: _text.accent(True),
    Tie.UNTIED: _text.accent(False),
    Tie.NONE: _text.FAINT,
    Tie.TWIN: _text.WARNING,
    Tie.SWAPPED: _text.WARNING,
    Tie.TORN: _text.ERROR,
    Tie.HEADLESS: _text.ERROR,
}


@dataclass(frozen=True, slots=True)
class Params:
    """Parameter counts. `trunk` counts non-embedding parameters; `head_share` is one matrix over the untied total.
    `further_vocabulary` counts the tables beside the pair that have the vocabulary as a dimension."""

    total: int
    stored: int
    trunk: int
    embed: int
    head: int
    tied_total: int
    untied_total: int
    saved_by_tying: int
    head_share: float
    further_vocabulary: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """The result of `inspect`. `how` describes how the numbers were compared; `notes` are sentences for the reader.

    >>> import tiebeam
    >>> report = tiebeam.inspect("tied")
    >>> report.tied, str(report.tie), report.params.head_share > 0
    (True, 'shared', True)
    """

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
    """The matrices ("embed", "head") that are stored quantized and packed: their stored shape is not [V, D]."""
    notes: tuple[str, ...] = ()
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    vocabulary_tensors: tuple[VocabularyTensor, ...] = ()
    """Every tensor that has the vocabulary as a dimension, the pair first."""
    draft: str = ""
    """The kind of a draft model (EAGLE, EAGLE-3); empty for others."""

    @property
    def tie(self) -> Tie:
        return self.pair.tie

    @property
    def tied(self) -> bool:
        """Whether the model runs with one matrix as embedding and LM head. Two equal copies count if declared tied."""
        return runs_tied(self.pair)

    @property
    def declared(self) -> bool | None:
        """What the config declares; None if it declares nothing."""
        return self.pair.declared

    @property
    def title(self) -> str:
        """model · architecture · format · size"""
        name = self.model if self.model.startswith("hf://") else _last_part(self.model)
        parts = [name or self.model, self.architecture or "unknown architecture"]
        return " · ".join([*parts, _FORMATS.get(self.format, self.format), human_bytes(self.nbytes)])

    @property
    def facts(self) -> str:
        """The three facts in one line: declared, stored, equal."""
        pair = self.pair
        if self.draft:
            return f"{self.draft} draft model: {self._draft_head}"
        if self.tie is Tie.NONE:
            return "encoder: it has no LM head by design" if pair.encoder else "no vocabulary pair found"
        declared = {None: "nothing declared", True: "declared tied", False: "declared untied"}[pair.declared]
        by = f": {pair.declared_by}" if "(" in pair.declared_by else f" ({pair.declared_by})"
        stored = {
            ("embed",): "stored once",
            ("head",): "only the head is stored",
            ("embed", "head"): "two names, one storage" if pair.one_storage else "stored twice",
        }[pair.stored]
        equal = "" if pair.equal is None or pair.one_storage else " · equal" if pair.equal else " · different"
        return f"{declared}{by} · {stored}{equal}"

    @property
    def _draft_head(self) -> str:
        rows, of = self.vocabulary.head_rows, self.vocabulary.vocab_size
        if rows is None:
            return "it uses the LM head of its target"
        return f"its head scores {rows:,} of {of:,} tokens" if of else f"its head scores {rows:,} tokens"

    def lines(self, width: int = 100) -> Iterator[Line]:
        """The report as lines: the verdict first. The CLI prints them in colour, `str` takes their plain text."""
        # Two equal matrices that are declared untied are healthy: the model was just untied.
        style = _text.accent(False) if self.tie is Tie.TWIN and self.pair.declared is False else _STYLES[self.tie]
        yield _text.styled((f"● {self.tie}", style), "  ", (self.title, "bold"))
        yield _text.styled("  ", self.facts)
        label = "  {:<13}  ".format
        cells = self._matrix_cells()
        aligned = _text.columns([row for _, row in cells if len(row) > 1], "<><>", indent=0)
        for name, row in cells:
            yield _text.styled(label(name), next(aligned) if len(row) > 1 else row[0])
        if cells:
            yield _text.styled(label("ids and rows"), str(self.vocabulary))
        for table in self.vocabulary_tensors:
            if table.is_table:
                shape = " x ".join(f"{n:,}" for n in table.shape)
                yield _text.styled(label(table.kind), f"{table.name}  {shape}  {human_bytes(table.nbytes)}")
        for name, amount, remark in self._count_cells():
            line = _text.styled(label(name), f"{amount:>6}", f", {remark}" if remark else "")
            if name == "non-embedding":
                tied, trunk = self.tied, self.params.trunk
                vocabulary = (self.params.total - trunk, _text.TABLE, _text.accent(tied))
                line = _text.styled(
                    line, "  ", _text.bar([(trunk, _text.TRUNK, ""), vocabulary], self.params.total or 1)
                )
            yield line
        for note in self._all_notes():
            yield from map(_text.styled, _text.wrapped(f"note: {note}", width).splitlines())

    def __str__(self) -> str:
        return "\n".join(line.plain for line in self.lines())

    def _repr_html_(self) -> str:
        rows = [("facts", self.facts)]
        rows += [(name, "  ".join(row)) for name, row in self._matrix_cells()]
        rows += [("ids and rows", str(self.vocabulary))] if self._matrix_cells() else []
        rows += [(name, f"{amount}, {remark}" if remark else amount) for name, amount, remark in self._count_cells()]
        from tiebeam import _html

        return _html.table([*rows, *(("note", note) for note in self._all_notes())], title=f"{self.tie}: {self.title}")

    def to_frame(self) -> pandas.DataFrame:
        """One row per stored matrix: role, name, rows, dim, dtype, bytes, tie. Needs pandas.

        >>> import tiebeam
        >>> list(tiebeam.inspect("merged").to_frame()["role"])
        ['embed', 'head']
        """
        stored = [(role, matrix) for role, matrix in (("embed", self.pair.embed), ("head", self.pair.head)) if matrix]
        rows = [
            {"role": role, "name": m.name, "rows": m.rows, "dim": m.dim, "dtype": m.dtype, "bytes": m.nbytes,
             "tie": str(self.tie)}
            for role, m in stored
        ]  # fmt: skip
        from tiebeam._frames import frame

        return frame(rows, ("role", "name", "rows", "dim", "dtype", "bytes", "tie"))

    def _all_notes(self) -> list[str]:
        return [*([self.how] if self.how and not self.pair.one_storage else []), *self.notes]

    def _matrix_cells(self) -> list[tuple[str, list[str]]]:
        """(label, cells) of both matrices: name, shape, dtype and size, or one cell if there is nothing to list."""
        pair, rows = self.pair, []
        if pair.embed is None and pair.head is None:
            return []
        for label, matrix in (("embedding", pair.embed), ("LM head", pair.head)):
            if matrix is not None and pair.one_storage and matrix is pair.head:
                rows.append((label, [f"{matrix.name}: the same bytes"]))
            elif matrix is not None:
                rows.append((label, _cells(matrix)))
            elif not pair.encoder:
                missing = self.tie is Tie.HEADLESS or (matrix is pair.embed and pair.declared is False)
                rows.append((label, ["not stored" if missing else "the same tensor"]))
        return rows

    def _count_cells(self) -> list[tuple[str, str, str]]:
        """(label, amount, remark) of the parameter counts."""
        params = self.params
        if self.tie is Tie.NONE:
            return [("total", human(params.total), "")]
        tied, vocabulary = self.tied, params.total - params.trunk
        other = human((params.untied_total if tied else params.tied_total) - params.trunk)
        remark = f"shared ({other} if untied)" if tied else f"separate ({other} if tied)"
        share = percent(params.saved_by_tying / params.untied_total) if params.untied_total else "0%"
        saves = f"tying {'saves' if tied else 'would save'} {human(params.saved_by_tying)}"
        return [
            ("non-embedding", human(params.trunk), ""),
            ("vocabulary", human(vocabulary), remark),
            ("total", human(params.total), f"{saves} ({share} of the untied model)"),
        ]

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
            "vocabulary": self.vocabulary.to_dict(),
            "vocabulary_tensors": [tensor.to_dict() for tensor in self.vocabulary_tensors],
            "draft": self.draft or None,
        }


def runs_tied(pair: Pair) -> bool:
    return pair.tie is Tie.SHARED or (bool(pair.declared) and pair.tie in (Tie.TWIN, Tie.SWAPPED))


def _cells(matrix: Matrix) -> list[str]:
    return [matrix.name, " x ".join(f"{n:,}" for n in matrix.shape), matrix.dtype, human_bytes(matrix.nbytes)]


def _last_part(path: str) -> str:
    """`PurePath(path).name`, without importing pathlib for the usual path."""
    last = path.rpartition("/")[2]
    if os.sep == "/" and last not in ("", "."):
        return last
    from pathlib import PurePath

    return PurePath(path).name
