"""Sources -> documents, a piece at a time, so that no file is ever held whole.

A source is a file, a directory, or "@python": the library sources and pydoc topics that come with every Python.
A file's name says what it holds: .jsonl/.ndjson rows, a .parquet table, otherwise text; any of them (but parquet)
may be compressed (.gz, .bz2, .xz, .zst). A text file is one document, or several when lines that say
<|endoftext|> and nothing else stand between them.

Text is UTF-8, newlines as they are, a byte-order mark dropped. A plain file that is not text is refused when it was
named, and skipped and counted when it was merely found in a directory. Damaged .jsonl, .parquet and compressed
files are always refused: their names promised something.

A long document comes in pieces of 16 to 64 thousand characters, cut before a space that follows a word. No
pre-tokenizer of the GPT-2 kind lets a token cross that place, so the tokens are those of the whole document.
"""

from __future__ import annotations

import codecs
import contextlib
import hashlib
import io
import json
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

PYTHON = "@python"
BOUNDARY = "<|endoftext|>"
SHORTEST_PIECE, LONGEST_PIECE = 16_384, 65_536  # characters; 16K keeps every core busy at the tokenizer's best speed
LONGEST_ROW = 64 << 20  # bytes of one line of JSON

_SEPARATOR = re.compile(r"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?\n")  # begins with a literal: fast to search for
_LAST_SEPARATOR = re.compile(r"<\|endoftext\|>(?<![^\n]<\|endoftext\|>)\r?\Z")
_BETWEEN_WORDS = re.compile(r"(?<=\S) (?=\S)")
_AFTER_A_WORD = re.compile(r"(?<=\S)[ \n]")
_BLOCK = 1 << 18


class NotText(Exception):
    """A plain file that holds something else; whoever reads it decides whether that matters."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


class Piece(NamedTuple):
    """Part of a document; `first` opens it."""

    text: str
    first: bool


@dataclass(frozen=True)
class SourceFile:
    """One file to read; `name` starts at its source, so that it is the same on every machine."""

    name: str
    path: Path
    kind: Literal["text", "jsonl", "parquet", "topics"]
    named: bool
    size: int
    modified: int

    def digest(self) -> bytes:
        """SHA-256 of the bytes as stored."""
        with _opened(self, raw=True) as stream:
            return hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]


@dataclass(frozen=True)
class Listing:
    """What the sources come to: files in reading order, and what was passed over and why."""

    files: tuple[SourceFile, ...]
    skipped: Counter[str] = field(default_factory=Counter)


def list_sources(sources: Sequence[str | os.PathLike[str]]) -> Listing:
    """Every file of the sources, in the order given, a directory's own in the order of their names."""
    files: list[SourceFile] = []
    skipped: Counter[str] = Counter()
    for source in sources or (PYTHON,):
        if str(source) == PYTHON:
            files += _python_library()
            continue
        path = Path(source).expanduser()
        try:
            status = path.stat()
        except OSError as error:
            raise UnreadableInput(_explain(path, error)) from None
        if stat.S_ISDIR(status.st_mode):
            files += _directory(path, skipped)
        elif stat.S_ISREG(status.st_mode):
            files.append(SourceFile(path.name, path, _kind(path), True, status.st_size, status.st_mtime_ns))
        else:
            raise UnreadableInput(f"{path} is not a regular file; the text is read more than once, so save it first")
    return Listing(tuple(files), skipped)


def read_pieces(file: SourceFile, text_field: str = "text") -> Iterator[Piece]:
    """The documents of one file. Raises NotText from a plain file that holds something else."""
    if file.kind == "topics":
        from pydoc_data.topics import topics

        return _cut_all(topics[name] for name in sorted(topics))
    if file.kind == "jsonl":
        return _cut_all(_jsonl_rows(file, text_field))
    if file.kind == "parquet":
        return _cut_all(_parquet_rows(file, text_field))
    return _text_documents(_text_blocks(file))


def cut(text: str) -> Iterator[str]:
    """A text in pieces, where no token can straddle the seam."""
    start = 0
    while len(text) - start > LONGEST_PIECE:
        end = _seam(text, start)
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _seam(text: str, start: int) -> int:
    """Where to end the piece that begins at `start`: between words, else before white space, else anywhere."""
    shortest, longest = start + SHORTEST_PIECE, start + LONGEST_PIECE
    place = _BETWEEN_WORDS.search(text, shortest, longest) or _AFTER_A_WORD.search(text, shortest, longest)
    return place.start() if place else longest


def _cut_all(documents: Iterable[str]) -> Iterator[Piece]:
    for document in documents:
        for number, text in enumerate(cut(document)):
            yield Piece(text, number == 0)


