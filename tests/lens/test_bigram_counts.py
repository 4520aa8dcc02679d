"""Bigram counts compared with a dictionary, for every implementation."""

from collections import Counter

import numpy as np
import pytest

from tiebeam.lens import bigram_counts
from tiebeam.lens.bigram_counts import count_bigrams


def slow(tokens, separator):
    pairs = zip(tokens[:-1].tolist(), tokens[1:].tolist(), strict=True)
    return Counter(pair for pair in pairs if separator not in pair)


def as_counter(counts):
    return Counter(
        {
            (int(a), int(b)): int(n)
            for a, b, n in zip(counts.first, counts.second, counts.count, strict=True)
        }
    )  # fmt: skip


@pytest.fixture(params=[(1 << 16, 1 << 25), (0, 1 << 25), (0, 0)], ids=["cells", "sorted into cells", "sorted"])
def cells(request, monkeypatch):
    """One way of counting: in a table, by sorting with a table for the blocks, by sorting alone."""
    cached, dense = request.param
    monkeypatch.setattr(bigram_counts, "_CACHED_CELLS", cached)
    monkeypatch.setattr(bigram_counts, "_DENSE_CELLS", dense)


@pytest.mark.usefixtures("cells")
@pytest.mark.parametrize("separator", [None, 3])
def test_counts_are_those_of_a_dictionary(separator):
    tokens = np.random.default_rng(0).integers(0, 40, 5000).astype(np.uint16)
    assert as_counter(count_bigrams(tokens, 40, separator)) == slow(tokens, separator)


@pytest.mark.usefixtures("cells")
def test_pairs_across_a_block_are_counted_once(monkeypatch):
    monkeypatch.setattr(bigram_counts, "_BLOCK", 100)
    tokens = np.random.default_rng(1).integers(0, 7, 1050).astype(np.uint16)
    assert count_bigrams(tokens, 7).total == len(tokens) - 1
    assert as_counter(count_bigrams(tokens, 7)) == slow(tokens, None)


@pytest.mark.usefixtures("cells")
def test_blocks_of_separators_alone_have_no_pairs(monkeypatch):
    monkeypatch.setattr(bigram_counts, "_BLOCK", 4)
    tokens = np.array([3] * 9 + [0, 1, 0, 1, 0] + [3] * 9, np.uint16)
    assert as_counter(count_bigrams(tokens, 7, separator=3)) == slow(tokens, 3)
    assert count_bigrams(tokens[:9], 7, separator=3).total == 0


def test_products_of_large_ids_do_not_overflow():
    tokens = np.array([65_535, 65_534, 65_535], np.uint16)
    counts = count_bigrams(tokens, 65_536)
    assert as_counter(counts) == Counter({(65_535, 65_534): 1, (65_534, 65_535): 1})


@pytest.mark.parametrize("tokens", [[], [5]])
def test_too_few_tokens_have_no_pairs(tokens):
    assert count_bigrams(np.array(tokens, np.uint16), 10).total == 0


def test_keeping_a_few_tokens_folds_the_rest_into_one():
    tokens = np.random.default_rng(2).integers(0, 20, 3000)
    counts = count_bigrams(tokens, 20)
    kept = np.array([4, 7, 1])
    place = {4: 0, 7: 1, 1: 2}
    folded = np.array([place.get(int(t), 3) for t in tokens])
    assert as_counter(counts.keep(kept)) == slow(folded, None)
    assert counts.keep(kept).vocab == 4
