"""Kill at every point: the target is complete, absent, or still the old one; the source is unchanged.

A forked child runs the operation and sends itself SIGKILL at its n-th file system call; n grows until the child
finishes.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.building import llama_config, table, write_sharded
from tiebeam.surgery import extend, tie, untie

EMBED, NORM = "model.embed_tokens.weight", "model.norm.weight"
FAST: dict[str, Any] = {"proof": False}
CALLS = ("write", "ftruncate", "fsync", "rename", "replace", "link", "mkdir", "unlink", "rmdir")


@pytest.fixture
def source(tmp_path):
    shards = [{EMBED: table(0)}, {"b": table(3)}, {NORM: np.ones(8, np.float32)}]
    where = write_sharded(tmp_path / "source", shards, llama_config(tie_word_embeddings=True))
    (where / "tokenizer.json").write_text("{}")
    return where


def contents(where: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in where.iterdir()}


def die_at(n: int) -> None:
    """Kill this process at the n-th file system call from now."""
    left = n

    def counted(function):
        def call(*args, **kwargs):
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in CALLS:
        setattr(os, name, counted(getattr(os, name)))


def run_until_killed(n: int, job) -> bool:
    """Whether the child finished."""
    child = os.fork()
    if child == 0:
        try:
            die_at(n)
            job()
            os._exit(0)
        except BaseException as error:
            print(f"the child failed: {error!r}", file=sys.stderr)
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return False
    assert os.WEXITSTATUS(status) == 0
    return True


def test_untie_killed_at_every_point(source, tmp_path):
    before = contents(source)
    untie(source, tmp_path / "reference", **FAST)
    whole = contents(tmp_path / "reference")
    target, points = tmp_path / "target", 0
    while not run_until_killed(points + 1, lambda: untie(source, target, **FAST)):
        points += 1
        assert contents(source) == before
        if target.exists():  # killed after the rename
            assert contents(target) == whole
            for path in target.iterdir():
                path.unlink()
            target.rmdir()
    assert points > 30
    assert contents(target) == whole
    assert contents(source) == before
    assert not [p for p in tmp_path.iterdir() if ".tiebeam-" in p.name], "the last run cleans up after the killed ones"


def test_tie_with_force_killed_at_every_point(source, tmp_path):
    untied, reference, target = tmp_path / "untied", tmp_path / "reference", tmp_path / "target"
    untie(source, untied, **FAST)
    tie(untied, reference, **FAST)
    new = contents(reference)
    untie(source, target, **FAST)
    old = contents(target)
    points = 0
    while not run_until_killed(points + 1, lambda: tie(untied, target, force=True, **FAST)):
        points += 1
        assert contents(target) in (old, new)
        if contents(target) == new:  # killed while the old one was being removed
            for path in target.iterdir():
                path.unlink()
            target.rmdir()
            untie(source, target, **FAST)
    assert points > 30
    assert contents(target) == new
    assert not [p for p in tmp_path.iterdir() if ".tiebeam-" in p.name]


def test_extend_killed_at_every_point(source, tmp_path):
    """More rows at both ends; an absent target stays absent until it is complete."""
    before = contents(source)
    extend(source, tmp_path / "reference", rows=45, **FAST)
    whole = contents(tmp_path / "reference")
    target, points = tmp_path / "target", 0
    while not run_until_killed(points + 1, lambda: extend(source, target, rows=45, **FAST)):
        points += 1
        assert contents(source) == before
        if target.exists():
            assert contents(target) == whole
            for path in target.iterdir():
                path.unlink()
            target.rmdir()
    assert points > 20
    assert contents(target) == whole
