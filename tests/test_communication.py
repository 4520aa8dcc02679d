"""Communication volume, computed by hand; tests/nn/test_sharded_embedding.py measures the real bytes."""

import pytest

from tiebeam.budget import communication_volume
from tiebeam.errors import BadRequest


def test_one_rank_sends_nothing():
    alone = communication_volume(1000, 64, 1)
    assert (alone.ddp.untied, alone.fsdp.untied, alone.shard_vocab.untied) == (0, 0, 0)


def test_a_tied_gradient_is_reduced_once_and_an_untied_pair_twice():
    sent = communication_volume(1000, 64, 4)
    assert sent.ddp.tied == 2 * 3 * 1000 * 64 * 4 // 4
    assert sent.ddp.untied == sent.fsdp.untied == 2 * sent.ddp.tied


def test_shard_vocab_sends_hidden_states_and_not_the_matrix():
    sent = communication_volume(1000, 64, 4, tokens=100, distinct=40)
    assert sent.shard_vocab.tied == 3 * 100 * (2 * 64 * 4 + 8 + 24) + 3 * 40 * (2 * 64 * 4 + 8) // 4
    assert communication_volume(100_000, 64, 4, tokens=100, distinct=40).shard_vocab == sent.shard_vocab
    assert sent.shard_vocab.tied == sent.shard_vocab.untied


def test_shard_vocab_sends_less_than_ddp_for_few_tokens():
    few, many = (communication_volume(200_000, 4096, 8, tokens) for tokens in (16_384, 32_768))
    assert few.shard_vocab.tied < few.ddp.tied < many.shard_vocab.tied


@pytest.mark.parametrize(
    ("sizes", "what"), [((0, 8, 2), "vocab must be"), ((8, 0, 2), "dim must be"), ((8, 8, 0), "ranks must be")]
)
def test_sizes_below_one_are_rejected(sizes, what):
    with pytest.raises(BadRequest, match=what):
        communication_volume(*sizes)
