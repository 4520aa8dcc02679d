"""Copies are exact, whether blocks are cloned or copied, and a flipped bit is detected."""

import os
from pathlib import Path

import pytest

from tiebeam.checkpoint.write import copy_bytes
from tiebeam.checkpoint.write.copy_bytes import Made, Span, check_same, copy_files, write_files
from tiebeam.errors import ProofFailed, UnreadableInput


@pytest.fixture(params=["in threads", "in one thread"])
def source(request, tmp_path, monkeypatch):
    monkeypatch.setattr(copy_bytes, "_PART", 1000)  # many parts on a small file
    monkeypatch.setattr(copy_bytes, "_SMALL", 0 if request.param == "in threads" else 1 << 20)
    monkeypatch.setattr(copy_bytes, "BLOCK", 300)
    path = tmp_path / "source"
    path.write_bytes(os.urandom(10_007))
    return path


@pytest.fixture(params=["blocks copied", "blocks shared"])
def method(request, monkeypatch):
    if request.param == "blocks shared":  # as btrfs and xfs answer FICLONE

        def shared(right, code, left):
            assert code == 0x40049409
            os.pwrite(right, os.pread(left, os.fstat(left).st_size, 0), 0)

        monkeypatch.setattr("fcntl.ioctl", shared)


def test_spans_and_generated_bytes_are_written_in_order(source, tmp_path):
    raw = source.read_bytes()
    seen: list[int] = []
    contents: list[Span | Made] = [
        Made.of(b"head"),
        Span(source, 5, 5000),
        Made(6, lambda: [b"abc", memoryview(b"def")]),
        Span(source, 0, 0),
    ]
    write_files([(tmp_path / "target", contents)], seen.append)
    assert (tmp_path / "target").read_bytes() == b"head" + raw[5:5000] + b"abcdef"
    assert sum(seen) == sum(c.nbytes for c in contents)


def test_whole_files_are_copied(source, tmp_path, method):
    empty = tmp_path / "empty"
    empty.touch()
    copy_files([(source, tmp_path / "a"), (empty, tmp_path / "b")])
    assert (tmp_path / "a").read_bytes() == source.read_bytes()
    assert (tmp_path / "b").read_bytes() == b""


def test_existing_file_is_never_overwritten(source, tmp_path):
    (tmp_path / "target").write_text("mine")
    with pytest.raises(FileExistsError):
        write_files([(tmp_path / "target", [Span(source, 0, 10)])])
    assert (tmp_path / "target").read_text() == "mine"


def test_source_that_ends_early_is_an_error(source, tmp_path):
    with pytest.raises(UnreadableInput, match="became shorter"):
        write_files([(tmp_path / "target", [Span(source, 0, 20_000)])])


def test_several_files_are_written_together(source, tmp_path):
    raw = source.read_bytes()
    files: list[tuple[Path, list[Span | Made]]] = [
        (tmp_path / f"f{i}", [Span(source, i, 9000 + i), Made.of(b"end")]) for i in range(3)
    ]
    write_files(files)
    for i, (path, _) in enumerate(files):
        assert path.read_bytes() == raw[i : 9000 + i] + b"end"


def test_a_durable_copy_has_the_same_bytes_and_every_part_goes_to_the_disk(source, tmp_path, monkeypatch):
    started: list[tuple[int, int]] = []
    monkeypatch.setattr(copy_bytes, "start_writeback", lambda handle, begin, nbytes: started.append((begin, nbytes)))
    made = Made(2500, lambda: [bytes(500)] * 5)
    write_files([(tmp_path / "target", [Span(source, 7, 4007), made])], durable=True)
    assert (tmp_path / "target").read_bytes() == source.read_bytes()[7:4007] + bytes(2500)
    assert sorted(started) == [(0, 1000), (1000, 1000), (2000, 1000), (3000, 1000), (4000, 1000), (5000, 1000)]


@pytest.mark.parametrize("at", [0, 2999, 5000])
def test_bit_flip_while_writing_is_detected(source, tmp_path, monkeypatch, at):
    honest = os.write

    def flipping(handle, raw):
        to, changed = os.lseek(handle, 0, os.SEEK_CUR), bytearray(raw)
        if to <= at < to + len(changed):
            changed[at - to] ^= 1
        return honest(handle, changed)

    monkeypatch.setattr(os, "write", flipping)
    with pytest.raises(ProofFailed, match="differs"):
        write_files([(tmp_path / "target", [Span(source, 0, 10_000)])])


@pytest.mark.parametrize("at", [4, 999, 1000, 10_006])
def test_single_bit_flip_is_detected_by_comparison(source, tmp_path, at):
    raw = bytearray(source.read_bytes())
    target = tmp_path / "target"
    target.write_bytes(b"12345678" + raw)
    check_same([(Span(source, 0, len(raw)), target, 8)])
    raw[at] ^= 1
    target.write_bytes(b"12345678" + raw)
    with pytest.raises(ProofFailed, match="differs"):
        check_same([(Span(source, 0, len(raw)), target, 8)])
