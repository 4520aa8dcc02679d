"""Targets are complete or absent, existing files are never lost, and abandoned staging directories are removed."""

import ctypes
import errno
import os
from contextlib import suppress
from pathlib import Path

import pytest

from tiebeam._fs import (
    Fingerprints,
    Kind,
    atomic_path,
    check_space,
    check_target,
    disk_space,
    exchange,
    explaining,
    first_difference,
    lock,
    lock_directory,
    occupy,
    reserve,
    staging,
    start_writeback,
    write_bytes,
    write_json,
)
from tiebeam._fs import stage as stage_module
from tiebeam.errors import BadRequest, UnreadableInput, Unwritable

MODEL = Kind("a model", lambda path: (path / "config.json").is_file(), lambda name: name in ("config.json", "w"))


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
    held = lock_directory(busy)
    assert held is not None
    try:
        with staging(tmp_path / "out") as stage:
            stage.commit()
        assert [name for name in leftovers(tmp_path) if not name.endswith(".lock")] == [busy.name]
    finally:
        held.release()
    assert leftovers(tmp_path) == [busy.name]


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


@pytest.mark.parametrize("renames", [1, 2])
def test_a_kill_between_the_renames_of_an_exchange_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, renames: int
) -> None:
    """Where the system cannot swap, the old target is for a moment only under another name."""
    monkeypatch.setattr("tiebeam._fs.stage._renameat", lambda *_, **__: False)
    target = tmp_path / "out"
    target.mkdir()
    (target / "w").write_text("old")
    child = os.fork()
    if child == 0:
        left, rename = [None] * renames, os.rename

        def dying(*arguments, **options):
            left.pop() if left else os.kill(os.getpid(), 9)
            rename(*arguments, **options)

        os.rename = dying
        with staging(target, force=True) as stage:
            (stage.path / "w").write_text("new")
            stage.commit()
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 9
    assert target.exists() == (renames == 2)
    with staging(target, force=True):
        assert (target / "w").read_text() == ("old" if renames == 1 else "new")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("no_replace", [True, False])
@pytest.mark.parametrize("number", [errno.EPERM, errno.ENOTSUP])
def test_a_file_is_committed_without_hard_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, no_replace: bool
) -> None:
    def no_links(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", no_links)
    if not no_replace:
        monkeypatch.setattr("tiebeam._fs.stage._renameat", lambda *_, **__: False)
    target = tmp_path / "out"
    for first in (True, False):
        with staging(target) as stage:
            (stage.path / "w").write_text(f"{first}")
            if first:
                stage.commit("w")
            else:
                with pytest.raises(BadRequest, match="appeared"):
                    stage.commit("w")
    assert target.read_text() == "True"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_directory_in_use_is_neither_occupied_nor_replaced(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = occupy(out, MODEL)
    (out / "config.json").write_text("first")
    for force in (False, True):
        with pytest.raises(BadRequest, match="out is in use by another process"):
            occupy(out, MODEL, force)
    with staging(out, force=True) as stage, pytest.raises(BadRequest, match="in use"):
        stage.commit()
    assert (out / "config.json").read_text() == "first"
    first.release()
    occupy(out, MODEL).release()
    assert leftovers(tmp_path) == []


def test_occupying_clears_what_a_kill_left_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    for name in (".config.json.part", ".w.123abc.part", ".thesis.part", "w"):
        (out / name).write_text("x")
    occupy(out, MODEL).release()
    assert sorted(path.name for path in out.iterdir()) == [".thesis.part", "w"]


def test_force_occupies_an_empty_directory_in_place_of_an_old_output(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "config.json").write_text("{}")
    lock = occupy(out, MODEL, force=True)
    assert lock.current
    assert list(out.iterdir()) == []
    assert lock_directory(out) is None
    lock.release()
    (out / "thesis.tex").write_text("x")
    with pytest.raises(BadRequest, match="is not a model"):
        occupy(out, MODEL, force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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
    thesis = home / "thesis.tex"
    thesis.write_text("text")
    link, mixed = tmp_path / "link", tmp_path / "mixed"
    link.symlink_to(model)
    (mixed / "notes").mkdir(parents=True)
    (mixed / "config.json").write_text("{}")
    (mixed / "notes" / "thesis.tex").write_text("text")
    for target, force, sentence in [
        (source, True, "is the source itself"),
        (alias, True, "is the source itself"),
        (source / "out", True, "is inside the source"),
        (alias / "out", True, "is inside the source"),
        (tmp_path, True, "is inside"),
        (model, False, "exists; choose another name, or pass force=True"),
        (home, True, "is not a model, and force=True replaces nothing else"),
        (thesis, True, "is not a model, and force=True replaces nothing else"),
        (link, True, "is a symbolic link"),
        (mixed, True, "holds notes/thesis.tex, which is not part of a model"),
    ]:
        with pytest.raises(BadRequest, match=sentence):
            check_target(source, target, force, MODEL)
    check_target(source, model, True, MODEL)
    with pytest.raises(BadRequest, match="is not known here"):
        check_target(source, model, force=True)  # without a kind nothing is replaced
    (tmp_path / "empty").mkdir()
    check_target(source, tmp_path / "empty", force=False)


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "is full; free some space and run it again"),
        (errno.EDQUOT, "is full"),
        (errno.EROFS, "may not be written: read-only file system"),
        (errno.EACCES, "may not be written: permission denied"),
        (errno.EIO, "cannot be written: input/output error"),
    ],
)
def test_os_errors_become_one_sentence(tmp_path: Path, number: int, sentence: str) -> None:
    with pytest.raises(Unwritable, match=sentence), explaining(tmp_path / "out"):
        raise OSError(number, os.strerror(number))


