"""Models opened by the studio, cached until their files change, and their JSON documents."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint import Checkpoint, open_checkpoint
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.studio.jobs import Progress
from tiebeam.studio.loaded_weights import LoadedWeights, expanded_bytes
from tiebeam.studio.model_list import Source
from tiebeam.studio.result_cache import checkpoint_digest
from tiebeam.studio.token_rows import token_norms
from tiebeam.studio.token_text import token_text

if TYPE_CHECKING:
    from tiebeam.doctor import Diagnosis
    from tiebeam.lens.direct_path import Lens

_CACHED = 4  # headers, tokenizer and results of a model; its weights are in LoadedWeights
_COMPUTING = 2  # answers computed at a time: each may need 200 MB
MAX_TOKENS = 12
STAGES = ("comparing embedding and LM head", "checking every rule")  # of the first look at a model


@dataclass(frozen=True, eq=False)
class OpenModel:
    """One model. Every result is computed on first use and cached."""

    source: Source
    checkpoint: Checkpoint

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """Declaration, storage and values of the pair, and the findings."""
        return self._examined(lambda stage, done, total: None)

    def _examined(self, progress: Progress) -> Diagnosis:
        """Reads both matrices if both are stored."""
        from tiebeam.checkpoint.not_a_model import refuse_lfs_pointers, tokenizer_files
        from tiebeam.doctor.diagnosis import diagnosis_of
        from tiebeam.inspection import inspect

        refuse_lfs_pointers(self.checkpoint.files, tokenizer_files(self.checkpoint.files.names()))
        comparing, checking = STAGES
        progress(comparing, 0, 0)
        report = inspect(self.checkpoint, progress=partial(progress, comparing))
        progress(checking, 0, 0)
        return diagnosis_of(self.checkpoint, report, progress=partial(progress, checking))

    def outline(self) -> dict[str, Any]:
        """What the headers alone say, before any value is read."""
        tensors = self.checkpoint.tensors.values()
        return {
            "id": self.source.id, "name": self.source.name, "format": self.checkpoint.format, "tensors": len(tensors),
            "parameters": sum(info.size for info in tensors), "bytes": sum(info.nbytes for info in tensors),
        }  # fmt: skip

    def first_look(self, progress: Progress) -> dict[str, Any]:
        """The report, with its stages told to `progress`; what that raises ends the look, and nothing is kept of it."""
        if "diagnosis" not in self.__dict__:
            self.__dict__["diagnosis"] = self._examined(progress)
        return self.report()

    @cached_property
    def lens(self) -> Lens:
        """The direct path as `tiebeam lens` defines it: the family's scales and the final norm."""
        from tiebeam.lens.direct_path import Lens

        return Lens.open(self.checkpoint)

    def path(self, norm: bool, progress: Progress | None = None) -> Lens:
        """The same over the same tables, without the final norm if `norm` is false; its results are freed with it."""
        from tiebeam.lens.direct_path import Lens

        return Lens(self.lens.tables, norm=norm and self.lens.norm, source=self.lens.source, progress=progress)

    @cached_property
    def digest(self) -> str:
        return checkpoint_digest(self.checkpoint, self.source.where)

    @property
    def single_matrix(self) -> bool:
        pair = self.diagnosis.report.pair
        return len(pair.stored) == 1 or pair.one_storage or bool(pair.equal)

    def report(self) -> dict[str, Any]:
        """The documents of `inspect` and `doctor`. A model with notes only is healthy."""
        tie, document = self.diagnosis.report.tie, self.diagnosis.to_dict()
        severities = {finding["severity"] for finding in document["findings"]}
        healthy = severities <= {"note"} if severities else tie.healthy
        return {
            "id": self.source.id, "name": self.source.name, "where": self.source.where, "meaning": tie.meaning,
            "healthy": healthy, "memory": self.serving_memory(), **document,
        }  # fmt: skip

    def serving_memory(self) -> dict[str, Any]:
        """KV cache and logits of one token, where they are known, and the weights in float32."""
        from tiebeam.budget import logits_peak
        from tiebeam.decode.numpy.runnable import model_config
        from tiebeam.families.kv_cache import kv_cache_of

        try:
            cache = kv_cache_of(model_config(self.checkpoint)[0])
        except TiebeamError:
            cache = None
        embed = self.diagnosis.report.pair.embed or self.diagnosis.report.pair.head
        return {
            "kv_cache_per_token": cache.bytes_per_token if cache else None,
            "logits_per_token": logits_peak(1, embed.rows) if embed else None,
            "float32": expanded_bytes(self),
        }

    def tensors(self) -> list[dict[str, Any]]:
        report = self.diagnosis.report
        roles = {m.name: role for role, m in (("embed", report.pair.embed), ("head", report.pair.head)) if m}
        return [
            {"name": t.name, "shape": list(t.shape), "dtype": t.dtype, "bytes": t.nbytes, "file": t.file,
             "role": roles.get(t.name)}
            for t in self.checkpoint.tensors.values()
        ]  # fmt: skip

    def token_ids(self, text: str | None, ids: list[int] | None) -> list[int]:
        """Token ids of the text, without start tokens; or the ids as given."""
        found = ids if ids is not None else self.lens.tables.encode(text) if text else []
        if not found:
            raise BadRequest("text is empty; enter text or token ids")
        if len(found) > MAX_TOKENS:
            raise BadRequest(f"the text has {len(found):,} tokens; use at most {MAX_TOKENS}")
        return found

    def token_text(self, id: int) -> str | None:
        tokenizer = self.lens.tables.tokenizer
        return token_text(tokenizer, id) if tokenizer else None

    def direct(self, text: str | None, ids: list[int] | None, k: int, norm: bool = True) -> dict[str, Any]:
        found, lens = self.token_ids(text, ids), self.path(norm)
        path = lens.direct(found)
        tokens = [
            {"id": id, "text": self.token_text(id), "itself": float(path.matrix[n, n]), "top": self._with_text(top)}
            for n, (id, top) in enumerate(zip(found, lens.continuations(found, k), strict=True))
        ]
        between = [[float(x) for x in row] for row in path.matrix]
        return {"tied": self.single_matrix, "norm": lens.norm, "tokens": tokens, "between": between}

    def neighbours(self, text: str | None, ids: list[int] | None, k: int) -> dict[str, Any]:
        found = self.token_ids(text, ids)
        tokens: list[dict[str, Any]] = [{"id": id, "text": self.token_text(id)} for id in found]
        for matrix in ("embed",) if self.single_matrix else ("embed", "head"):
            for token, near in zip(tokens, self.lens.neighbours(found, matrix, k), strict=True):
                token[matrix] = self._with_text(near)
        for token, norms in zip(tokens, token_norms(self, found), strict=True):
            token["norms"] = norms
        return {"tied": self.single_matrix, "tokens": tokens}

    def _with_text(self, scores: list[tuple[int, float]]) -> list[dict[str, Any]]:
        return [{"id": id, "score": score, "text": self.token_text(id)} for id, score in scores]

    def spectrum(self, norm: bool = True, progress: Progress | None = None) -> dict[str, Any]:
        """Singular values of the direct path, and how much of it a tied model cannot represent."""
        lens = self.path(norm, progress)
        values = [float(x) for x in lens.spectrum]
        return {"tied": self.single_matrix, "norm": lens.norm, "values": values, "energy": lens.energy.to_dict()}


class OpenModels:
    """Cache of the last models. A model whose files changed is opened again."""

    def __init__(self, memory: int | None = None) -> None:
        self.weights = LoadedWeights(memory)
        self.computing = threading.BoundedSemaphore(_COMPUTING)
        self._cache: OrderedDict[tuple[str, Any], OpenModel] = OrderedDict()
        self._lock = threading.Lock()

    def open(self, source: Source) -> OpenModel:
        key = (source.id, _file_state(source.where))
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        model = OpenModel(source, open_checkpoint(source.where))
        with self._lock:
            for old in [k for k in self._cache if k[0] == source.id]:
                del self._cache[old]
            self._cache[key] = model
            while len(self._cache) > _CACHED:
                self._cache.popitem(last=False)
        return model


def _file_state(where: str) -> Any:
    """Sizes and modification times, to notice changes."""
    path = Path(where)
    try:
        if path.is_dir():
            with os.scandir(path) as entries:
                return tuple(sorted((e.name, e.stat().st_mtime_ns, e.stat().st_size) for e in entries if e.is_file()))
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
