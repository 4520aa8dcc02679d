"""A run directory is a checkpoint: config.json, model.safetensors, tokenizer.json, and the run's own papers.

run.json holds the settings, versions and digests; metrics.jsonl one line per report; resume.safetensors, or with
several processes a directory resume-STEP, all that an interrupted run needs to go on (weights, optimizer states,
counters). Everything is written beside its name and moved into place, so a kill at any moment leaves the last
complete one. Nothing is pickled.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from tiebeam._version import __version__
from tiebeam.errors import BadRequest, UnreadableInput

if TYPE_CHECKING:
    import torch

    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT
    from tiebeam.train.distribution import Distribution

RUN, METRICS, STATE, MODEL = "run.json", "metrics.jsonl", "resume.safetensors", "model.safetensors"
FACTS = "facts.json"
_STATES = "resume-"


class RunDirectory:
    """The files of one run. `create` refuses a directory that holds something else."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, force: bool = False) -> RunDirectory:
        if path.exists() and any(path.iterdir()) and not force:
            way_out = (
                "go on with --resume, or replace it with --force" if (path / RUN).exists() else "name another place"
            )
            raise BadRequest(f"{path} already holds {'a run' if (path / RUN).exists() else 'something'}; {way_out}")
        path.mkdir(parents=True, exist_ok=True)
        for name in (METRICS, STATE, MODEL, RUN):
            (path / name).unlink(missing_ok=True)
        for state in cls(path)._state_directories():
            shutil.rmtree(state)
        return cls(path)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        place = Path(path)
        if not (place / RUN).is_file():
            raise UnreadableInput(
                f"{place} is not a run: it has no {RUN}; `tiebeam train --out {place}` would make one"
            )
        return cls(place)

    def write_run(self, settings: Mapping[str, Any], corpus: Corpus) -> None:
        backend = str(settings.get("backend", "torch"))
        document = {
            "settings": dict(settings),
            "corpus": corpus.to_dict(),
            "versions": {
                "tiebeam": __version__,
                backend: version(backend),
                "python": platform.python_version(),
            },
        }
        self._write(RUN, (json.dumps(document, indent=2) + "\n").encode())

    def read_run(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads((self.path / RUN).read_text())
        except (OSError, ValueError) as error:
            raise UnreadableInput(f"{self.path / RUN} cannot be read: {error}") from None
        return document

    def log(self, record: Mapping[str, Any]) -> None:
        with open(self.path / METRICS, "a") as out:
            out.write(json.dumps(record) + "\n")

    def metrics(self) -> Iterator[dict[str, Any]]:
        """The reports so far; a last line cut short by a kill is left out."""
        if (self.path / METRICS).exists():
            for line in (self.path / METRICS).read_text().splitlines():
                try:
                    yield json.loads(line)
                except ValueError:
                    continue

    def refuse_finished(self, step: int) -> NoReturn:
        """For going on with a run that has no way to go."""
        raise BadRequest(f"{self.path} is finished after {step:,} steps; give it more --steps or --minutes")

    def forget_after(self, step: int) -> None:
        """Drop the reports of steps that will be run again."""
        kept = [record for record in self.metrics() if record["step"] <= step]
        self._write(METRICS, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def save_model(self, model: GPT, corpus: Corpus, card: str) -> None:
        """The checkpoint that every other room, and every other library, opens."""
        from safetensors.torch import save

        config, tensors = model.export(fold=model.config.foldable)
        self._write(MODEL, save(tensors, {"format": "pt"}))
        self._write("config.json", (json.dumps(config, indent=2) + "\n").encode())
        self._write(corpus.tokenizer.filename, corpus.tokenizer.raw)
        self._write("README.md", card.encode())

    def save_state(
        self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any], processes: Distribution | None = None
    ) -> None:
        """Called by all processes. What was saved before stays until this is complete."""
        from safetensors.torch import save

        before = self._states()
        if processes is None or processes.world == 1:
            flat = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
            self._write(STATE, save(flat, {"facts": json.dumps(facts)}))
            self._forget(state for state in before if state.is_dir())
            return
        target = self.path / f"{_STATES}{facts['step']}"
        beside = self.path / f".{target.name}.part"
        if processes.is_main:
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
        processes.barrier()
        from tiebeam.train.resume_state import write_shared

        write_shared(beside, tensors)
        if processes.is_main:
            _write_through(beside / FACTS, json.dumps(facts).encode())
            if target.exists():  # the same step once more
                shutil.rmtree(target)
            beside.replace(target)
            self._forget(state for state in before if state != target)

    def saved_state(self) -> Path:
        """The last complete state: a file, or a directory."""
        from tiebeam.train.resume_state import read_facts

        states = self._states()
        if not states:
            raise UnreadableInput(f"{self.path} has no {STATE}: the run never got as far as a saved state; start again")
        return states[0] if len(states) == 1 else max(states, key=lambda state: int(read_facts(state)["step"]))

    def load_state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Whole tensors and facts, by one process."""
        from tiebeam.train.resume_state import read_facts, read_whole

        saved = self.saved_state()
        return read_whole(saved), read_facts(saved)

    def _states(self) -> list[Path]:
        file = self.path / STATE
        return [*([file] if file.is_file() else []), *(d for d in self._state_directories() if (d / FACTS).is_file())]

    def _state_directories(self) -> list[Path]:
        return sorted(
            place
            for place in self.path.glob(f"{_STATES}*")
            if place.is_dir() and place.name.removeprefix(_STATES).isdecimal()
        )

    def _forget(self, states: Iterable[Path]) -> None:
        for state in states:
            if state.is_dir():
                shutil.rmtree(state, ignore_errors=True)
            else:
                state.unlink(missing_ok=True)

    def _write(self, name: str, raw: bytes) -> None:
        beside = self.path / f".{name}.{os.getpid()}.part"
        _write_through(beside, raw)
        beside.replace(self.path / name)


def _write_through(path: Path, raw: bytes) -> None:
    with open(path, "wb") as out:
        out.write(raw)
        out.flush()
        os.fsync(out.fileno())
