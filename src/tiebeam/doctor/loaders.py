"""What each loader will do with a pair: rules as data (loaders.json), each with its source.

The rules for transformers 5 and safetensors are run against the real libraries in the tests, for every
state; the others were read in the loaders' sources and say so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from tiebeam.inspection import Report

FLAG = "tie_word_embeddings"


@dataclass(frozen=True, slots=True)
class LoaderVerdict:
    """`outcome`: ties, keeps both, drops the stored head, random head (or embedding, or pair), or refuses."""

    loader: str
    outcome: str
    reason: str
    source: str

    def to_dict(self) -> dict[str, str]:
        return asdict(self)


@cache
def _data() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(files("tiebeam.doctor").joinpath("loaders.json").read_text("utf-8"))
    return document


def stored_state(report: Report) -> str:
    """What is stored, in the words of the rules."""
    pair = report.pair
    if pair.embed is None:
        return "neither" if pair.head is None else "head"
    if pair.head is None:
        return "one"
    if pair.embed.shape[0] != pair.head.shape[0] and not report.packed:
        return "rows"
    return "equal" if pair.equal else "differ"


def mlx_default(architecture: str | None) -> bool | None:
    """What mlx-lm assumes when the flag is absent; None where it requires it or is not known."""
    defaults = _data()["mlx_lm_default"]
    return True if architecture in defaults["tied"] else False if architecture in defaults["untied"] else None


def what_loaders_do(report: Report, config: Mapping[str, Any] | None) -> tuple[LoaderVerdict, ...]:
    """One verdict per loader that reads this format."""
    if report.pair.encoder:
        return ()
    verdicts = []
    for loader in _data()["loaders"]:
        if report.format not in loader["formats"]:
            continue
        declared = report.pair.declared
        if loader["name"] == "mlx-lm" and config is not None and FLAG not in config:
            default = mlx_default(report.architecture)
            declared = declared if default is None else default
        if declared is None:  # nothing is declared: what is stored is all there is
            declared = stored_state(report) in ("one", "head", "equal")
        outcome, reason = loader["rules"][f"{stored_state(report)}/{'tied' if declared else 'untied'}"]
        verdicts.append(LoaderVerdict(loader["name"], outcome, reason, loader["source"]))
    return tuple(verdicts)
