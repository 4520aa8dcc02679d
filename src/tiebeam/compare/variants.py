"""The contenders, and how they are made equal: in steps, in time, or in parameters.

Equal parameters: one variant keeps its shape, and every other one's MLPs are widened or narrowed until its exact
count is as near as the width's grain allows; a model that would have to give up most of its MLPs gives up layers
instead, or width. What was changed is said in words.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tiebeam.errors import BadRequest
from tiebeam.train import Settings

GRAIN = 8  # widths are multiples of this: odd ones are slow
TOLERANCE = 0.02
MATCHES = ("steps", "time", "params")


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    title: str
    colour: str
    changes: dict[str, Any]


VARIANTS = {
    v.name: v
    for v in (
        Variant("tied", "tied", "#2a86c8", {"tie": True, "bridge": False}),
        Variant("untied", "untied", "#d55e00", {"tie": False, "bridge": False}),
        Variant("then", "tied, then untied", "#9467bd", {"tie": 0.67, "bridge": False}),
        Variant("bridge", "tied + bridge", "#009e73", {"tie": True, "bridge": True}),
    )
}


@dataclass(frozen=True, slots=True)
class Contender:
    """One variant with the settings it will train with (but for the seed), its parameters, and what was changed."""

    variant: Variant
    settings: Settings
    params: int
    note: str = ""


def parse_variants(text: str) -> list[Variant]:
    """'tied,untied' -> variants in that order."""
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in VARIANTS:
            raise BadRequest(f"--variants has {name!r}; take any of {','.join(VARIANTS)}")
    if not names or len(set(names)) < len(names):
        raise BadRequest(f"--variants is {text!r}; name each variant once, such as tied,untied")
    return [VARIANTS[name] for name in names]


def contenders(
    base: Settings, variants: list[Variant], vocab: int, match: str, anchor: str = "tied"
) -> list[Contender]:
    """Every variant's settings. With match 'params' all are brought to the count of `anchor` at its full shape."""
    if match not in MATCHES:
        raise BadRequest(f"--match is {match!r}; it is one of {', '.join(MATCHES)}")
    plain = [(v, replace(base, **v.changes)) for v in variants]
    if match != "params":
        return [Contender(v, s, count_params(s, vocab)) for v, s in plain]
    goal = count_params(replace(base, **VARIANTS[anchor].changes), vocab)
    return [_matched(v, s, vocab, goal) for v, s in plain]


def count_params(settings: Settings, vocab: int) -> int:
    """Parameters at the end of the run: one that unties on the way ends with two tables."""
    import torch

    from tiebeam.nn import GPT

    with torch.random.fork_rng(devices=[]):
        model = GPT(settings.model(vocab))
    ends = 0 if isinstance(settings.tie, bool) else model.table.weight.numel()
    return sum(p.numel() for p in model.parameters()) + ends


def _matched(variant: Variant, settings: Settings, vocab: int, goal: int) -> Contender:
    before = count_params(settings, vocab)
    if before == goal:
        return Contender(variant, settings, before, "as it is")
    best: Contender | None = None
    for shape in _shapes(settings):
        narrow, wide = (count_params(replace(shape, mlp_dim=w), vocab) for w in (GRAIN, 2 * GRAIN))
        per_unit = (wide - narrow) / GRAIN  # the count is linear in the width
        width = max(GRAIN, round((goal - narrow) / per_unit / GRAIN + 1) * GRAIN)
        found = replace(shape, mlp_dim=width)
        params = count_params(found, vocab)
        candidate = Contender(variant, found, params, _note(settings, found, params, goal))
        if best is None or abs(params - goal) < abs(best.params - goal):
            best = candidate
        if 3 * width >= shape.mlp_dim and abs(params - goal) <= TOLERANCE * goal:  # not starved, and near enough
            return candidate
    assert best is not None
    if abs(best.params - goal) > TOLERANCE * goal:
        raise BadRequest(
            f"{variant.title} cannot be brought to {goal:,} parameters: the nearest shape has {best.params:,}; "
            "take a larger trunk (--layers, --dim) or a smaller --vocab"
        )
    return best


def _shapes(settings: Settings) -> Iterator[Settings]:
    """From the whole shape to smaller ones: layers first, then width (with it the tables)."""
    for layers in range(settings.layers, 0, -1):
        yield replace(settings, layers=layers)
    step = 2 * settings.heads  # heads keep their number and an even size
    for dim in range(settings.dim - step, 0, -step):
        yield replace(settings, dim=dim, mlp_dim=max(GRAIN, settings.mlp_dim * dim // settings.dim))


def _note(before: Settings, after: Settings, params: int, goal: int) -> str:
    changes = [
        f"{name} {old} -> {new}"
        for name, old, new in (
            ("layers", before.layers, after.layers),
            ("width", before.dim, after.dim),
            ("MLP width", before.mlp_dim, after.mlp_dim),
        )
        if old != new
    ]
    off = params - goal
    return f"{', '.join(changes) or 'as it is'}: {params:,} parameters, {off:+,} ({100 * off / goal:+.2f}%) of the goal"
