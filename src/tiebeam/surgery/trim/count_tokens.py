"""Count the tokens of a text, and hold a part of it out to measure on.

The text is read in chunks that end at a line, never whole. Every tenth chunk is held out, up to a limit, and is not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.surgery.plan import Progress, no_progress
from tiebeam.tokenizer import Tokenizer
from tiebeam.tokenizer.load import explaining_failure

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_CHUNK = 1 << 16  # characters; less for a short text
_SHORTEST = 256
_EVERY = 10  # chunk that is held out
_HELD_OUT = 1 << 20  # bytes at most
_SAMPLE = 1 << 17  # bytes of counted text that the proof runs on
_BATCH = 32  # chunks encoded at a time


@dataclass(frozen=True)
class TextCounts:
    """`counts` [ids] of the tokens that are not held out, `nbytes` of their text; `sample` is a part of it."""

    counts: NDArray[np.int64] = field(repr=False)
    nbytes: int
    held_out: tuple[str, ...] = field(repr=False)
    sample: tuple[str, ...] = field(repr=False)
    files: tuple[Path, ...] = ()

    @property
    def tokens(self) -> int:
        return int(self.counts.sum())

    @property
    def held_out_bytes(self) -> int:
        return sum(len(chunk.encode()) for chunk in self.held_out)


def text_files(paths: Sequence[str | Path]) -> tuple[Path, ...]:
    """The files of `paths`; a directory stands for all files in it."""
    if isinstance(paths, str | Path):
        paths = [paths]
    found: list[Path] = []
    for path in map(Path, paths):
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    if not found:
        raise BadRequest("give text files to count tokens in, text=[...]")
    return tuple(found)


def count_tokens(
    tokenizer: Tokenizer, paths: Sequence[str | Path], size: int, progress: Progress | None = None
) -> TextCounts:
    """The counts of the ids 0 .. `size` - 1 in the files."""
    import numpy as np

    show, files = progress or no_progress, text_files(paths)
    total = sum(map(_size, files))
    length = max(_SHORTEST, min(_CHUNK, total // (5 * _EVERY)))
    counts = np.zeros(size, np.int64)
    held_out: list[str] = []
    sample: list[str] = []
    batch: list[str] = []
    counted = held = sampled = 0

    def add() -> None:
        with explaining_failure("the text cannot be turned into tokens"):
            encoded = tokenizer.backend.encode_batch_fast(batch, add_special_tokens=False)
        ids = np.array([i for encoding in encoded for i in encoding.ids], np.int64)
        counts[:] += np.bincount(ids[ids < size], minlength=size)
        batch.clear()

    for number, chunk in enumerate(_chunks(files, length)):
        nbytes = len(chunk.encode())
        if number % _EVERY == _EVERY - 1 and held < _HELD_OUT:
            held_out.append(chunk)
            held += nbytes
            continue
        batch.append(chunk)
        counted += nbytes
        if sampled < _SAMPLE and number % 3 == 0:
            sample.append(chunk)
            sampled += nbytes
        if len(batch) == _BATCH:
            add()
            show("counting tokens", min(counted + held, total), total)
    add()
    show("counting tokens", total, total)
    if not held_out:
        raise BadRequest(
            f"{total:,} bytes of text are too few to count tokens and to hold a part out; give at least "
            f"{2 * _EVERY * _SHORTEST:,} bytes"
        )
    return TextCounts(counts, counted, tuple(held_out), tuple(sample), files)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None


def _chunks(files: Sequence[Path], length: int) -> Iterator[str]:
    """Parts of the files of about `length` characters, each up to the end of a line if that is near."""
    for path in files:
        try:
            with open(path, encoding="utf-8", newline="") as handle:
                while chunk := handle.read(length):
                    yield chunk if chunk.endswith("\n") else chunk + handle.readline(_SHORTEST)
        except UnicodeDecodeError:
            raise UnreadableInput(f"{path} is not UTF-8 text") from None
        except OSError as error:
            raise UnreadableInput(f"{path} cannot be read: {error.strerror or error}") from None
