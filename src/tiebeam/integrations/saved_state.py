"""Compare a live pair with a saved state dict: before it is written, and in the file.

The state dict belongs to a module that may hold the language model under any name (a LightningModule), so parameters
are matched by the names that this module gives them. A few rows are compared, as everywhere (doctor/row_samples.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tiebeam.doctor.row_samples import row_change, sample_rows, whole_shape
from tiebeam.surgery.module import unwrap

if TYPE_CHECKING:
    from torch import nn


def state_difference(pair: Iterable[nn.Parameter | None], owner: nn.Module, state: Mapping[str, Any]) -> str:
    """How the state dict differs from the pair; empty if it does not, or if this rank writes none."""
    if not state:
        return ""
    shapes = {name: whole_shape(value) for name, value in state.items() if hasattr(value, "shape")}
    for name, parameter in _saved_names(pair, owner, shapes):
        if problem := _misplaced(name, parameter, shapes, "the state dict"):
            return problem
        sample = sample_rows(parameter)
        change = None if sample is None else row_change(sample, state[name])
        if change is not None and change.changed:
            return f"{name} in the state dict does not hold the model's values"
    return ""


def file_difference(pair: Iterable[nn.Parameter | None], owner: nn.Module, path: str | os.PathLike[str]) -> str:
    """How the state dict in the file at `path` differs from the pair; empty if it does not."""
    import numpy as np

    from tiebeam.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in checkpoint.tensors.items()}
    for name, parameter in _saved_names(pair, owner, shapes):
        if problem := _misplaced(name, parameter, shapes, str(path)):
            return problem
        sample = sample_rows(parameter)
        for row, values in zip(sample.rows, sample.values.numpy(), strict=True) if sample else ():
            stored = checkpoint.rows(name, row, row + 1)[0].astype(np.float32)
            if not np.allclose(values, stored, rtol=1e-2, atol=1e-6, equal_nan=True):
                return f"{name} in {path} does not hold the model's values: row {row} differs"
    return ""


def _saved_names(
    pair: Iterable[nn.Parameter | None], owner: nn.Module, saved: Mapping[str, Any]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Every name of each parameter of the pair that was saved; its first name if none was."""
    named = list(unwrap(owner).named_parameters(remove_duplicate=False))
    for parameter in {id(p): p for p in pair if p is not None}.values():
        names = [name for name, other in named if other is parameter]
        for name in [name for name in names if name in saved] or names[:1]:
            yield name, parameter


def _misplaced(name: str, parameter: nn.Parameter, shapes: Mapping[str, tuple[int, ...]], where: str) -> str:
    if name not in shapes:
        return f"{name} is not in {where}"
    if shapes[name] != whole_shape(parameter):
        return f"{name} is {list(shapes[name])} in {where}, {list(whole_shape(parameter))} in the model"
    return ""