def test_an_error_of_safetensors_about_the_disk_is_the_same_sentence(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    with pytest.raises(Unwritable, match="is full"), explaining(tmp_path / "out"):
        raise SafetensorError("I/O error: No space left on device (os error 28)")
    with pytest.raises(SafetensorError), explaining(tmp_path / "out"):
        raise SafetensorError("invalid header")


def test_an_error_about_another_file_is_an_unreadable_source(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match="gone cannot be read: no such file"), explaining(tmp_path / "out"):
        (tmp_path / "gone").read_bytes()
    for ours in (tmp_path / "out" / "a", tmp_path / ".out.tiebeam-00" / "a", tmp_path / "out"):
        with pytest.raises(Unwritable, match="out cannot be written: no such file"), explaining(tmp_path / "out"):
            ours.read_bytes()


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
    monkeypatch.setattr(lock, "_HAS_MSVCRT", False)
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


@pytest.mark.parametrize("answer", ["as the system answers", "not supported", "no such call"])
def test_a_reserved_file_has_its_size_and_reads_as_zeros(answer, tmp_path, monkeypatch):
    if answer != "as the system answers":
        monkeypatch.setattr(disk_space, "_libc", lambda: Refusing(errno.EOPNOTSUPP) if "not" in answer else None)
    with open(tmp_path / "f", "w+b", buffering=0) as handle:
        reserve(handle.fileno(), 10_000)
        start_writeback(handle.fileno(), 0, 10_000)
        assert handle.read() == bytes(10_000)


def test_a_full_disk_is_noticed_when_the_space_is_reserved(tmp_path, monkeypatch):
    monkeypatch.setattr(disk_space, "_libc", lambda: Refusing(errno.ENOSPC))
    with open(tmp_path / "f", "wb") as handle, pytest.raises(OSError, match="No space left") as raised:
        reserve(handle.fileno(), 10_000)
    assert raised.value.errno == errno.ENOSPC


class Refusing:
    """A C library whose fallocate fails."""

    def __init__(self, error: int) -> None:
        self.error = error

    def fallocate(self, *_: object) -> int:
        ctypes.set_errno(self.error)
        return -1


def test_every_staged_file_and_directory_is_flushed_before_the_rename(tmp_path, monkeypatch):
    flushed: list[str] = []
    target = tmp_path / "model"

    def flush(path: Path) -> None:
        assert not target.exists() or path == tmp_path
        flushed.append(path.name)

    monkeypatch.setattr(stage_module, "flush_path", flush)
    with staging(target) as stage:
        (stage.path / "sub").mkdir()
        for name in ("a", "b", "sub/c"):
            (stage.path / name).write_bytes(b"x")
        own = stage.path.name
        stage.commit()
    assert sorted(flushed) == sorted(["a", "b", "c", "sub", own, tmp_path.name])
    assert flushed[-3:] == ["sub", own, tmp_path.name]  # directories after their files, the parent after the rename


def test_an_error_of_a_flush_ends_the_commit(tmp_path, monkeypatch):
    def failing(path: Path) -> None:
        if path.name == "b":
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(stage_module, "flush_path", failing)
    with staging(tmp_path / "model") as stage:
        for name in ("a", "b", "c"):
            (stage.path / name).write_bytes(b"x")
        with pytest.raises(Unwritable):
            stage.commit()
    assert not (tmp_path / "model").exists()
