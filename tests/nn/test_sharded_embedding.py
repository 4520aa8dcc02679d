"""A vocabulary sharded over 2 and 4 ranks against a single rank: losses, gradients, weights after steps."""

import pytest
import torch

from helpers.sharded_cases import CASES, launch, tolerance
from tiebeam.errors import BadRequest
from tiebeam.nn import GPT, GPTConfig, ShardedEmbedding, TiedEmbedding, gather_model, shard_vocabulary
from tiebeam.nn.collectives import RankGroup

pytestmark = pytest.mark.xdist_group("sharded")


@pytest.fixture(scope="module", params=[2, 4], ids=["2 ranks", "4 ranks"])
def deviations(request, tmp_path_factory):
    return launch(request.param, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize("case", CASES)
def test_ranks_agree_with_a_single_rank(case, deviations):
    assert all(value <= tolerance(case) for value in deviations[case].values()), deviations[case]


@pytest.mark.parametrize(("rows", "size"), [(10, 4), (9, 4), (1, 3), (50257, 8), (8, 8)])
def test_shards_split_rows_like_torch_chunk(rows, size):
    blocks = [RankGroup(rank, size, None).shard(rows) for rank in range(size)]
    dealt = [part.tolist() for part in torch.arange(rows).chunk(size)]
    assert [list(range(block.start, block.stop)) for block in blocks] == dealt + [[]] * (size - len(dealt))


def test_a_single_process_is_a_group_of_one():
    torch.manual_seed(0)
    config = GPTConfig(vocab=20, dim=8, layers=1, heads=2, context=8)
    whole = GPT(config).double()
    torch.manual_seed(0)
    model = shard_vocabulary(GPT(config).double())
    ids, targets = torch.randint(20, (2, 3, 8))
    for side in (whole, model):
        side(ids, targets).backward()
    assert isinstance(model.table, ShardedEmbedding)
    torch.testing.assert_close(model.table.weight.grad, whole.table.weight.grad, rtol=0, atol=1e-12)
    assert torch.equal(gather_model(model).table.weight, whole.table.weight)


def test_gathering_an_unsharded_model_is_refused():
    with pytest.raises(BadRequest, match="not sharded"):
        gather_model(GPT(GPTConfig(vocab=20, dim=8, layers=1, heads=2)))


def test_the_tied_block_gets_its_gradient_in_one_buffer():
    from helpers.plain_loss import peak_bytes

    table = ShardedEmbedding.from_full(TiedEmbedding(20_000, 16))
    ids, targets = torch.randint(20_000, (2, 8))
    block = table.weight.nbytes
    assert peak_bytes(lambda: table.loss(table.embed(ids), targets).backward()) < 1.8 * block
