"""The cases that the ranks of a sharded vocabulary run in the tests: one launch, each case compared with a single rank.

Every rank draws the tokens of all ranks from one seed, takes its own, and computes the single-rank result itself. A
case gives the largest deviations by name; `launch` gives the worst over ranks.
"""

import json
import os
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from helpers.plain_loss import plain_loss
from tiebeam.budget import communication_volume
from tiebeam.errors import BadRequest
from tiebeam.nn import (
    GPT,
    GPTConfig,
    ShardedEmbedding,
    TiedEmbedding,
    exclude_from_ddp,
    gather_model,
    gradient_provenance,
    shard_vocabulary,
    sharded_parameters,
    tied_cross_entropy,
)

Deviations = dict[str, float]
DIM = 6


def launch(world: int, tmp_path: Path) -> dict[str, Deviations]:
    """Run every case on `world` ranks."""
    torch.multiprocessing.start_processes(_rank, (world, str(tmp_path)), nprocs=world, start_method="spawn")
    return json.loads((tmp_path / "result.json").read_text())


def _rank(rank: int, world: int, where: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    dist.init_process_group(
        "gloo", init_method=f"file://{where}/store", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    found = {name: case(rank, world) for name, case in CASES.items()}
    everyone: list[dict[str, Deviations]] = [{} for _ in range(world)]
    dist.all_gather_object(everyone, found)
    if rank == 0:
        worst = {
            name: {what: max(each[name][what] for each in everyone) for what in found[name]} for name in found
        }  # fmt: skip
        (Path(where) / "result.json").write_text(json.dumps(worst))
    dist.destroy_process_group()
    os._exit(0)  # skip interpreter shutdown: gloo threads sometimes abort during teardown


def off(got: torch.Tensor, exact: torch.Tensor) -> float:
    """The largest deviation; values here are of order 1, or are compared as they are."""
    assert got.shape == exact.shape, (got.shape, exact.shape)
    return float((got.double() - exact.double()).abs().max()) if got.numel() else 0.0


def lookup_and_loss(
    vocab: int = 37, tied: bool = True, dtype: torch.dtype = torch.float64, ignored: str = "none", passes: int = 1,
    counts: tuple[int, ...] = (5, 5, 5, 5), input_grad_scale: float = 1.0, bridge: bool = False,
    weighted: bool = False, **options,
) -> Callable[[int, int], Deviations]:  # fmt: skip
    """Embed, a data-parallel map, the loss: losses and every gradient against a TiedEmbedding over all tokens."""

    def case(rank: int, world: int) -> Deviations:
        generator = torch.Generator().manual_seed(1)
        whole = TiedEmbedding(vocab, DIM, 0.7, input_grad_scale=input_grad_scale, bridge=bridge, dtype=dtype)
        with torch.no_grad():
            whole.weight.copy_(torch.randn(vocab, DIM, generator=generator, dtype=torch.float64))
        if not tied:
            whole.untie()
            with torch.no_grad():
                whole.head.copy_(torch.randn(vocab, DIM, generator=generator, dtype=torch.float64))
        trunk = nn.Linear(DIM, DIM, bias=False, dtype=dtype)
        with torch.no_grad():
            trunk.weight.copy_(torch.randn(DIM, DIM, generator=generator, dtype=torch.float64))
        table = ShardedEmbedding.from_full(whole)
        if bridge:
            table.bridge = nn.Linear(DIM, DIM, bias=False, dtype=dtype)
            table.bridge.load_state_dict(whole.bridge.state_dict())
        mine = nn.Linear(DIM, DIM, bias=False, dtype=dtype)
        mine.load_state_dict(trunk.state_dict())
        ends = [0, *torch.tensor(counts[:world]).cumsum(0).tolist()]
        own = slice(ends[rank], ends[rank + 1])
        found: Deviations = {"loss": 0.0}
        if weighted:
            options["class_weights"] = torch.rand(vocab, generator=generator, dtype=dtype)
        for _ in range(passes):
            ids, targets = torch.randint(vocab, (2, ends[-1]), generator=generator)
            if ignored == "some":
                targets[::3] = -100
            if ignored == "all on one rank":
                targets[ends[-2] :] = -100
            if ignored == "all":
                targets[:] = -100
            expected = whole.loss(trunk(whole.embed(ids)), targets, **options) / passes
            expected.backward()
            loss = table.loss(mine(table.embed(ids[own])), targets[own], **options) / passes
            loss.backward()
            found["loss"] = max(found["loss"], off(loss.detach(), expected.detach()))
        for map_ in (mine, table.bridge) if bridge else (mine,):
            dist.all_reduce(map_.weight.grad)
            map_.weight.grad /= world  # as DDP does
        block = table.ranks.shard(vocab)
        found["trunk"] = off(mine.weight.grad, trunk.weight.grad)
        found["table"] = off(table.weight.grad, whole.weight.grad[block])
        if not tied:
            found["head"] = off(table.head.grad, whole.head.grad[block])
        if bridge:
            found["bridge"] = off(table.bridge.weight.grad, whole.bridge.weight.grad)
        return found

    return case


def without_gradients(rank: int, world: int) -> Deviations:
    """Embeddings, logits and losses of each kind under no_grad, with different numbers of tokens on the ranks."""
    torch.manual_seed(2)
    vocab = 11
    whole = TiedEmbedding(vocab, DIM, 0.7, softcap=3.0, dtype=torch.float64)
    table = ShardedEmbedding.from_full(whole)
    h, ids = torch.randn(4, 3, DIM, dtype=torch.float64), torch.randint(vocab, (4, 3))
    targets = torch.where(torch.rand(4, 3) < 0.3, -100, torch.randint(vocab, (4, 3)))
    own = slice(0, 1) if rank == 0 else slice(1, 4) if rank == 1 else slice(4, 4)  # the others bring nothing
    with torch.no_grad():
        found = {
            "embed": off(table(ids[own]), whole(ids[own])),
            "logits": off(table.logits(h[own]), whole.logits(h[own])),
            "none": off(
                table.loss(h[own], targets[own], reduction="none"), whole.loss(h[own], targets[own], reduction="none")
            ),
        }
        for reduction in ("mean", "sum"):
            got = table.loss(h[own], targets[own], reduction=reduction, z_loss=0.01)
            found[reduction] = off(got, whole.loss(h, targets, reduction=reduction, z_loss=0.01))
        assert table._alias is None
    return found


def metrics(rank: int, world: int) -> Deviations:
    """Accuracy of all ranks' tokens and predictions of the own ones, with ties and a rank without rows."""
    torch.manual_seed(8)
    vocab = 9
    whole = TiedEmbedding(vocab, DIM, 0.7, dtype=torch.float64)
    with torch.no_grad():
        whole.weight.mul_(2).round_()  # exact logits
        whole.weight[5:] = whole.weight[:4]  # equal logits on different ranks: the first row counts
    table = ShardedEmbedding.from_full(whole)
    h, targets = torch.randint(-3, 4, (4, 8, DIM)).double(), torch.randint(vocab, (4, 8))
    targets = torch.where(torch.rand(4, 8) < 0.3, -100, torch.where(torch.rand(4, 8) < 0.5, targets, 0))
    h.requires_grad_()
    found: Deviations = {}
    options = {"z_loss": 0.1, "chunk": 3, "return_metrics": True}
    for name, scale in (("plain", False), ("scaled", True)):
        mine = table.loss(h[rank], targets[rank], scale_by_probability=scale, **options)
        true = whole.loss(h[:world], targets[:world], scale_by_probability=scale, **options)
        assert 0 < float(true.accuracy) < 1
        assert torch.equal(mine.predictions, true.predictions[rank])
        for part in ("loss", "accuracy", "z_loss"):
            found[f"{name} {part}"] = off(getattr(mine, part).detach(), getattr(true, part).detach())
        mine.loss.backward()
        assert not mine.accuracy.requires_grad
        assert not mine.z_loss.requires_grad
    with torch.no_grad():
        mine = table.loss(h[rank], targets[rank], reduction="none", **options)
        true = whole.loss(h[rank], targets[rank], reduction="none", **options)
    found["none"] = max(off(mine.loss, true.loss), off(mine.z_loss, true.z_loss))
    return found


def sent_in_bf16(rank: int, world: int) -> Deviations:
    """Half-precision hidden states and table: the error in units of the largest true value."""
    torch.manual_seed(3)
    whole = TiedEmbedding(29, DIM, 0.7, dtype=torch.bfloat16)
    table = ShardedEmbedding.from_full(whole)
    h, targets = torch.randn(4, 8, DIM).bfloat16(), torch.randint(29, (4, 8))
    exact_h, exact_w = h[:world].double().requires_grad_(), whole.weight.detach().double().requires_grad_()
    expected = plain_loss(exact_h, exact_w, targets[:world])
    expected.backward()
    mine = h[rank].clone().requires_grad_()
    loss = table.loss(mine, targets[rank], chunk=3 * world)
    loss.backward()
    block = table.ranks.shard(29)
    return {
        "loss": off(loss.detach(), expected.detach()),
        "h": off(mine.grad / world, exact_h.grad[rank]) / float(exact_h.grad.abs().max()),
        "table": off(table.weight.grad, exact_w.grad[block]) / float(exact_w.grad.abs().max()),
    }


def in_a_gpt(**shape) -> Callable[[int, int], Deviations]:
    """Three steps of Adam on a whole GPT under DDP, two micro-batches a step; untied on the way if asked."""
    untie_before = shape.pop("untie_before", None)

    def case(rank: int, world: int) -> Deviations:
        config = GPTConfig(vocab=50, dim=16, layers=2, heads=2, context=8, **shape)
        torch.manual_seed(4)
        whole = GPT(config).double()
        torch.manual_seed(4)
        model = shard_vocabulary(GPT(config).double())
        exclude_from_ddp(model)
        parallel = DistributedDataParallel(model)
        # Adam divides by the gradient's size, so where a gradient is rounding noise the steps would differ freely.
        sides = [(whole, torch.optim.Adam(whole.parameters(), 1e-2, eps=1e-3))]
        sides += [(model, torch.optim.Adam(model.parameters(), 1e-2, eps=1e-3))]
        found = {"loss": 0.0, "provenance": 0.0}
        for step in range(3):
            if step == untie_before:
                for side, optimizer in sides:
                    side.untie(optimizer)
            watches = [gradient_provenance(side.table) for side, _ in sides] if model.tied else []
            for watch in watches:
                watch.__enter__()
            for micro in range(2):
                ids = torch.randint(50, (world, 2, 9), generator=torch.Generator().manual_seed(10 * step + micro))
                expected = whole(ids[..., :-1].flatten(0, 1), ids[..., 1:].flatten(0, 1), z_loss=1e-3) / 2
                expected.backward()
                parallel.require_backward_grad_sync = micro == 1
                loss = parallel(ids[rank, :, :-1], ids[rank, :, 1:], z_loss=1e-3) / 2
                loss.backward()
                found["loss"] = max(found["loss"], off(loss.detach(), expected.detach()))
            for watch in watches:
                watch.__exit__(None, None, None)
            if watches:
                one, other = (torch.tensor(list(watch.result.to_dict().values())) for watch in watches)
                found["provenance"] = max(found["provenance"], off(other, one))
            for _, optimizer in sides:
                optimizer.step()
                optimizer.zero_grad()
        rows = {name: parameter.shape[0] for name, parameter in whole.named_parameters()}
        parts = {name for name, parameter in model.named_parameters() if parameter.shape[0] != rows[name]}
        assert sharded_parameters(model).keys() == parts
        _refused(lambda: model.export(), "gather_model")
        gathered = gather_model(model)
        assert (gathered is None) == (rank != 0)
        if gathered is not None:
            assert gathered.tied == whole.tied
            theirs = dict(whole.named_parameters())
            assert theirs.keys() == dict(gathered.named_parameters()).keys()
            found["weights"] = max(off(p, theirs[name]) for name, p in gathered.named_parameters())
            if config.arch == "golf" or not config.foldable:
                assert gathered.export()[0] == whole.export()[0]
        else:
            found["weights"] = 0.0
        return found

    return case


def initialized_in_blocks(rank: int, world: int) -> Deviations:
    """From the meta device, so that no rank holds the full table: the same numbers as on a single rank."""
    import tiebeam.nn.sharded_embedding as sharded

    config = GPTConfig(vocab=1003, dim=6, layers=1, heads=1, tie=False)
    torch.manual_seed(5)
    whole = GPT(config)
    whole.reset_parameters()
    torch.manual_seed(5)
    GPT(config)
    with torch.device("meta"):
        model = GPT(config)
    shard_vocabulary(model)
    model.to_empty(device="cpu")
    step, sharded._DRAW = sharded._DRAW, 160
    model.reset_parameters()
    sharded._DRAW = step
    block = model.table.ranks.shard(1003)
    return {
        "table": off(model.table.weight, whole.table.weight[block]),
        "head": off(model.lm_head.weight, whole.lm_head.weight[block]),
        "trunk": off(model.model.layers[0].mlp.up_proj.weight, whole.model.layers[0].mlp.up_proj.weight),
    }


def as_a_dtensor(rank: int, world: int) -> Deviations:
    torch.manual_seed(6)
    whole = TiedEmbedding(13, DIM)
    table = ShardedEmbedding.from_full(whole)
    tensor = table.as_dtensor(table.weight)
    assert tensor.to_local().data_ptr() == table.weight.data_ptr()
    full = table.full_weight()
    return {
        "dtensor": off(tensor.full_tensor(), whole.weight),
        "full": 0.0 if full is None else off(full, whole.weight),
    }


def bytes_sent(tied: bool) -> Callable[[int, int], Deviations]:
    """The bytes that this rank wrote to its sockets in a step, against the formula of tiebeam.budget."""

    def case(rank: int, world: int) -> Deviations:
        if not Path("/proc/self/io").exists():
            return {"sent": 0.0}
        vocab, dim, tokens = 64 * world, 512, 32 * world
        whole = TiedEmbedding(vocab, dim)
        if not tied:
            whole.untie()
        table = ShardedEmbedding.from_full(whole)
        ids = torch.arange(tokens) * 2  # as many of each rank's rows
        dist.barrier()
        before = _written()
        h = table.embed(ids) * 2
        table.loss(h, ids, chunk=tokens * world).backward()
        sent = _written() - before
        return {"sent": abs(sent / communication_volume(vocab, dim, world, tokens).shard_vocab.tied - 1)}

    return case


def _written() -> int:
    return next(int(line.split()[1]) for line in Path("/proc/self/io").read_text().splitlines() if "wchar" in line)


def pipeline_copies(rank: int, world: int) -> Deviations:
    """First and last stage each hold a copy: the sum of their gradients is the tied gradient."""
    torch.manual_seed(7)
    whole = TiedEmbedding(19, DIM, 0.7, dtype=torch.float64)
    copy = nn.Parameter(whole.weight.detach().clone())
    ids, targets = torch.randint(19, (2, 8))
    whole.loss(whole.embed(ids), targets).backward()
    last = world - 1
    group = dist.new_group([0, last])
    if rank == 0:
        x = F.embedding(ids, copy)
        dist.send(x.detach(), last)
        dx = torch.empty_like(x)
        dist.recv(dx, last)
        x.backward(dx)
    elif rank == last:
        h = torch.empty(8, DIM, dtype=torch.float64)
        dist.recv(h, 0)
        tied_cross_entropy(h.requires_grad_(), copy, targets).backward()
        dist.send(h.grad, 0)
    if rank not in (0, last):
        return {"summed": 0.0}
    assert off(copy.grad, whole.weight.grad) > 1e-3
    dist.all_reduce(copy.grad, group=group)
    return {"summed": off(copy.grad, whole.weight.grad)}


def refusals(rank: int, world: int) -> Deviations:
    """Each error is raised on all ranks, so that none hangs."""
    table = ShardedEmbedding.from_full(TiedEmbedding(13, DIM))
    h, targets = torch.randn(3, DIM, requires_grad=True), torch.tensor([1, 2, 3])
    _refused(
        lambda: table.loss(h, torch.tensor([1, 2, 13 if rank == 0 else 3])),
        "target 13 is out of range for W with 13 rows",
    )
    _refused(lambda: table.loss(h, targets, reduction="none"), "no_grad")
    _refused(lambda: table.logits(h), "no gradient")
    _refused(lambda: table.embed(torch.tensor([13])), "token id 13 is out of range for a table of 13 rows")
    _refused(lambda: ShardedEmbedding.from_full(table), "already sharded")
    loss = table.loss(h, targets)
    loss.backward(retain_graph=True)
    _refused(lambda: loss.backward(), "one backward pass")
    return {"refused": 0.0}


def _refused(call: Callable[[], object], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        call()


F32 = torch.float32
CASES: dict[str, Callable[[int, int], Deviations]] = {
    "tied": lookup_and_loss(),
    "untied": lookup_and_loss(tied=False),
    "vocabulary divides": lookup_and_loss(vocab=40),
    "a rank without rows": lookup_and_loss(vocab=9),  # of four ranks: 3 + 3 + 3 + 0
    "fewer rows than ranks": lookup_and_loss(vocab=1),
    "chunked": lookup_and_loss(chunk=3, counts=(7, 7, 7, 7)),
    "some ignored": lookup_and_loss(ignored="some"),
    "all ignored on one rank": lookup_and_loss(ignored="all on one rank"),
    "all ignored": lookup_and_loss(ignored="all"),
    "unequal batches": lookup_and_loss(counts=(7, 2, 0, 5), chunk=4),
    "softcap": lookup_and_loss(softcap=2.0),
    "sigmoid softcap": lookup_and_loss(softcap=4.0, softcap_kind="sigmoid"),
    "z-loss": lookup_and_loss(z_loss=0.1),
    "label smoothing": lookup_and_loss(label_smoothing=0.2),
    "everything at once": lookup_and_loss(
        vocab=23, softcap=2.0, z_loss=0.1, label_smoothing=0.2, ignored="some", chunk=5, passes=2, input_grad_scale=0.3
    ),
    "everything at once, untied": lookup_and_loss(
        vocab=23, tied=False, softcap=2.0, z_loss=0.1, label_smoothing=0.2, ignored="some", chunk=5, passes=2
    ),
    "class weights": lookup_and_loss(weighted=True, ignored="some"),
    "class weights, everything at once": lookup_and_loss(
        vocab=23,
        weighted=True,
        softcap=2.0,
        z_loss=0.1,
        label_smoothing=0.2,
        ignored="some",
        counts=(7, 2, 0, 5),
        chunk=5,
    ),
    "scaled by probability": lookup_and_loss(scale_by_probability=True, ignored="some"),
    "scaled by probability, everything at once": lookup_and_loss(
        vocab=23, weighted=True, scale_by_probability=True, softcap=200.0, z_loss=0.1, label_smoothing=0.2, chunk=5
    ),
    "fp32: large softcap": lookup_and_loss(dtype=F32, softcap=1e6),
    "metrics": metrics,
    "a sum": lookup_and_loss(reduction="sum"),
    "accumulated": lookup_and_loss(passes=3),
    "bridge": lookup_and_loss(bridge=True),
    "fp32: tied": lookup_and_loss(dtype=F32),
    "fp32: untied, everything": lookup_and_loss(
        dtype=F32, tied=False, softcap=2.0, z_loss=0.1, label_smoothing=0.2, ignored="some", chunk=5, passes=2
    ),
    "no gradients": without_gradients,
    "bf16": sent_in_bf16,
    "gpt: golf": in_a_gpt(arch="golf", softcap=5.0),
    "gpt: untied": in_a_gpt(tie=False),
    "gpt: untied during training": in_a_gpt(tie=0.5, untie_before=1),
    "gpt: factorized": in_a_gpt(embed_dim=4),
    "gpt: bridge": in_a_gpt(arch="golf", bridge=True),
    "initialized in blocks": initialized_in_blocks,
    "as a DTensor": as_a_dtensor,
    "copies in a pipeline": pipeline_copies,
    "refusals": refusals,
    "bytes: tied": bytes_sent(tied=True),
    "bytes: untied": bytes_sent(tied=False),
}
TOLERANCES = {"fp32": 2e-6, "bf16": 2e-2, "bytes": 0.02}  # float64 otherwise: 1e-10


def tolerance(case: str) -> float:
    return TOLERANCES.get(case.partition(":")[0], 1e-10)
