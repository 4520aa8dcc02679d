"""The hashed bigram table, against a lookup in a dictionary, pair by pair."""

from typing import Any

import numpy as np
import torch

from tiebeam.decode.numpy.decoder import _bigram_rows
from tiebeam.families.bigram_hash import bigram_row
from tiebeam.nn import GPT, GPTConfig
from tiebeam.nn.bigram_table import BigramTable


def test_every_position_gets_the_row_of_its_pair_and_the_first_one_row_0():
    table = BigramTable(rows=37, dim=4)
    torch.nn.init.normal_(table.weight)
    ids = torch.randint(500, (3, 40))
    found = table(ids)
    for b in range(3):
        for t in range(40):
            row = 0 if t == 0 else 1 + (int(ids[b, t - 1]) * 1_000_003 + int(ids[b, t]) * 7_368_787) % 36
            assert torch.equal(found[b, t], table.weight[row])


def test_rows_are_in_range_ordered_pairs_differ_and_collisions_are_as_rare_as_by_chance():
    V, rows = 64, 4096
    found = {(a, b): bigram_row(a, b, rows) for a in range(V) for b in range(V)}
    assert set(found.values()) <= set(range(1, rows))
    assert sum(found[a, b] != found[b, a] for a in range(V) for b in range(a)) > 0.99 * V * (V - 1) / 2
    assert len(set(found.values())) > 0.6 * rows  # by chance 1 - 1/e of the rows are used


def test_large_ids_do_not_overflow():
    ids = torch.tensor([[2**31 - 1, 2**31 - 2]])
    assert 1 <= int(BigramTable(1000, 2).hashed(ids)[0, 1]) < 1000


def test_the_decoder_hashes_the_same_in_one_piece_and_token_by_token():
    ids = np.random.default_rng(0).integers(0, 5000, 30)
    whole = BigramTable(101, 2).hashed(torch.from_numpy(ids)[None])[0].tolist()
    assert _bigram_rows(ids, None, 101).tolist() == whole
    last, found = None, []
    for token in ids:
        found += _bigram_rows(np.array([token]), last, 101).tolist()
        last = int(token)
    assert found == whole


def test_a_model_with_a_new_table_computes_what_it_does_without_and_the_table_learns():
    sizes: dict[str, Any] = {"vocab": 40, "dim": 16, "layers": 1, "heads": 2, "context": 16}
    torch.manual_seed(0)
    plain = GPT(GPTConfig(**sizes))
    torch.manual_seed(0)
    more = GPT(GPTConfig(**sizes, bigram_rows=50))
    ids = torch.randint(40, (2, 16))
    torch.testing.assert_close(more(ids), plain(ids), rtol=0, atol=0)
    assert more.size == plain.size + 50 * 16
    more(ids[:, :-1], ids[:, 1:]).backward()
    used = set(more.bigram.hashed(ids[:, :-1]).reshape(-1).tolist())
    assert set(more.bigram.weight.grad.abs().sum(1).nonzero().reshape(-1).tolist()) == used
