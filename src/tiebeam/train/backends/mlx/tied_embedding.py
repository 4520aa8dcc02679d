"""One table for both ends, and one buffer for its gradient, as in tiebeam.nn.tied_embedding.

The lookup hands out, besides the embeddings, an alias of the table for the head to multiply by. To the transformation
the alias is an output of the lookup, so the head's dense gradient arrives at the lookup's vjp, which adds its rows to
it: no second [V, D] for the lookup, and none for the sum.
"""

from __future__ import annotations

from typing import cast

import mlx.core as mx
import mlx.nn as nn


class Table(nn.Module):
    def __init__(self, vocab: int, dim: int, input_grad_scale: float = 1.0) -> None:
        super().__init__()
        self.weight = mx.zeros((vocab, dim))
        self.input_grad_scale = input_grad_scale

    def embed(self, ids: mx.array) -> tuple[mx.array, mx.array]:  # [...] -> [..., D], [V, D]
        scale = self.input_grad_scale

        def look_up(W: mx.array) -> tuple[mx.array, mx.array]:
            return W[ids], W

        tied = mx.custom_function(look_up)

        @tied.vjp
        def backward(
            primals: mx.array, upstream: tuple[mx.array, mx.array], made: tuple[mx.array, mx.array]
        ) -> mx.array:
            dx, dW = upstream
            return dW.at[ids].add(dx if scale == 1.0 else dx * scale)

        x, alias = cast(tuple[mx.array, mx.array], tied(self.weight))
        return x, alias
