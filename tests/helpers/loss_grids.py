"""The option grids on which Liger (0.8.5) and cut-cross-entropy (25.1) test their losses, run on ours.

python tests/helpers/loss_grids.py prints the table of docs/loss.md. Shapes are smaller than the peers'.
Every case is judged by plain PyTorch in float64. The plain loss in the case's own dtype is the second column of errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch

from helpers.plain_loss import plain_loss
from tiebeam.errors import BadRequest
from tiebeam.nn import tied_cross_entropy

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
BOTH, ALL = ("sum", "mean"), ("sum", "mean", "none")
# Of the largest true value. A gradient in half precision is rounded to 8 or 11 bits, and so are autocast's products.
LIMIT = {F32: 2e-6, BF16: 8e-3, F16: 2e-3}
MIXED = [{"ignore_index": -100, "z_loss": 1e-4, "label_smoothing": 0.1, "softcap": 30.0},
         {"ignore_index": 42, "z_loss": 1e-5, "label_smoothing": 0.2, "softcap": 40.0}]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call. Without `dim` h holds the logits and W is the identity: a plain cross-entropy."""

    rows: int = 32
    vocab: int = 64
    dim: int | None = None
    dtype: torch.dtype = F32
    options: dict[str, Any] = field(default_factory=dict)
    ignored: bool = False
    bias: bool = False
    weights: str = ""  # "positive", or "any" sign
    upstream: str = "one"  # "one", "drawn", or "rows" for one per row
    confident: bool = False
    autocast: torch.dtype | None = None
    wanted: tuple[bool, bool, bool] = (True, True, True)  # gradients of h, W and bias
    out_of_range: bool = False


@dataclass(frozen=True)
class Errors:
    """Relative to the largest true value, over loss and gradients."""

    ours: float
    plain: float
    limit: float

    @property
    def equal(self) -> bool:
        return self.ours <= self.limit


def run(case: Case) -> Errors | str:
    """The errors of ours and of the plain loss in the same dtype; or the refusal."""
    h, W, bias, targets, options = _inputs(case)
    if case.out_of_range:
        targets[::3] = case.vocab + 5
        try:
            tied_cross_entropy(h, W, targets, bias=bias, **options)
        except BadRequest as refusal:
            return str(refusal)
        return "not refused"
    cast = torch.autocast("cpu", case.autocast) if case.autocast else nullcontext()
    true = _results(plain_loss, case, h.double(), W.double(), bias, targets, options)
    with cast:
        metrics = tied_cross_entropy(h, W, targets, bias=bias, return_metrics=True, **options)
        mine = _results(tied_cross_entropy, case, h, W, bias, targets, options)
        plain = _results(plain_loss, case, h, W.to(case.dtype), bias, targets, options)
    _check_metrics(metrics, h, W, bias, targets, options)
    return Errors(_worst(mine, true), _worst(plain, true), LIMIT[case.autocast or case.dtype])


def _inputs(case: Case) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, torch.Tensor, dict[str, Any]]:
    draw = torch.Generator().manual_seed(case.rows + case.vocab)
    options = dict(case.options)
    targets = torch.randint(case.vocab, (case.rows,), generator=draw)
    if case.dim is None:
        h, W = torch.randn(case.rows, case.vocab, generator=draw).to(case.dtype), torch.eye(case.vocab)
        if case.confident:
            h[torch.arange(case.rows), targets] = h.amax(1) + 10
    else:
        h = torch.randn(case.rows, case.dim, generator=draw).to(case.dtype)
        W = torch.randn(case.vocab, case.dim, generator=draw).mul(case.dim**-0.5).to(case.dtype)
    bias = torch.randn(case.vocab, generator=draw).to(case.dtype) if case.bias else None
    if case.weights:
        options["class_weights"] = (torch.rand if case.weights == "positive" else torch.randn)(
            case.vocab, generator=draw
        )
    if case.ignored:
        targets[torch.rand(case.rows, generator=draw) < 0.3] = options.get("ignore_index", -100)
    return h, W, bias, targets, options


def _results(loss, case, h, W, bias, targets, options) -> list[torch.Tensor]:
    bias = None if bias is None else bias.to(W.dtype)
    leaves = [
        None if t is None else t.detach().clone().requires_grad_(want)
        for t, want in zip((h, W, bias), case.wanted, strict=True)
    ]
    found = loss(leaves[0], leaves[1], targets, bias=leaves[2], **options)
    if any(case.wanted):
        draw = torch.Generator().manual_seed(1)
        upstream = {
            "one": torch.ones_like(found),
            "drawn": torch.full_like(found, 3 * float(torch.rand(1, generator=draw))),
            "rows": torch.rand(found.shape, generator=draw).to(found.dtype) + 0.5,
        }
        found.backward(upstream[case.upstream])
    return [found.detach(), *(t.grad for t in leaves if t is not None and t.grad is not None)]


