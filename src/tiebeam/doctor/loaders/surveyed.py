"""What a loader was seen to do with each model type: one JSON file per loader, from tests/peers/survey.py.

`kinds` maps a kind (a few words that the loader's file explains) to the model types that behave so; `from source` is
the same for types that could not be run; `not supported` lists types that the loader does not know, `not known` those
about which no promise is made, with the reason.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tiebeam.doctor.loaders.loader import NOT_KNOWN, NOT_SUPPORTED, Outcome


@dataclass(frozen=True, slots=True)
class Survey:
    """One loader's table. `kinds` and `read`: model type -> the words of its kind, as observed or as read in source."""

    version: str
    date: str
    kinds: dict[str, tuple[str, ...]]
    read: dict[str, tuple[str, ...]]
    not_supported: frozenset[str]
    not_known: dict[str, str]

    def kind(self, model_type: object) -> tuple[str, ...] | None:
        name = model_type if isinstance(model_type, str) else ""
        return self.kinds.get(name) or self.read.get(name)

    def tried(self, model_type: str | None) -> bool:
        return model_type in self.kinds or model_type in self.not_supported

    def without_kind(self, model_type: str | None, loader: str) -> Outcome:
        """The answer for a type that has no kind."""
        if model_type in self.not_supported:
            return NOT_SUPPORTED, f"{loader} {self.version} does not know {model_type}"
        if model_type in self.not_known:
            return NOT_KNOWN, self.not_known[model_type]
        return NOT_KNOWN, f"{model_type or 'a model without model_type'} was not tried with {loader} {self.version}"


@cache
def survey(name: str) -> Survey:
    """The table of the loader whose file is NAME.py."""
    path = Path(__file__).with_name(f"{name}.json")
    document = json.loads(path.read_text(encoding="utf-8"))
    return Survey(
        version=document["version"],
        date=document["date"],
        kinds=_by_type(document.get("kinds", {})),
        read=_by_type(document.get("from source", {})),
        not_supported=frozenset(document.get("not supported", ())),
        not_known=document.get("not known", {}),
    )


def _by_type(kinds: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    return {model_type: tuple(kind.split()) for kind, types in kinds.items() for model_type in types}
