"""Reading documents: every kind of file, what is an error and what is skipped, and memory."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import os
import random
import sysconfig
import tracemalloc
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiebeam.corpus import PYTHON, documents, text_chunks
from tiebeam.corpus.documents import NotTextError, read_documents
from tiebeam.corpus.text_chunks import TextChunk, chunks_of_stream, split_text
from tiebeam.corpus.text_sources import list_sources
from tiebeam.errors import MissingExtra, UnreadableInput

ROWS = ["Ärger im Zug\n", "two\nlines", "日本語 🗻"]


def documents_of(*paths: Path | str, text_field: str = "text") -> list[str]:
    texts: list[str] = []
    for file in list_sources(paths).files:
        for chunk in read_documents(file, text_field):
            if chunk.starts_document:
                texts.append(chunk.text)
            else:
                texts[-1] += chunk.text
    return texts


def jsonl(rows: list[str], text_field: str = "text") -> bytes:
    return "".join(json.dumps({"id": 7, text_field: row}) + "\n" for row in rows).encode()


def zstd(raw: bytes) -> bytes:
    import zstandard

    return zstandard.compress(raw)


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstd)],
)
def test_jsonl_rows_are_documents_compressed_or_not(tmp_path: Path, suffix: str, pack) -> None:
    path = tmp_path / f"rows.jsonl{suffix}"
    path.write_bytes(pack(jsonl(ROWS)))
    assert documents_of(path) == ROWS


@pytest.mark.parametrize(("suffix", "pack"), [(".txt", bytes), (".txt.gz", gzip.compress), (".md.zst", zstd)])
def test_a_text_file_is_one_document_with_unchanged_newlines(tmp_path: Path, suffix: str, pack) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_bytes(pack("eins\r\nzwei\rdrei\n ünf".encode()))
    assert documents_of(path) == ["eins\r\nzwei\rdrei\n ünf"]


def test_all_members_and_frames_of_compressed_files_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one ") + gzip.compress(b"two"))
    (tmp_path / "b.txt.zst").write_bytes(zstd(b"three ") + zstd(b"four"))
    assert documents_of(tmp_path) == ["one two", "three four"]


def test_parquet_rows_are_documents_and_null_rows_are_skipped(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"n": [1, 2, 3, 4], "body": [*ROWS, None]}), path)
    assert documents_of(path, text_field="body") == ROWS
    with pytest.raises(UnreadableInput, match=r"no column 'text' \(it holds n, body\)"):
        documents_of(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(UnreadableInput, match="not a readable parquet file"):
        documents_of(path, text_field="body")


def test_a_missing_package_is_reported_with_its_extra(tmp_path: Path) -> None:
    for name, module in (("a.parquet", "pyarrow"), ("a.jsonl.zst", "zstandard")):
        (tmp_path / name).write_bytes(b"x")
        with mock.patch.dict("sys.modules", {module: None}), pytest.raises(MissingExtra, match=r"tiebeam\[corpus\]"):
            documents_of(tmp_path / name)


def test_only_lines_that_are_the_separator_split_a_text_file(tmp_path: Path) -> None:
    path = tmp_path / "stories.txt"
    path.write_text("one\n<|endoftext|>\ntwo <|endoftext|>\n <|endoftext|>\n<|endoftext|>\r\nthree\n<|endoftext|>")
    assert documents_of(path) == ["one\n", "two <|endoftext|>\n <|endoftext|>\n", "three\n"]


@given(
    st.lists(st.sampled_from(["<|endoftext|>", "<|endof", "text|>", "a", "bb cc", "", " "]), max_size=30),
    st.integers(1, 40),
)
def test_documents_do_not_depend_on_block_size(lines: list[str], block: int) -> None:
    text = "\n".join(lines)
    with mock.patch.object(text_chunks, "MIN_CHUNK", 5), mock.patch.object(text_chunks, "MAX_CHUNK", 20):
        whole = list(chunks_of_stream([text]))
        parts = list(chunks_of_stream(text[i : i + block] for i in range(0, len(text), block)))
    assert parts == whole
    found = "".join("\x00" * chunk.starts_document + chunk.text for chunk in whole).split("\x00")[1:]
    expected, held = [], ""
    for line in text.splitlines(keepends=True):
        if line.rstrip("\n") == "<|endoftext|>":
            expected.append(held)
            held = ""
        else:
            held += line
    assert found == [document for document in [*expected, held] if document]


@given(st.text(alphabet="ab \n", max_size=300))
def test_chunks_concatenate_to_the_text_and_respect_the_maximum(text: str) -> None:
    with mock.patch.object(text_chunks, "MIN_CHUNK", 8), mock.patch.object(text_chunks, "MAX_CHUNK", 32):
        chunks = list(split_text(text))
    assert "".join(chunks) == text
    assert all(0 < len(chunk) <= 32 for chunk in chunks)


def test_a_byte_order_mark_is_dropped(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfhello")
    (tmp_path / "b.jsonl").write_bytes(b"\xef\xbb\xbf" + jsonl(["row"]))
    assert documents_of(tmp_path) == ["hello", "row"]


def test_a_directory_is_read_in_name_order_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.txt", "a/z.txt", "a/.secret/x.txt", ".git/config", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    listing = list_sources([tmp_path])
    assert [file.name for file in listing.files] == [
        f"{tmp_path.name}/{name}" for name in ("a.txt", "a/z.txt", "b.txt")
    ]
    assert listing.skipped["hidden"] == 2


def test_symlinks_are_followed_only_inside_the_directory(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    home.mkdir()
    outside.mkdir()
    (outside / "secret.txt").write_text("secret")
    (home / "real.txt").write_text("real")
    (home / "alias.txt").symlink_to("real.txt")
    (home / "leak.txt").symlink_to(outside / "secret.txt")
    (home / "dangling.txt").symlink_to("nowhere")
    (home / "folder").symlink_to(outside)
    (home / "loop").symlink_to(home)
    listing = list_sources([home])
    assert [file.path.name for file in listing.files] == ["alias.txt", "real.txt"]
    assert listing.skipped["link"] == 4


def test_symlinks_of_a_hub_cache_snapshot_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "datasets--a--b/snapshots/rev", tmp_path / "datasets--a--b/blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    (blobs / "d1").write_bytes(jsonl(["from the hub"]))
    (snapshot / "train.jsonl").symlink_to("../../blobs/d1")
    assert documents_of(snapshot) == ["from the hub"]


def test_a_pipe_is_skipped_in_a_directory_and_an_error_when_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    assert list_sources([tmp_path]).skipped["special"] == 1
    with pytest.raises(UnreadableInput, match="not a regular file"):
        list_sources([tmp_path / "pipe.txt"])


def test_a_missing_source_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnreadableInput, match=r"nothing\.txt does not exist"):
        list_sources([tmp_path / "nothing.txt"])


@pytest.mark.parametrize(
    ("raw", "kind", "sentence"),
    [
        (b"\x7fELF\0\0\0", "binary", "is a binary file"),
        ("naïve".encode("utf-16"), "binary", "is a binary file"),
        (("x" * 300_000 + "é").encode("latin-1"), "not UTF-8", r"not UTF-8 \(byte 300,000\)"),
        (b"abc\xe2\x82", "not UTF-8", r"not UTF-8 \(byte 3\)"),
    ],
)
def test_files_that_are_not_text_raise_not_text_error(tmp_path: Path, raw: bytes, kind: str, sentence: str) -> None:
    (tmp_path / "a.txt").write_bytes(raw)
    with pytest.raises(NotTextError, match=sentence) as caught:
        documents_of(tmp_path)
    assert caught.value.kind == kind


@pytest.mark.parametrize(
    ("name", "raw", "sentence"),
    [
        ("a.jsonl", jsonl(["x"]) + b"{oops\n", "line 2, is not JSON"),
        ("a.jsonl", b"[1]\n", "line 1, has no field 'text' .it holds a list"),
        ("a.jsonl", b'{"body": "x", "id": 1}\n', "no field 'text' .it holds body, id"),
        ("a.jsonl", b'{"text": 3}\n', "holds a int in 'text'"),
        ("a.jsonl", b'{"text": "\\ud83d"}\n', "half of a surrogate pair"),
        ("a.jsonl", b"\xff\n", "line 1, is not JSON"),
        ("a.jsonl", b"[" * 200_000 + b"\n", "line 1, is not JSON"),
        ("a.jsonl.gz", gzip.compress(jsonl(["x"] * 99), mtime=0)[:-12], "cannot be read"),
        ("a.jsonl.zst", zstd(jsonl(["x"]))[:4] + b"\xff" * 20, "cannot be read"),
        ("a.jsonl.zst", zstd(jsonl([str(n) for n in range(9999)]))[:-1], "the file is truncated"),
        ("a.txt.bz2", bz2.compress(b"hello" * 99)[:-1], "cannot be read"),
        ("a.txt.xz", lzma.compress(b"hello" * 99)[:-9], "cannot be read"),
        ("a.txt.gz", b"not gzip", "cannot be read"),
    ],
)
def test_damaged_files_are_an_error_even_in_a_directory(tmp_path: Path, name, raw, sentence) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(UnreadableInput, match=sentence):
        documents_of(tmp_path)


def test_a_row_above_the_limit_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(["x" * 200]))
    with (
        mock.patch.object(documents, "MAX_ROW", 100),
        pytest.raises(UnreadableInput, match="exceeds the limit of 0 MiB per row"),
    ):
        documents_of(tmp_path)


def test_a_file_that_changed_after_listing_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one")
    (file,) = list_sources([path]).files
    path.write_text("other")
    with pytest.raises(UnreadableInput, match="changed while it was being read"):
        list(read_documents(file))


def test_the_default_source_is_the_standard_library_without_installed_packages() -> None:
    files = list_sources([]).files
    assert files == list_sources([PYTHON]).files
    names = [file.name for file in files]
    assert names == sorted(names)
    assert {f"{PYTHON}/json/decoder.py", f"{PYTHON}/asyncio/tasks.py", f"{PYTHON}/pydoc_data/topics.py"} <= set(names)
    parts = {part for name in names for part in name.split("/")}
    assert not parts & {"site-packages", "dist-packages", "test", "tests"}
    root = Path(sysconfig.get_paths()["stdlib"])
    assert all(file.path.is_relative_to(root) for file in files)
    assert 6_000_000 < sum(file.size for file in files) < 40_000_000


def test_pydoc_topics_are_documents() -> None:
    (topics,) = [file for file in list_sources([]).files if file.kind == "topics"]
    texts = [chunk.text for chunk in read_documents(topics) if chunk.starts_document]
    assert len(texts) > 50
    assert any(text.startswith('The "assert" statement') for text in texts)


def test_a_large_file_is_never_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    words = random.Random(0).choices(["tie", "beam", "roof", "embedding\n"], k=2000)
    path.write_text(" ".join(words) * 1500)
    (file,) = list_sources([path]).files
    assert file.size > 15_000_000
    tracemalloc.start()
    size = sum(len(chunk.text) for chunk in read_documents(file))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert size == file.size
    assert peak < 4_000_000


def test_only_the_first_chunk_starts_a_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(jsonl(["word " * 40_000, "short"]))
    (file,) = list_sources([path]).files
    chunks = list(read_documents(file))
    assert [chunk.starts_document for chunk in chunks] == [True] + [False] * (len(chunks) - 2) + [True]
    assert chunks[-1] == TextChunk("short", True)
