"""The target is complete or not there; what exists is never lost; what was abandoned is cleared away."""

import errno
import fcntl
import os
from pathlib import Path

import pytest

from tiebeam import _fs as room
from tiebeam._fs import Fingerprints, check_space, check_target, exchange, explaining, staging
from tiebeam.errors import BadRequest, Unwritable


def leftovers(where: Path) -> list[str]:
    return [p.name for p in where.iterdir() if ".tiebeam-" in p.name]


def test_the_target_appears_only_at_commit(tmp_path):
    target = tmp_path / "out"
    with staging(target) as stage:
        (stage.path / "a").write_text("whole")
        assert not target.exists()
        stage.commit()
    assert (target / "a").read_text() == "whole"
    assert leftovers(tmp_path) == []


def test_without_commit_nothing_stays_not_even_new_parents(tmp_path):
    with staging(tmp_path / "new" / "deep" / "out") as stage:
        (stage.path / "a").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_made(tmp_path):
    with staging(tmp_path / "new" / "deep" / "out") as stage:
        stage.commit()
    assert (tmp_path / "new" / "deep" / "out").is_dir()


def test_the_directory_gets_ordinary_permissions(tmp_path):
    with staging(tmp_path / "out") as stage:
        stage.commit()
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_abandoned_sibling_is_cleared_and_a_busy_one_is_not(tmp_path):
    abandoned, busy = tmp_path / ".out.tiebeam-dead", tmp_path / ".out.tiebeam-live"
    for path in (abandoned, busy):
        path.mkdir()
        (path / "weights").write_text("x")
    handle = os.open(busy, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with staging(tmp_path / "out") as stage:
            stage.commit()
        assert leftovers(tmp_path) == [busy.name]
    finally:
        os.close(handle)


def test_the_sibling_of_another_target_is_left_alone(tmp_path):
    (tmp_path / ".other.tiebeam-dead").mkdir()
    with staging(tmp_path / "out") as stage:
        stage.commit()
    assert leftovers(tmp_path) == [".other.tiebeam-dead"]


def test_force_replaces_the_old_directory_and_removes_it(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    with staging(target, force=True) as stage:
        (stage.path / "new").write_text("new")
        stage.commit()
    assert [p.name for p in target.iterdir()] == ["new"]
    assert leftovers(tmp_path) == []


def test_a_target_that_appears_meanwhile_is_not_replaced(tmp_path):
    target = tmp_path / "out"
    with staging(target) as stage:
        (stage.path / "new").write_text("new")
        target.mkdir()
        (target / "theirs").write_text("theirs")
        with pytest.raises(BadRequest, match="appeared"):
            stage.commit()
    assert [p.name for p in target.iterdir()] == ["theirs"]


def test_a_single_file_is_put_in_place_alone_and_replaces_only_by_force(tmp_path):
    target = tmp_path / "out.safetensors"
    for force in (False, True):
        with staging(target, force) as stage:
            (stage.path / "w").write_text(f"{force}")
            (stage.path / "config.json").write_text("{}")
            stage.commit("w")
    assert target.read_text() == "True"
    with staging(target) as stage:
        (stage.path / "w").write_text("x")
        with pytest.raises(BadRequest, match="appeared"):
            stage.commit("w")
    assert target.read_text() == "True"
    assert [p.name for p in tmp_path.iterdir()] == ["out.safetensors"]


@pytest.mark.parametrize("at_once", [True, False])
def test_exchange_swaps_two_directories(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(room, "_exchange_at_once", lambda *_: False)
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "left", tmp_path / "right")
    assert [p.name for p in (tmp_path / "left").iterdir()] == ["right"]
    assert [p.name for p in (tmp_path / "right").iterdir()] == ["left"]


def test_refused_targets_each_get_their_sentence(tmp_path):
    source = tmp_path / "src"
    source.mkdir()
    (source / "config.json").write_text("{}")
    alias = tmp_path / "alias"
    alias.symlink_to(source)
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.tex").write_text("years of work")
    for target, force, sentence in [
        (source, True, "is the source itself"),
        (alias, True, "is the source itself"),
        (source / "out", True, "lies inside the source"),
        (alias / "out", True, "lies inside the source"),
        (tmp_path, True, "lies inside"),
        (model, False, "exists; choose another name, or pass --force"),
        (home, True, "holds no model"),
    ]:
        with pytest.raises(BadRequest, match=sentence):
            check_target(source, target, force)
    check_target(source, model, force=True)
    (tmp_path / "empty").mkdir()
    check_target(source, tmp_path / "empty", force=False)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "is full; nothing was left"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "may not be written: read-only file system"),
        (errno.EACCES, "may not be written: permission denied"),
        (errno.EIO, "cannot be written: Input/output error"),
    ],
)
def test_what_the_system_says_becomes_one_sentence(tmp_path, number, sentence):
    with pytest.raises(Unwritable, match=sentence), explaining(tmp_path / "out"):
        raise OSError(number, os.strerror(number))


def test_too_little_room_is_known_before_the_first_byte(tmp_path):
    with pytest.raises(Unwritable, match="needs 1,000,000,000,000,000,000 bytes"):
        check_space(tmp_path / "out", 10**18)


def test_a_file_that_changes_is_noticed(tmp_path):
    path = tmp_path / "w"
    path.write_text("one")
    seen = Fingerprints([path])
    assert seen.changed() is None
    path.write_text("three")
    assert seen.changed() == path
    seen = Fingerprints([path])
    path.unlink()
    assert seen.changed() == path
