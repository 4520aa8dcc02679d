"""Loss and gradients of one step over micro-batches, and where the embedding's gradient comes from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_map

from tiebeam.corpus.batches import Batch
from tiebeam.nn.provenance import Provenance
from tiebeam.train.backends.mlx.gpt import GPT


@dataclass(frozen=True, slots=True)
class Gradients:
    loss: float
    tree: dict[str, Any]
    """Nested as `trainable_parameters()` is."""
    lookups: list[tuple[npt.NDArray[np.int64], mx.array]]
    """For each micro-batch, the ids and the gradient of their embeddings [B, T, width]."""


def loss_and_gradients(model: GPT, ids: mx.array, targets: mx.array, **options: Any) -> tuple[mx.array, dict[str, Any]]:
    """The loss and the gradient of every parameter, nested as `trainable_parameters()` is."""
    loss, (tree, _) = _differentiate(model, ids, targets, options)
    return loss, tree


def accumulated(model: GPT, batches: Iterable[Batch], count: int, **options: Any) -> Gradients:
    """The mean loss over `count` micro-batches and its gradients; each is evaluated before the next begins."""
    total, tree, lookups = 0.0, None, []
    for _, (x, y) in zip(range(count), batches, strict=False):
        loss, (gradients, dx) = _differentiate(model, mx.array(x), mx.array(y), options, 1.0 / count)
        tree = gradients if tree is None else tree_map(mx.add, tree, gradients)
        mx.eval(loss, tree, dx)
        total += float(np.array(loss))
        lookups.append((x, dx))
    assert tree is not None
    return Gradients(total, tree, lookups)


def _differentiate(
    model: GPT, ids: mx.array, targets: mx.array, options: dict[str, Any], weight: float = 1.0
) -> tuple[mx.array, tuple[dict[str, Any], mx.array]]:
    parameters = model.trainable_parameters()
    head = model.head_weight()
    ids = ids.astype(mx.int32)

    def loss_of(parameters: dict[str, Any], probe: mx.array) -> mx.array:
        model.update(parameters)
        return model.loss(ids, targets, probe=probe, plain=head, **options) * weight

    probe = mx.zeros((*ids.shape, model.table.weight.shape[1]))
    loss, found = mx.value_and_grad(loss_of, argnums=(0, 1))(parameters, probe)
    model.update(parameters)
    return loss, found


def provenance(model: GPT, gradients: Gradients) -> dict[str, float]:
    """The lookup's and the head's part of the embedding's gradient, as `tiebeam.nn.Provenance` reports them."""
    width = model.table.weight.shape[1]
    tree = gradients.tree
    table = tree["tok_emb"] if model.config.arch == "golf" else tree["model"]["embed_tokens"]
    total = np.array(table["weight"], np.float64)  # [V, D]
    if not model.tied:
        head = np.array(tree["lm_head"]["weight"], np.float64)
        return _provenance(total, head, np.vdot(total, head))
    ids, where = np.unique(np.concatenate([x.reshape(-1) for x, _ in gradients.lookups]), return_inverse=True)
    lookup = np.zeros((len(ids), width))
    rows = np.concatenate([np.array(dx).reshape(-1, width) for _, dx in gradients.lookups])
    np.add.at(lookup, where, rows.astype(np.float64) * model.config.input_grad_scale)
    head = total[ids] - lookup
    total[ids] = head  # what remains is the head's part
    return _provenance(lookup, total, np.vdot(lookup, head))


def _provenance(lookup: npt.NDArray[np.float64], head: npt.NDArray[np.float64], inner: Any) -> dict[str, float]:
    return Provenance.of(float(np.vdot(lookup, lookup)), float(np.vdot(head, head)), float(inner)).to_dict()
