"""Distil the table and its two maps from the original model.

The closed form minimises a quadratic approximation of the loss. Distillation minimises KL(original || joint) on the
calibration text with torch. The layers are run by the decoder and not differentiated: each round runs the text
through the joint model once to get its hidden states, then trains the head side on them against the predictions of
the original; the fit's quadratic term keeps the embedding side near the original rows.

The state is saved beside the target (`TARGET.distill/`), so that an interrupted run resumes. A directory of that name
with anything else in it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from tiebeam._fs import Kind, occupy, reading, write_bytes
from tiebeam.errors import BadRequest, MissingExtra
from tiebeam.families import Scales
from tiebeam.surgery.joint.calibration import Calibration
from tiebeam.surgery.joint.decomposition import Factors, Rows, row_blocks
from tiebeam.surgery.joint.fit import Fit, tables_of
from tiebeam.surgery.joint.held_out import HeldOut, Measured

if TYPE_CHECKING:
    import torch

    from tiebeam.decode import Engine

Array = NDArray[Any]
LEARNING_RATE = 1e-3  # times the root mean square of each parameter
_BATCH = 512  # positions per step
_PASSES = 2  # over the text per round


@dataclass(frozen=True)
class Distilled:
    """The best fit by KL on held-out text, and the measurements before and after."""

    fitted: Fit
    before: Measured
    after: Measured
    rounds: int
    minutes: float


def distill(
    held_out: HeldOut,
    rows: Rows,
    calibration: Calibration,
    fitted: Fit,
    minutes: float,
    keep_at: Path | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Distilled:
    """Train for `minutes` in total, counting earlier runs whose state is at `keep_at`."""
    if keep_at is None:
        return _distill(held_out, rows, calibration, fitted, minutes, None, progress)
    check_state(keep_at)
    lock = occupy(keep_at, KIND)
    try:
        return _distill(held_out, rows, calibration, fitted, minutes, keep_at, progress)
    finally:
        lock.release()


def _distill(
    held_out: HeldOut, rows: Rows, calibration: Calibration, fitted: Fit, minutes: float, keep_at: Path | None,
    progress: Callable[[int, int], None],
) -> Distilled:  # fmt: skip
    torch, decoder = _torch(), held_out.original
    assert fitted.after
    state = _State(torch, rows, calibration, fitted)
    if keep_at is not None:
        state.load(keep_at)
    teacher = [decoder.hidden(run) for run in calibration.runs]  # [t, D] each
    W = torch.from_numpy(np.concatenate([rows(*block)[1] for block in row_blocks(len(calibration.counts), state.dim)]))
    E = torch.from_numpy(np.concatenate([rows(*block)[0] for block in row_blocks(len(calibration.counts), state.dim)]))
    scales = decoder.spec.scales

    def joint_model() -> Engine:
        return decoder.with_tables(*tables_of(rows, len(E), state.factors(fitted), decoder.embed))

    best = fitted
    if state.rounds:
        best = _better(best, replace(fitted, factors=state.factors(fitted), after=held_out.measure(joint_model())))
    while state.minutes < minutes:
        started = time.monotonic()
        now = joint_model()
        student = [now.hidden(run) for run in calibration.runs]
        for _ in range(_PASSES):
            for run, h, g in zip(calibration.runs, teacher, student, strict=True):
                state.step(torch.tensor(run), torch.from_numpy(h), torch.from_numpy(g), E, W, scales)
                if state.minutes + (time.monotonic() - started) / 60 >= minutes:
                    break
        state.rounds += 1
        state.minutes += (time.monotonic() - started) / 60
        best = _better(best, replace(fitted, factors=state.factors(fitted), after=held_out.measure(joint_model())))
        if keep_at is not None:
            state.save(keep_at)
        progress(min(int(100 * state.minutes / minutes), 100), 100)
    progress(100, 100)
    assert best.after
    return Distilled(best, fitted.after, best.after, state.rounds, state.minutes)


def check_state(where: Path) -> None:
    """Refuse a directory that is not the state of a distillation."""
    if os.path.lexists(where) and any(where.iterdir() if where.is_dir() else [where]):
        refusal = KIND.refusal(where)
        if refusal:
            raise BadRequest(f"the state of the distillation is kept in {where}; {refusal}")


def remove_state(where: Path) -> None:
    """Remove the state of a finished distillation, and nothing else."""
    with suppress(OSError):
        (where / STATE).unlink(missing_ok=True)
        where.rmdir()


def _is_state(where: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    if all(KIND.is_temporary(path.name) for path in where.iterdir()):
        return True
    try:
        with safe_open(where / STATE, "np") as handle:
            return "origin" in _about(handle)
    except (OSError, SafetensorError, ValueError):
        return False


def _about(handle: Any) -> dict[str, Any]:
    found = json.loads((handle.metadata() or {}).get("tiebeam", "{}"))
    return found if isinstance(found, dict) else {}


STATE = "state.safetensors"
KIND = Kind("the state of a distillation", _is_state, lambda name: name == STATE)


def _better(one: Fit, other: Fit) -> Fit:
    assert one.after
    assert other.after
    return other if other.after.kl < one.after.kl else one


class _State:
    """Parameters, Adam moments and elapsed time; saved as one safetensors file."""

    def __init__(self, torch: Any, rows: Rows, calibration: Calibration, fitted: Fit) -> None:
        self.torch = torch
        self.dim = len(calibration.C)
        self.sensitivity = fitted.sensitivity
        self.exact = torch.from_numpy(fitted.factors.exact)
        factors, V = fitted.factors, len(calibration.counts)
        table = np.concatenate([factors.rows(rows, *block) for block in row_blocks(V, self.dim)])
        start = {"table": table, "embed_map": factors.embed_map, "head_map": factors.head_map}
        self.parameters = {k: torch.nn.Parameter(torch.from_numpy(v.copy())) for k, v in start.items()}
        self.groups = [
            {"params": [p], "lr": LEARNING_RATE * float(p.detach().square().mean().sqrt())}
            for p in self.parameters.values()
        ]
        self.optimizer = torch.optim.Adam(self.groups, betas=(0.9, 0.98))
        self.rounds, self.minutes = 0, 0.0
        self.origin = hashlib.sha256(table.tobytes() + factors.head_map.tobytes()).hexdigest()

    def step(
        self, ids: torch.Tensor, h: torch.Tensor, g: torch.Tensor, E: torch.Tensor, W: torch.Tensor, scales: Scales
    ) -> None:
        """Train on one sequence: [t] tokens, [t, D] hidden states of the original (h) and of the joint model (g)."""
        torch = self.torch
        S, A, B = self.parameters.values()
        for at in range(0, len(ids), _BATCH):
            part = slice(at, at + _BATCH)
            with torch.no_grad():
                target = _log_softmax(torch, h[part] @ W.T, scales)  # [s, V]
            logits = (g[part] @ B.T) @ S.T  # [s, V]
            kl = (target.exp() * (target - _log_softmax(torch, logits, scales))).sum(1).mean()
            fitted = ids[part][~torch.isin(ids[part], self.exact)]
            wrong = E[fitted] - S[fitted] @ A
            loss = kl + 0.5 * self.sensitivity * wrong.square().sum() / len(ids[part])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def factors(self, fitted: Fit) -> Factors:
        S, A, B = (p.detach().numpy().copy() for p in self.parameters.values())
        return replace(fitted.factors, embed_map=A, head_map=B, trained=S)

    def save(self, where: Path) -> None:
        from safetensors.torch import save

        tensors = {name: p.detach() for name, p in self.parameters.items()}
        for name, p in self.parameters.items():
            for key, value in self.optimizer.state[p].items():
                tensors[f"{name}.{key}"] = value
        about = {"rounds": self.rounds, "minutes": self.minutes, "origin": self.origin}
        write_bytes(where / STATE, save(tensors, metadata={"tiebeam": json.dumps(about)}))

    def load(self, where: Path) -> None:
        """Resume from `where` if its state began from the same fit: the same model, text and recipe."""
        from safetensors import safe_open

        path = where / STATE
        if not path.exists():
            return
        with reading(path), safe_open(path, "pt") as handle:
            kept = {name: handle.get_tensor(name) for name in handle.keys()}  # noqa: SIM118
            about = _about(handle)
        if about.get("origin") != self.origin or not kept.keys() >= self.parameters.keys():
            return
        for name, p in self.parameters.items():
            p.data.copy_(kept[name])
            moments = {key.removeprefix(f"{name}."): v for key, v in kept.items() if key.startswith(f"{name}.")}
            if moments:
                self.optimizer.state[p] = moments
        self.rounds, self.minutes = int(about.get("rounds", 0)), float(about.get("minutes", 0.0))


def _log_softmax(torch: Any, logits: Any, scales: Scales) -> Any:
    logits = scales.logits * logits
    if scales.softcap is not None:
        logits = scales.softcap * torch.tanh(logits / scales.softcap)
    return torch.log_softmax(logits, dim=1)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingExtra("distillation", "train") from None
    return torch
