"""ONNX Runtime GenAI's model builder: it loads the model with the installed transformers, so that decides."""

from __future__ import annotations

from tiebeam.doctor.loaders.loader import NOT_KNOWN, Config, Loader, Outcome
from tiebeam.inspection import Report


def predict(report: Report, config: Config) -> Outcome:
    return NOT_KNOWN, "the builder loads with the installed transformers: see the line of its version"


LOADERS = (
    Loader(
        rank=12,
        name="ONNX Runtime GenAI",
        version="",
        date="2026-11-16",
        observed=False,
        assumed=True,
        formats=("safetensors", "pytorch"),
        where="the model builder",
        predict=predict,
    ),
)
