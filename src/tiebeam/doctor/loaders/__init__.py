"""What each loader will do with a pair, one file per loader. A file here that defines LOADERS is a loader."""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from tiebeam.doctor.loaders.loader import NOT_KNOWN, NOT_SUPPORTED, Loader, Prediction
from tiebeam.inspection import Report

__all__ = ["LOADERS", "UNPREDICTED", "Loader", "Prediction", "predictions"]

UNPREDICTED = (NOT_KNOWN, NOT_SUPPORTED)
"""Outcomes that say nothing about the pair."""


def _discover() -> tuple[Loader, ...]:
    modules = [import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [loader for module in modules for loader in getattr(module, "LOADERS", ())]
    return tuple(sorted(found, key=lambda loader: loader.rank))


LOADERS: tuple[Loader, ...] = _discover()


def predictions(report: Report, config: Mapping[str, Any] | None) -> tuple[Prediction, ...]:
    """One prediction per loader that reads this format; none for an encoder, which has no head."""
    if report.pair.encoder:
        return ()
    return tuple(loader.prediction(report, config) for loader in LOADERS if report.format in loader.formats)
