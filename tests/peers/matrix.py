"""The matrix: every architecture in every stored state and flag, in every peer, against the predictions.

A peer reads the directories of the cases on stdin and answers with one JSON line each; its answers are kept as
PEER.jsonl beside the cases. A run that was interrupted goes on where it stopped (`directory`).
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from peers import environments, states
from peers.survey import llama_outcome, loads_nothing, read

HERE = Path(__file__).parent
Case = tuple[str, str, str]  # directory, stored state, task
Progress = Callable[[str, int, int], None]  # stage, done, total


def _silent(stage: str, done: int, total: int) -> None:
    """No display."""


@dataclass(frozen=True)
class Peer:
    """A loader that is run: the name of its observations, its name in the predictions, its script and interpreter."""

    name: str
    loader: str
    script: str
    python: Callable[[], Path | None]
    package: str
    """The package whose version is named."""
    environment: Callable[[], dict[str, str] | None] = dict

    def ready(self) -> bool:
        return self.python() is not None and self.environment() is not None

    def wants(self, case: str) -> bool:
        """llama.cpp reads the flag in few places and takes a second per case: fewer flags are tried."""
        stored, top, text = case.split("-")
        if self.name != "llama_cpp":
            return True
        return text in ("same", top) and (top == "true" or (top == "false" and stored in ("one", "differ")))

    def observe(self, cases: Iterable[Case], out: Path, progress: Progress = _silent) -> None:
        """Run the peer over the cases and leave its answers in `out`."""
        self.observe_all([case for case in cases if self.wants(Path(case[0]).name)], out, progress)

    def observe_all(self, cases: Iterable[Case], out: Path, progress: Progress = _silent) -> None:
        """Append an answer to `out` for every case that has none there."""
        answered = _answered(out)
        left = [case for case in cases if case[0] not in answered]
        asked = out.with_suffix(".asked")
        asked.write_text("".join(f"{json.dumps(case)}\n" for case in left))
        command = [str(self.python()), str(HERE / self.script)]
        environment = {**os.environ, **(self.environment() or {})}
        progress(self.loader, 0, len(left))
        with asked.open() as given, out.open("a") as kept, out.with_suffix(".log").open("w") as log:
            running = subprocess.Popen(
                command, stdin=given, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )
            assert running.stdout is not None
            for done, line in enumerate(running.stdout):
                kept.write(line if done else _dated(line))
                kept.flush()
                progress(self.loader, done, len(left))
        if running.wait() or done < len(left):
            raise RuntimeError(f"{self.loader} ended with code {running.returncode} after {done} cases; see {log.name}")


def _dated(first: str) -> str:
    """The line with the peer's versions, with the day of the run."""
    return json.dumps(json.loads(first) | {"date": datetime.date.today().isoformat()}) + "\n"


def _answered(out: Path) -> set[str]:
    """The cases that have an answer; a last line that was cut off is removed."""
    if not out.exists():
        return set()
    lines = out.read_text().splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        out.write_text("".join(lines[:-1]))
    entries: list[Any] = [json.loads(line) for line in lines if line.endswith("\n")]
    return {entry[0] for entry in entries if isinstance(entry, list)}


def _here() -> Path:
    return Path(sys.executable)


def _llama_source() -> dict[str, str] | None:
    source = environments.llama_cpp()
    return {"LLAMA_CPP": str(source)} if source else None


def _built(name: str) -> Callable[[], Path | None]:
    return lambda: environments.python(name)


PEERS = {
    peer.name: peer
    for peer in (
        Peer("transformers5", "transformers 5", "observe_transformers.py", _here, "transformers"),
        Peer("transformers4", "transformers 4", "observe_transformers.py", _built("transformers4"), "transformers"),
        Peer("mlx_lm", "mlx-lm", "observe_mlx_lm.py", _built("mlx_lm"), "mlx-lm"),
        Peer(
            "llama_cpp",
            "llama.cpp converter",
            "observe_llama_cpp.py",
            _built("transformers4"),
            "xllamacpp",
            _llama_source,
        ),
        Peer("safetensors_load_model", "safetensors load_model", "observe_safetensors.py", _here, "safetensors"),
    )
}


