"""Gradient provenance against autograd on two leaf copies of the table."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.plain_loss import plain_loss
from tiebeam.errors import BadRequest
from tiebeam.nn import TiedEmbedding, gradient_provenance, gradient_share

V, D = 13, 5


def two_leaves(table, trunk, batches):
    E, W = (table.weight.detach().clone().requires_grad_() for _ in range(2))
    for ids, targets in batches:
        plain_loss(trunk(F.embedding(ids, E)).tanh(), W, targets).backward()
    return E.grad, W.grad


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("rows_at_a_time", [4, 16384])
def test_norms_and_cosine_match_two_separate_parameters(micro_batches, rows_at_a_time, monkeypatch):
    monkeypatch.setattr(gradient_share, "_ROWS", rows_at_a_time)
    torch.manual_seed(0)
    table, trunk = TiedEmbedding(V, D, init_std=0.7, dtype=torch.float64), nn.Linear(D, D, dtype=torch.float64)
    batches = [(torch.randint(V, (2, 6)), torch.randint(V, (2, 6))) for _ in range(micro_batches)]
    lookup, head = two_leaves(table, trunk, batches)
    with gradient_provenance(table) as watch:
        for ids, targets in batches:
            table.loss(trunk(table.embed(ids)).tanh(), targets).backward()
    found = watch.result
    assert found.lookup_norm == pytest.approx(lookup.norm().item(), rel=1e-10)
    assert found.head_norm == pytest.approx(head.norm().item(), rel=1e-10)
    assert found.cosine == pytest.approx(F.cosine_similarity(lookup.flatten(), head.flatten(), 0).item(), rel=1e-9)
    assert found.head_share == pytest.approx((head.norm() / (head.norm() + lookup.norm())).item(), rel=1e-10)
    assert set(found.to_dict()) == {"lookup_norm", "head_norm", "cosine", "head_share"}


def test_the_split_does_not_depend_on_how_the_head_gradient_arrives():
    torch.manual_seed(1)
    table, trunk = TiedEmbedding(V, D, init_std=0.7, dtype=torch.float64), nn.Linear(D, D, dtype=torch.float64)
    ids, targets = torch.randint(V, (6,)), torch.randint(V, (6,))
    lookup, head = two_leaves(table, trunk, [(ids, targets)])
    with gradient_provenance(table) as watch:
        plain_loss(trunk(table.embed(ids)).tanh(), table.weight, targets).backward()
    assert watch.result.lookup_norm == pytest.approx(lookup.norm().item(), rel=1e-10)
    assert watch.result.head_norm == pytest.approx(head.norm().item(), rel=1e-10)


def test_measuring_does_not_change_the_gradient():
    torch.manual_seed(2)
    table = TiedEmbedding(V, D, input_grad_scale=0.5)
    ids, targets = torch.randint(V, (6,)), torch.randint(V, (6,))
    table.loss(table.embed(ids).tanh(), targets).backward()
    plain, table.weight.grad = table.weight.grad, None
    with gradient_provenance(table) as watch:
        table.loss(table.embed(ids).tanh(), targets).backward()
    assert torch.equal(table.weight.grad, plain)
    assert watch.result.lookup_norm > 0


def test_detached_hidden_states_have_no_lookup_part():
    table = TiedEmbedding(V, D)
    ids = torch.randint(V, (6,))
    with gradient_provenance(table) as watch:
        table.loss(table.embed(ids).detach(), ids).backward()
    assert watch.result.lookup_norm == 0
    assert watch.result.head_share == 1
    assert watch.result.cosine == 0


def test_misuse_is_refused_with_a_fix():
    table = TiedEmbedding(V, D)
    ids = torch.randint(V, (6,))
    with pytest.raises(BadRequest, match="no backward pass"), gradient_provenance(table):
        pass
    table.loss(table.embed(ids), ids).backward()
    with pytest.raises(BadRequest, match="zero_grad"), gradient_provenance(table):
        pass
    with pytest.raises(BadRequest, match="no result"):
        _ = gradient_provenance(table).result
    table.weight.grad = None
    with pytest.raises(ZeroDivisionError), gradient_provenance(table):
        _ = 1 / 0
    assert table._captured is None
    table.untie()
    with pytest.raises(BadRequest, match="untied"):
        gradient_provenance(table)
