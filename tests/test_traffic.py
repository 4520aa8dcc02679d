"""Communication volume, by hand for small numbers; tests/nn/test_sharded_embedding.py counts the real bytes."""

import pytest

from tiebeam.errors import BadRequest
from tiebeam.traffic import exchanged


def test_one_rank_sends_nothing():
    alone = exchanged(1000, 64, 1)
    assert (alone.ddp.untied, alone.fsdp.untied, alone.shard_vocab.untied) == (0, 0, 0)


def test_a_tied_gradient_is_reduced_once_and_an_untied_pair_twice():
    sent = exchanged(1000, 64, 4)
    assert sent.ddp.tied == 2 * 3 * 1000 * 64 * 4 // 4
    assert sent.ddp.untied == sent.fsdp.untied == 2 * sent.ddp.tied


def test_sharded_rows_send_hidden_states_and_not_the_table():
    sent = exchanged(1000, 64, 4, tokens=100, distinct=40)
    assert sent.shard_vocab.tied == 3 * 100 * (2 * 64 * 4 + 8 + 24) + 3 * 40 * (2 * 64 * 4 + 8) // 4
    assert exchanged(100_000, 64, 4, tokens=100, distinct=40).shard_vocab == sent.shard_vocab
    assert sent.shard_vocab.tied == sent.shard_vocab.untied


def test_sharding_rows_sends_less_while_the_tokens_of_all_ranks_are_fewer_than_the_rows():
    few, many = (exchanged(200_000, 4096, 8, tokens) for tokens in (16_384, 32_768))
    assert few.shard_vocab.tied < few.ddp.tied < many.shard_vocab.tied


@pytest.mark.parametrize(("sizes", "what"), [((0, 8, 2), "vocabulary"), ((8, 0, 2), "width"), ((8, 8, 0), "ranks")])
def test_nothing_is_not_shared_out(sizes, what):
    with pytest.raises(BadRequest, match=what):
        exchanged(*sizes)
