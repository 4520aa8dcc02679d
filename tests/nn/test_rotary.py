"""Rotary positions on the CPU: the fused rotation against the plain formula, with both derivatives; and attention."""

import pytest
import torch

from tiebeam.nn.attention import attend, rotary, rotate


def plain(x, cos, sin):  # [B, T, H, d], [T, d / 2] x 2 -> [B, T, H, d]
    cos, sin = cos[:, None], sin[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
def test_the_rotation_and_its_gradient_are_those_of_the_formula(dtype, transposed):
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8, dtype=dtype).transpose(1, 2) if transposed else torch.randn(2, 5, 3, 8, dtype=dtype)
    cos, sin = rotary(5, 8, 1e4, x)
    upstream = torch.randn(2, 5, 3, 8, dtype=dtype)
    found: list[torch.Tensor] = []
    expected: list[torch.Tensor] = []
    for call, out in ((rotate, found), (lambda x, c, s: plain(x, c.to(dtype), s.to(dtype)), expected)):
        leaf = x.detach().requires_grad_()
        y = call(leaf, cos, sin)
        out += [y, torch.autograd.grad(y, leaf, upstream)[0]]
    close = (
        {"rtol": 0.02, "atol": 0.03} if dtype == torch.bfloat16 else {}
    )  # the formula rounds its products to bfloat16
    torch.testing.assert_close(found, expected, **close)


def test_the_rotation_can_be_differentiated_twice():
    x = torch.randn(1, 4, 2, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = rotary(4, 6, 1e4, x)
    assert torch.autograd.gradcheck(lambda t: rotate(t, cos, sin), (x,))
    assert torch.autograd.gradgradcheck(lambda t: rotate(t, cos, sin).square(), (x,))


def test_the_rotation_works_under_vmap_and_compile():
    x = torch.randn(3, 4, 2, 6)
    cos, sin = rotary(4, 6, 1e4, x)
    expected = plain(x, cos, sin)
    torch.testing.assert_close(torch.func.vmap(lambda t: rotate(t, cos, sin))(x), expected)
    torch.testing.assert_close(torch.compile(rotate, backend="eager")(x, cos, sin), expected)


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_attention_is_that_of_the_formula(kv_heads):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 5, heads, 8, requires_grad=True) for heads in (4, kv_heads, kv_heads))
    keys, values = (t.repeat_interleave(4 // kv_heads, dim=2) for t in (k, v))
    scores = torch.einsum("bthd,bshd->bhts", q, keys) / 8**0.5
    hidden = torch.ones(5, 5).triu(1).bool()
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    expected = torch.einsum("bhts,bshd->bthd", weights, values).flatten(2)
    found = attend(q, k, v)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(2, 5, 32)
    torch.testing.assert_close(
        torch.autograd.grad(found, (q, k, v), upstream), torch.autograd.grad(expected, (q, k, v), upstream)
    )