def _worst(found: list[torch.Tensor], true: list[torch.Tensor]) -> float:
    assert len(found) == len(true)
    return max(
        float((f.double() - t).abs().max() / t.abs().max().clamp_min(1e-9)) for f, t in zip(found, true, strict=True)
    )


def _check_metrics(metrics, h, W, bias, targets, options) -> None:
    """A prediction has the largest logit (up to the rounding of half-precision products), and accuracy counts them."""
    logits = h.double() @ W.double().T + (0.0 if bias is None else bias.double())
    counted = targets != options.get("ignore_index", -100)
    assert bool((metrics.predictions[~counted] == -1).all())
    at = logits[counted].gather(1, metrics.predictions[counted].unsqueeze(1)).squeeze(1)
    assert bool((at >= logits[counted].amax(1) - 0.05).all())
    right = (metrics.predictions == targets).sum() / counted.sum()
    assert float(metrics.accuracy) == float(right)


def grid(base: dict[str, Any] | None = None, **axes: Any) -> list[Case]:
    """Every combination; an axis of dicts sets several fields, and `options` are merged."""
    cases = []
    for values in product(*axes.values()):
        fields: dict[str, Any] = {"options": {}}
        for name, value in [*(base or {}).items(), *zip(axes, values, strict=True)]:
            for key, each in value.items() if isinstance(value, dict) and name != "options" else [(name, value)]:
                if key in Case.__dataclass_fields__ and key != "options":
                    fields[key] = each
                else:
                    fields["options"] |= each if key == "options" else {key: each}
        cases.append(Case(**fields))
    return cases


