"""A small GPT around a tied embedding, in two architectures: `GPT(config)(ids, targets)` is the loss.

The modules are named as the checkpoint names its tensors, so `state_dict()` is the checkpoint: Hugging Face's
Qwen3 names for the standard architecture, parameter-golf's for golf. `lm_head` is None while the pair is tied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tiebeam.errors import BadRequest
from tiebeam.nn import golf_blocks, qwen3_blocks
from tiebeam.nn.attention import rotary
from tiebeam.nn.bigram_table import BigramTable
from tiebeam.nn.gpt_config import GPTConfig
from tiebeam.nn.pseudo_inverse import SPDMap, orthonormalize_
from tiebeam.nn.tied_embedding import TiedEmbedding
from tiebeam.surgery.split_parameter import split_parameter

if TYPE_CHECKING:
    from tiebeam.surgery.split_parameter import Optimizers


class GPT(nn.Module):
    """A small GPT, tied or untied.

    Args:
        config: shape, architecture and tie; see `GPTConfig`.

    `model(ids)` returns logits [B, T, V]. `model(ids, targets)` returns the mean loss without holding the logits;
    further keyword arguments are those of `tied_cross_entropy`.

    Raises:
        BadRequest: ids are not [batch, time], or longer than the context.

    >>> model = GPT(GPTConfig(vocab=100, dim=32, layers=2, heads=4))
    >>> ids = torch.randint(100, (2, 9))
    >>> model(ids).shape
    torch.Size([2, 9, 100])
    >>> model(ids[:, :-1], ids[:, 1:]).shape
    torch.Size([])
    >>> model.tied, model.lm_head
    (True, None)
    >>> _ = model.untie()
    >>> model.tied
    False
    """

    lm_head: nn.Linear | None
    bridge: nn.Linear | None
    embed_proj: nn.Linear | None
    head_proj: nn.Linear | None
    bigram: BigramTable | None
    spd: SPDMap | None

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.embed_dim or config.dim
        table = TiedEmbedding(
            config.vocab, width, config.init_std, config.softcap, input_grad_scale=config.input_grad_scale
        )
        if config.arch == "golf":
            self.tok_emb = table
            self.blocks = nn.ModuleList(golf_blocks.Block(config) for _ in range(config.layers))
            self.skip_weights = nn.Parameter(torch.empty(golf_blocks.skip_count(config.layers), config.dim))
        else:
            self.model = qwen3_blocks.Layers(config, table)
        self.lm_head = None if config.starts_tied else _linear(width, config.vocab)
        self.bridge = _linear(config.dim, config.dim) if config.bridge else None
        self.embed_proj = _linear(width, config.dim) if config.embed_dim else None
        self.head_proj = _linear(config.dim, width) if config.embed_dim else None
        self.bigram = BigramTable(config.bigram_rows, config.dim) if config.bigram_rows else None
        self.spd = SPDMap(config.dim) if config.pseudo_inverse else None
        self._reset_rest()

    def reset_parameters(self) -> None:
        """Initialize every weight; also for a model that was moved from the meta device by `to_empty`."""
        self.table.reset_parameters()
        self._reset_rest()

    def _reset_rest(self) -> None:
        if self.config.arch == "golf":
            for block in self.blocks:
                cast(golf_blocks.Block, block).reset_parameters()
            nn.init.ones_(self.skip_weights)
        else:
            self.model.reset_parameters()
        if self.lm_head is not None:
            if self.config.starts_tied:  # untied during training
                with torch.no_grad():
                    self.lm_head.weight.copy_(self.table.weight)
            elif self.config.arch == "golf" or self.config.zero_head:
                nn.init.zeros_(self.lm_head.weight)
            else:
                self.table.init_(self.lm_head.weight, std=0.02)
        if self.bridge is not None:
            nn.init.eye_(self.bridge.weight)
        if self.embed_proj is not None and self.head_proj is not None:
            # An isometry and its inverse: the factorized pair starts as a tied pair of that rank.
            nn.init.orthogonal_(self.embed_proj.weight)
            with torch.no_grad():
                self.head_proj.weight.copy_(self.embed_proj.weight.t())
        if self.bigram is not None:
            self.bigram.reset_parameters()
        if self.spd is not None:
            self.spd.reset_parameters()
            self.restore_constraints()

    def restore_constraints(self) -> None:
        """After an optimizer step: make the table of a pseudo-inverse pair orthonormal again."""
        if self.spd is not None and not self.table.weight.is_meta:
            orthonormalize_(self.table.weight)

    @property
    def table(self) -> TiedEmbedding:
        return self.tok_emb if self.config.arch == "golf" else self.model.embed_tokens

    def replace_table(self, table: TiedEmbedding) -> None:
        if self.config.arch == "golf":
            self.tok_emb = table
        else:
            self.model.embed_tokens = table

    @property
    def tied(self) -> bool:
        return self.lm_head is None

    @property
    def size(self) -> int:
        """Number of parameters, each counted once."""
        return sum(p.numel() for p in self.parameters())

    def forward(
        self, ids: Tensor, targets: Tensor | None = None, **options: Any
    ) -> Tensor:  # [B, T] -> [B, T, V] or []
        h = self.hidden(ids)
        return self.logits(h) if targets is None else self.loss(h, targets, **options)

    def hidden(self, ids: Tensor) -> Tensor:  # [B, T] -> [B, T, D], normed: the input of the head
        """The final hidden states."""
        if ids.ndim != 2:
            raise BadRequest(f"ids have shape {list(ids.shape)}; expected [batch, time]")
        if ids.shape[1] > self.config.context:
            raise BadRequest(f"{ids.shape[1]} tokens exceed the context of {self.config.context}; pass fewer")
        x = self.table.embed(ids)
        if self.embed_proj is not None:
            x = self.embed_proj(x)
        if self.spd is not None:
            x = self.spd.inverse(x)
        if self.bigram is not None:
            x = x + self.bigram(ids).to(x.dtype)
        if self.config.embed_norm:
            x = golf_blocks.norm(x, self.config.norm_eps)
        return self._layers(x)

    def _layers(self, x: Tensor) -> Tensor:  # [B, T, D] -> [B, T, D]
        position = rotary(x.shape[1], self.config.head_dim, self.config.rope_theta, x)
        if self.config.arch == "golf":
            return golf_blocks.layers(x, self.blocks, self.skip_weights, position, self.config.norm_eps)
        return cast(Tensor, self.model(x, position))

    def logits(self, h: Tensor) -> Tensor:  # [..., D] -> [..., V]
        h = self._before_head(h)
        return self.table.logits(h, head=None if self.lm_head is None else self.lm_head.weight)

    def loss(self, h: Tensor, targets: Tensor, **options: Any) -> Tensor:  # [..., D], [...] -> []
        h = self._before_head(h)
        return self.table.loss(h, targets, head=None if self.lm_head is None else self.lm_head.weight, **options)

    def _before_head(self, h: Tensor) -> Tensor:
        bridge = self.bridge or self.head_proj or self.spd
        return h if bridge is None else cast(Tensor, bridge(h))

    def untie(self, optimizer: Optimizers = None, *, own_group: bool = False) -> nn.Parameter:
        """Give the head its own parameter, a copy of the table with its optimizer state; returns it."""
        if self.lm_head is not None:
            raise BadRequest("the model is already untied")
        table = self.table
        weight = split_parameter(table.weight, optimizer, own_group=own_group)
        head = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
        head.weight = weight
        self.lm_head = head
        return weight

    def roles(self) -> dict[str, list[nn.Parameter]]:
        """Every parameter once, by its role for the optimizers: table, head, matrices, scalars.

        "head" is empty while tied. "matrices" are the linear layers, which Muon is for; "scalars" are norms, gains,
        residual mixes, the bigram table and the factor of a pseudo-inverse pair, of any shape.
        """
        linear = {id(m.weight) for m in self.modules() if isinstance(m, nn.Linear)}
        roles: dict[str, list[nn.Parameter]] = {"table": [], "head": [], "matrices": [], "scalars": []}
        for parameter in self.parameters():
            if parameter is self.table.weight:
                role = "table"
            elif self.lm_head is not None and parameter is self.lm_head.weight:
                role = "head"
            else:
                role = "matrices" if id(parameter) in linear else "scalars"
            roles[role].append(parameter)
        return roles

    @torch.no_grad()
    def export(self, *, fold: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """config.json and the tensors of a checkpoint, each tensor contiguous and stored once.

        A model with matrices that its format lacks (a bridge, a factorized embedding, a pseudo-inverse pair) is refused
        unless `fold=True`, which multiplies them into an untied embedding and head that every Qwen3 loader can open.
        """
        if self.table.weight.shape[0] != self.config.vocab:
            raise BadRequest("this rank holds a shard of the vocabulary; export gather_model(model) on rank 0")
        config = self.config.to_hf(tied=self.tied, fold=fold)
        tensors = {name: tensor.detach().contiguous() for name, tensor in self.state_dict().items()}
        if self.config.foldable:
            name = "tok_emb.weight" if self.config.arch == "golf" else "model.embed_tokens.weight"
            head = tensors.pop("lm_head.weight", tensors[name])
            if (bridge := tensors.pop("bridge.weight", None)) is not None:
                head = head @ bridge
            if (up := tensors.pop("embed_proj.weight", None)) is not None:
                tensors[name] = tensors[name] @ up.t()
                head = head @ tensors.pop("head_proj.weight")
            if self.spd is not None:
                del tensors["spd.weight"]
                tensors[name], head = self.spd.inverse(tensors[name]).contiguous(), self.spd(head)
            tensors["lm_head.weight"] = head
        config["dtype"] = str(self.table.weight.dtype).removeprefix("torch.")
        return config, tensors


def _linear(inputs: int, outputs: int) -> nn.Linear:
    """Without initialization. Not nn.utils.skip_init, which ends on the CPU even under `torch.device("meta")`."""
    return nn.Linear(inputs, outputs, bias=False, device="meta").to_empty(device=torch.get_default_device())
