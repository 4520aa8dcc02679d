"""Collect a finished run's metrics: its training record, and measurements on its model.

Curves come from metrics.jsonl. Measurements (loss per target, the packed artifact, the vocabulary matrices) are made
once, for the runs of the widest model, and stored in the run directory.
"""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._fs import write_bytes, write_text
from tiebeam.compare.embedding_similarity import drift, spectrum
from tiebeam.compare.held_out_losses import Losses, held_out_losses, loss_by_frequency
from tiebeam.compare.train_runs import MEMORY, Run, final_metrics, initial_model
from tiebeam.lens.lens_report import norms_by_frequency
from tiebeam.train import Evaluation, RunDirectory
from tiebeam.train.pack_run import pack_run
from tiebeam.train.run_directory import MODEL

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

MEASUREMENTS, LOSSES = "examination.json", "losses.npy"
Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class RunMetrics:
    """Metrics of one run: the record for report.json, and the arrays that the comparison needs."""

    run: Run
    record: dict[str, Any]
    losses: Losses  # [N]
    embed: Array  # [V, D]
    head: Array  # [V, D]


def collect_metrics(run: Run, counts: NDArray[np.int64]) -> RunMetrics:
    """Collect the metrics of a run of the widest model, reusing measurements stored in its directory."""
    corpus = run.corpus
    model = load_trained(run)
    embed, head = vocabulary_matrices(model)
    metrics = list(RunDirectory.open(run.path).metrics())
    checks = [r for r in metrics if "val_documents" in r]
    final = final_metrics(run.path)
    settings = run.config.settings
    tokens = settings.step_tokens
    measured, losses = _measurements(run, corpus, counts, model, final)
    peak = read_json(run.path / MEMORY).get("peak_bytes")
    record = {
        "name": run.name,
        "width": run.width,
        "vocab": run.vocab,
        "variant": run.config.variant.name,
        "seed": run.seed,
        "path": str(run.path),
        "note": run.config.note,
        "params": run.config.params,
        "tied_at_end": model.tied,
        "steps": final["step"],
        "seconds": final["seconds"],
        "val_bpb": final["val_bpb"],
        "val_loss": final["val_loss"],
        "val_tokens": final["val_tokens"],
        "tokens_per_second": tokens * final["step"] / final["seconds"] if final["seconds"] else None,
        "peak_bytes": peak,
        "disk_bytes": (run.path / MODEL).stat().st_size,
        **measured,
        "bpb": checks[-1]["val_bpb"],
        "curve": [_pick(r, "step", "seconds", "loss") for r in metrics if "loss" in r],
        "val_curve": [_pick(r, "step", "seconds", "val_bpb", "val_tokens") for r in checks],
        "gradient": [_pick(r, "step", "done", "head_share", "cosine") for r in metrics if "head_share" in r],
        "settings": settings.to_dict(),
    }
    return RunMetrics(run, record, losses, embed, head)


def load_trained(run: Run) -> GPT:
    """Load the model as trained, before a bridge is folded into the head for the checkpoint."""
    from tiebeam.nn import GPT

    tensors, facts = RunDirectory.open(run.path).load_state()
    model = GPT(run.settings.model(run.vocab))
    if model.tied and not facts["tied"]:
        model.untie()
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    return model


def vocabulary_matrices(model: GPT) -> tuple[Array, Array]:  # -> [V, D], [V, D]
    """Embedding and LM head; the same matrix twice if tied."""
    embed = model.table.weight.detach().numpy()
    return embed, embed if model.lm_head is None else model.lm_head.weight.detach().numpy()


def _measurements(
    run: Run, corpus: Corpus, counts: NDArray[np.int64], model: GPT, final: dict[str, Any]
) -> tuple[dict[str, Any], Losses]:
    identity = {"step": final["step"], "val_bpb": final["val_bpb"]}
    stored = read_json(run.path / MEASUREMENTS)
    if stored.get("of") == identity and (run.path / LOSSES).is_file():
        return stored["looks"], np.load(run.path / LOSSES, allow_pickle=False)
    losses = held_out_losses(model, corpus)
    targets = np.asarray(corpus.val[1:]).astype(np.int64)
    embed, head = vocabulary_matrices(model)
    initial = vocabulary_matrices(initial_model(run.settings, run.vocab))
    before = Evaluation(final["val_loss"], final["val_bpb"], final["val_tokens"])
    packed = pack_run(run.path, run.path.with_suffix(".tbp"), before=before, force=True)
    measured = {
        "packed_bytes": packed.bytes,
        "packed_bpb": packed.after.bpb,
        "bands": [band.to_dict() for band in loss_by_frequency(losses, targets, counts)],
        "drift": {"embed": drift(initial[0], embed), "head": drift(initial[1], head)},
        "spectrum": {"embed": _floats(spectrum(embed)), "head": _floats(spectrum(head))},
        "norms": norms_by_frequency((np.linalg.norm(embed, axis=1), np.linalg.norm(head, axis=1)), counts),
    }
    raw = io.BytesIO()
    np.save(raw, losses, allow_pickle=False)
    write_bytes(run.path / LOSSES, raw.getvalue())
    write_text(run.path / MEASUREMENTS, json.dumps({"of": identity, "looks": measured}) + "\n")
    return measured, losses


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object that an earlier call stored; empty if there is none, or a damaged one."""
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _pick(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: record[key] for key in keys if key in record}


def _floats(values: Array) -> list[float]:
    return [float(x) for x in values]
