"""Diagnose many models and adapters: find them below directories, read them in threads, keep going after a bad one.

A fleet of models on the Hub takes a while and may be interrupted. `ResultFile` has one line of JSON per model, written
as soon as the model is done; a second run skips the models that the file has.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiebeam._fs import explaining, reading, write_bytes
from tiebeam.checkpoint.file_roles import holds_weights
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.json_files import read_json
from tiebeam.doctor.adapters import AdapterDiagnosis, diagnose_adapter, is_adapter
from tiebeam.doctor.diagnosis import Diagnosis, diagnose
from tiebeam.doctor.rule import Finding
from tiebeam.errors import BadRequest, TiebeamError, UnreadableInput

_SKIPPED = (".git", "__pycache__", "node_modules", ".venv")


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A model among several that could not be opened: reported, and the others are still diagnosed."""

    model: str
    reason: str
    findings: tuple[Finding, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"model": self.model, "error": self.reason, "findings": []}


Result = Diagnosis | AdapterDiagnosis | Unreadable


def result_name(result: Result) -> str:
    """The model or adapter that a result is about."""
    if isinstance(result, Unreadable):
        return result.model
    return result.report.model if isinstance(result, Diagnosis) else result.adapter


def diagnose_any(
    model: str, *, base: str | None = None, embed: str | None = None, head: str | None = None, rows: bool | None = False
) -> Diagnosis | AdapterDiagnosis:
    """Diagnose a checkpoint, or an adapter beside its base."""
    if is_adapter(model):
        return diagnose_adapter(model, base)
    return diagnose(model, embed=embed, head=head, rows=rows)


def diagnose_several(models: Iterable[str], *, jobs: int = 1, **options: Any) -> Iterator[tuple[str, Result]]:
    """Diagnose every model, `jobs` at a time, and yield (model, result) in the order given.

    `options` are those of `diagnose_any`. A model that cannot be read gives an `Unreadable` in its place.

        >>> for model, result in diagnose_several(["merged", "tied", "nothing.gguf"]):
        ...     print(model, [finding.code for finding in result.findings], type(result).__name__)
        merged ['TB101'] Diagnosis
        tied [] Diagnosis
        nothing.gguf [] Unreadable
    """
    if jobs < 1:
        raise BadRequest(f"jobs must be at least 1, not {jobs}")
    waiting = list(models)

    def one(model: str) -> Result:
        try:
            return diagnose_any(model, **options)
        except TiebeamError as error:
            return Unreadable(model, str(error))

    if jobs == 1:
        yield from ((model, one(model)) for model in waiting)
        return
    pool = ThreadPoolExecutor(jobs)
    try:
        futures: list[Future[Result]] = [pool.submit(one, model) for model in waiting]
        for model, future in zip(waiting, futures, strict=True):
            yield model, future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def models_below(roots: Iterable[str]) -> Iterator[str]:
    """Directories with a model, an adapter or a checkpoint of several ranks, and single GGUF or safetensors files."""
    from tiebeam.checkpoint.distributed.detect import is_distributed_model

    seen: set[str] = set()
    for root in roots:
        if not Path(root).is_dir():
            yield root
        for where, directories, files in os.walk(root):
            directories[:] = sorted(name for name in directories if name not in _SKIPPED)
            name = os.path.normpath(where)
            if {"config.json", "adapter_config.json"} & set(files) or any(f.endswith(".safetensors") for f in files):
                if _holds_model(where, files):
                    seen.add(name)
                    yield name
            elif is_distributed_model(Path(where).name, files):
                if str(Path(name).parent) not in seen:  # listed already as the directory of the run
                    yield name
            else:
                yield from (str(Path(name) / f) for f in sorted(files) if f.endswith(".gguf"))


def _holds_model(where: str, files: list[str]) -> bool:
    """False where config.json is the only sign of a model and is something else's: an editor's, a web page's."""
    if "adapter_config.json" in files or any(holds_weights(name) for name in files):
        return True
    try:
        config = read_json(LocalFiles(Path(where)), "config.json")
    except UnreadableInput:
        return True  # a damaged model is reported
    return "model_type" in config or "architectures" in config


def listed_models(path: str) -> list[str]:
    """The models that a text file lists, one per line; empty lines and lines that start with # are left out."""
    import sys

    with reading(Path(path)):
        text = sys.stdin.read() if path == "-" else Path(path).read_text("utf-8-sig")
    lines = (line.strip() for line in text.splitlines())
    found = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not found:
        raise BadRequest(f"{path} lists no models; write one per line: a path, org/name or a URL")
    return found


class ResultFile:
    """One line of JSON per model: the document of `doctor --json` with `id`, the name that was asked for.

    A model that could not be read is tried again by the next run; of several lines with one id the last counts.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.documents: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._read()

    def _read(self) -> None:
        with reading(self.path):
            raw = self.path.read_bytes()
        complete = raw[: raw.rfind(b"\n") + 1]  # a kill may have cut the last line
        for number, line in enumerate(complete.splitlines(), 1):
            try:
                document = json.loads(line)
                self.documents[document["id"]] = document
            except (ValueError, TypeError, KeyError):
                raise BadRequest(
                    f"line {number} of {self.path} is no result of tiebeam doctor; name another file"
                ) from None
        if raw and not complete:
            raise BadRequest(f"{self.path} is no file of results of tiebeam doctor; name another file")
        if complete != raw:
            write_bytes(self.path, complete)

    def remaining(self, models: Iterable[str]) -> list[str]:
        """The models without a result, or with one that says that the model could not be read."""
        return [model for model in models if "error" in self.documents.get(model, {"error": ""})]

    def add(self, model: str, result: Result) -> None:
        document = {"id": model, **result.to_dict()}
        self.documents[model] = document
        with explaining(self.path), self.path.open("ab") as file:
            file.write(json.dumps(document, ensure_ascii=False).encode() + b"\n")
