"""The cells of the ladder: what every finished run contributes, at every width and vocabulary."""

from __future__ import annotations

import json
from typing import Any

from tiebeam._fs import write_text
from tiebeam.budget import price
from tiebeam.compare.document import Cell, Check
from tiebeam.compare.held_out_curves import HeldOutCurve
from tiebeam.compare.peak_memory_probe import training_peak
from tiebeam.compare.run_metrics import load_trained, read_json
from tiebeam.compare.train_runs import MEMORY, Run
from tiebeam.train import Settings
from tiebeam.train.pack_run import packed_size
from tiebeam.train.run_directory import MODEL


def collect_cell(curve: HeldOutCurve, memory: bool = False) -> Cell:
    """The cell of a finished run. `memory` measures its peak memory in a subprocess."""
    run, settings = curve.run, curve.run.settings
    tokens = settings.step_tokens
    sizes = _sizes(run, memory)
    dim, steps, seconds = settings.embed_dim or settings.dim, int(curve.steps[-1]), float(curve.seconds[-1])
    checks = zip(curve.steps.tolist(), curve.seconds.tolist(), curve.bpb.tolist(), strict=True)
    return Cell(
        name=run.name,
        width=run.width,
        vocab=run.vocab,
        variant=run.variant,
        seed=run.seed,
        params=run.config.params,
        non_embedding=_non_embedding(run),
        head_share=price(run.vocab, dim, _non_embedding(run)).head_share or 0.0,
        state_bytes=training_state_bytes(settings, run.vocab),
        packed_bytes=sizes["packed_bytes"],
        peak_bytes=sizes["peak_bytes"],
        disk_bytes=(run.path / MODEL).stat().st_size,
        steps=steps,
        seconds=seconds,
        tokens=steps * tokens,
        tokens_per_second=tokens * steps / seconds if seconds else 0.0,
        bpb=float(curve.bpb[-1]),
        checks=tuple(Check(int(step), clock, int(step) * tokens, bpb) for step, clock, bpb in checks),
        curve=curve.train_losses,
        rates=settings.learning_rates.to_dict(),
        peak_rates=settings.peak_rates,
    )


def training_state_bytes(settings: Settings, vocab: int) -> int:
    """Bytes of weights, gradients and optimizer states in fp32: Adam has two values per weight, Muon one."""
    import torch

    from tiebeam.nn import GPT

    with torch.device("meta"):
        model = GPT(settings.model(vocab))
    later = model.table.weight.numel() if settings.model(vocab).untie_at is not None else 0
    count = {role: sum(p.numel() for p in parameters) for role, parameters in model.roles().items()}
    values = {role: 4 if settings.optimizer == "adamw" or role != "matrices" else 3 for role in count}
    return 4 * (sum(count[role] * values[role] for role in count) + 4 * later)


def _non_embedding(run: Run) -> int:
    matrix = run.vocab * (run.settings.embed_dim or run.settings.dim)
    return run.config.params - matrix * (1 if run.settings.tie is True else 2)


def _sizes(run: Run, memory: bool) -> dict[str, Any]:
    """Packed bytes of the model as trained, and the peak memory if asked for, stored in the run directory."""
    stored = read_json(run.path / MEMORY)
    found = {"packed_bytes": stored.get("packed_bytes"), "peak_bytes": stored.get("peak_bytes")}
    if found["packed_bytes"] is None:
        folded = run.settings.model(run.vocab).foldable
        found["packed_bytes"] = packed_size(run.path, model=load_trained(run) if folded else None)
    if memory and found["peak_bytes"] is None:
        found["peak_bytes"] = training_peak(run.settings, run.corpus)
    if found != stored:
        write_text(run.path / MEMORY, json.dumps(found) + "\n")
    return found
