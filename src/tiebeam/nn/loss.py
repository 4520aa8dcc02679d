"""Cross-entropy through a vocabulary matrix without the [N, V] logits: the public function."""

from __future__ import annotations

from typing import Literal, Unpack, overload

import torch
from torch import Tensor

from tiebeam.errors import BadRequest
from tiebeam.nn.loss_buffers import LossBuffers
from tiebeam.nn.loss_function import fused_loss
from tiebeam.nn.loss_options import (
    LossAndMetrics,
    LossOptions,
    Reduction,
    SoftcapKind,
    check_class_weights,
    check_inputs,
    loss_shape,
)


@overload
def tied_cross_entropy(
    h: Tensor, W: Tensor, targets: Tensor, *, return_metrics: Literal[False] = False, **options: Unpack[LossOptions]
) -> Tensor: ...


@overload
def tied_cross_entropy(
    h: Tensor, W: Tensor, targets: Tensor, *, return_metrics: Literal[True], **options: Unpack[LossOptions]
) -> LossAndMetrics: ...


def tied_cross_entropy(  # [..., D], [V, D], [...] -> scalar, or [...] with reduction="none"
    h: Tensor,
    W: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,  # [V]
    softcap: float | None = None,
    softcap_kind: SoftcapKind = "tanh",
    z_loss: float = 0.0,
    label_smoothing: float = 0.0,
    ignore_index: int = -100,
    reduction: Reduction = "mean",
    class_weights: Tensor | None = None,  # [V]
    scale_by_probability: bool = False,
    return_metrics: bool = False,
    chunk: int | None = None,
    buffers: LossBuffers | None = None,
) -> Tensor | LossAndMetrics:
    """`F.cross_entropy(softcap(F.linear(h, W, bias)), targets)`, in a fraction of its memory.

    Memory beyond the gradients is one chunk of logits, 4 * chunk * V bytes. It works in float64, float32, bf16 and
    under autocast; half-precision inputs give a float32 loss.

    Args:
        h: hidden states [..., D].
        W: any [V, D] matrix: a tied embedding or an untied head.
        targets: token ids [...].
        bias: [V], added to the logits before the softcap.
        softcap: cap of the logits, or None.
        softcap_kind: "tanh" is cap * tanh(z / cap), as in parameter-golf and Gemma. "sigmoid" is
            cap * sigmoid(4 z / cap), with slope 1 at z = 0 and range (0, cap); modded-nanogpt's 30 * sigmoid(z / 7.5)
            is softcap=30.
        z_loss: adds z_loss * logsumexp(logits)^2 to each row, with capped logits.
        label_smoothing: as in F.cross_entropy.
        ignore_index: rows with this target do not count in the loss, the mean, or the gradients.
        reduction: "mean" is over the rows that count; if there are none, loss and gradients are 0, where
            F.cross_entropy returns NaN. "sum", or "none" for the loss of each row.
        class_weights: [V], the `weight` of F.cross_entropy: how much each token counts as a target. "mean" divides by
            the sum of the targets' weights. The z-loss is not weighted. No gradient with respect to them.
        scale_by_probability: multiplies each row's loss by the model's probability of its target, as a constant
            (dynamic fine-tuning; Liger's token scaling). "mean" still divides by the number of rows that count.
        return_metrics: also return accuracy, predictions and z-loss, as a `LossAndMetrics`.
        chunk: tokens per chunk; by default chosen from V, D and the number of tokens.
        buffers: keeps the logits and the gradients' memory from step to step, so that no fresh memory is needed.

    Returns:
        A scalar, or [...] with reduction="none"; with return_metrics a `LossAndMetrics` that has it as `loss`.

    Raises:
        BadRequest: shapes or dtypes do not fit, a target is out of range, or the gradient would have to be
            differentiated again (create_graph=True, torch.func), because it is computed in the forward pass.

    >>> h = torch.randn(4, 10, 16, requires_grad=True)
    >>> W = torch.randn(100, 16, requires_grad=True)
    >>> targets = torch.randint(100, (4, 10))
    >>> loss = tied_cross_entropy(h, W, targets)
    >>> expected = torch.nn.functional.cross_entropy((h @ W.T).flatten(0, 1), targets.flatten())
    >>> torch.allclose(loss, expected, atol=1e-5)
    True
    >>> loss.backward()

    Rare tokens count more, frequent ones less:

    >>> weights = 1 / (1 + torch.bincount(targets.flatten(), minlength=100))
    >>> loss = tied_cross_entropy(h, W, targets, class_weights=weights)
    >>> expected = torch.nn.functional.cross_entropy((h @ W.T).flatten(0, 1), targets.flatten(), weight=weights)
    >>> torch.allclose(loss, expected, atol=1e-5)
    True

    Tokens that the model finds improbable pull less:

    >>> bool(tied_cross_entropy(h, W, targets, scale_by_probability=True) < tied_cross_entropy(h, W, targets))
    True

    Accuracy comes with the loss, without a second pass over the vocabulary:

    >>> found = tied_cross_entropy(h, W, targets, return_metrics=True)
    >>> torch.equal(found.predictions, (h @ W.T).argmax(-1))
    True
    >>> torch.equal(found.accuracy, (found.predictions == targets).float().mean())
    True
    """
    if reduction not in ("mean", "sum", "none"):
        raise BadRequest(f"reduction={reduction!r} is not supported; use 'mean', 'sum' or 'none'")
    shape = loss_shape(softcap, softcap_kind, z_loss, label_smoothing, scale_by_probability)
    check_inputs(h, W, targets, bias, chunk)
    check_class_weights(class_weights, W.shape[0])
    rows = h.reshape(-1, W.shape[1])
    loss, metrics = fused_loss(
        rows, W, bias, targets, class_weights, shape, ignore_index, reduction, chunk, return_metrics, buffers
    )
    return loss if metrics is None else LossAndMetrics(loss, *metrics)


def softcapped(z: Tensor, softcap: float | None, kind: SoftcapKind = "tanh") -> Tensor:
    """Apply the softcap to full logits."""
    if softcap is None:
        return z
    return softcap * (torch.tanh(z / softcap) if kind == "tanh" else torch.sigmoid(z * (4.0 / softcap)))
