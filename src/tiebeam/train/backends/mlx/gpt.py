"""The GPT of tiebeam.nn on MLX: the same configuration, tensor names, numbers and interface.

`GPT(config)(ids)` gives logits, `GPT(config)(ids, targets)` the loss. Parameters are named as the checkpoint names its
tensors. `lm_head` is None while the pair is tied: one table, and one entry among the parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten

from tiebeam.errors import BadRequest
from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.train.backends.mlx import golf_blocks, qwen3_blocks
from tiebeam.train.backends.mlx.initial_weights import initial_weights
from tiebeam.train.backends.mlx.loss import softcapped, tied_cross_entropy
from tiebeam.train.backends.mlx.tied_embedding import Table
from tiebeam.train.learning_rates import Role

HEAD = "lm_head.weight"


class GPT(nn.Module):
    lm_head: nn.Linear | None
    bridge: nn.Linear | None
    embed_proj: nn.Linear | None
    head_proj: nn.Linear | None

    def __init__(self, config: GPTConfig, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        width = config.embed_dim or config.dim
        table = Table(config.vocab, width, config.input_grad_scale)
        if config.arch == "golf":
            self.tok_emb = table
            self.blocks = [golf_blocks.Block(config) for _ in range(config.layers)]
            self.skip_weights = mx.ones((config.layers // 2, config.dim))
        else:
            self.model = qwen3_blocks.Layers(config, table)
        self.lm_head = None if config.starts_tied else _linear(width, config.vocab)
        self.bridge = _linear(config.dim, config.dim) if config.bridge else None
        self.embed_proj = _linear(width, config.dim) if config.embed_dim else None
        self.head_proj = _linear(config.dim, width) if config.embed_dim else None
        shapes = {name: tensor.shape for name, tensor in self.tensors().items()}
        self.load(initial_weights(config, shapes, self.table_name, seed))

    @property
    def table(self) -> Table:
        table: Table = self.tok_emb if self.config.arch == "golf" else self.model.embed_tokens
        return table

    @property
    def table_name(self) -> str:
        return "tok_emb.weight" if self.config.arch == "golf" else "model.embed_tokens.weight"

    @property
    def tied(self) -> bool:
        return self.lm_head is None

    @property
    def size(self) -> int:
        """Parameters, each once."""
        return sum(int(tensor.size) for tensor in self.tensors().values())

    def tensors(self) -> dict[str, mx.array]:
        """Every parameter by its name in the checkpoint."""
        return dict(tree_flatten(self.trainable_parameters()))

    def load(self, weights: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load weights by name: every parameter, nothing else, in its shape."""
        try:
            self.load_weights([(name, mx.array(array)) for name, array in weights.items()], strict=True)
        except ValueError as error:
            raise BadRequest(f"the weights do not fit this model: {str(error).splitlines()[0]}") from None
        mx.eval(self.parameters())

    def __call__(self, ids: mx.array, targets: mx.array | None = None, **options: Any) -> mx.array:
        """[B, T] -> logits [B, T, V], or the loss [] if there are targets; `options` are those of `loss`."""
        if targets is None:
            h, W = self.hidden(ids)
            return softcapped(self._before_head(h) @ W.T, self.config.softcap)
        return self.loss(ids, targets, **options)

    def loss(  # [B, T] x 2 -> []
        self, ids: mx.array, targets: mx.array, *, probe: mx.array | None = None, **options: Any
    ) -> mx.array:
        """`options` are those of tied_cross_entropy. `probe` [B, T, width] is added to the embeddings, so that its
        gradient is the gradient of the embeddings."""
        h, W = self.hidden(ids, probe)
        return tied_cross_entropy(self._before_head(h), W, targets, **{"softcap": self.config.softcap, **options})

    def hidden(self, ids: mx.array, probe: mx.array | None = None) -> tuple[mx.array, mx.array]:
        """[B, T] -> the final hidden states [B, T, D], normed, and the matrix of the head [V, width]."""
        if ids.shape[1] > self.config.context:
            raise BadRequest(f"{ids.shape[1]} tokens exceed the context of {self.config.context}; pass fewer")
        x, alias = self.table.embed(ids)
        if probe is not None:
            x = x + probe
        if self.embed_proj is not None:
            x = self.embed_proj(x)
        if self.config.arch == "golf":
            h = golf_blocks.layers(x, self.blocks, self.skip_weights, self.config.norm_eps)
        else:
            h = self.model(x)
        return h, alias if self.lm_head is None else self.lm_head.weight

    def _before_head(self, h: mx.array) -> mx.array:
        bridge = self.bridge if self.bridge is not None else self.head_proj
        return h if bridge is None else bridge(h)

    def head_weight(self) -> mx.array:  # [V, width]
        weight: mx.array = self.table.weight if self.lm_head is None else self.lm_head.weight
        return weight

    def untie(self) -> None:
        """Give the head its own matrix, a copy of the table."""
        if self.lm_head is not None:
            raise BadRequest("the model is already untied")
        head = _linear(1, 1)
        head.weight = mx.array(self.table.weight)
        self.lm_head = head

    def roles(self) -> dict[str, Role]:
        """The role of each parameter for the optimizers, as in tiebeam.nn: table, head, matrices or scalars."""
        linear = {f"{name}.weight" for name, module in self.named_modules() if isinstance(module, nn.Linear)}

        def role(name: str) -> Role:
            if name == self.table_name:
                return "table"
            return "head" if name == HEAD else "matrices" if name in linear else "scalars"

        return {name: role(name) for name in self.tensors()}

    def export(self, *, fold: bool = False) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """config.json and the tensors of a checkpoint, the same as the torch GPT exports."""
        config = self.config.to_hf(tied=self.tied, fold=fold)
        tensors = {name: np.array(tensor) for name, tensor in self.tensors().items()}
        if self.config.foldable:
            head = tensors.pop(HEAD, tensors[self.table_name])
            if (bridge := tensors.pop("bridge.weight", None)) is not None:
                head = head @ bridge
            if (up := tensors.pop("embed_proj.weight", None)) is not None:
                tensors[self.table_name] = tensors[self.table_name] @ up.T
                head = head @ tensors.pop("head_proj.weight")
            tensors[HEAD] = head
        return {**config, "dtype": "float32"}, tensors


def _linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)
