"""The variants of a comparison, and how they are matched: by steps, by time, or by parameters.

With match="params" the anchor variant keeps its shape, and the MLP width of every other variant is changed until its
exact parameter count is as close as possible. A model that would lose most of its MLP loses layers instead, or width.
`VariantConfig.note` says what was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from tiebeam.errors import BadRequest
from tiebeam.train import Settings

WIDTH_MULTIPLE = 8  # other widths are slow
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
class VariantConfig:
    """A variant with its training settings (except the seed), its parameter count, and what was changed to match it."""

    variant: Variant
    settings: Settings
    params: int
    note: str = ""


def parse_variants(text: str) -> list[Variant]:
    """Parse a comma-separated list.

    >>> [variant.name for variant in parse_variants("tied,untied")]
    ['tied', 'untied']
    """
    names = [name.strip().lower() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in VARIANTS:
            raise BadRequest(f'variants="{text}" has unknown {name!r}; use any of {",".join(VARIANTS)}')
    if not names or len(set(names)) < len(names):
        raise BadRequest(f'variants="{text}" must name each variant once, for example tied,untied')
    return [VARIANTS[name] for name in names]


def variant_configs(
    base: Settings, variants: list[Variant], vocab: int, match: str, anchor: str = "tied"
) -> list[VariantConfig]:
    """Settings of every variant. With match="params" all are matched to the parameter count of `anchor`."""
    if match not in MATCHES:
        raise BadRequest(f'match="{match}" is not one of {", ".join(MATCHES)}')
    plain = [(v, replace(base, **v.changes)) for v in variants]
    if match != "params":
        return [VariantConfig(v, s, count_params(s, vocab)) for v, s in plain]
    goal = count_params(replace(base, **VARIANTS[anchor].changes), vocab)
    return [_matched(v, s, vocab, goal) for v, s in plain]


def count_params(settings: Settings, vocab: int) -> int:
    """Parameters at the end of the run: a run that unties during training ends with an embedding and an LM head."""
    import torch

    from tiebeam.nn import GPT

    with torch.random.fork_rng(devices=[]):
        model = GPT(settings.model(vocab))
    untied_later = 0 if isinstance(settings.tie, bool) else model.table.weight.numel()
    return sum(p.numel() for p in model.parameters()) + untied_later


def _matched(variant: Variant, settings: Settings, vocab: int, goal: int) -> VariantConfig:
    before = count_params(settings, vocab)
    if before == goal:
        return VariantConfig(variant, settings, before, "unchanged")
    best: VariantConfig | None = None
    for shape in _shapes(settings):
        narrow, wide = (count_params(replace(shape, mlp_dim=w), vocab) for w in (WIDTH_MULTIPLE, 2 * WIDTH_MULTIPLE))
        per_unit = (wide - narrow) / WIDTH_MULTIPLE  # the count is linear in the width
        width = max(WIDTH_MULTIPLE, round((goal - narrow) / per_unit / WIDTH_MULTIPLE + 1) * WIDTH_MULTIPLE)
        found = replace(shape, mlp_dim=width)
        params = count_params(found, vocab)
        candidate = VariantConfig(variant, found, params, _note(settings, found, params, goal))
        if best is None or abs(params - goal) < abs(best.params - goal):
            best = candidate
        if (
            3 * width >= shape.mlp_dim and abs(params - goal) <= TOLERANCE * goal
        ):  # keeps a third of its MLP, and close enough
            return candidate
    assert best is not None
    if abs(best.params - goal) > TOLERANCE * goal:
        raise BadRequest(
            f"{variant.title} cannot be matched to {goal:,} parameters: the closest shape has {best.params:,}; "
            "use more layers, a larger dim or a smaller vocab"
        )
    return best


def _shapes(settings: Settings) -> Iterator[Settings]:
    """Shapes from the full one to smaller ones: fewer layers first, then a smaller width."""
    for layers in range(settings.layers, 0, -1):
        yield replace(settings, layers=layers)
    step = 2 * settings.heads  # keeps the number of heads and an even head size
    for dim in range(settings.dim - step, 0, -step):
        yield replace(settings, dim=dim, mlp_dim=max(WIDTH_MULTIPLE, settings.mlp_dim * dim // settings.dim))


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
    change = f"{off:+,} ({100 * off / goal:+.2f}%) from the target"
    return f"{', '.join(changes) or 'unchanged'}: {params:,} parameters, {change}"
