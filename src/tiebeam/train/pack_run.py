"""From a run to a packed artifact and back, measured: the round trip is evaluated, not assumed."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.train.artifact import pack, unpack
from tiebeam.train.evaluation import evaluate
from tiebeam.train.result import Evaluation
from tiebeam.train.run_directory import MODEL, RunDirectory

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

_CARRIED = ("config.json", "tokenizer.json", "README.md")


@dataclass(frozen=True, slots=True)
class Shipped:
    path: str
    bytes: int
    limit: int
    params: int
    before: Evaluation
    after: Evaluation

    @property
    def lost(self) -> float:
        return self.after.bpb - self.before.bpb

    @property
    def fits(self) -> bool:
        return self.bytes <= self.limit

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "bytes": self.bytes,
            "limit": self.limit,
            "fits": self.fits,
            "params": self.params,
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "lost_bpb": self.lost,
        }


def open_run(path: str | os.PathLike[str]) -> tuple[GPT, Corpus]:
    """The model of a finished run and the corpus it was trained on."""
    import json

    from safetensors.torch import load_file

    from tiebeam.corpus import build_corpus
    from tiebeam.nn import GPT, GPTConfig

    run = RunDirectory.open(path)
    if not (run.path / MODEL).is_file():
        raise UnreadableInput(f"{run.path} has no {MODEL} yet; finish it with: tiebeam train --resume --out {run.path}")
    config = GPTConfig.from_hf(json.loads((run.path / "config.json").read_text()))
    model = GPT(config)
    model.load_state_dict(load_file(run.path / MODEL))
    return model, build_corpus([run.read_run()["corpus"]["path"]])


def ship(
    path: str | os.PathLike[str], target: Path, *, weights: str = "int8", embed: str = "fp16", limit: int = 16_000_000,
    before: Evaluation | None = None,
) -> Shipped:  # fmt: skip
    """Pack a run's model into `target`, unpack it, and evaluate both; `before` where that is already known."""
    import torch

    model, corpus = open_run(path)
    before = before or evaluate(model, corpus)
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    tables = frozenset(name for name in state if name.split(".")[-2:-1] in (["tok_emb"], ["embed_tokens"], ["lm_head"]))
    files = {n: (Path(path) / n).read_text("utf-8") for n in _CARRIED if (Path(path) / n).is_file()}
    raw = pack(state, files, tables, weights, embed)
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    beside.write_bytes(raw)
    try:
        restored = {name: torch.from_numpy(np.array(t)) for name, t in unpack(beside).tensors.items()}
        model.load_state_dict(restored)
        after = evaluate(model, corpus)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
    params = sum(p.numel() for p in model.parameters())
    return Shipped(str(target), len(raw), limit, params, before, after)


def restore(artifact: str | os.PathLike[str], target: str | os.PathLike[str], *, force: bool = False) -> int:
    """Write an artifact's checkpoint to a directory; returns how many tensors it has."""
    from safetensors.numpy import save_file

    where = Path(target)
    if where.exists() and not force:
        raise BadRequest(f"{where} exists; replace it with --force, or name another place")
    packed = unpack(artifact)
    where.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{where.name}.", dir=where.parent))
    try:
        save_file(dict(packed.tensors), beside / MODEL, {"format": "pt"})
        for name, text in packed.files.items():
            if name not in _CARRIED:  # the artifact is untrusted: only the files that we write
                raise UnreadableInput(f"{artifact} carries a file named {name!r}, which is not one of ours; refused")
            (beside / name).write_text(text, "utf-8")
        beside.chmod(0o755)
        if where.exists():
            shutil.rmtree(where)
        beside.rename(where)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    return len(packed.tensors)
