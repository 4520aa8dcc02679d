"""Shards: identical to parameter-golf's format, memory-mapped, damage is an error."""

from __future__ import annotations

import struct
from array import array
from functools import partial
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.corpus.shards import ShardWriter, TokenStream, open_shard
from tiebeam.errors import UnreadableInput


def golf_shard(
    path: Path, tokens: list[int], magic: int = 20240520, version: int = 1, count: int | None = None
) -> Path:
    """Written by hand: 256 little-endian int32, then the tokens."""
    header = [magic, version, len(tokens) if count is None else count, *[0] * 253]
    path.write_bytes(struct.pack("<256i", *header) + struct.pack(f"<{len(tokens)}{'HI'[version == 2]}", *tokens))
    return path


def read_by_hand(path: Path) -> tuple[int, int, list[int]]:
    raw = path.read_bytes()
    magic, version, count = struct.unpack_from("<3i", raw)
    tokens = array({1: "H", 2: "I"}[version])
    tokens.frombytes(raw[1024:])
    assert len(tokens) == count
    assert not any(raw[12:1024])
    return magic, version, tokens.tolist()


def test_a_hand_written_shard_is_read(tmp_path: Path) -> None:
    assert open_shard(golf_shard(tmp_path / "fineweb_train_000000.bin", [1, 65535, 7])).tolist() == [1, 65535, 7]


@pytest.mark.parametrize(("vocab", "version"), [(65_536, 1), (65_537, 2)])
def test_what_is_written_is_what_a_hand_written_reader_expects(tmp_path: Path, vocab: int, version: int) -> None:
    writer = ShardWriter(tmp_path, "train", vocab, shard_tokens=5)
    tokens = [0, 1, vocab - 1, 3, 4, 5, 6]
    writer.append(np.array(tokens[:2]))
    writer.append(np.array(tokens[2:]))
    paths = writer.close()
    assert [path.name for path in paths] == ["train_000000.bin", "train_000001.bin"]
    assert [read_by_hand(path) for path in paths] == [
        (20240520, version, tokens[:5]),
        (20240520, version, tokens[5:]),
    ]


@pytest.mark.parametrize("count", [0, 5, 10])
def test_a_full_last_shard_is_not_followed_by_an_empty_one(tmp_path: Path, count: int) -> None:
    writer = ShardWriter(tmp_path, "val", 100, shard_tokens=5)
    writer.append(np.arange(count))
    assert [len(open_shard(path)) for path in writer.close()] == ([5] * (count // 5) or [0])


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(0, 40), st.integers(0, 20))
def test_a_resumed_writer_gives_the_same_shards(tmp_path_factory, tokens, saved, lost) -> None:
    directory = tmp_path_factory.mktemp("shards")
    saved = min(saved, len(tokens))
    first = ShardWriter(directory, "train", 10, shard_tokens=7)
    first.append(np.array(tokens[:saved], int))
    assert first.flush() == saved
    first.append(np.full(lost, 3))  # written after the flush, then the machine crashed
    first._handle.flush()
    assert ShardWriter.can_resume(directory, "train", 10, saved, shard_tokens=7)
    second = ShardWriter(directory, "train", 10, saved, shard_tokens=7)
    second.append(np.array(tokens[saved:], int))
    stream = TokenStream([open_shard(path) for path in second.close()], 10)
    assert stream.read(0, len(stream)).tolist() == tokens


def test_a_checkpoint_beyond_the_data_on_disk_cannot_be_resumed(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, "train", 10, shard_tokens=7)
    writer.append(np.zeros(9, int))
    writer.flush()
    assert not ShardWriter.can_resume(tmp_path, "train", 10, 10, shard_tokens=7)
    (tmp_path / "train_000000.bin").unlink()
    assert not ShardWriter.can_resume(tmp_path, "train", 10, 9, shard_tokens=7)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: golf_shard(path, [1, 2], magic=7), "not a token shard: its magic number is 7"),
        (lambda path: golf_shard(path, [1, 2], version=3), "version 3"),
        (lambda path: golf_shard(path, [1, 2], count=3), r"declares 3 tokens \(1,030 bytes\) but has 1,028 bytes"),
        (lambda path: golf_shard(path, [1, 2], count=1), "declares 1 tokens"),
        (lambda path: golf_shard(path, [1, 2], count=-1), "declares -1 tokens"),
        (lambda path: golf_shard(path, [1, 2], count=2**31 - 1), "declares 2,147,483,647 tokens"),
        (lambda path: path.write_bytes(b"\x00" * 100), "not a token shard"),
        (lambda path: path.write_bytes(b""), "not a token shard"),
        (lambda path: path.unlink(missing_ok=True), "cannot be read: No such file"),
    ],
)
def test_damaged_shards_are_an_error(tmp_path: Path, damage, sentence: str) -> None:
    path = tmp_path / "train_000000.bin"
    damage(path)
    with pytest.raises(UnreadableInput, match=sentence):
        open_shard(path)


def test_a_token_outside_the_vocabulary_is_an_error_when_read(tmp_path: Path) -> None:
    stream = TokenStream([open_shard(golf_shard(tmp_path / "a.bin", [1, 2, 9, 3]))], vocab=9, name="these shards")
    assert stream.read(0, 2).tolist() == [1, 2]
    with pytest.raises(UnreadableInput, match="these shards: token 9 is outside the vocabulary of 9"):
        stream.read(1, 4)


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=5), st.data())
def test_a_stream_reads_across_shards_like_one_array(parts: list[list[int]], data) -> None:
    stream = TokenStream([np.array(part, np.uint16) for part in parts], vocab=5)
    whole = [token for part in parts for token in part]
    assert len(stream) == len(whole)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert stream.read(start, stop).tolist() == whole[start:stop]
    assert stream[start : stop + 9].tolist() == whole[start : stop + 9]
    assert stream[-3:].tolist() == whole[-3:]
    assert [token for chunk in stream.chunks(size=3) for token in chunk] == whole


@given(st.lists(st.lists(st.integers(1, 4), max_size=6), max_size=6), st.integers(1, 5))
def test_documents_are_the_tokens_between_boundaries(documents: list[list[int]], size: int) -> None:
    whole = [token for document in documents for token in (0, *document)]
    stream = TokenStream([np.array(whole[i : i + size], np.uint16) for i in range(0, len(whole), size)], vocab=5)
    with mock.patch.object(stream, "chunks", partial(TokenStream.chunks, stream, size)):
        assert [document.tolist() for document in stream.documents(boundary=0)] == documents
