"""The options of the loss, checked: the same for one rank and for several."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypedDict

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.loss_buffers import LossBuffers

Reduction = Literal["mean", "sum", "none"]
SoftcapKind = Literal["tanh", "sigmoid"]

_SIGMOID_AMPLITUDE = 32.0  # up to here the sigmoid's rounding is as small as that of the logits
_CAPS = (1e-30, 1e30)  # beyond, z / softcap leaves the range of float32


class LossAndMetrics(NamedTuple):
    """What the losses give with `return_metrics=True`. Only `loss` has a gradient."""

    loss: Tensor
    accuracy: Tensor  # []: fraction of the rows that count whose largest logit is the target's; 0 if none count
    predictions: Tensor  # [...], int64: the row of W with the largest logit, -1 in ignored rows
    z_loss: Tensor  # like loss: the part of it that is z-loss


class LossOptions(TypedDict, total=False):
    bias: Tensor | None
    softcap: float | None
    softcap_kind: SoftcapKind
    z_loss: float
    label_smoothing: float
    ignore_index: int
    reduction: Reduction
    class_weights: Tensor | None
    scale_by_probability: bool
    chunk: int | None
    buffers: LossBuffers | None


@dataclass(frozen=True, slots=True)
class Shape:
    """How a row of logits z becomes a loss: u = amplitude * curve(slope * z) + offset if capped, else u = z.

    Tanh and sigmoid are the same curve up to scale and offset, so either computes both kinds of softcap. The sigmoid
    is several times cheaper. Its values near z = 0 are near 1/2, so its rounding error in u grows with the amplitude;
    tanh(0) = 0, so tanh is exact at every amplitude.
    """

    amplitude: float = 1.0
    slope: float = 1.0
    offset: float = 0.0
    curve: SoftcapKind | None = None
    z_loss: float = 0.0
    label_smoothing: float = 0.0
    scale_by_probability: bool = False

    @property
    def capped(self) -> bool:
        return self.curve is not None

    @property
    def gain(self) -> float:
        """du/dz without the curve's own derivative."""
        return self.slope * self.amplitude if self.capped else 1.0

    def curve_(self, z: Tensor) -> Tensor:
        """curve(z), in place; z is already scaled by the slope."""
        return z.sigmoid_() if self.curve == "sigmoid" else z.tanh_()

    def curve_backward_(self, upstream: Tensor, y: Tensor) -> None:
        """Overwrite y = curve(x) by upstream * curve'(x), in one pass."""
        aten = torch.ops.aten
        backward = aten.sigmoid_backward if self.curve == "sigmoid" else aten.tanh_backward
        backward.grad_input(upstream, y, grad_input=y)


def loss_shape(
    softcap: float | None, kind: SoftcapKind, z_loss: float, label_smoothing: float, scale_by_probability: bool = False
) -> Shape:
    if kind not in ("tanh", "sigmoid"):
        raise BadRequest(f"softcap_kind={kind!r} is not supported; use 'tanh' or 'sigmoid'")
    if softcap is not None and not (_CAPS[0] <= softcap <= _CAPS[1]):
        raise BadRequest(f"softcap={softcap} must be between {_CAPS[0]:g} and {_CAPS[1]:g}, or None for no cap")
    if not math.isfinite(z_loss):
        raise BadRequest(f"z_loss={z_loss} must be finite")
    if not 0.0 <= label_smoothing <= 1.0:
        raise BadRequest(f"label_smoothing={label_smoothing} must be between 0 and 1")
    amplitude, slope, offset, curve = (1.0, 1.0, 0.0, None) if softcap is None else _cap(softcap, kind)
    return Shape(amplitude, slope, offset, curve, z_loss, label_smoothing, scale_by_probability)


def _cap(softcap: float, kind: SoftcapKind) -> tuple[float, float, float, SoftcapKind]:
    """Amplitude, slope, offset and curve of a softcap: the sigmoid where it is exact, else tanh."""
    # As a sigmoid: cap * sigmoid(4z / cap), or cap * tanh(z / cap) = 2 cap * sigmoid(2z / cap) - cap.
    amplitude, offset = (softcap, 0.0) if kind == "sigmoid" else (2 * softcap, -softcap)
    if amplitude <= _SIGMOID_AMPLITUDE:
        return amplitude, 4 / amplitude, offset, "sigmoid"
    # As a tanh: a * sigmoid(4z / a) = a/2 * tanh(2z / a) + a/2.
    return amplitude / 2, 2 / amplitude, offset + amplitude / 2, "tanh"


def check_inputs(h: Tensor, W: Tensor, targets: Tensor, bias: Tensor | None, chunk: int | None) -> None:
    if hasattr(W, "full_tensor") or hasattr(h, "full_tensor"):
        raise BadRequest(
            "h or W is a sharded DTensor; call the loss inside the FSDP module that gathers W, or pass W.full_tensor()"
        )
    if W.ndim != 2 or h.ndim < 1 or h.shape[-1] != W.shape[1]:
        raise BadRequest(f"h is {list(h.shape)} and W is {list(W.shape)}; expected [..., D] and [V, D] with the same D")
    if targets.shape != h.shape[:-1]:
        raise BadRequest(
            f"targets are {list(targets.shape)}, but h has rows {list(h.shape[:-1])}; expected one target per row"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise BadRequest(f"targets are {targets.dtype}; expected token ids of an integer dtype")
    if bias is not None and bias.shape != W.shape[:1]:
        raise BadRequest(f"bias is {list(bias.shape)}, but W has {W.shape[0]} rows; expected one bias per row")
    if chunk is not None and chunk < 1:
        raise BadRequest(f"chunk={chunk} must be a number of tokens, at least 1")
    if not (h.is_floating_point() and W.is_floating_point()):
        raise BadRequest(f"h is {h.dtype} and W is {W.dtype}; expected floating point")


def check_class_weights(class_weights: Tensor | None, vocab: int) -> None:
    if class_weights is None:
        return
    if class_weights.shape != (vocab,) or not class_weights.is_floating_point():
        raise BadRequest(
            f"class_weights are {list(class_weights.shape)} of {class_weights.dtype}; expected [{vocab}] of floats"
        )
    if class_weights.requires_grad:
        raise BadRequest("class_weights have requires_grad=True, but get no gradient; pass class_weights.detach()")


def targets_mean_to_1(class_weights: Tensor, targets: Tensor) -> Tensor:  # [V], [N] -> [V]
    """Scaled so that the targets' mean weight is 1: then a mean over rows divides by the sum of their weights."""
    of_targets = class_weights[targets].sum()
    return class_weights * torch.where(of_targets == 0, 0.0, targets.numel() / of_targets)
