"""torch modules for tied models: drop-in parts, and a small GPT made of them.

    table = TiedEmbedding(vocab=50257, dim=768)
    loss = table.loss(layers(table.embed(ids)), targets)  # no [N, V] logits, one gradient buffer
    loss.backward()

`tied_cross_entropy(h, W, targets)` is that loss alone, for any embedding or head. `gradient_provenance(table)` splits
the gradient into the lookup's part and the head's part. `patch(model)` gives a Hugging Face causal LM that loss.
`GPT(GPTConfig(...))(ids, targets)` is a full model, and `shard_vocabulary(model)` shards its embedding over ranks.

Importing this package does not import torch; the first use of a class or function does.
"""

from typing import TYPE_CHECKING

from tiebeam._lazy import loader
from tiebeam.nn.gpt_config import GPTConfig, tied_init_std
from tiebeam.nn.provenance import Provenance

if TYPE_CHECKING:
    from tiebeam.nn.gpt import GPT
    from tiebeam.nn.gradient_share import gradient_provenance
    from tiebeam.nn.loss import tied_cross_entropy
    from tiebeam.nn.loss_buffers import LossBuffers
    from tiebeam.nn.loss_options import LossAndMetrics
    from tiebeam.nn.patch_transformers import patch, unpatch
    from tiebeam.nn.sharded_embedding import (
        ShardedEmbedding,
        exclude_from_ddp,
        gather_model,
        shard_vocabulary,
        sharded_parameters,
    )
    from tiebeam.nn.tied_embedding import TiedEmbedding
    from tiebeam.surgery.split_parameter import split_parameter

# Loaded on first use: the MLX model uses the configuration too, on machines without torch.
_HOMES = {
    "GPT": "tiebeam.nn.gpt",
    "LossAndMetrics": "tiebeam.nn.loss_options",
    "LossBuffers": "tiebeam.nn.loss_buffers",
    "ShardedEmbedding": "tiebeam.nn.sharded_embedding",
    "TiedEmbedding": "tiebeam.nn.tied_embedding",
    "gradient_provenance": "tiebeam.nn.gradient_share",
    "patch": "tiebeam.nn.patch_transformers",
    "unpatch": "tiebeam.nn.patch_transformers",
    "exclude_from_ddp": "tiebeam.nn.sharded_embedding",
    "shard_vocabulary": "tiebeam.nn.sharded_embedding",
    "sharded_parameters": "tiebeam.nn.sharded_embedding",
    "split_parameter": "tiebeam.surgery.split_parameter",
    "tied_cross_entropy": "tiebeam.nn.loss",
    "gather_model": "tiebeam.nn.sharded_embedding",
}

__all__ = [
    "GPT",
    "GPTConfig",
    "LossAndMetrics",
    "LossBuffers",
    "Provenance",
    "ShardedEmbedding",
    "TiedEmbedding",
    "exclude_from_ddp",
    "gather_model",
    "gradient_provenance",
    "patch",
    "shard_vocabulary",
    "sharded_parameters",
    "split_parameter",
    "tied_cross_entropy",
    "tied_init_std",
    "unpatch",
]

__getattr__ = loader("tiebeam.nn", _HOMES, torch_for="tiebeam.nn.{name}")
