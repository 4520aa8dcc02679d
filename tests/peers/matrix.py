"""The matrix: every architecture in every stored state and flag, in every peer, against the predictions.

    python tests/peers/matrix.py OBSERVATIONS      write docs/loaders.md from what an earlier run left

A peer reads the directories of the cases on stdin and answers with one JSON line each; its answers are kept as
OBSERVATIONS/PEER.jsonl beside the cases.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from peers import environments, states
from peers.survey import llama_outcome, loads_nothing, read

HERE = Path(__file__).parent
Case = tuple[str, str, str]  # directory, stored state, task


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

    def observe(self, cases: Iterable[Case], out: Path) -> None:
        """Run the peer over the cases and leave its answers in `out`."""
        self.observe_all([case for case in cases if self.wants(Path(case[0]).name)], out)

    def observe_all(self, cases: Iterable[Case], out: Path) -> None:
        with out.open("w") as answers:
            subprocess.run(
                [str(self.python()), str(HERE / self.script)],
                input="".join(f"{json.dumps(case)}\n" for case in cases),
                text=True,
                stdout=answers,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **(self.environment() or {})},
                check=True,
            )


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
    where: Path, types: Iterable[str], stored: Iterable[str] = states.STORED
) -> tuple[list[Case], dict[str, str]]:
    """Every case of those types on disk, and the types that cannot be built tiny with the reason."""
    cases: list[Case] = []
    failed = {}
    for model_type in types:
        try:
            base = states.Base(model_type, where / "base" / model_type)
        except Exception as problem:
            failed[model_type] = f"{type(problem).__name__}: {problem}".splitlines()[0][:160]
            continue
        for state in stored:
            for top in states.FLAGS:
                for text in states.FLAGS if base.names.text else ("same",):
                    path = where / "cases" / model_type / f"{state}-{top}-{text}"
                    base.write(path, state, top, text)
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
    agreement = Agreement(peer, versions[peer.package])
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


def full(where: Path, observations: Path | None, report: Callable[[str], None] = print) -> list[Agreement]:
    """Run (or, with `observations`, only read) the whole matrix."""
    if observations is None:
        report(f"writing the cases to {where}")
        cases, failed = write_cases(where, all_types())
        (where / "failed.json").write_text(json.dumps(failed, indent=1))
        for peer in PEERS.values():
            if peer.ready():
                report(f"{peer.loader} ...")
                peer.observe(cases, where / f"{peer.name}.jsonl")
        observations = where
    found = [(peer, observations / f"{peer.name}.jsonl") for peer in PEERS.values()]
    return [compare(peer, path) for peer, path in found if path.exists()]


def main() -> None:
    from peers.loaders_page import PAGE, page

    agreements = full(Path(), Path(sys.argv[1]))
    PAGE.write_text(page(agreements))
    for agreement in agreements:
        print(agreement.peer.loader, agreement.right, "right", len(agreement.wrong), "wrong")


if __name__ == "__main__":
    main()
