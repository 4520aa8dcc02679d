"""The variants of a comparison, and how they are matched: by steps, by time, or by parameters.

With match="params" the anchor variant keeps its shape, and the MLP width of every other variant is changed until its
exact parameter count is as close as possible. A model that would lose most of its MLP loses layers instead, or width.
`VariantConfig.note` says what was changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from tiebeam.errors import BadRequest
from tiebeam.train import Settings

WIDTH_MULTIPLE = 8  # other widths are slow
TOLERANCE = 0.02
MATCHES = ("steps", "time", "params")


Expectation = Literal["lower", "no higher"]


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to join embedding and head, or to train them."""

    name: str
    title: str
    colour: str
    changes: dict[str, Any]
    """Fields of `Settings`."""
    claim: str
    source: str
    adds: str
    """Parameters it adds to `against`, with V the vocabulary and D the width."""
    against: str = "tied"
    """The variant that it modifies, and is compared with."""
    expects: Expectation = "lower"
    """What the claim says about the held-out loss at equal steps."""
    embed_share: float | None = None
    """Width of a factorized embedding, as a fraction of the model's width."""

    def apply(self, base: Settings) -> Settings:
        """The settings of this variant, with the shape of `base`."""
        narrow = {} if self.embed_share is None else {"embed_dim": max(1, round(self.embed_share * base.dim))}
        return replace(base, **{**self.changes, **narrow})

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


_TIED = {"tie": True, "bridge": False}
_UNTIED = {"tie": False, "bridge": False}

VARIANTS = {
    v.name: v
    for v in (
        Variant(
            "tied", "tied", "#2a86c8", _TIED, "one matrix: fewer parameters, no higher loss", "arXiv 1608.05859",
            "nothing", against="untied", expects="no higher",
        ),
        Variant(
            "untied", "untied", "#d55e00", _UNTIED, "two matrices: lower loss at equal steps", "arXiv 2603.26663",
            "V*D",
        ),
        Variant(
            "then", "tied, then untied", "#9467bd", {"tie": 0.67, "bridge": False},
            "untied after 2/3 of the run: lower loss", "modded-nanogpt #178", "V*D",
        ),
        Variant(
            "bridge", "tied + bridge", "#009e73", {"tie": True, "bridge": True},
            "a linear map before a tied head: lower loss", "ACL D18-1323", "D*D",
        ),
        Variant(
            "factorised", "factorised", "#8c6d31", _TIED, "a table half as wide with two maps: no higher loss",
            "arXiv 1909.11942", "D*D - V*D/2", expects="no higher", embed_share=0.5,
        ),
        Variant(
            "input-grad", "input gradient x 2", "#17becf", {**_TIED, "input_grad_scale": 2.0},
            "a larger input gradient against the output bias: lower loss", "arXiv 2603.26663", "nothing",
        ),
        Variant(
            "coupled", "coupled Adam", "#e377c2", {**_TIED, "coupled_adam": True},
            "one second moment over the vocabulary: lower loss", "arXiv 2502.08441", "nothing",
        ),
        Variant(
            "zero-head", "untied, zero head", "#bcbd22", {**_UNTIED, "zero_head": True},
            "an untied head that starts at zero: lower loss", "parameter-golf", "nothing", against="untied",
        ),
        Variant(
            "embed-norm", "norm after embedding", "#7f7f7f", {**_TIED, "embed_norm": True},
            "RMSNorm after the embedding: lower loss", "modded-nanogpt #175", "nothing",
        ),
        Variant(
            "softcap", "logit softcap 15", "#c44e52", {**_TIED, "softcap": 15.0},
            "logits capped by 15 tanh(z / 15): lower loss", "arXiv 2408.00118", "nothing",
        ),
        Variant(
            "z-loss", "z-loss 1e-4", "#4c72b0", {**_TIED, "z_loss": 1e-4},
            "1e-4 logsumexp^2: stable logits, no higher loss", "arXiv 2204.02311", "nothing", expects="no higher",
        ),
        Variant(
            "bigram", "bigram table", "#55a868", {**_TIED, "bigram_rows": 4096},
            "a hashed bigram table at the input: lower loss", "arXiv 2501.16975", "4096*D",
        ),
        Variant(
            "pseudo-inverse", "pseudo-inverse tying", "#ccb974", {**_TIED, "pseudo_inverse": True},
            "head = pseudo-inverse of the embedding: no higher loss", "arXiv 2602.04556", "D*D", expects="no higher",
        ),
    )
}  # fmt: skip

SUITES = {
    "frontier": (
        *("tied", "untied", "then", "bridge", "factorised", "input-grad", "coupled", "zero-head", "embed-norm"),
        *("softcap", "z-loss", "bigram", "pseudo-inverse"),
    )
}
"""Lists of variants by name, for `tiebeam compare --suite`."""


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


def suite(name: str) -> list[Variant]:
    """The variants of a suite.

    >>> len(suite("frontier")) == len(VARIANTS)
    True
    """
    if name not in SUITES:
        raise BadRequest(f'suite="{name}" is not one of {", ".join(SUITES)}')
    return [VARIANTS[variant] for variant in SUITES[name]]


def variant_configs(
    base: Settings, variants: list[Variant], vocab: int, match: str, anchor: str = "tied"
) -> list[VariantConfig]:
    """Settings of every variant. With match="params" all are matched to the parameter count of `anchor`."""
    if match not in MATCHES:
        raise BadRequest(f'match="{match}" is not one of {", ".join(MATCHES)}')
    plain = [(v, v.apply(base)) for v in variants]
    if match != "params":
        return [VariantConfig(v, s, count_params(s, vocab)) for v, s in plain]
    goal = count_params(VARIANTS[anchor].apply(base), vocab)
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
