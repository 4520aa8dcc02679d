"""The hand-written training step that limits bench/train: its layers are those of the model."""

from __future__ import annotations

import pytest

from helpers.bench_files import bench_module

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_a_layer_by_hand_gives_the_output_and_the_gradient_of_autograd(kv_heads: int) -> None:
    from tiebeam.nn import GPT, GPTConfig
    from tiebeam.nn.attention import rotary

    by_hand = bench_module("_by_hand")
    torch.manual_seed(0)
    model = GPT(GPTConfig(64, 32, 1, 4, kv_heads=kv_heads, context=8, mlp_dim=48))
    layer, (batch, T) = model.model.layers[0], (2, 8)
    x = torch.randn(batch, T, 32, requires_grad=True)
    gradient, position = torch.randn(batch, T, 32), rotary(T, 8, model.config.rope_theta, x)
    expected = layer(x, position)
    expected.backward(gradient)
    cos, sin = (table.unsqueeze(-2) for table in position)
    found = by_hand.Layer(layer, 4, kv_heads, batch, cos, sin)
    with torch.no_grad():
        torch.testing.assert_close(found.forward(x.detach().flatten(0, 1)), expected.flatten(0, 1))
        torch.testing.assert_close(found.backward(gradient.flatten(0, 1)), x.grad.flatten(0, 1))
