"""torch: the parts of a tied model that anyone can drop into their own, and a small GPT made of them.

    table = TiedEmbedding(vocab=50257, dim=768)
    loss = table.loss(trunk(table.embed(ids)), targets)  # no [N, V] logits, one gradient buffer
    loss.backward()

`tied_cross_entropy(h, W, targets)` is that loss alone, for any table or head. `gradient_provenance(table)` tells the
lookup's part of the gradient from the head's. `GPT(GPTConfig(...))(ids, targets)` is a whole model, and
`shard_vocabulary(model)` shares its table out over the ranks of a job (sharded.py says how).
"""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as missing:
    from tiebeam.errors import MissingExtra

    raise MissingExtra("tiebeam.nn", "train") from missing

from tiebeam.nn.config import GPTConfig
from tiebeam.nn.gpt import GPT
from tiebeam.nn.loss import tied_cross_entropy
from tiebeam.nn.provenance import Provenance, gradient_provenance
from tiebeam.nn.sharded import (
    ShardedEmbedding,
    keep_from_ddp,
    shard_vocabulary,
    sharded_parameters,
    whole_model,
)
from tiebeam.nn.table import TiedEmbedding, tied_init_std
from tiebeam.nn.untying import split_parameter

__all__ = [
    "GPT",
    "GPTConfig",
    "Provenance",
    "ShardedEmbedding",
    "TiedEmbedding",
    "gradient_provenance",
    "keep_from_ddp",
    "shard_vocabulary",
    "sharded_parameters",
    "split_parameter",
    "tied_cross_entropy",
    "tied_init_std",
    "whole_model",
]