def _text_documents(blocks: Iterable[str]) -> Iterator[Piece]:
    """Documents out of a stream of text, whatever the blocks it arrives in."""
    rest, first = "", True  # `first`: rest begins a document
    for block in blocks:
        rest += block
        while separator := _SEPARATOR.search(rest, 0 if first else 1):
            for text in cut(rest[: separator.start()]):
                yield Piece(text, first)
                first = False
            rest, first = rest[separator.end() :], True
        start = 0
        while len(rest) - start > 2 * LONGEST_PIECE:  # what is left holds any separator that is still arriving
            end = _seam(rest, start)
            yield Piece(rest[start:end], first)
            start, first = end, False
        rest = rest[start:]
    if separator := _LAST_SEPARATOR.search(rest, 0 if first else 1):
        rest = rest[: separator.start()]
    for text in cut(rest):
        yield Piece(text, first)
        first = False


def _text_blocks(file: SourceFile) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    done = 0
    with _opened(file) as stream:
        while True:
            block = stream.read(_BLOCK)
            if done == 0 and b"\0" in block[:8192]:
                raise NotText("binary", f"{file.path} is a binary file, not text; leave it out, or name what is text")
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                place = done - pending + error.start
                raise NotText(
                    "not UTF-8",
                    f"{file.path} is not UTF-8 (byte {place:,}); convert it: iconv -f LATIN1 -t UTF-8 OLD > NEW",
                ) from None
            if done == 0:
                text = text.removeprefix("\ufeff")
            done += len(block)
            if text:
                yield text
            if not block:
                return


def _jsonl_rows(file: SourceFile, text_field: str) -> Iterator[str]:
    with _opened(file) as stream:
        number = 0
        while line := stream.readline(LONGEST_ROW + 1):
            number += 1
            where = f"{file.path}, line {number:,},"
            if len(line) > LONGEST_ROW:
                raise UnreadableInput(f"{where} is longer than {LONGEST_ROW >> 20} MiB, too long for one document")
            if not line.strip():
                continue
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                raise UnreadableInput(f"{where} is not JSON: {error}") from None
            if not isinstance(row, dict) or text_field not in row:
                fields = ", ".join(list(row)[:8]) if isinstance(row, dict) else f"a {type(row).__name__}"
                raise UnreadableInput(f"{where} has no field {text_field!r} (it holds {fields}); name the right field")
            yield from _row(row[text_field], where, text_field)


