"""Buffers that are kept between steps: the same numbers as fresh ones, and never a buffer that is still in use."""

import copy
import pickle

import pytest
import torch

from helpers.plain_loss import draw_inputs, plain_loss
from tiebeam.nn import LossBuffers, TiedEmbedding, loss_buffers, tied_cross_entropy

OPTIONS = [
    {},
    {"softcap": 5.0, "z_loss": 0.1, "label_smoothing": 0.1},
    {"reduction": "sum", "scale_by_probability": True},
]


def leaves(seed, dtype=torch.float64, ignored=0.0):
    h, W, targets, _ = draw_inputs(seed, (13,), 21, 5, dtype, ignored)
    return h.requires_grad_(), W.requires_grad_(), targets


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", OPTIONS, ids=["plain", "capped", "scaled"])
@pytest.mark.parametrize("ignored", [0.0, 0.3])
def test_kept_buffers_give_the_numbers_of_fresh_ones(dtype, options, ignored):
    buffers = LossBuffers()
    for seed in range(3):
        h, W, targets = leaves(seed, dtype, ignored)
        fresh = tied_cross_entropy(h, W, targets, chunk=4, **options)
        expected = torch.autograd.grad(fresh, (h, W))
        kept = tied_cross_entropy(h, W, targets, chunk=4, buffers=buffers, **options)
        found = torch.autograd.grad(kept, (h, W))
        assert torch.equal(kept, fresh)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        del found


def test_the_memory_of_a_dropped_gradient_is_used_again():
    buffers, (h, W, targets) = LossBuffers(), leaves(0)
    addresses = set()
    for _ in range(4):
        h.grad = W.grad = None
        tied_cross_entropy(h, W, targets, buffers=buffers).backward()
        addresses.add(W.grad.data_ptr())
    assert len(addresses) == 1
    assert buffers.count == 3  # logits, dh, dW
    buffers.clear()
    assert buffers.count == 0


@pytest.mark.parametrize("hold", [lambda g: g, lambda g: g[3:5], lambda g: g.detach(), lambda g: g.numpy()])
def test_memory_that_someone_holds_is_left_alone(hold):
    buffers, (h, W, targets) = LossBuffers(), leaves(0)
    tied_cross_entropy(h, W, targets, buffers=buffers).backward()
    held = hold(W.grad)
    before = torch.as_tensor(held).clone()
    for _ in range(2):
        h.grad = W.grad = None
        tied_cross_entropy(3 * h, W, targets, buffers=buffers).backward()
    assert torch.equal(torch.as_tensor(held), before)


def test_two_losses_and_accumulation_on_the_same_buffers():
    buffers, (h, W, targets) = LossBuffers(), leaves(0)
    true = W.detach().clone().requires_grad_()
    for scale in (1.0, 2.0):  # the second backward adds to .grad
        losses = [tied_cross_entropy(scale * k * h.detach(), W, targets, buffers=buffers) for k in (1, 2)]
        sum(losses).backward()
        sum(plain_loss(scale * k * h.detach(), true, targets) for k in (1, 2)).backward()
    torch.testing.assert_close(W.grad, true.grad)


def test_a_tied_embedding_takes_buffers_through_its_loss():
    buffers, table = LossBuffers(), TiedEmbedding(11, 4)
    ids = torch.randint(11, (2, 6))
    addresses = set()
    for _ in range(3):
        table.zero_grad()
        table.loss(table.embed(ids), ids, buffers=buffers).backward()
        addresses.add(table.weight.grad.data_ptr())
    assert len(addresses) == 1
    twin = table.weight.detach().clone().requires_grad_()
    plain_loss(twin[ids], twin, ids).backward()
    torch.testing.assert_close(table.weight.grad, twin.grad)


def test_without_a_count_of_references_nothing_is_used_again(monkeypatch):
    monkeypatch.delattr(torch._C, "_storage_Use_Count")
    buffers, (h, W, targets) = LossBuffers(), leaves(0)
    tied_cross_entropy(h, W, targets, buffers=buffers).backward()
    first = W.grad
    W.grad = None
    tied_cross_entropy(2 * h, W, targets, buffers=buffers).backward()
    assert first.data_ptr() != W.grad.data_ptr()


@pytest.mark.parametrize("again", [copy.deepcopy, lambda b: pickle.loads(pickle.dumps(b))])
def test_a_copy_starts_empty(again):
    buffers, (h, W, targets) = LossBuffers(), leaves(0)
    tied_cross_entropy(h, W, targets, buffers=buffers).backward()
    assert again(buffers).count == 0


@pytest.mark.parametrize("shape", [(0, 5), (3,), (1100, 1000), (5, 1 << 20)])
def test_a_fresh_buffer_is_writable_everywhere(shape):
    buffer = loss_buffers.fresh(shape, torch.float64, torch.device("cpu"))
    assert buffer.shape == shape
    assert buffer.is_contiguous()
    assert bool((buffer.fill_(2.0) == 2.0).all())
