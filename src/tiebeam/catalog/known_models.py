"""The known models, read from models.json: one line per model.

`total` counts the unique parameters of the running model, LM head included. `audit` tells how it was checked against
the config: "exact" (equal to the last parameter), "rounded" (only the published figure was rounded), None (could not
be recomputed). `published` differs if the publisher counted a shared matrix twice, left out the LM head, or rounded;
`note` gives the reason. `confidence` is about the tie; below "high" there is a `doubt`.
"""

from __future__ import annotations

import difflib
import json
import pkgutil
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from tiebeam.budget import Budget, price
from tiebeam.errors import BadRequest


@dataclass(frozen=True, slots=True)
class KnownModel:
    """`dim` is the width of the embedding. `hidden` is the model's width; it differs for factorized embeddings only."""

    name: str
    hf_id: str
    architecture: str
    vocab: int
    dim: int
    hidden: int
    head_dim: int
    layers: int
    tied: bool
    total: int
    published: int
    audit: str | None
    confidence: str
    doubt: str
    note: str
    source: str

    @property
    def slug(self) -> str:
        return re.sub("[^a-z0-9.]+", "-", self.name.lower()).strip("-")

    @property
    def sources(self) -> tuple[str, ...]:
        """Short names of the sources: 'transformers', 'mlc-llm'."""
        parts = (part.split()[0].rstrip(":") for part in self.source.split("; "))
        return tuple(dict.fromkeys(re.split("[@#]", part)[0].rpartition("/")[2] for part in parts))

    @property
    def tieable(self) -> bool:
        """Whether embedding and LM head have the same width. Only then `budget` and `head_share` exist."""
        return self.head_dim == self.dim

    @property
    def matrix(self) -> int:
        return self.vocab * self.dim

    @property
    def trunk(self) -> int:
        return self.total - self.matrix - (0 if self.tied else self.vocab * self.head_dim)

    @property
    def budget(self) -> Budget:
        if not self.tieable:
            raise BadRequest(
                f"{self.name} cannot be tied: its embedding is {self.dim:,} wide and its LM head {self.head_dim:,}"
            )
        return price(self.vocab, self.dim, self.trunk)

    @property
    def head_share(self) -> float | None:
        return self.budget.head_share if self.tieable else None

    def to_dict(self) -> dict[str, Any]:
        budget = self.budget if self.tieable else None
        return {
            "name": self.name,
            "slug": self.slug,
            "hf_id": self.hf_id,
            "architecture": self.architecture,
            "tied": self.tied,
            "vocab": self.vocab,
            "dim": self.dim,
            "hidden": self.hidden,
            "head_dim": self.head_dim,
            "layers": self.layers,
            "matrix": self.matrix,
            "trunk": self.trunk,
            "total": self.total,
            "published_total": self.published,
            "tied_total": budget and budget.tied_total,
            "untied_total": budget and budget.untied_total,
            "head_share": self.head_share,
            "audit": self.audit,
            "confidence": self.confidence,
            "doubt": self.doubt or None,
            "note": self.note or None,
            "source": self.source,
        }


@cache
def known_models() -> tuple[KnownModel, ...]:
    """All known models, grouped by family, oldest families first."""
    data = pkgutil.get_data(__package__, "models.json")
    assert data is not None
    return tuple(
        KnownModel(
            name=row["name"],
            hf_id=row["hf_id"],
            architecture=row["type"],
            vocab=row["vocab"],
            dim=row["dim"],
            hidden=row.get("hidden", row["dim"]),
            head_dim=row.get("head_dim", row["dim"]),
            layers=row["layers"],
            tied=row["tied"],
            total=row["total"],
            published=row.get("published", row["total"]),
            audit=row["audit"],
            confidence=row["confidence"],
            doubt=row.get("doubt", ""),
            note=row.get("note", ""),
            source=row["source"],
        )
        for row in json.loads(data)
    )


def named(name: str) -> KnownModel | None:
    """The known model with this name, Hub id or slug, ignoring case and punctuation.

    >>> import tiebeam
    >>> tiebeam.catalog.named("phi-4-mini").tied
    True
    """
    return next((model for model in known_models() if _key(name) in _keys(model)), None)


def find(name: str) -> KnownModel:
    """The known model with this name, or with a name that contains it if there is only one: 'apertus', 'gpt-j'."""
    known = named(name)
    found = [known] if known else [] if "/" in name else matching(name)
    if len(found) == 1:
        return found[0]
    if found:
        raise BadRequest(f"'{name}' matches {len(found)} known models; name one of them: {_listed(found)}")
    keys = {key: model for model in known_models() for key in _keys(model)}
    near = dict.fromkeys(keys[key] for key in difflib.get_close_matches(_key(name), keys, n=8, cutoff=0.6))
    hint = f"; similar: {_listed(list(near)[:4])}" if near else ""
    raise BadRequest(f"no known model is called '{name}'{hint}; `tiebeam models` lists them all")


def matching(query: str) -> list[KnownModel]:
    """The known models whose name, Hub id or architecture contains every word of the query.

    A number must match the start of a part: '4b' finds Qwen3 4B but not Qwen3 14B.
    """
    words = [key for key in map(_key, query.split()) if key]
    return [model for model in known_models() if words and all(_contains(model, word) for word in words)]


def _contains(model: KnownModel, word: str) -> bool:
    for text in (model.name, model.hf_id, model.architecture):
        parts = [part for part in map(_key, re.split("[^A-Za-z0-9.]", text)) if part]
        if word[0].isdigit():
            if any("".join(parts[at:]).startswith(word) for at in range(len(parts))):
                return True
        elif word in "".join(parts):
            return True
    return False


def _key(name: str) -> str:
    return re.sub("[^a-z0-9]", "", name.lower())


def _keys(model: KnownModel) -> tuple[str, ...]:
    return _key(model.name), _key(model.hf_id), _key(model.hf_id.rpartition("/")[2])


def _listed(models: list[KnownModel]) -> str:
    shown = ", ".join(model.slug for model in models[:8])
    return shown if len(models) <= 8 else f"{shown} and {len(models) - 8} more"
