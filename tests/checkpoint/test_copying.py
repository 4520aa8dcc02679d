"""Bytes arrive as they left, by every road, and a flipped one is found."""

import errno
import os

import pytest

from tiebeam.checkpoint import copying
from tiebeam.checkpoint.copying import Made, Span, check_same, copy_files, write_files
from tiebeam.errors import ProofFailed, UnreadableInput


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr(copying, "_PART", 1000)  # many parts and both threads, on a small file
    monkeypatch.setattr(copying, "BLOCK", 300)
    path = tmp_path / "source"
    path.write_bytes(os.urandom(10_007))
    return path


def unsupported(*_, **__):
    raise OSError(errno.EXDEV, "across file systems")


@pytest.fixture(params=["in the kernel", "fallback", "a kernel that copies nothing"])
def road(request, monkeypatch):
    if request.param == "fallback":
        monkeypatch.setattr(os, "copy_file_range", unsupported, raising=False)
    elif request.param != "in the kernel":
        monkeypatch.setattr(os, "copy_file_range", lambda *_: 0, raising=False)


def test_spans_and_made_bytes_follow_one_another(source, tmp_path, road):
    raw = source.read_bytes()
    seen = []
    contents = [
        Made.of(b"head"),
        Span(source, 5, 5000),
        Made(6, lambda: [b"abc", memoryview(b"def")]),
        Span(source, 0, 0),
    ]
    write_files([(tmp_path / "target", contents)], seen.append)
    assert (tmp_path / "target").read_bytes() == b"head" + raw[5:5000] + b"abcdef"
    assert sum(seen) == sum(c.nbytes for c in contents)


def test_whole_files_are_copied(source, tmp_path, road):
    empty = tmp_path / "empty"
    empty.touch()
    copy_files([(source, tmp_path / "a"), (empty, tmp_path / "b")])
    assert (tmp_path / "a").read_bytes() == source.read_bytes()
    assert (tmp_path / "b").read_bytes() == b""


def test_an_existing_file_is_never_written_over(source, tmp_path):
    (tmp_path / "target").write_text("mine")
    with pytest.raises(FileExistsError):
        write_files([(tmp_path / "target", [Span(source, 0, 10)])])
    assert (tmp_path / "target").read_text() == "mine"


def test_a_source_that_ends_early_is_an_error(source, tmp_path, road):
    with pytest.raises(UnreadableInput, match="became shorter"):
        write_files([(tmp_path / "target", [Span(source, 0, 20_000)])])


def test_a_full_disk_is_not_mistaken_for_a_missing_feature(source, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(os, "copy_file_range", full, raising=False)
    with pytest.raises(OSError, match="no space"):
        write_files([(tmp_path / "target", [Span(source, 0, 5000)])])


def test_several_files_are_written_together(source, tmp_path, road):
    raw = source.read_bytes()
    files = [(tmp_path / f"f{i}", [Span(source, i, 9000 + i), Made.of(b"end")]) for i in range(3)]
    write_files(files)
    for i, (path, _) in enumerate(files):
        assert path.read_bytes() == raw[i : 9000 + i] + b"end"


@pytest.mark.parametrize("at", [0, 2999, 5000])
def test_a_bit_that_flips_on_the_way_is_found_at_once(source, tmp_path, monkeypatch, at):
    honest = os.copy_file_range

    def flipping(left, right, count, begin, to):
        n = honest(left, right, count, begin, to)
        if to <= at < to + n:
            os.pwrite(right, bytes([os.pread(right, 1, at)[0] ^ 1]), at)
        return n

    monkeypatch.setattr(os, "copy_file_range", flipping)
    with pytest.raises(ProofFailed, match="differs"):
        write_files([(tmp_path / "target", [Span(source, 0, 10_000)])])


@pytest.mark.parametrize("at", [4, 999, 1000, 10_006])
def test_one_flipped_bit_is_found(source, tmp_path, at):
    raw = bytearray(source.read_bytes())
    target = tmp_path / "target"
    target.write_bytes(b"12345678" + raw)
    check_same([(Span(source, 0, len(raw)), target, 8)])
    raw[at] ^= 1
    target.write_bytes(b"12345678" + raw)
    with pytest.raises(ProofFailed, match="differs"):
        check_same([(Span(source, 0, len(raw)), target, 8)])
