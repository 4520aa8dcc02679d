"""The files of a run. A run directory is a checkpoint (config.json, model.safetensors, tokenizer.json) and more:

run.json              settings, versions, the corpus and its digest
metrics.jsonl         one line per log record
resume.safetensors    what resuming needs: weights, optimizer states, counters
resume-STEP/          the same from several ranks: one shard per rank, as a torch distributed checkpoint

Every file is written atomically, so a kill at any moment leaves the last complete version. The weights come last: a run
with a state and without model.safetensors is completed by resuming it. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tiebeam._fs import Kind, check_replaceable, exchange, explaining, occupy, reading, write_bytes, write_json
from tiebeam._version import __version__
from tiebeam.errors import BadRequest, UnreadableInput

if TYPE_CHECKING:
    import torch

    from tiebeam.corpus import Corpus
    from tiebeam.train.distributed.environment import Distribution

RUN, METRICS, STATE, MODEL = "run.json", "metrics.jsonl", "resume.safetensors", "model.safetensors"
FACTS = "facts.json"
MEASURED = ("memory.json", "examination.json", "losses.npy")
"""What `compare` adds to a run."""
_STATES = "resume-"
_OURS = re.compile(
    rf"({'|'.join(map(re.escape, (RUN, METRICS, STATE, MODEL, *MEASURED)))}|config\.json|README\.md"
    rf"|tokenizer\.(json|model)|{_STATES}\d+(/[^/]+)?|tensorboard/.+)"
)
KIND = Kind("a run of tiebeam train", lambda path: (path / RUN).is_file(), lambda name: bool(_OURS.fullmatch(name)))


class RunDirectory:
    """The files of one run. Whoever writes them holds the lock: see `occupied`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def check(cls, path: Path, force: bool = False) -> None:
        """Refuse a directory that a new run may not use; `force` replaces a run and nothing else."""
        with reading(path):
            names = [name.name for name in path.iterdir()] if path.is_dir() else []
        if path.exists() and not path.is_dir():
            raise BadRequest(f"{path} is a file; use another directory")
        if RUN in names and not force:
            raise BadRequest(
                f"{path} already holds a run; pass `resume=True` to resume it, or `force=True` to replace it"
            )
        if all(KIND.is_temporary(name) for name in names):
            return
        if RUN not in names:
            raise BadRequest(f"{path} is not empty and holds no run; use another directory")
        check_replaceable(path, force, KIND)

    @classmethod
    @contextmanager
    def occupied(cls, path: Path, *, resume: bool, force: bool = False) -> Iterator[RunDirectory]:
        """Lock the directory of a new or resumed run for this process; another process that asks is refused."""
        if resume:
            cls.open(path)
        else:
            cls.check(path, force)
        lock = occupy(path, KIND, force and not resume)
        try:
            if not resume:
                cls.check(path)  # another process may have begun a run meanwhile
            yield cls(path)
        finally:
            lock.release()

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        where = Path(path)
        if not (where / RUN).is_file():
            raise UnreadableInput(f"{where} is not a run: it has no {RUN}; start one with: tiebeam train --out {where}")
        return cls(where)

    def write_run(self, settings: Mapping[str, Any], corpus: Corpus) -> None:
        """Write run.json."""
        backend = str(settings.get("backend", "torch"))
        versions = {"tiebeam": __version__, backend: version(backend), "python": platform.python_version()}
        write_json(self.path / RUN, {"settings": dict(settings), "corpus": corpus.to_dict(), "versions": versions})

    def read_run(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.path / RUN).read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"{self.path / RUN} cannot be read: {error}") from None
        return document

    def log(self, record: Mapping[str, Any]) -> None:
        """Append a record to metrics.jsonl."""
        with explaining(self.path / METRICS), open(self.path / METRICS, "a") as out:
            out.write(json.dumps(record) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The records so far; a last line that a kill cut short is skipped."""
        with reading(self.path / METRICS):
            text = (self.path / METRICS).read_text("utf-8") if (self.path / METRICS).exists() else ""
        for line in text.splitlines():
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and isinstance(record.get("step"), int):
                yield record

    def final_validation(self) -> dict[str, Any]:
        """The validation on the whole held-out split at the end of the run; empty before."""
        found = [record for record in self.metrics() if _is_final(record)]
        return found[-1] if found else {}

    def is_finished(self, step: int | None = None) -> bool:
        """Whether the run ended (at `step`) and its model is complete: the weights are written last."""
        final = self.final_validation()
        return (self.path / MODEL).is_file() and bool(final) and step in (None, final["step"])

    def drop_metrics_after(self, step: int, *, final: bool = False) -> None:
        """Drop the records of steps that will be run again; `final`: also the final validation at `step`."""
        kept = [r for r in self.metrics() if r["step"] < step or (r["step"] == step and not (final and _is_final(r)))]
        write_bytes(self.path / METRICS, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def save_model(self, config: Mapping[str, Any], weights: bytes, corpus: Corpus, card: str) -> None:
        """Write the checkpoint: `weights` are the bytes of model.safetensors, which come last."""
        write_json(self.path / "config.json", config)
        write_bytes(self.path / corpus.tokenizer.filename, corpus.tokenizer.raw)
        write_bytes(self.path / "README.md", card.encode())
        write_bytes(self.path / MODEL, weights)

    def drop_model(self) -> None:
        """Remove the weights of an earlier, shorter run before its last state is replaced."""
        with explaining(self.path / MODEL):
            (self.path / MODEL).unlink(missing_ok=True)

    def save_state(self, raw: bytes) -> None:
        """Write the resume state of a single rank: a safetensors file with its facts in the metadata."""
        write_bytes(self.path / STATE, raw)
        self._remove(self._state_directories())

    def save_sharded_state(
        self, facts: Mapping[str, Any], write_shards: Callable[[Path], None], distribution: Distribution
    ) -> None:
        """Write the resume state of several ranks; called by all of them. The previous state stays until then."""
        previous = self._states()
        target = self.path / f"{_STATES}{facts['step']}"
        staging = self.path / f".{target.name}.part"

        def begin() -> None:
            with explaining(target):
                shutil.rmtree(staging, ignore_errors=True)
                staging.mkdir()

        distribution.on_main(begin)
        write_shards(staging)
        if distribution.is_main:
            write_bytes(staging / FACTS, json.dumps(facts).encode())
            if target.exists():  # the same step again
                exchange(staging, target)
                shutil.rmtree(staging)
            else:
                staging.replace(target)
            self._remove(state for state in previous if state != target)

    def saved_state(self) -> Path:
        """The last complete resume state: a file, or a directory."""
        states = self._states()
        if not states:
            raise UnreadableInput(
                f"{self.path} has no {STATE}: the run stopped before its first save; start it again with `force=True`"
            )
        return states[0] if len(states) == 1 else max(states, key=lambda state: int(_read_facts(state)["step"]))

    def read_facts(self) -> dict[str, Any]:
        """Step, seconds and the other plain values of the last resume state."""
        return _read_facts(self.saved_state())

    def load_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """The full tensors and the facts of the last resume state, read by one rank."""
        from tiebeam.train.resume_state import read_full

        saved = self.saved_state()
        return read_full(saved), _read_facts(saved)

    @property
    def has_state(self) -> bool:
        return bool(self._states())

    def _states(self) -> list[Path]:
        file = self.path / STATE
        return [*([file] if file.is_file() else []), *(d for d in self._state_directories() if (d / FACTS).is_file())]

    def _state_directories(self) -> list[Path]:
        return sorted(
            path
            for path in self.path.glob(f"{_STATES}*")
            if path.is_dir() and path.name.removeprefix(_STATES).isdecimal()
        )

    def _remove(self, states: Iterable[Path]) -> None:
        for state in states:
            if state.is_dir():
                shutil.rmtree(state, ignore_errors=True)
            else:
                state.unlink(missing_ok=True)


def _is_final(record: Mapping[str, Any]) -> bool:
    return "val_bpb" in record and record.get("done", 0) >= 1


def _read_facts(saved: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        if saved.is_dir():
            text = (saved / FACTS).read_text("utf-8")
        else:
            with safe_open(saved, "np") as file:
                text = (file.metadata() or {})["facts"]
        facts: dict[str, Any] = json.loads(text)
    except (SafetensorError, KeyError, ValueError, OSError) as error:
        raise UnreadableInput(f"{saved} is damaged: {error}") from None
    return facts
