"""Targets are complete or absent, existing files are never lost, and abandoned staging directories are removed."""

import errno
import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tiebeam._fs import (
    Fingerprints,
    atomic_path,
    check_space,
    check_target,
    exchange,
    explaining,
    first_difference,
    lock,
    lock_directory,
    staging,
    write_bytes,
    write_json,
)
from tiebeam.errors import BadRequest, UnreadableInput, Unwritable


def leftovers(where: Path) -> list[str]:
    return [p.name for p in where.iterdir() if ".tiebeam-" in p.name]


def test_target_appears_only_at_commit(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staging(target) as stage:
        (stage.path / "a").write_text("whole")
        assert not target.exists()
        stage.commit()
    assert (target / "a").read_text() == "whole"
    assert leftovers(tmp_path) == []


def test_without_commit_nothing_is_left_not_even_new_parents(tmp_path: Path) -> None:
    with staging(tmp_path / "new" / "deep" / "out") as stage:
        (stage.path / "a").write_text("half")
    assert list(tmp_path.iterdir()) == []


def test_missing_parents_are_created(tmp_path: Path) -> None:
    with staging(tmp_path / "new" / "deep" / "out") as stage:
        stage.commit()
    assert (tmp_path / "new" / "deep" / "out").is_dir()


def test_committed_directory_has_ordinary_permissions(tmp_path: Path) -> None:
    with staging(tmp_path / "out") as stage:
        stage.commit()
    (tmp_path / "plain").mkdir()
    assert (tmp_path / "out").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_abandoned_staging_directory_is_removed_and_a_locked_one_is_not(tmp_path: Path) -> None:
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


def test_staging_directory_of_another_target_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".other.tiebeam-dead").mkdir()
    with staging(tmp_path / "out") as stage:
        stage.commit()
    assert leftovers(tmp_path) == [".other.tiebeam-dead"]


def test_force_replaces_the_old_directory_and_removes_it(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.mkdir()
    (target / "old").write_text("old")
    with staging(target, force=True) as stage:
        (stage.path / "new").write_text("new")
        stage.commit()
    assert [p.name for p in target.iterdir()] == ["new"]
    assert leftovers(tmp_path) == []


def test_target_that_appears_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    target = tmp_path / "out"
    with staging(target) as stage:
        (stage.path / "new").write_text("new")
        target.mkdir()
        (target / "theirs").write_text("theirs")
        with pytest.raises(BadRequest, match="appeared"):
            stage.commit()
    assert [p.name for p in target.iterdir()] == ["theirs"]


def test_single_file_is_committed_alone_and_replaces_only_with_force(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("atomic", [True, False])
def test_exchange_swaps_two_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    if not atomic:
        monkeypatch.setattr("tiebeam._fs.stage._exchange_atomically", lambda *_: False)
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchange(tmp_path / "left", tmp_path / "right")
    assert [p.name for p in (tmp_path / "left").iterdir()] == ["right"]
    assert [p.name for p in (tmp_path / "right").iterdir()] == ["left"]


def test_each_refused_target_has_its_own_message(tmp_path: Path) -> None:
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
    (home / "thesis.tex").write_text("text")
    for target, force, sentence in [
        (source, True, "is the source itself"),
        (alias, True, "is the source itself"),
        (source / "out", True, "is inside the source"),
        (alias / "out", True, "is inside the source"),
        (tmp_path, True, "is inside"),
        (model, False, "exists; choose another name, or pass force=True"),
        (home, True, "is not a model"),
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
def test_os_errors_become_one_sentence(tmp_path: Path, number: int, sentence: str) -> None:
    with pytest.raises(Unwritable, match=sentence), explaining(tmp_path / "out"):
        raise OSError(number, os.strerror(number))


def test_too_little_disk_space_is_reported_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match="needs 1,000,000,000,000,000,000 bytes"):
        check_space(tmp_path / "out", 10**18)


def test_changed_file_is_detected(tmp_path: Path) -> None:
    path = tmp_path / "w"
    path.write_text("one")
    seen = Fingerprints([path])
    assert seen.changed() is None
    path.write_text("three")
    assert seen.changed() == path
    seen = Fingerprints([path])
    path.unlink()
    assert seen.changed() == path


def test_failed_atomic_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})
    with suppress(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == '{\n "old": 1\n}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    for raw in (b"one", b"two"):
        write_bytes(path, raw)
    assert path.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [path]


def test_atomic_write_into_a_missing_directory_is_unwritable(tmp_path: Path) -> None:
    with pytest.raises(Unwritable, match="cannot be written"):
        write_bytes(tmp_path / "missing" / "a", b"x")


def test_second_lock_of_a_directory_is_refused_until_the_first_is_released(tmp_path: Path) -> None:
    first = lock_directory(tmp_path)
    assert first is not None
    assert first.held
    assert lock_directory(tmp_path) is None
    first.release()
    second = lock_directory(tmp_path)
    assert second is not None
    second.release()


def test_waiting_for_a_lock_is_announced_once_and_then_succeeds(tmp_path: Path) -> None:
    first = lock_directory(tmp_path)
    assert first is not None
    calls: list[None] = []

    def announce() -> None:
        calls.append(None)
        first.release()

    second = lock_directory(tmp_path, announce)
    assert second is not None
    assert second.held
    assert len(calls) == 1
    second.release()


def test_lock_of_a_renamed_directory_is_not_current(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.mkdir()
    held = lock_directory(path)
    assert held is not None
    assert held.current
    path.rename(tmp_path / "b")
    assert not held.current
    path.mkdir()
    assert not held.current
    held.release()


def test_without_flock_staging_works_and_removes_no_other_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "_HAS_FLOCK", False)
    (tmp_path / ".out.tiebeam-dead").mkdir()
    with staging(tmp_path / "out") as stage:
        stage.commit()
    assert (tmp_path / "out").is_dir()
    assert leftovers(tmp_path) == [".out.tiebeam-dead"]


@pytest.mark.parametrize(("at", "block"), [(0, 7), (6, 7), (7, 7), (99, 7), (99, 1000)])
def test_first_difference_is_the_start_of_the_block_that_differs(tmp_path: Path, at: int, block: int) -> None:
    left, right = tmp_path / "left", tmp_path / "right"
    raw = bytearray(range(100))
    left.write_bytes(b"xx" + raw)
    raw[at] ^= 1
    right.write_bytes(raw)
    assert first_difference(left, 2, right, 0, 100, block) == at // block * block
    assert first_difference(left, 2, right, 0, at, block) is None


def test_comparing_past_the_end_of_a_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    with pytest.raises(UnreadableInput, match="became shorter"):
        first_difference(tmp_path / "a", 0, tmp_path / "a", 1, 3)