SHAPES = [{"rows": 32}, {"rows": 21}]
HALF_TOO = (BF16, F32)
SOME = {"ignored": True}
LIGER = {
    "reductions": grid(shape=SHAPES, reduction=ALL, dtype=HALF_TOO),
    "four options at once": grid(
        {"options": {"ignore_index": 0, "z_loss": 1e-4, "label_smoothing": 0.1, "softcap": 30.0}},
        shape=[{"rows": 4, "vocab": 8}, {"rows": 21, "vocab": 41}], dtype=HALF_TOO,
    ),
    "upstream gradient": grid({"upstream": "drawn"}, shape=SHAPES, reduction=BOTH, dtype=HALF_TOO),
    "upstream gradient, four options": grid(
        {"upstream": "drawn", **SOME}, shape=SHAPES, options=MIXED, reduction=BOTH, dtype=HALF_TOO
    ),
    "confident predictions": grid(
        {"confident": True}, dtype=(BF16, F16), label_smoothing=(0.0, 0.1), reduction=BOTH
    ),
    "forward only": grid({"wanted": (False,) * 3}, shape=SHAPES, reduction=ALL, dtype=(F32, F16, BF16)),
    "ignored rows": grid(
        SOME, shape=[{"rows": 32, "ignore_index": 2}, {"rows": 21, "ignore_index": -123}], reduction=ALL, dtype=HALF_TOO
    ),
    "label smoothing": grid({"options": {"label_smoothing": 0.1}}, shape=SHAPES, dtype=HALF_TOO),
    "label smoothing, ignored rows": grid(
        SOME, dtype=HALF_TOO, shape=[{"rows": 32, "ignore_index": 1, "label_smoothing": 0.1},
                                     {"rows": 21, "ignore_index": -300, "label_smoothing": 0.2}],
    ),
    "targets out of range": grid({"out_of_range": True, "dtype": BF16}, shape=SHAPES),
    "predicted tokens": grid(
        SOME, shape=[{"rows": 64, "vocab": 128}, {"rows": 35, "vocab": 31}], ignore_index=(-100, 2), dtype=HALF_TOO
    ),
    "softcap": grid({"options": {"softcap": 30.0}}, shape=SHAPES, reduction=ALL, dtype=HALF_TOO),
    "class weights": grid({"weights": "positive"}, shape=SHAPES, reduction=ALL, dtype=HALF_TOO),
    "class weights, four options": grid(
        {"weights": "positive", **SOME}, shape=SHAPES, reduction=ALL, options=MIXED, dtype=HALF_TOO
    ),
    # Liger runs each of these twice, with the z-loss returned and without.
    "z-loss": 2 * grid(shape=SHAPES, z_loss=(1e-4, 1e-5), dtype=HALF_TOO),
    "z-loss, smoothing, ignored rows": grid(
        SOME, shape=SHAPES, dtype=HALF_TOO, z_loss=(1e-4, 1e-5),
        options=[{"label_smoothing": 0.1, "ignore_index": 42, "reduction": "mean"},
                 {"label_smoothing": 0.2, "ignore_index": -42, "reduction": "sum"}],
    ),
    "what is returned beside the loss": 8 * grid({"rows": 3, "vocab": 3}, dtype=(F32,)),
    "half-precision logits, float32 inside": grid({"rows": 4, "vocab": 512}, dtype=(BF16,)),
}  # fmt: skip
HEADS = [{"rows": 32, "vocab": 64, "dim": 16}, {"rows": 23, "vocab": 61, "dim": 11}]
NOTHING_OR_ALL = [
    {},
    {"weights": "positive", "label_smoothing": 0.1, "ignore_index": 42, "z_loss": 1e-4, "softcap": 30.0},
]
LIGER_FUSED = {
    "fused: options": grid(SOME, shape=HEADS, reduction=BOTH, dtype=HALF_TOO, bias=(True, False), mix=NOTHING_OR_ALL),
    "fused: forward only": grid(
        {"wanted": (False,) * 3, **SOME}, shape=HEADS, reduction=BOTH, dtype=HALF_TOO, bias=(True, False),
        mix=NOTHING_OR_ALL,
    ),
    "fused: class weights of any sign": grid(
        {"options": {"z_loss": 1e-4, "label_smoothing": 0.1, "softcap": 30.0}}, bias=(True, False), weights=("any", ""),
        shape=[{"rows": 4, "vocab": 8, "dim": 8}, {"rows": 21, "vocab": 41, "dim": 41}], dtype=HALF_TOO,
    ),
    "fused: accuracy": 2 * grid(SOME, shape=HEADS, dtype=HALF_TOO, bias=(True, False)),
    "fused: predicted tokens": grid(SOME, shape=HEADS, dtype=HALF_TOO, bias=(True, False), ignore_index=(-100, 2)),
    "fused: autocast": 2 * grid(shape=HEADS, bias=(True, False), autocast=(BF16, F16)),
    "fused: a gradient per row": grid(
        {"upstream": "rows", "options": {"reduction": "none"}}, bias=(True, False),
        shape=[{"rows": 32, "vocab": 64, "dim": 32}, {"rows": 32, "vocab": 128, "dim": 64}],
    ),
    "fused: token scaling": grid(
        {"rows": 8, "vocab": 16, "dim": 8, "bias": True, "options": {"scale_by_probability": True}},
        mix=[{"reduction": "none"}, {"reduction": "sum"}, {"reduction": "sum"}, {"reduction": "sum"},
             {"reduction": "sum", "vocab": 1000, "rows": 6, "ignored": True}],
    ),
    "fused: what is returned beside the loss": 4 * grid({"rows": 3, "vocab": 3, "dim": 2}, bias=(True,)),
}  # fmt: skip
CCE_SHAPES = [
    {"rows": rows, "vocab": vocab, "dim": dim} for rows, vocab, dim in ((32, 64, 16), (30, 61, 16), (30, 61, 13))
]
# A shift of the targets is a slice of h and of targets in our API: as many cases with fewer rows.
SHIFTED = [shape | {"rows": shape["rows"] - less} for shape in CCE_SHAPES for less in (0, 4)]
CUT_CROSS_ENTROPY = {
    "cut: backward": grid(
        shape=SHIFTED, dtype=(F16, BF16), softcap=(None, 20.0), bias=(False, True), ignored=(False, True), reduction=ALL
    ),
    "cut: forward": grid(
        {"wanted": (False,) * 3, "options": {"reduction": "none"}}, shape=SHIFTED, dtype=(F32, F16, BF16),
        softcap=(None, 20.0), bias=(False, True), ignored=(False, True),
    ),
    "cut: some of the gradients": grid(
        {**CCE_SHAPES[0], "dtype": BF16, "bias": True},
        wanted=[(True, False, True), (False, True, False), (False, False, True)],
    ),
}  # fmt: skip
FAMILIES = LIGER | LIGER_FUSED | CUT_CROSS_ENTROPY


def table() -> Iterator[str]:
    yield "| cases | count | equal | error in float32 | of PyTorch | error in half precision | of PyTorch |"
    yield "|---|---|---|---|---|---|---|"
    for name, cases in FAMILIES.items():
        found = [(case, run(case)) for case in cases]
        refused = sum(isinstance(result, str) and "out of range" in result for _, result in found)
        equal = sum(isinstance(result, Errors) and result.equal for _, result in found)
        columns = []
        for half in (False, True):
            errors = [r for c, r in found if isinstance(r, Errors) and ((c.autocast or c.dtype) != F32) == half]
            columns += [f"{max(getattr(e, side) for e in errors):.0e}" if errors else "" for side in ("ours", "plain")]
        yield f"| {name} | {len(cases)} | {f'{refused} refused' if refused else equal} | {' | '.join(columns)} |"


if __name__ == "__main__":
    torch.set_num_threads(1)  # the shapes are small
    for line in table():
        print(line, flush=True)
