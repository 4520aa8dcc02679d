"""Work in blocks: every block once, the same numbers on any number of threads, errors and forks survived."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time

import numpy as np
import pytest

from tiebeam.decode.numpy import threads


@pytest.fixture(params=[0, 1, 3], ids=lambda n: f"{n} helpers")
def helpers(request, monkeypatch):
    found = threads._Helpers(request.param) if request.param else None
    monkeypatch.setattr(threads, "_helpers", lambda: found)
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_every_block_is_done_once(count, helpers):
    for _ in range(20):
        done: list[int] = []
        threads.for_each(done.append, [(i,) for i in range(count)])
        assert sorted(done) == list(range(count))


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_a_matrix_times_a_vector_is_a_dot_product_per_row(block_bytes, helpers, monkeypatch):
    monkeypatch.setattr(threads, "_MATRIX_BLOCK", block_bytes)
    random = np.random.default_rng(0)
    pieces = [random.standard_normal((rows, 12)).astype(np.float32) for rows in (7, 1, 30)]
    x = random.standard_normal(12).astype(np.float32)
    found = threads.matrix_vector(threads.matrix_blocks(pieces), x, np.empty(38, np.float32))
    np.testing.assert_array_equal(found, [np.vecdot(row, x) for row in np.vstack(pieces)])


@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_rows_in_blocks_are_the_rows_at_once(block_bytes, helpers, monkeypatch):
    monkeypatch.setattr(threads, "_CACHE_BLOCK", block_bytes)
    x, y = np.arange(60.0).reshape(20, 3), np.ones((20, 3))

    def add_(x, y):
        x += y

    threads.for_row_blocks(add_, x, y)
    np.testing.assert_array_equal(x, np.arange(60.0).reshape(20, 3) + 1)


def test_matrices_are_cut_into_an_even_number_of_equal_blocks():
    W = np.zeros((2304, 768), np.float32)  # 7 MB
    blocks = threads.matrix_blocks([W, W[:100]])
    sizes = [len(part) for part, _ in blocks]
    assert sizes == [576, 576, 576, 576, 100]
    assert [rows.start for _, rows in blocks] == [0, 576, 1152, 1728, 2304]


def test_the_way_that_is_faster_at_present_is_taken():
    pace = threads.Pace()
    cost = {True: 1.0, False: 2.0}

    def run(products):
        taken = []
        for _ in range(products):
            taken.append(pace.helped_now)
            pace.note(taken[-1], cost[taken[-1]])
        return taken

    assert run(2000).count(False) < 60  # tried now and then, ever more rarely
    cost[True] = 5.0  # the cores are busy
    run(5000)
    assert run(1000).count(True) < 60
    cost[True] = 1.0
    run(5000)
    assert run(1000).count(False) < 60


def test_both_ways_give_the_same_numbers(monkeypatch):
    monkeypatch.setattr(threads, "_MATRIX_BLOCK", 100)
    random = np.random.default_rng(0)
    W, x = random.standard_normal((64, 32)).astype(np.float32), random.standard_normal(32).astype(np.float32)
    found = []
    for helped in (True, False):
        pace = threads.Pace()
        pace.helped = helped
        monkeypatch.setattr(threads, "_PACE", pace)
        found.append(threads.matrix_vector(threads.matrix_blocks([W]), x, np.empty(64, np.float32)))
    np.testing.assert_array_equal(*found)


def test_an_error_in_a_block_reaches_the_caller(helpers):
    def refuse(i):
        if i == 7:
            raise ValueError("block 7")

    with pytest.raises(ValueError, match="block 7"):
        threads.for_each(refuse, [(i,) for i in range(20)])
    threads.for_each(refuse, [(i,) for i in range(7)])  # the helpers still serve


def test_a_helper_that_never_starts_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(threading.Thread, "start", lambda self: None)
    found = threads._Helpers(1)
    monkeypatch.setattr(threads, "_helpers", lambda: found)
    done: list[int] = []
    threads.for_each(done.append, [(i,) for i in range(5)])
    assert done == [0, 1, 2, 3, 4]


def test_a_block_that_another_thread_holds_is_waited_for():
    found, slow = threads._Helpers(1), threading.Event()
    job_ends: list[int] = []

    def block(i):
        if threading.current_thread() is not threading.main_thread():
            slow.wait(10)
        job_ends.append(i)
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.05)  # so that the helper takes one
            slow.set()

    found.run(threads._Job(block, [(i,) for i in range(3)]))
    assert sorted(job_ends) == [0, 1, 2]


def _product_in_a_fork(results):
    W, x = np.ones((64, 32), np.float32), np.ones(32, np.float32)
    results.put(
        float(threads.matrix_vector(threads.matrix_blocks([W[:32], W[32:]]), x, np.empty(64, np.float32)).sum())
    )


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_starts_its_own_helpers(monkeypatch):
    monkeypatch.setattr(threads, "blas_threads", lambda: 2)
    threads._helpers.cache_clear()
    threads.for_each(lambda i: None, [(0,), (1,)])
    fork = multiprocessing.get_context("fork")
    results = fork.SimpleQueue()
    child = fork.Process(target=_product_in_a_fork, args=(results,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == 64 * 32
    threads._helpers.cache_clear()
