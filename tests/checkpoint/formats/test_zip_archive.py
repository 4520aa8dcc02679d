"""Zip archives are read by byte range, and inconsistent ones are refused."""

from __future__ import annotations

import io
import struct
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.formats import zip_archive
from tiebeam.errors import UnreadableInput

TEXT = b"".join(struct.pack("<I", i * 2654435761 % 2**32) + b"abab" for i in range(40_000))  # 320 kB, compresses


class InMemory:
    """Files in memory, as a remote reader sees them, with every range that was read."""

    def __init__(self, **contents: bytes) -> None:
        self.contents = contents
        self.ranges: list[tuple[int, int]] = []

    def names(self) -> list[str]:
        return list(self.contents)

    def folders(self) -> list[str]:
        return []

    def size(self, name: str) -> int:
        return len(self.contents[name])

    def head(self, name: str, count: int) -> tuple[int, bytes]:
        size = self.size(name)
        return size, self.read(name, 0, min(count, size))

    def read(self, name: str, begin: int, end: int) -> bytes:
        assert 0 <= begin <= end <= len(self.contents[name])
        self.ranges.append((begin, end))
        return self.contents[name][begin:end]


def archive_of(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def opened(raw: bytes) -> zip_archive.Archive:
    return zip_archive.Archive(InMemory(a=raw), "a")


DEFLATED = archive_of({"one": TEXT, "two": TEXT[::-1]}, zipfile.ZIP_DEFLATED)


def directory_entry(raw: bytes, name: bytes) -> int:
    """Offset of the entry of `name` in the table of contents."""
    at = raw.index(b"PK\x01\x02")
    while raw[at + 46 : at + 46 + len(name)] != name:
        at = raw.index(b"PK\x01\x02", at + 4)
    return at


def patched(raw: bytes, at: int, value: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


def test_stored_member_is_a_byte_range_of_the_file() -> None:
    raw = archive_of({"x/one": b"first", "x/two": TEXT})
    archive = opened(raw)
    for name, data in (("x/one", b"first"), ("x/two", TEXT)):
        begin = archive.begin(name)
        assert raw[begin : begin + len(data)] == data
        assert not archive.members[name].deflated


@settings(max_examples=60, deadline=None)
@given(ranges=st.lists(st.tuples(st.integers(0, len(TEXT)), st.integers(0, len(TEXT))).map(sorted), max_size=6))
def test_deflated_member_reads_the_same_in_any_order(ranges: list[list[int]]) -> None:
    files = InMemory(a=DEFLATED)
    for begin, end in ranges:
        assert zip_archive.read_member(files, "a", "one", begin, end) == TEXT[begin:end]
        assert zip_archive.read_member(files, "a", "two", begin, end) == TEXT[::-1][begin:end]


def test_sequential_reads_inflate_once_even_when_two_members_alternate() -> None:
    files = InMemory(a=DEFLATED)
    zip_archive.read_member(files, "a", "one", 0, 1)
    zip_archive.read_member(files, "a", "two", 0, 1)
    before = len(files.ranges)
    for at in range(0, len(TEXT), 1000):
        assert zip_archive.read_member(files, "a", "one", at + 1, at + 1000) == TEXT[at + 1 : at + 1000]
        assert zip_archive.read_member(files, "a", "two", at + 1, at + 1000) == TEXT[::-1][at + 1 : at + 1000]
    assert len(files.ranges) == before  # the compressed bytes were read once


def test_remote_table_of_contents_takes_one_read_from_the_end() -> None:
    files = InMemory(a=archive_of({"big": bytes(1 << 20), **{f"n{i}": b"x" for i in range(100)}}))
    zip_archive.Archive(files, "a")
    assert len(files.ranges) == 1
    assert sum(end - begin for begin, end in files.ranges) <= 1 << 16


def test_prefix_comment_and_zip64_fields_are_supported() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.comment = b"a comment"
        with archive.open("m", "w", force_zip64=True) as member:
            member.write(TEXT)
    assert opened(b"#!/bin/sh\n" * 7 + out.getvalue()).read("m", 5, 500) == TEXT[5:500]


def test_empty_archive_has_no_members() -> None:
    assert opened(archive_of({})).members == {}
    assert opened(bytes(100) + archive_of({})).members == {}


def test_zip_bomb_costs_no_more_memory_than_the_requested_bytes() -> None:
    size = 200 << 20
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("zeros", "w", force_zip64=True) as member,
    ):
        for _ in range(200):
            member.write(bytes(1 << 20))
    files = InMemory(a=out.getvalue())
    tracemalloc.start()
    try:
        assert zip_archive.read_member(files, "a", "zeros", size - 10, size) == bytes(10)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20


def test_inflating_stops_at_the_declared_size() -> None:
    raw = archive_of({"m": bytes(100_000)}, zipfile.ZIP_DEFLATED)
    entry = directory_entry(raw, b"m")
    archive = opened(patched(raw, entry + 24, struct.pack("<I", 1000)))
    assert archive.read("m", 0, 999) == bytes(999)
    with pytest.raises(UnreadableInput, match="it has 1,000"):
        archive.read("m", 0, 1001)


def test_checksum_is_checked_where_a_deflated_member_ends() -> None:
    raw = archive_of({"m": TEXT}, zipfile.ZIP_DEFLATED)
    archive = opened(patched(raw, directory_entry(raw, b"m") + 16, b"\0\0\0\0"))
    assert archive.read("m", 5, len(TEXT) - 1) == TEXT[5:-1]
    for begin in (0, 5, len(TEXT) - 1):
        with pytest.raises(UnreadableInput, match="'m' is damaged: its checksum is wrong"):
            archive.read("m", begin, len(TEXT))


def test_checksum_of_a_stored_member_is_not_checked() -> None:
    raw = archive_of({"m": TEXT})
    assert opened(patched(raw, directory_entry(raw, b"m") + 16, b"\0\0\0\0")).read("m") == TEXT


def test_more_members_than_the_limit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = archive_of({str(i): b"" for i in range(101)})
    assert len(opened(raw).members) == 101
    monkeypatch.setattr(zip_archive, "MAX_ZIP_MEMBERS", 100)
    with pytest.raises(UnreadableInput, match="more members than the limit of 100"):
        opened(raw)


def test_impossible_compression_ratio_is_refused() -> None:
    raw = archive_of({"m": bytes(100_000)}, zipfile.ZIP_DEFLATED)
    entry = directory_entry(raw, b"m")
    with pytest.raises(UnreadableInput, match="exceeds the limit of 1,032 times"):
        opened(patched(raw, entry + 24, struct.pack("<I", 2**32 - 2))).read("m", 0, 10)


def test_stream_shorter_than_declared_is_damaged() -> None:
    raw = archive_of({"m": TEXT}, zipfile.ZIP_DEFLATED)
    entry = directory_entry(raw, b"m")
    archive = opened(patched(raw, entry + 24, struct.pack("<I", len(TEXT) + 5)))
    assert archive.read("m", 0, len(TEXT)) == TEXT
    with pytest.raises(UnreadableInput, match="cannot be inflated past byte 320,000"):
        archive.read("m")


def test_member_that_appears_twice_is_refused() -> None:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("m", b"one")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("m", b"two")
    with pytest.raises(UnreadableInput, match="'m' twice"):
        opened(out.getvalue())


def test_two_members_over_the_same_bytes_are_refused() -> None:
    raw = archive_of({"aa": TEXT, "bb": TEXT})
    second = directory_entry(raw, b"bb")
    with pytest.raises(UnreadableInput, match="does not fit"):
        opened(patched(raw, second + 42, struct.pack("<I", 0)))
    with pytest.raises(UnreadableInput, match="does not fit"):
        opened(patched(raw, second + 42, struct.pack("<I", 100)))


def test_data_that_overlaps_the_next_member_is_refused() -> None:
    raw = archive_of({"aa": b"12345678", "bb": TEXT})
    grown = patched(raw, 28, struct.pack("<H", 4))  # four bytes of extra field that are missing
    with pytest.raises(UnreadableInput, match="overlaps what follows"):
        opened(grown).begin("aa")


def test_table_of_contents_that_disagrees_with_the_local_header_is_refused() -> None:
    raw = archive_of({"aa": TEXT})
    for at, value in ((0, b"XX"), (8, b"\x08\x00"), (30, b"zz")):
        with pytest.raises(UnreadableInput, match="does not match the local header of 'aa'"):
            opened(patched(raw, at, value)).begin("aa")


def test_encrypted_and_unsupported_members_are_refused_only_when_needed() -> None:
    raw = archive_of({"aa": b"x" * 50, "bb": b"fine"})
    locked = patched(raw, 6, b"\x01")
    assert opened(locked).read("bb") == b"fine"
    with pytest.raises(UnreadableInput, match="'aa' is encrypted"):
        opened(locked).read("aa")
    with pytest.raises(UnreadableInput, match="method 14"):
        opened(archive_of({"aa": b"x" * 50}, zipfile.ZIP_LZMA)).read("aa")


def test_stored_member_with_two_sizes_is_refused() -> None:
    raw = archive_of({"aa": b"12345678"})
    with pytest.raises(UnreadableInput, match="claims 9 bytes but stores 8"):
        opened(patched(raw, directory_entry(raw, b"aa") + 24, b"\x09")).read("aa")


def test_missing_member_is_named() -> None:
    with pytest.raises(UnreadableInput, match="no member 'nothing'"):
        opened(archive_of({"aa": b""})).read("nothing")


@pytest.mark.parametrize("raw", [b"", b"PK\x03\x04", b"no zip at all" * 20, archive_of({"m": TEXT})[:-30]])
def test_incomplete_archive_is_refused_in_one_sentence(raw: bytes) -> None:
    with pytest.raises(UnreadableInput, match="not a complete zip archive"):
        opened(raw)


def test_table_of_contents_above_the_limit_is_not_read(tmp_path: Path) -> None:
    with open(tmp_path / "a", "wb") as out:
        out.truncate(1 << 30)
        out.seek(1 << 30)
        out.write(struct.pack("<4s4H2IH", b"PK\x05\x06", 0, 0, 1, 1, 1 << 29, 1 << 29, 0))
    with pytest.raises(UnreadableInput, match="table of contents of 536,870,912 bytes"):
        zip_archive.Archive(LocalFiles(tmp_path), "a")
