"""torch: the parts of a tied model that anyone can drop into their own, and a small GPT made of them.

    table = TiedEmbedding(vocab=50257, dim=768)
    loss = table.loss(trunk(table.embed(ids)), targets)  # no [N, V] logits, one gradient buffer
    loss.backward()

`tied_cross_entropy(h, W, targets)` is that loss alone, for any table or head. `gradient_provenance(table)` tells the
lookup's part of the gradient from the head's. `GPT(GPTConfig(...))(ids, targets)` is a whole model, and
`shard_vocabulary(model)` shares its table out over the ranks of a job (sharded.py says how).
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader
from tiebeam.nn.gpt_config import GPTConfig, tied_init_std

if TYPE_CHECKING:
    from tiebeam.nn.gpt import GPT
    from tiebeam.nn.gradient_share import Provenance, gradient_provenance
    from tiebeam.nn.loss import tied_cross_entropy
    from tiebeam.nn.sharded_embedding import (
        ShardedEmbedding,
        keep_from_ddp,
        shard_vocabulary,
        sharded_parameters,
        whole_model,
    )
    from tiebeam.nn.tied_embedding import TiedEmbedding
    from tiebeam.surgery.split_parameter import split_parameter

# Loaded on first use: the configuration is also the MLX model's, on machines that have no torch.
_HOME = {
    "GPT": "tiebeam.nn.gpt",
    "Provenance": "tiebeam.nn.gradient_share",
    "ShardedEmbedding": "tiebeam.nn.sharded_embedding",
    "TiedEmbedding": "tiebeam.nn.tied_embedding",
    "gradient_provenance": "tiebeam.nn.gradient_share",
    "keep_from_ddp": "tiebeam.nn.sharded_embedding",
    "shard_vocabulary": "tiebeam.nn.sharded_embedding",
    "sharded_parameters": "tiebeam.nn.sharded_embedding",
    "split_parameter": "tiebeam.surgery.split_parameter",
    "tied_cross_entropy": "tiebeam.nn.loss",
    "whole_model": "tiebeam.nn.sharded_embedding",
}

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

__getattr__ = loader("tiebeam.nn", _HOME, torch_for="tiebeam.nn.{name}")
