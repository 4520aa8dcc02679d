"""Decompress .gz, .bz2, .xz and .zst files as streams. A truncated file is an error, never an early end."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import IO, Any, NamedTuple

_BUFFER = 1 << 18


class Compression(NamedTuple):
    open: Callable[[IO[bytes]], IO[bytes]]
    errors: tuple[type[BaseException], ...]


def _gzip() -> Compression:
    import gzip
    import zlib

    return Compression(lambda raw: gzip.GzipFile(fileobj=raw), (OSError, EOFError, zlib.error))  # type: ignore[return-value,arg-type]


def _bzip2() -> Compression:
    import bz2

    return Compression(bz2.BZ2File, (OSError, EOFError))


def _xz() -> Compression:
    import lzma

    return Compression(lzma.LZMAFile, (lzma.LZMAError, EOFError))


def _zstd() -> Compression:
    import zstandard

    class Frames(io.RawIOBase):
        """Reader of zstd frames. zstandard's own reader treats a truncated file as a complete one."""

        def __init__(self, raw: IO[bytes]) -> None:
            self._raw, self._frame, self._inside_frame, self._ready = raw, self._next_frame(), False, b""

        @staticmethod
        def _next_frame() -> Any:
            return zstandard.ZstdDecompressor().decompressobj()

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            while not self._ready:
                packed = self._raw.read(4096)  # small reads: four bytes can expand to 128 KiB
                if not packed and self._inside_frame:
                    raise EOFError("the file is truncated")
                if not packed:
                    return 0
                while packed:
                    self._inside_frame = True
                    self._ready += self._frame.decompress(packed)
                    packed = b""
                    if self._frame.eof:
                        packed = self._frame.unused_data
                        self._frame, self._inside_frame = self._next_frame(), False
            given = self._ready[: len(buffer)]
            buffer[: len(given)] = given
            self._ready = self._ready[len(given) :]
            return len(given)

    return Compression(lambda raw: io.BufferedReader(Frames(raw), _BUFFER), (zstandard.ZstdError, EOFError))


COMPRESSIONS = {".gz": _gzip, ".bz2": _bzip2, ".xz": _xz, ".zst": _zstd}
"""By file suffix: a function that imports the codec and returns a Compression."""
