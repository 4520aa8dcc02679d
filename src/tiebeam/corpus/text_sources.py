"""List the files of text sources: files, directories, or "@python" (the standard library's sources and pydoc topics).

The suffix decides how a file is read: .jsonl/.ndjson rows, .parquet table, otherwise text. All but parquet may be
compressed (.gz, .bz2, .xz, .zst). Directories are read recursively in name order, without hidden files and without
symlinks that lead outside.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Literal, NamedTuple

from tiebeam.corpus.compressed_files import COMPRESSIONS
from tiebeam.errors import BadRequest, MissingExtra, UnreadableInput

PYTHON = "@python"
_SMALL = 1 << 20  # bytes that are read at once to be hashed
_NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload"}
_TOPICS = f"{PYTHON}/pydoc_data/topics.py"
_NOT_SOURCES = {".py", "sitecustomize.py", "usercustomize.py"}


class SourceFile(NamedTuple):  # cheaper to make than a frozen dataclass: every source is listed, few are read
    """One file to read. `name` is relative to its source, so it is the same on every machine."""

    name: str
    location: str
    kind: Literal["text", "jsonl", "parquet", "topics"]
    named: bool  # given by the user, not found in a directory
    size: int
    modified: int

    @property
    def path(self) -> Path:
        return Path(self.location)

    def digest(self) -> bytes:
        """SHA-256 of the bytes as stored."""
        if self.size > _SMALL:
            with self.open(raw=True) as stream:
                return hashlib.file_digest(stream, "sha256").digest()  # type: ignore[arg-type]
        try:
            with open(self.location, "rb", buffering=0) as handle:
                self._refuse_if_changed(handle.fileno())
                return hashlib.sha256(handle.read()).digest()
        except OSError as error:
            raise UnreadableInput(f"{self.path} cannot be read: {first_line(error)}") from None

    def _refuse_if_changed(self, descriptor: int) -> None:
        status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (self.size, self.modified):
            raise UnreadableInput(f"{self.path} changed while it was being read; run again when it is complete")

    @contextlib.contextmanager
    def open(self, raw: bool = False) -> Iterator[IO[bytes]]:
        """Open the file, decompressed unless `raw`; raises if it changed since it was listed."""
        suffix = self.path.suffix
        errors: tuple[type[BaseException], ...] = (OSError,)
        try:
            with open(self.location, "rb") as handle:
                self._refuse_if_changed(handle.fileno())
                if raw or suffix not in COMPRESSIONS:
                    yield handle
                else:
                    compression = COMPRESSIONS[suffix]()
                    errors += compression.errors
                    yield compression.open(handle)
        except ImportError:
            raise MissingExtra(f"{self.path} ({suffix})", "corpus") from None
        except errors as error:
            raise UnreadableInput(f"{self.path} cannot be read: {first_line(error)}") from None


@dataclass(frozen=True)
class SourceFiles:
    """Files in reading order, and how many entries were skipped by reason."""

    files: tuple[SourceFile, ...]
    skipped: Counter[str] = field(default_factory=Counter)


def list_sources(sources: Sequence[str | os.PathLike[str]]) -> SourceFiles:
    """List every file of the sources in the order given; without sources, the standard library of this Python."""
    files: list[SourceFile] = []
    skipped: Counter[str] = Counter()
    for source in sources or (PYTHON,):
        if str(source) == PYTHON:
            files += _python_library()
            continue
        path = Path(source).expanduser()
        try:
            status = path.stat()
        except FileNotFoundError:
            raise UnreadableInput(f"{path} does not exist") from None
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
        if stat.S_ISDIR(status.st_mode):
            files += _directory(path, skipped)
        elif stat.S_ISREG(status.st_mode):
            files.append(SourceFile(path.name, str(path), _kind(path), True, status.st_size, status.st_mtime_ns))
        else:
            raise UnreadableInput(f"{path} is not a regular file; text is read more than once, so save it to a file")
    return SourceFiles(tuple(files), skipped)


def _kind(path: Path) -> Literal["text", "jsonl", "parquet"]:
    suffixes = path.suffixes[:-1] if path.suffix in COMPRESSIONS else path.suffixes
    last = suffixes[-1].lower() if suffixes else ""
    if last == ".parquet" and path.suffix.lower() == last:
        return "parquet"
    return "jsonl" if last in (".jsonl", ".ndjson") else "text"


def _directory(root: Path, skipped: Counter[str]) -> list[SourceFile]:
    """List the visible regular files under root. A symlink counts only if it leads to a file inside it."""

    def fail(error: OSError) -> None:
        raise UnreadableInput(f"{error.filename} cannot be read: {error.strerror or error}") from None

    home = Path(os.path.realpath(root))
    label = home.name
    if home.parent.name == "snapshots" and (home.parent.parent / "blobs").is_dir():
        home = home.parent.parent  # a snapshot in the Hub's cache consists of symlinks into its repository
    files = []
    for folder, inside, names in os.walk(root, onerror=fail):
        skipped["hidden"] += sum(name.startswith(".") for name in (*inside, *names))
        skipped["link"] += sum((Path(folder) / name).is_symlink() for name in inside if not name.startswith("."))
        if "corpus.json" in names and "train_000000.bin" in names:  # a corpus that was built from the files around it
            skipped["corpus"] += 1
            inside.clear()
            continue
        inside[:] = [name for name in inside if not name.startswith(".")]
        inner = "" if folder == str(root) else Path(folder).relative_to(root).as_posix() + "/"
        for name in names:
            if name.startswith("."):
                continue
            path = Path(os.path.join(folder, name))  # noqa: PTH118 - half the time of Path(folder) / name
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                if not (path.exists() and path.resolve().is_relative_to(home)):
                    skipped["link"] += 1
                    continue
                status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                skipped["special"] += 1
                continue
            relative = f"{label}/{inner}{name}"
            files.append(SourceFile(relative, str(path), _kind(path), False, status.st_size, status.st_mtime_ns))
    return sorted(files, key=lambda file: file.name)


def _python_library() -> list[SourceFile]:
    """List the sources of the standard library, without tests, installed packages and generated files."""
    import sysconfig

    root = Path(sysconfig.get_paths()["stdlib"])
    files = []
    for folder, inside, names in os.walk(root):
        inside[:] = [name for name in inside if name not in _NOT_LIBRARY]
        inner = "" if folder == str(root) else Path(folder).relative_to(root).as_posix() + "/"
        label = f"{PYTHON}/{inner}"
        start = os.path.join(folder, "")  # noqa: PTH118 - a Path per file would add a third to the listing
        for name in names:
            if not name.endswith(".py") or name in _NOT_SOURCES or name.startswith("_sysconfigdata"):
                continue
            path = start + name
            try:
                status = os.stat(path)  # noqa: PTH116
            except OSError:
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            named = label + name
            kind: Literal["text", "topics"] = "topics" if named == _TOPICS else "text"
            files.append(SourceFile(named, path, kind, False, status.st_size, status.st_mtime_ns))
    if not files:
        raise BadRequest(f"this Python has no library sources in {root}; pass a text file or a directory")
    return sorted(files)  # names are unique, so they decide


def first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
