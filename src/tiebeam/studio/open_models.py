"""Opened models, kept while their files stay as they are, and the answers about them as JSON."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest
from tiebeam.studio.model_list import Entry

if TYPE_CHECKING:
    from tiebeam.decode import Decoder
    from tiebeam.doctor import Diagnosis
    from tiebeam.lens.direct_path import Lens

_KEPT = 8
MOST_TOKENS = 12
_MOST_WORK = 3 * 10**12  # multiplications, in float64


@dataclass(frozen=True)
class Reader:
    """One model. Everything is computed when first asked for, and once."""

    entry: Entry
    checkpoint: Checkpoint

    @cached_property
    def diagnosis(self) -> Diagnosis:
        from tiebeam.doctor import examine

        return examine(self.checkpoint)

    @cached_property
    def lens(self) -> Lens:
        """The family's scales, but no final norm, so that a tied path is E.E^T times a factor."""
        from tiebeam.lens.direct_path import Lens

        return Lens.open(self.checkpoint, norm=False)

    @cached_property
    def decoder(self) -> Decoder:
        from tiebeam.decode import Decoder

        return Decoder.open(self.checkpoint)

    @property
    def one_table(self) -> bool:
        pair = self.diagnosis.report.pair
        return len(pair.stored) == 1 or pair.one_storage or bool(pair.equal)

    def report(self) -> dict[str, Any]:
        pair = self.diagnosis.report
        return {"id": self.entry.id, "name": self.entry.name, "meaning": pair.tie.meaning,
                "healthy": pair.tie.healthy, **self.diagnosis.to_dict()}  # fmt: skip

    def tensors(self) -> list[dict[str, Any]]:
        report = self.diagnosis.report
        roles = {m.name: end for end, m in (("embed", report.pair.embed), ("head", report.pair.head)) if m}
        return [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.nbytes, "file": t.file,
             "role": roles.get(t.name)}
            for t in self.checkpoint.tensors.values()
        ]  # fmt: skip

    def ids(self, text: str | None, ids: list[int] | None) -> list[int]:
        """Typed text -> token ids, without start tokens; or the ids as given."""
        found = ids if ids is not None else self.lens.tables.encode(text) if text else []
        if not found:
            raise BadRequest("give some text, or token ids")
        if len(found) > MOST_TOKENS:
            raise BadRequest(f"that is {len(found):,} tokens; at most {MOST_TOKENS} are looked at together")
        return found

    def spell(self, id: int) -> str | None:
        """A token as people read it, its leading space kept."""
        tokenizer = self.lens.tables.tokenizer
        piece = tokenizer.backend.id_to_token(id) if tokenizer else None
        if tokenizer is None or piece is None:
            return None
        text = tokenizer.decode([id])
        if not text or "�" in text:
            return str(piece)
        return " " + text if piece[0] in "Ġ▁" and not text[0].isspace() else text

    def direct(self, text: str | None, ids: list[int] | None, k: int) -> dict[str, Any]:
        found = self.ids(text, ids)
        path = self.lens.direct(found)
        tokens = [
            {"id": id, "text": self.spell(id), "itself": float(path.matrix[n, n]), "top": self._spelled(top)}
            for n, (id, top) in enumerate(zip(found, self.lens.continuations(found, k), strict=True))
        ]
        between = [[float(x) for x in row] for row in path.matrix]
        return {"tied": self.one_table, "tokens": tokens, "between": between}

    def neighbours(self, text: str | None, ids: list[int] | None, k: int) -> dict[str, Any]:
        found = self.ids(text, ids)
        tokens: list[dict[str, Any]] = [{"id": id, "text": self.spell(id)} for id in found]
        for end in ("embed",) if self.one_table else ("embed", "head"):
            for token, near in zip(tokens, self.lens.neighbours(found, end, k), strict=True):
                token[end] = self._spelled(near)
        return {"tied": self.one_table, "tokens": tokens}

    def _spelled(self, scores: list[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"id": id, "score": score, "text": self.spell(id)} for id, score in scores]

    @cached_property
    def spectrum(self) -> dict[str, Any]:
        """Singular values of the whole direct path, and how much of it a tied pair could not say."""
        embed = self.diagnosis.report.pair.embed or self.diagnosis.report.pair.head
        if embed is not None and 4 * embed.rows * embed.dim**2 > _MOST_WORK:
            raise BadRequest(
                f"a table of {embed.rows:,} x {embed.dim:,} would take minutes here; "
                f"run it in a terminal: tiebeam lens {self.entry.where}"
            )
        values = [float(x) for x in self.lens.spectrum]
        return {"tied": self.one_table, "values": values, "energy": self.lens.energy.to_dict()}


class Readers:
    """The last few models looked at. A model whose files changed is opened anew."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, Any], Reader] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, entry: Entry) -> Reader:
        key = (entry.id, _stamp(entry.where))
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        reader = Reader(entry, open_checkpoint(entry.where))
        with self._lock:
            for old in [k for k in self._kept if k[0] == entry.id]:
                del self._kept[old]
            self._kept[key] = reader
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return reader


def _stamp(where: str) -> Any:
    path = Path(where)
    try:
        if path.is_dir():
            with os.scandir(path) as entries:
                return tuple(sorted((e.name, e.stat().st_mtime_ns, e.stat().st_size) for e in entries if e.is_file()))
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