def write_cases(
    where: Path, types: Sequence[str], stored: Iterable[str] = states.STORED, progress: Progress = _silent
) -> tuple[list[Case], dict[str, str]]:
    """Every case of those types on disk, and the types that cannot be built tiny with the reason."""
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    cases: list[Case] = []
    failed = {}
    for done, model_type in enumerate(types):
        progress("writing tiny models", done, len(types))
        try:
            base = states.Base(model_type, where / "base" / model_type)
        except Exception as problem:
            failed[model_type] = f"{type(problem).__name__}: {problem}".splitlines()[0][:160]
            continue
        for state in stored:
            weights = None
            for top in states.FLAGS:
                for text in states.FLAGS if base.names.text else ("same",):
                    path = where / "cases" / model_type / f"{state}-{top}-{text}"
                    base.write(path, state, top, text, weights)
                    weights = weights or path
                    cases.append((str(path), state, base.names.task))
    return cases, failed


def all_types() -> list[str]:
    """Every model type for which the installed transformers has a class with a vocabulary head."""
    from transformers.models.auto import modeling_auto

    from peers.tiny_architectures import TASKS

    return sorted({t for task in TASKS for t in getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")})


@dataclass
class Agreement:
    """What one peer did against what was predicted. A case is (model type, case, predicted, observed)."""

    peer: Peer
    version: str
    date: str
    right: int = 0
    types: set[str] = field(default_factory=set)
    unsupported: set[str] = field(default_factory=set)
    wrong: list[tuple[str, str, str, str]] = field(default_factory=list)
    silent: dict[str, str] = field(default_factory=dict)
    """Types with states for which no prediction is made, and why."""
    cannot_run: dict[str, str] = field(default_factory=dict)
    """Types whose tiny model the peer refuses whatever is stored, and why: not evidence about the pair."""


def compare(peer: Peer, observations: Path) -> Agreement:
    """Predict every observed case again and compare."""
    from tiebeam.checkpoint import open_checkpoint
    from tiebeam.doctor.loaders import LOADERS
    from tiebeam.inspection import inspect

    loader = next(found for found in LOADERS if found.name == peer.loader)
    versions, observed = read(observations)
    agreement = Agreement(peer, versions[peer.package], versions["date"])
    for model_type, entries in sorted(observed.items()):
        for case, entry in entries.items():
            entry["outcome"] = llama_outcome(case, entry) if peer.name == "llama_cpp" else entry["outcome"]
        reason = loads_nothing(entries)
        for case, entry in entries.items():
            checkpoint = open_checkpoint(entry["path"])
            predicted = loader.prediction(inspect(checkpoint), checkpoint.config)
            if predicted.outcome == "not known":
                agreement.silent[model_type] = predicted.reason
            elif predicted.outcome == entry["outcome"]:
                agreement.right += 1
                unsupported = entry["outcome"] == "not supported"
                (agreement.unsupported if unsupported else agreement.types).add(model_type)
            elif reason is None:
                agreement.wrong.append((model_type, case, predicted.outcome, str(entry["outcome"])))
            else:
                agreement.cannot_run[model_type] = reason
    for model_type in agreement.cannot_run:
        agreement.types.discard(model_type)
    return agreement


def directory() -> Path:
    """Where the full run keeps cases and answers: another one if the programs, the cases or the scripts change."""
    content = [path.read_text() for path in sorted(HERE.glob("observe_*.py"))]
    content += [(HERE / name).read_text() for name in ("states.py", "tiny_architectures.py")]
    content += [str(environments.directory(name)) for name in ("transformers4", "mlx_lm")]
    content += [version(name) for name in ("transformers", "torch", "safetensors")]
    return environments.root() / f"matrix-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:12]}"


def full(where: Path, progress: Progress = _silent) -> list[Agreement]:
    """Run what `where` has no answers for, then compare."""
    written = where / "cases.json"
    if not written.exists():
        shutil.rmtree(where, ignore_errors=True)
        where.mkdir(parents=True)
        cases, failed = write_cases(where, all_types(), progress=progress)
        written.write_text(json.dumps({"cases": cases, "failed": failed}, indent=0))
    cases = json.loads(written.read_text())["cases"]
    ready = [peer for peer in PEERS.values() if peer.ready()]
    for peer in ready:
        peer.observe(cases, where / f"{peer.name}.jsonl", progress)
    return [compare(peer, where / f"{peer.name}.jsonl") for peer in ready]
