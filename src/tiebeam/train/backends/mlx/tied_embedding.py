"""The tied embedding on MLX, with one buffer for its gradient, as in tiebeam.nn.tied_embedding.

The lookup returns the embeddings and an alias of the table, which the head multiplies by. For MLX's transformation the
alias is an output of the lookup, so the head's dense gradient arrives at the lookup's vjp, which adds its rows to it:
no second [V, D] buffer for the lookup, and none for the sum.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import mlx.nn as nn


class Table(nn.Module):
    """The embedding matrix, `weight` [vocab, dim]."""

    def __init__(self, vocab: int, dim: int, input_grad_scale: float = 1.0) -> None:
        super().__init__()
        self.weight = mx.zeros((vocab, dim))
        self.input_grad_scale = input_grad_scale

    def embed(self, ids: mx.array) -> tuple[mx.array, mx.array]:  # [...] -> [..., D], [V, D]
        """The embeddings of the ids, and the alias for the head."""
        scale = self.input_grad_scale

        def look_up(W: mx.array) -> tuple[mx.array, mx.array]:
            return W[ids], W

        tied = mx.custom_function(look_up)

        @tied.vjp
        def backward(
            primals: mx.array, upstream: tuple[mx.array, mx.array], outputs: tuple[mx.array, mx.array]
        ) -> mx.array:
            dx, dW = upstream
            return dW.at[ids].add(dx if scale == 1.0 else dx * scale)

        x, alias = cast(tuple[mx.array, mx.array], tied(self.weight))
        return x, alias
