"""What one finished run has to say: read off its own papers, and measured on its model.

The figures of a run are those of its metrics.jsonl; what has to be measured (losses by target, the packed artifact,
tables) is measured once and kept in the run directory.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam.compare.held_out_losses import Losses, bands, losses_of
from tiebeam.compare.table_similarity import drift, spectrum
from tiebeam.compare.train_runs import MEMORY, Planned, final_of
from tiebeam.lens.survey import norms_by_frequency
from tiebeam.train import Evaluation, RunDirectory, Settings
from tiebeam.train.pack_run import pack_run
from tiebeam.train.run_directory import MODEL

if TYPE_CHECKING:
    from tiebeam.corpus import Corpus
    from tiebeam.nn import GPT

LOOKS, LOSSES = "examination.json", "losses.npy"
Array = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Examined:
    """One run: its record for report.json, and the arrays that comparisons need."""

    run: Planned
    record: dict[str, Any]
    losses: Losses  # [N]
    embed: Array  # [V, D]
    head: Array  # [V, D]


def examine(run: Planned, corpus: Corpus, counts: NDArray[np.int64]) -> Examined:
    """A finished run's record. Measurements that stand in the directory are used again."""
    model = load(run.path, run.contender.settings, corpus)
    embed, head = tables(model)
    metrics = list(RunDirectory.open(run.path).metrics())
    final = final_of(run.path)
    settings = run.contender.settings
    tokens = settings.step_tokens
    looks, losses = _looks(run, corpus, counts, model, final)
    peak = _json(run.path / MEMORY).get("peak_bytes")
    record = {
        "name": run.name,
        "variant": run.contender.variant.name,
        "seed": run.seed,
        "path": str(run.path),
        "note": run.contender.note,
        "params": run.contender.params,
        "tied_at_end": model.tied,
        "steps": final["step"],
        "seconds": final["seconds"],
        "val_bpb": final["val_bpb"],
        "val_loss": final["val_loss"],
        "val_tokens": final["val_tokens"],
        "tokens_per_second": tokens * final["step"] / final["seconds"] if final["seconds"] else None,
        "peak_bytes": peak,
        "disk_bytes": (run.path / MODEL).stat().st_size,
        **looks,
        "curve": [_pick(r, "step", "seconds", "loss") for r in metrics if "loss" in r],
        "val_curve": [_pick(r, "step", "seconds", "val_bpb", "val_tokens") for r in metrics if "val_bpb" in r],
        "gradient": [_pick(r, "step", "done", "head_share", "cosine") for r in metrics if "head_share" in r],
        "settings": settings.to_dict(),
    }
    return Examined(run, record, losses, embed, head)


def load(path: Path, settings: Settings, corpus: Corpus) -> GPT:
    """The model as it was trained, before anything is multiplied out for a checkpoint."""
    from tiebeam.nn import GPT

    tensors, facts = RunDirectory.open(path).load_state()
    model = GPT(settings.model(corpus.vocab))
    if model.tied and not facts["tied"]:
        model.untie()
    model.load_state_dict({n.removeprefix("model."): t for n, t in tensors.items() if n.startswith("model.")})
    return model


def tables(model: GPT) -> tuple[Array, Array]:  # -> [V, D], [V, D]
    """Both ends as they are stored; the same one twice while tied."""
    embed = model.table.weight.detach().numpy()
    return embed, embed if model.lm_head is None else model.lm_head.weight.detach().numpy()


def _looks(
    run: Planned, corpus: Corpus, counts: NDArray[np.int64], model: GPT, final: dict[str, Any]
) -> tuple[dict[str, Any], Losses]:
    of_this = {"step": final["step"], "val_bpb": final["val_bpb"]}
    held = _json(run.path / LOOKS)
    if held.get("of") == of_this and (run.path / LOSSES).is_file():
        return held["looks"], np.load(run.path / LOSSES, allow_pickle=False)
    losses = losses_of(model, corpus)
    targets = np.asarray(corpus.val[1:]).astype(np.int64)
    embed, head = tables(model)
    begun = tables(_newborn(run.contender.settings, corpus))
    before = Evaluation(final["val_loss"], final["val_bpb"], final["val_tokens"])
    packed = pack_run(run.path, run.path.with_suffix(".tbp"), before=before)
    looks = {
        "packed_bytes": packed.bytes,
        "packed_bpb": packed.after.bpb,
        "bands": [band.to_dict() for band in bands(losses, targets, counts)],
        "drift": {"embed": drift(begun[0], embed), "head": drift(begun[1], head)},
        "spectrum": {"embed": _floats(spectrum(embed)), "head": _floats(spectrum(head))},
        "norms": norms_by_frequency((np.linalg.norm(embed, axis=1), np.linalg.norm(head, axis=1)), counts),
    }
    np.save(run.path / LOSSES, losses, allow_pickle=False)
    (run.path / LOOKS).write_text(json.dumps({"of": of_this, "looks": looks}) + "\n", "utf-8")
    return looks, losses


def _newborn(settings: Settings, corpus: Corpus) -> GPT:
    """The model that the run began with: the same seed draws the same weights."""
    import torch

    from tiebeam.nn import GPT

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return GPT(settings.model(corpus.vocab))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _pick(record: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: record[key] for key in keys if key in record}


def _floats(values: Array) -> list[float]:
    return [float(x) for x in values]
