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
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.studio.shelf import Entry

if TYPE_CHECKING:
    from tiebeam.decode import Decoder
    from tiebeam.decode.tokenizer import Tokenizer
    from tiebeam.doctor import Diagnosis

_KEPT = 8
MOST_TOKENS = 64


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
    def tokenizer(self) -> Tokenizer | None:
        from tiebeam.decode.tokenizer import open_tokenizer

        return open_tokenizer(self.checkpoint)

    @cached_property
    def decoder(self) -> Decoder:
        from tiebeam.decode import Decoder

        return Decoder.open(self.checkpoint)

    @cached_property
    def ends(self) -> tuple[str, str]:
        """The names of the table looked up in and the table scored against, which are one when tied."""
        pair = self.diagnosis.report.pair
        embed, head = pair.embed or pair.head, pair.head or pair.embed
        if embed is None or head is None or pair.encoder:
            raise UnreadableInput(f"{self.entry.name} has no vocabulary pair to look at")
        if len(embed.shape) != 2 or embed.shape[1:] != head.shape[1:]:
            raise UnreadableInput(
                f"the two tables of {self.entry.name} differ in width ({list(embed.shape)} and {list(head.shape)}), "
                "so there is no direct path between them"
            )
        return embed.name, head.name

    @property
    def one_table(self) -> bool:
        pair = self.diagnosis.report.pair
        return pair.one_storage or bool(pair.equal) or self.ends[0] == self.ends[1]

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
        if ids is None:
            if not text:
                raise BadRequest("give some text, or token ids")
            if self.tokenizer is None:
                raise UnreadableInput(f"{self.entry.name} has no tokenizer; give token ids instead: 1, 2, 3")
            ids = list(self.tokenizer.backend.encode(text, add_special_tokens=False).ids)
        if not ids:
            raise BadRequest("give some text, or token ids")
        if len(ids) > MOST_TOKENS:
            raise BadRequest(f"that is {len(ids):,} tokens; at most {MOST_TOKENS} are looked at together")
        return ids

    def spell(self, id: int) -> str | None:
        """A token as people read it, its leading space kept."""
        try:
            tokenizer = self.tokenizer
        except UnreadableInput:
            return None
        piece = tokenizer.backend.id_to_token(id) if tokenizer and 0 <= id < 1 << 31 else None
        if tokenizer is None or piece is None:
            return None
        text = tokenizer.decode([id])
        if not text or "�" in text:
            return str(piece)
        return " " + text if piece[0] in "Ġ▁" and not text[0].isspace() else text

    def direct(self, text: str | None, ids: list[int] | None, k: int) -> dict[str, Any]:
        from tiebeam.lens.direct import between, direct

        found = self.ids(text, ids)
        embed, head = self.ends
        answers = direct(self.checkpoint, embed, head, found, k)
        for answer in answers:
            answer["text"] = self.spell(answer["id"])
            for score in answer["top"]:
                score["text"] = self.spell(score["id"])
        matrix = between(self.checkpoint, embed, head, found[:12])
        return {"tied": self.one_table, "tokens": answers, "between": [[float(x) for x in row] for row in matrix]}

    def neighbours(self, text: str | None, ids: list[int] | None, k: int) -> dict[str, Any]:
        from tiebeam.lens.direct import nearest

        found = self.ids(text, ids)[:8]
        embed, head = self.ends
        ends = {"embed": embed} if self.one_table else {"embed": embed, "head": head}
        tokens = []
        for id in found:
            near = {
                end: [{"id": s.id, "score": s.score, "text": self.spell(s.id)} for s in
                      nearest(self.checkpoint, name, id, k)]
                for end, name in ends.items()
            }  # fmt: skip
            tokens.append({"id": id, "text": self.spell(id), **near})
        return {"tied": self.one_table, "tokens": tokens}

    @cached_property
    def spectrum(self) -> dict[str, Any]:
        from tiebeam.lens.direct import spectrum

        embed, head = self.ends
        found = spectrum(self.checkpoint, embed, None if self.one_table else head)
        return {"tied": self.one_table, **found.to_dict()}


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
