"""TiedEmbedding: one parameter, one gradient buffer, and a tie that survives common module operations."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers.plain_loss import peak_bytes, plain_loss
from tiebeam.errors import BadRequest
from tiebeam.nn import TiedEmbedding, gradient_provenance, tied_init_std

V, D = 11, 6


@pytest.fixture
def batch():
    torch.manual_seed(0)
    ids = torch.randint(V, (3, 5))
    ids[0, :3] = 4  # a token that occurs often
    return ids, torch.randint(V, (3, 5))


@pytest.fixture
def parts():
    """A table and a linear layer in float64, and plain copies of both."""
    torch.manual_seed(1)
    table, trunk = TiedEmbedding(V, D, init_std=0.5, dtype=torch.float64), nn.Linear(D, D, dtype=torch.float64)
    return table, trunk, table.weight.detach().clone().requires_grad_(), copy.deepcopy(trunk)


def plain_step(W, trunk, ids, targets):
    return plain_loss(torch.tanh(trunk(F.embedding(ids, W))), W, targets)


def our_step(table, trunk, ids, targets, **options):
    return table.loss(torch.tanh(trunk(table.embed(ids))), targets, **options)


def test_the_step_gradient_matches_plain_torch(parts, batch):
    table, trunk, W, plain_trunk = parts
    our_step(table, trunk, *batch, chunk=4).backward()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, W.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(trunk.weight.grad, plain_trunk.weight.grad, rtol=1e-10, atol=1e-12)


def test_logits_share_the_buffer_too(parts, batch):
    table, trunk, W, plain_trunk = parts
    ids, targets = batch
    F.cross_entropy(table.logits(torch.tanh(trunk(table.embed(ids)))).flatten(0, 1), targets.flatten()).backward()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, W.grad, rtol=1e-10, atol=1e-12)


def test_only_one_table_sized_buffer_is_allocated():
    vocab, dim, chunk = 20_000, 64, 16
    table, trunk = TiedEmbedding(vocab, dim), nn.Linear(dim, dim)
    ids, targets = torch.randint(vocab, (2, 64)), torch.randint(vocab, (2, 64))

    def step():
        table.weight.grad = None
        our_step(table, trunk, ids, targets, chunk=chunk).backward()

    def plain():
        table.weight.grad = None
        plain_step(table.weight, trunk, ids, targets).backward()

    size = vocab * dim * 4
    for run in (step, plain):
        run()
        table.weight.grad = None
    assert peak_bytes(step) <= size + 4 * chunk * vocab + 300_000  # one table, one chunk of logits, change
    table.weight.grad = None
    assert peak_bytes(plain) > 2 * size


def test_the_buffer_becomes_the_gradient_without_a_copy(parts, batch):
    table, trunk, *_ = parts
    seen = []
    table.weight.register_hook(lambda g: seen.append(g.data_ptr()))
    our_step(table, trunk, *batch).backward()
    assert seen == [table.weight.grad.data_ptr()]


def test_detached_hidden_states(parts, batch):
    table, _, W, _ = parts
    ids, targets = batch
    table.loss(table.embed(ids).detach(), targets).backward()
    plain_loss(F.embedding(ids, W).detach(), W, targets).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_head_without_lookup(parts, batch):
    table, _, W, _ = parts
    h = torch.randn(3, 5, D, dtype=torch.float64)
    table.loss(h, batch[1]).backward()
    plain_loss(h, W, batch[1]).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_lookup_without_head(parts, batch):
    table, _, W, _ = parts
    table.embed(batch[0]).square().sum().backward()
    F.embedding(batch[0], W).square().sum().backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_two_losses_on_one_lookup(parts, batch):
    table, trunk, W, plain_trunk = parts
    ids, targets = batch
    h = trunk(table.embed(ids))
    (table.loss(h, targets) + table.loss(2 * h, targets.flip(0))).backward()
    g = plain_trunk(F.embedding(ids, W))
    (plain_loss(g, W, targets) + plain_loss(2 * g, W, targets.flip(0))).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_two_lookups_then_two_losses_each_with_its_own_backward(parts, batch):
    table, trunk, W, plain_trunk = parts
    ids, targets = batch
    first, second = trunk(table.embed(ids)), trunk(table.embed(ids.flip(1)))
    losses = [table.loss(first, targets), table.loss(second, targets)]
    for loss in losses:
        loss.backward()
    for side in (ids, ids.flip(1)):
        plain_loss(plain_trunk(F.embedding(side, W)), W, targets).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_a_lookup_of_an_earlier_step_is_ignored(parts, batch):
    table, _, W, _ = parts
    ids, targets = batch
    table.embed(ids)  # never used
    with torch.no_grad():
        table.weight.mul_(2)
        W.mul_(2)
    h = torch.randn(3, 5, D, dtype=torch.float64)
    table.loss(h, targets).backward()
    plain_loss(h, W, targets).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_accumulation_over_micro_batches(parts, batch):
    table, trunk, W, plain_trunk = parts
    ids, targets = batch
    for i in range(3):
        (our_step(table, trunk, ids[i : i + 1], targets[i : i + 1]) / 3).backward()
    plain_step(W, plain_trunk, ids, targets).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_retained_graph_twice_is_twice_the_gradient(parts, batch):
    table, trunk, W, plain_trunk = parts
    loss = our_step(table, trunk, *batch)
    loss.backward(retain_graph=True)
    loss.backward()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, 2 * W.grad)


def test_autograd_grad_touches_no_grad_field(parts, batch):
    table, trunk, W, plain_trunk = parts
    (got,) = torch.autograd.grad(our_step(table, trunk, *batch), table.weight)
    (exact,) = torch.autograd.grad(plain_step(W, plain_trunk, *batch), W)
    assert table.weight.grad is None
    torch.testing.assert_close(got, exact)


def test_gradient_for_the_hidden_state_alone_leaves_the_table_alone(parts, batch):
    table, trunk, *_ = parts
    h = trunk(table.embed(batch[0]))
    torch.autograd.grad(table.loss(h, batch[1]), h)
    assert table.weight.grad is None
    our_step(table, trunk, *batch).backward()  # and the next step is not polluted by what was left
    fresh = TiedEmbedding(V, D, dtype=torch.float64)
    fresh.load_state_dict(table.state_dict())
    our_step(fresh, trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, fresh.weight.grad)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing_around_the_lookup(parts, batch, reentrant):
    from torch.utils.checkpoint import checkpoint

    table, trunk, W, plain_trunk = parts
    ids, targets = batch
    anchor = torch.zeros(1, dtype=torch.float64, requires_grad=True)  # reentrant needs an input with a gradient
    for _ in range(2):
        table.weight.grad = None
        h = checkpoint(lambda a: torch.tanh(trunk(table.embed(ids))) + a, anchor, use_reentrant=reentrant)
        table.loss(h, targets).backward()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_second_derivatives_through_lookup_and_logits(batch):
    torch.manual_seed(0)
    table = TiedEmbedding(V, D, init_std=0.5, dtype=torch.float64)
    W = table.weight.detach().clone().requires_grad_()
    ids = batch[0]

    def penalty(logits, weight):
        (g,) = torch.autograd.grad(logits.square().sum(), weight, create_graph=True)
        return torch.autograd.grad(g.square().sum(), weight)[0]

    got = penalty(table.logits(table.embed(ids).tanh()), table.weight)
    exact = penalty(F.linear(F.embedding(ids, W).tanh(), W), W)
    torch.testing.assert_close(got, exact)


def test_torch_func_works_on_logits(parts, batch):
    table, _, W, _ = parts
    ids, targets = batch

    def loss(weight):
        logits = torch.func.functional_call(table, {"weight": weight}, (ids,)) @ weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    got = torch.func.grad(loss)(W.detach())
    x = F.embedding(ids, W)
    (exact,) = torch.autograd.grad(F.cross_entropy((x @ W.T).flatten(0, 1), targets.flatten()), W)
    torch.testing.assert_close(got, exact)


def test_ids_changed_in_place_before_backward_raise(parts, batch):
    table, trunk, *_ = parts
    ids, targets = batch[0].clone(), batch[1]
    loss = our_step(table, trunk, ids, targets)
    ids.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        loss.backward()


def test_input_grad_scale_scales_only_the_lookups_part(batch):
    torch.manual_seed(2)
    table = TiedEmbedding(V, D, init_std=0.5, input_grad_scale=0.25, dtype=torch.float64)
    E, W = (table.weight.detach().clone().requires_grad_() for _ in range(2))
    ids, targets = batch
    our_step(table, nn.Identity(), ids, targets).backward()
    plain_loss(torch.tanh(F.embedding(ids, E)), W, targets).backward()
    torch.testing.assert_close(table.weight.grad, 0.25 * E.grad + W.grad)
    table.weight.grad = None
    table.loss(table.embed(ids).tanh().detach(), targets).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_bridge_starts_as_the_identity_and_learns(batch):
    torch.manual_seed(3)
    plain, bridged = TiedEmbedding(V, D), TiedEmbedding(V, D, bridge=True)
    with torch.no_grad():
        bridged.weight.copy_(plain.weight)
    h = torch.randn(3, 5, D)
    torch.testing.assert_close(bridged.logits(h), plain.logits(h))
    bridged.loss(h, batch[1]).backward()
    assert bridged.bridge.weight.grad.any()


def test_softcap_acts_in_logits_and_loss(batch):
    table = TiedEmbedding(V, D, init_std=2.0, softcap=3.0)
    h = torch.randn(3, 5, D)
    logits = table.logits(h)
    assert logits.abs().max() <= 3.0
    torch.testing.assert_close(table.loss(h, batch[1]), F.cross_entropy(logits.flatten(0, 1), batch[1].flatten()))


@pytest.mark.parametrize("dim", [16, 64, 128, 512, 4096])
def test_a_tokens_own_initial_logit_is_small(dim):
    assert dim * tied_init_std(dim) <= 2.5
    assert tied_init_std(dim) <= 0.02
    torch.manual_seed(0)
    table = TiedEmbedding(2000, dim)
    assert table.weight.std().item() == pytest.approx(tied_init_std(dim), rel=0.05)


def test_the_table_is_initialized_once():
    torch.manual_seed(5)
    table = TiedEmbedding(V, D, init_std=0.1)
    torch.manual_seed(5)
    torch.testing.assert_close(table.weight.detach(), torch.empty(V, D).normal_(std=0.1), rtol=0, atol=0)


def test_the_state_dict_has_one_tensor_and_round_trips():
    table = TiedEmbedding(V, D)
    assert list(table.state_dict()) == ["weight"]
    for assign in (False, True):
        other = TiedEmbedding(V, D)
        other.load_state_dict(table.state_dict(), assign=assign)
        torch.testing.assert_close(other.weight, table.weight)
        assert isinstance(other.weight, nn.Parameter)


def test_assigning_a_state_between_lookup_and_loss_trains_the_new_table(parts, batch):
    table, *_ = parts
    ids, targets = batch
    table.embed(ids)
    old = table.weight
    table.load_state_dict({"weight": old.detach() * 2}, assign=True)
    table.loss(torch.randn(3, 5, D, dtype=torch.float64), targets).backward()
    assert old.grad is None
    assert table.weight.grad.any()


def test_deepcopy_and_pickle_in_the_middle_of_a_step(parts, batch):
    import io

    table, trunk, *_ = parts
    table.embed(batch[0])
    with gradient_provenance(table):
        twin = copy.deepcopy(table)
        buffer = io.BytesIO()
        torch.save(table, buffer)
        our_step(table, trunk, *batch).backward()
    buffer.seek(0)
    for other in (twin, torch.load(buffer, weights_only=False)):
        assert other.weight is not table.weight
        our_step(other, trunk, *batch).backward()
        torch.testing.assert_close(other.weight.grad, table.weight.grad)


def test_to_another_dtype_keeps_one_parameter(batch):
    table = TiedEmbedding(V, D)
    table.embed(batch[0])
    table.to(torch.float64)
    assert [n for n, _ in table.named_parameters()] == ["weight"]
    our_step(table, nn.Identity(), *batch).backward()
    assert table.weight.grad.dtype == torch.float64


def test_a_table_from_the_meta_device_after_reset():
    with torch.device("meta"):
        table = TiedEmbedding(V, D, bridge=True)
    assert table.weight.is_meta
    table.to_empty(device="cpu")
    table.reset_parameters()
    assert table.weight.std() < 0.05
    torch.testing.assert_close(table.bridge.weight.detach(), torch.eye(D))


def test_no_graph_is_kept_after_a_step(batch):
    table, trunk = TiedEmbedding(V, D), nn.Linear(D, D)
    our_step(table, trunk, *batch).backward()
    assert table._alias is None
    gc.collect()
    assert not [o for o in gc.get_objects() if type(o).__name__ == "_LookupBackward"]


def test_frozen_table(batch):
    table, trunk = TiedEmbedding(V, D).requires_grad_(False), nn.Linear(D, D)
    our_step(table, trunk, *batch).backward()
    assert table.weight.grad is None
    assert trunk.weight.grad.any()


def test_ddp_reduces_the_table_once(parts, batch):
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    table, trunk, W, plain_trunk = parts

    class Step(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.trunk = table, trunk

        def forward(self, ids, targets):
            return our_step(self.table, self.trunk, ids, targets)

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        fired = []
        table.weight.register_post_accumulate_grad_hook(lambda p: fired.append(p))
        wrapped = DistributedDataParallel(Step())
        for _ in range(2):
            table.weight.grad = None
            wrapped(*batch).backward()
        assert len(fired) == 2
    finally:
        dist.destroy_process_group()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


def test_a_compiled_step_matches_the_plain_gradient(parts, batch):
    table, trunk, W, plain_trunk = parts
    torch.compile(lambda ids, targets: our_step(table, trunk, ids, targets), backend="aot_eager")(*batch).backward()
    plain_step(W, plain_trunk, *batch).backward()
    torch.testing.assert_close(table.weight.grad, W.grad)


@pytest.mark.parametrize("own_group", [False, True])
def test_untie_copies_the_optimizer_state_and_steps_as_if_tied(batch, own_group):
    torch.manual_seed(6)
    table = TiedEmbedding(V, D, init_std=0.5)
    reference = copy.deepcopy(table)
    adam, plain_adam = (torch.optim.Adam(t.parameters(), lr=0.1) for t in (table, reference))
    for t, o in ((table, adam), (reference, plain_adam)):
        for _ in range(3):
            o.zero_grad()
            our_step(t, nn.Identity(), *batch).backward()
            o.step()
        our_step(t, nn.Identity(), *batch).backward()
    head = table.untie([adam], own_group=own_group)
    assert head is table.head
    assert len(adam.param_groups) == (2 if own_group else 1)
    assert set(adam.state[head]) == set(adam.state[table.weight])
    assert adam.state[head]["exp_avg"].data_ptr() != adam.state[table.weight]["exp_avg"].data_ptr()
    adam.step()
    plain_adam.step()
    torch.testing.assert_close(table.weight, reference.weight)
    torch.testing.assert_close(table.head, reference.weight)
    adam.zero_grad()
    our_step(table, nn.Identity(), *batch).backward()
    adam.step()
    assert not torch.equal(table.weight, table.head)
    assert sorted(table.state_dict()) == ["head", "weight"]


def test_untie_refuses_a_second_call_and_a_foreign_optimizer():
    table = TiedEmbedding(V, D)
    with pytest.raises(BadRequest, match="does not hold the parameter"):
        table.untie(torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1))
    table.untie()
    with pytest.raises(BadRequest, match="already untied"):
        table.untie()
