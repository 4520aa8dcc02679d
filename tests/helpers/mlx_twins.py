"""The same model on torch and on MLX, with the same weights."""

import numpy as np
import torch
from mlx.utils import tree_flatten

from tiebeam import nn
from tiebeam.train.backends import mlx

VOCAB, CONTEXT = 97, 16


def config(**changes):
    shape = {"vocab": VOCAB, "dim": 16, "layers": 3, "heads": 4, "kv_heads": 2, "mlp_dim": 32, "context": CONTEXT}
    return nn.GPTConfig(**{**shape, **changes})


def twins(shape, *, noise=0.1):
    """`noise` moves every weight away from its initial value, where whole matrices and their gradients are zero."""
    torch.manual_seed(0)
    one = nn.GPT(shape)
    with torch.no_grad():
        for parameter in one.parameters():
            parameter.add_(noise * torch.randn_like(parameter))
    other = mlx.GPT(shape)
    other.load(weights_of(one))
    return one, other


def weights_of(model):
    return {name: tensor.detach().numpy() for name, tensor in model.state_dict().items()}


def batches(count, rows=3, seed=0):
    draw = np.random.default_rng(seed)
    return [(draw.integers(0, VOCAB, (rows, CONTEXT)), draw.integers(0, VOCAB, (rows, CONTEXT))) for _ in range(count)]


def flat(tree):
    return {name: np.array(value) for name, value in tree_flatten(tree)}


def torch_gradients(model, given, **options):
    """The mean loss over micro-batches, with its gradients in .grad."""
    total = 0.0
    for x, y in given:
        loss = model(torch.from_numpy(x), torch.from_numpy(y), **options) / len(given)
        loss.backward()
        total += loss.item()
    return total


def furthest(found, expected):
    """The largest difference of any tensor, relative to the largest value of that tensor."""
    assert found.keys() == expected.keys()
    return max(float(np.abs(found[n] - expected[n]).max() / max(1e-12, np.abs(expected[n]).max())) for n in expected)
