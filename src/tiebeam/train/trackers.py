"""Experiment trackers: TensorBoard, Weights & Biases, Trackio. metrics.jsonl is always written."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from tiebeam.errors import BadRequest

Track = Callable[[dict[str, Any]], None]


@contextmanager
def tracker(kind: str | None, run: Path, settings: dict[str, Any]) -> Iterator[Track]:
    """A function that logs each record of the run; with kind None it does nothing."""
    if kind is None:
        yield lambda record: None
        return
    try:
        module: Any = import_module({"tensorboard": "torch.utils.tensorboard"}.get(kind, kind))
    except ImportError:
        raise BadRequest(f"`track={kind!r}` needs the package {kind}; install it with: pip install {kind}") from None
    if kind == "tensorboard":
        writers: list[Any] = []  # made with the first record, when the run directory exists

        def track(record: dict[str, Any]) -> None:
            if not writers:
                writers.append(module.SummaryWriter(str(run / "tensorboard")))
            writers[0].add_scalars("tiebeam", dict(_numbers(record)), record["step"])

        try:
            yield track
        finally:
            for writer in writers:
                writer.close()
        return
    module.init(project="tiebeam", name=run.name, config=settings)
    try:
        yield lambda record: module.log(dict(_numbers(record)))
    finally:
        module.finish()


def _numbers(record: dict[str, Any]) -> Iterator[tuple[str, float]]:
    for key, value in record.items():
        if isinstance(value, int | float) and key != "step":
            yield key, value