def _parquet_rows(file: SourceFile, text_field: str) -> Iterator[str]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MissingExtra(f"{file.path} (parquet)", "corpus") from None
    with _opened(file) as stream:
        try:
            table = pyarrow.parquet.ParquetFile(stream)
            columns = table.schema_arrow.names
            if text_field not in columns:
                raise UnreadableInput(
                    f"{file.path} has no column {text_field!r} (it holds {', '.join(columns[:8])}); name the right one"
                )
            for batch in table.iter_batches(batch_size=256, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    yield from _row(value, str(file.path), text_field)
        except (pyarrow.ArrowException, OSError) as error:
            raise UnreadableInput(f"{file.path} is not a readable parquet file: {_first_line(error)}") from None


def _row(value: Any, where: str, text_field: str) -> Iterator[str]:
    """The text of a row; null and empty rows hold no document."""
    if value is None or value == "":
        return
    if not isinstance(value, str):
        raise UnreadableInput(f"{where} holds a {type(value).__name__} in {text_field!r}, not text; name another field")
    if any("\ud800" <= character <= "\udfff" for character in value):  # \ud83d alone is legal JSON, and no character
        raise UnreadableInput(f"{where} holds half of a surrogate pair in {text_field!r}, which is no Unicode text")
    yield value


class _Compression(NamedTuple):
    open: Callable[[IO[bytes]], IO[bytes]]
    errors: tuple[type[BaseException], ...]


def _gzip() -> _Compression:
    import gzip
    import zlib

    return _Compression(lambda raw: gzip.GzipFile(fileobj=raw), (OSError, EOFError, zlib.error))  # type: ignore[return-value,arg-type]


def _bzip2() -> _Compression:
    import bz2

    return _Compression(bz2.BZ2File, (OSError, EOFError))


def _xz() -> _Compression:
    import lzma

    return _Compression(lzma.LZMAFile, (lzma.LZMAError, EOFError))


def _zstd() -> _Compression:
    import zstandard

    class Frames(io.RawIOBase):
        """zstandard's own reader takes a file that was cut short for one that ended; this one does not."""

        def __init__(self, raw: IO[bytes]) -> None:
            self._raw, self._frame, self._begun, self._ready = raw, self._next_frame(), False, b""

        @staticmethod
        def _next_frame() -> Any:
            return zstandard.ZstdDecompressor().decompressobj()

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self._ready:
                packed = self._raw.read(4096)  # little at a time: four bytes can stand for 128 KiB
                if not packed and self._begun:
                    raise EOFError("it is cut short")
                if not packed:
                    return 0
                while packed:
                    self._begun = True
                    self._ready += self._frame.decompress(packed)
                    packed = b""
                    if self._frame.eof:
                        packed = self._frame.unused_data
                        self._frame, self._begun = self._next_frame(), False
            given = self._ready[: len(buffer)]
            buffer[: len(given)] = given
            self._ready = self._ready[len(given) :]
            return len(given)

    return _Compression(lambda raw: io.BufferedReader(Frames(raw), _BLOCK), (zstandard.ZstdError, EOFError))


_COMPRESSIONS = {".gz": _gzip, ".bz2": _bzip2, ".xz": _xz, ".zst": _zstd}


@contextlib.contextmanager
def _opened(file: SourceFile, raw: bool = False) -> Iterator[IO[bytes]]:
    """A file's bytes, unpacked unless raw; proves that it is still the file that was listed."""
    suffix = file.path.suffix
    errors: tuple[type[BaseException], ...] = (OSError,)
    try:
        with open(file.path, "rb") as handle:
            status = os.fstat(handle.fileno())
            if (status.st_size, status.st_mtime_ns) != (file.size, file.modified):
                raise UnreadableInput(f"{file.path} changed while it was being read; run again when it is finished")
            if raw or suffix not in _COMPRESSIONS:
                yield handle
            else:
                compression = _COMPRESSIONS[suffix]()
                errors += compression.errors
                yield compression.open(handle)
    except ImportError:
        raise MissingExtra(f"{file.path} ({suffix})", "corpus") from None
    except errors as error:
        raise UnreadableInput(f"{file.path} cannot be read: {_first_line(error)}") from None


def _kind(path: Path) -> Literal["text", "jsonl", "parquet"]:
    suffixes = path.suffixes[:-1] if path.suffix in _COMPRESSIONS else path.suffixes
    last = suffixes[-1].lower() if suffixes else ""
    if last == ".parquet" and path.suffix.lower() == last:
        return "parquet"
    return "jsonl" if last in (".jsonl", ".ndjson") else "text"


def _directory(root: Path, skipped: Counter[str]) -> list[SourceFile]:
    """The visible regular files under root. Links are read only when they lead to a file inside it."""

    def refuse(error: OSError) -> None:
        raise UnreadableInput(_explain(Path(error.filename), error)) from None

    home = Path(os.path.realpath(root))
    label = home.name
    if home.parent.name == "snapshots" and (home.parent.parent / "blobs").is_dir():
        home = home.parent.parent  # a snapshot in the Hub's cache is made of links into its repository
    files = []
    for folder, inside, names in os.walk(root, onerror=refuse):
        skipped["hidden"] += sum(name.startswith(".") for name in (*inside, *names))
        skipped["link"] += sum((Path(folder) / name).is_symlink() for name in inside if not name.startswith("."))
        if "corpus.json" in names and "train_000000.bin" in names:  # tokens that were built from what is around them
            skipped["corpus"] += 1
            inside.clear()
            continue
        inside[:] = [name for name in inside if not name.startswith(".")]
        for name in names:
            path = Path(folder) / name
            if name.startswith("."):
                continue
            if path.is_symlink() and not (path.exists() and path.resolve().is_relative_to(home)):
                skipped["link"] += 1
                continue
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                skipped["special"] += 1
                continue
            relative = f"{label}/{path.relative_to(root).as_posix()}"
            files.append(SourceFile(relative, path, _kind(path), False, status.st_size, status.st_mtime_ns))
    return sorted(files, key=lambda file: file.name)


_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}


def _python_library() -> list[SourceFile]:
    """This Python's own sources, without tests and what was installed or generated; of pydoc's topics the texts."""
    import sysconfig

    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in _NOT_LIBRARY]
        for name in names:
            path = Path(folder) / name
            relative = path.relative_to(root).as_posix()
            generated = name.startswith("_sysconfigdata") or name in ("sitecustomize.py", "usercustomize.py")
            if path.suffix != ".py" or generated or not path.is_file():
                continue
            kind: Literal["text", "topics"] = "topics" if relative == "pydoc_data/topics.py" else "text"
            status = path.stat()
            files.append(SourceFile(f"{PYTHON}/{relative}", path, kind, False, status.st_size, status.st_mtime_ns))
    if not files:
        raise BadRequest(f"this Python keeps no library sources in {root}; name a text file or a directory instead")
    return sorted(files, key=lambda file: file.name)


def _explain(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{path} does not exist"
    return f"{path} cannot be read: {error.strerror or error}"


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
