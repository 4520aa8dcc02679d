"""Batches: deterministic, resumable by step, every window once per epoch."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.corpus import Batches, every_target
from tiebeam.corpus.batches import _permuted
from tiebeam.corpus.shards import TokenStream
from tiebeam.errors import BadRequest


def stream_of(count: int, shard: int = 37) -> TokenStream:
    """Tokens whose value is their position."""
    tokens = np.arange(count, dtype=np.uint16)
    return TokenStream([tokens[start : start + shard] for start in range(0, count, shard)], vocab=count)


def test_x_and_y_are_int64_windows_one_token_apart() -> None:
    x, y = next(Batches(stream_of(1000), batch=3, context=8, seed=1))
    assert x.dtype == y.dtype == np.int64
    assert x.shape == y.shape == (3, 8)
    assert (y == x + 1).all()
    assert (np.diff(x) == 1).all()


@pytest.mark.parametrize("order", ["random", "stream"])
@given(skip=st.integers(0, 60), seed=st.integers(0, 2**63))
def test_restored_batches_equal_uninterrupted_ones(order, skip: int, seed: int) -> None:
    whole = list(itertools.islice(Batches(stream_of(300), 3, 8, seed, order), skip, skip + 4))
    first = Batches(stream_of(300), 3, 8, seed, order)
    for _ in range(skip):
        next(first)
    second = Batches(stream_of(300), 3, 8, seed, order)
    second.restore(first.state())
    for (x, y), (other_x, other_y) in zip(whole, second, strict=False):
        np.testing.assert_array_equal(x, other_x)
        np.testing.assert_array_equal(y, other_y)


def test_seeds_give_different_orders_and_the_same_seed_the_same() -> None:
    first, again, other = (next(Batches(stream_of(5000), 16, 8, seed))[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@given(st.integers(9, 400), st.integers(1, 8), st.integers(1, 5), st.integers(0, 1000))
def test_random_order_visits_every_window_once_per_epoch(count: int, context: int, batch: int, seed: int) -> None:
    batches = Batches(stream_of(count), batch, context, seed)
    windows = max(1, (count - context) // context)
    starts = [int(row[0]) for x, _ in itertools.islice(batches, 3 * windows // batch + 1) for row in x]
    for first in range(0, 2 * windows, windows):
        epoch = starts[first : first + windows]
        assert len(set(epoch)) == windows
        assert len({start % context for start in epoch}) == 1
        assert min(epoch) >= 0
        assert max(epoch) + context < count


def test_epochs_have_different_offsets() -> None:
    batches = Batches(stream_of(1000), 1, 10, 0)
    phases = {int(next(batches)[0][0, 0]) % 10 for _ in range(99 * 20)}
    assert len(phases) > 5


def test_stream_order_is_sequential_and_starts_over() -> None:
    batches = Batches(stream_of(100), batch=2, context=15, order="stream")
    seen = np.concatenate([x.ravel() for x, _ in itertools.islice(batches, 10)])
    np.testing.assert_array_equal(seen, np.arange(300) % 100)
    batches.restore({**batches.state(), "step": 0})
    for x, y in itertools.islice(batches, 10):
        assert ((x + 1) % 100 == y).all()


@given(st.integers(1, 300), st.integers(0, 2**64 - 1))
def test_the_permutation_is_a_bijection(count: int, key: int) -> None:
    assert sorted(_permuted(index, count, key) for index in range(count)) == list(range(count))


def test_the_permutation_spreads_evenly() -> None:
    """The first tenth of the indices, over many keys: every tenth of the range gets about a tenth of them."""
    tenths = Counter(_permuted(index, 1000, key) // 100 for key in range(50) for index in range(100))
    assert all(380 < tenths[tenth] < 620 for tenth in range(10))


@given(st.integers(0, 200), st.integers(1, 20), st.integers(1, 5))
def test_every_target_comes_exactly_once_in_order(count: int, context: int, batch: int) -> None:
    pairs = list(every_target(stream_of(count), batch, context))
    targets = np.concatenate([np.empty(0), *(y.ravel() for _, y in pairs)])
    np.testing.assert_array_equal(targets, np.arange(1, count))
    assert all(x.shape[0] <= batch and x.shape[1] <= context and (y == x + 1).all() for x, y in pairs)


def test_a_text_shorter_than_a_window_is_an_error() -> None:
    with pytest.raises(BadRequest, match="context=8 needs 9 tokens and the text has 8; use a shorter context"):
        Batches(stream_of(8), 1, 8)
    assert next(Batches(stream_of(9), 1, 8))[0].tolist() == [list(range(8))]


def test_a_state_with_other_settings_is_an_error() -> None:
    saved = Batches(stream_of(100), 2, 8, seed=1).state()
    with pytest.raises(BadRequest, match="saved state has seed=1 and this run has seed=2"):
        Batches(stream_of(100), 2, 8, seed=2).restore(saved)
