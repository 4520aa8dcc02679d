"""Zip archives (PyTorch's and NumPy's), read by byte range from any `Files`.

`zipfile` reads the table of contents. The data is read here, because a stored member is a byte range of the file. An
archive is untrusted: its table is checked against the file (members may not overlap, leave the file, or appear twice),
and inflating stops at what was asked for, in blocks of fixed size, so that a zip bomb costs no more memory than the
answer.

The checksum (CRC-32) of a deflated member is checked when its end is reached. That of a stored member is not: its bytes
are read by range, as in safetensors and GGUF, and PyTorch, which can write archives without checksums, ignores it too.
"""

from __future__ import annotations

import struct
import threading
import zipfile
import zlib
from collections import OrderedDict
from typing import NamedTuple

from tiebeam.checkpoint.files import Files
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_ZIP_DIRECTORY, MAX_ZIP_MEMBERS

_DEFLATE_LIMIT = 1032  # the largest possible compression ratio of deflate
_BLOCK = 1 << 20
_TAIL = 1 << 16
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")  # magic, flags, method, name length, extra length
_OPEN_ARCHIVES, _OPEN_STREAMS = 4, 4
_ENCRYPTED = "encrypted; decrypt the archive first"


class Member(NamedTuple):
    """One member of the archive, as the table of contents describes it."""

    name: str
    raw_name: bytes
    method: int
    header: int
    """First byte of its local header."""
    limit: int
    """First byte of what follows it in the archive; its data must end before."""
    stored_size: int
    size: int
    crc: int
    unusable: str
    """Why its flags say that it is no plain file; empty if they do not."""

    @property
    def deflated(self) -> bool:
        return self.method == zipfile.ZIP_DEFLATED


class Archive:
    """The checked table of contents of one archive, and access to the bytes of its members."""

    def __init__(self, files: Files, file: str) -> None:
        self.files, self.file = files, file
        self.members = self._read_directory()
        self._begins: dict[str, int] = {}
        self._streams: OrderedDict[str, _Inflation] = OrderedDict()
        self._lock = threading.Lock()

    def _read_directory(self) -> dict[str, Member]:
        size = self.files.size(self.file)
        try:
            with zipfile.ZipFile(_Window(self.files, self.file, size)) as archive:
                entries = sorted(archive.infolist(), key=lambda entry: entry.header_offset)
                directory = archive.start_dir
        except (zipfile.BadZipFile, NotImplementedError, EOFError, OSError, ValueError, struct.error) as error:
            raise UnreadableInput(
                f"{self.file} is not a complete zip archive ({_lower(error)}); it may be truncated: download it again"
            ) from None
        members: dict[str, Member] = {}
        limits = [*(entry.header_offset for entry in entries[1:]), directory]
        for entry, limit in zip(entries, limits, strict=False):  # an empty archive has a directory and no entries
            if entry.filename in members:
                raise UnreadableInput(
                    f"{self.file} holds {entry.filename!r} twice, and readers disagree about which one counts"
                )
            members[entry.filename] = self._member(entry, min(limit, size))
        return members

    def _member(self, entry: zipfile.ZipInfo, limit: int) -> Member:
        raw_name = entry.orig_filename.encode("utf-8" if entry.flag_bits & 0x800 else "cp437")
        begin, stored, full = entry.header_offset, entry.compress_size, entry.file_size
        if begin < 0 or stored < 0 or full < 0 or begin + _LOCAL_HEADER.size + len(raw_name) + stored > limit:
            raise UnreadableInput(
                f"{self.file}: the member {entry.filename!r} does not fit into the range that the archive gives it"
            )
        return Member(
            entry.filename,
            raw_name,
            entry.compress_type,
            begin,
            limit,
            stored,
            full,
            entry.CRC,
            _unusable(entry),
        )

    def _checked(self, name: str) -> Member:
        """A member that can be read. Others (encrypted, other compression) are an error only when they are needed."""
        member = self.members.get(name)
        if member is None:
            raise UnreadableInput(f"{self.file} has no member {name!r}; it is damaged or incomplete")
        if member.method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise UnreadableInput(
                f"{self.file}: {name!r} uses the compression method {member.method}, which is not supported"
            )
        if not member.deflated and member.stored_size != member.size:
            raise UnreadableInput(
                f"{self.file}: {name!r} claims {member.size:,} bytes but stores {member.stored_size:,}, uncompressed"
            )
        if member.size > member.stored_size * _DEFLATE_LIMIT:
            raise UnreadableInput(
                f"{self.file}: {name!r} claims to inflate from {member.stored_size:,} to {member.size:,} bytes, "
                f"which exceeds the limit of {_DEFLATE_LIMIT:,} times; refusing to read"
            )
        return member

    def begin(self, name: str) -> int:
        """First byte of the member's stored data in the file."""
        known = self._begins.get(name)
        if known is not None:
            return known
        member = self._checked(name)
        fixed = _LOCAL_HEADER.size
        raw = self.files.read(self.file, member.header, member.header + fixed + len(member.raw_name))
        magic, flags, method, name_length, extra_length = _LOCAL_HEADER.unpack_from(raw)
        if magic != b"PK\x03\x04" or method != member.method or raw[fixed : fixed + name_length] != member.raw_name:
            raise UnreadableInput(f"{self.file}: the table of contents does not match the local header of {name!r}")
        if flags & 0x1 or member.unusable:
            raise UnreadableInput(f"{self.file}: {name!r} is {member.unusable or _ENCRYPTED}")
        begin: int = member.header + fixed + name_length + extra_length
        if begin + member.stored_size > member.limit:
            raise UnreadableInput(f"{self.file}: the data of {name!r} overlaps what follows it in the archive")
        self._begins[name] = begin
        return begin

    def read(self, name: str, begin: int = 0, end: int | None = None) -> bytes:
        """Bytes begin:end of the member, inflated where it is deflated."""
        member, at = self._checked(name), self.begin(name)
        end = member.size if end is None else end
        if not 0 <= begin <= end <= member.size:
            raise UnreadableInput(
                f"{self.file}: bytes {begin:,}..{end:,} of {name!r} were expected; it has {member.size:,}"
            )
        if not member.deflated:
            return self.files.read(self.file, at + begin, at + end)
        with self._lock:  # removed while in use, so that no two threads use one stream
            stream = self._streams.pop(name, None)
        if stream is None or stream.position > begin:
            stream = _Inflation(self, member, at)
        raw = stream.read(begin, end)
        with self._lock:
            self._streams[name] = stream
            while len(self._streams) > _OPEN_STREAMS:
                self._streams.popitem(last=False)
        return raw


class _Inflation:
    """A deflated member, read forwards; kept, so that reading block after block inflates everything once."""

    def __init__(self, archive: Archive, member: Member, begin: int) -> None:
        self.archive, self.member = archive, member
        self.position, self._crc = 0, 0
        self._at, self._end = begin, begin + member.stored_size
        self._inflater = zlib.decompressobj(-zlib.MAX_WBITS)
        self._waiting = b""

    def read(self, begin: int, end: int) -> bytes:
        while self.position < begin:
            self._next(min(_BLOCK, begin - self.position))
        out = bytearray()
        while self.position < end:
            out += self._next(min(_BLOCK, end - self.position))
        return bytes(out)

    def _next(self, most: int) -> bytes:
        """The next bytes, between 1 and `most`."""
        while True:
            if not self._waiting and self._at < self._end:
                until = min(self._at + _BLOCK, self._end)
                self._waiting = self.archive.files.read(self.archive.file, self._at, until)
                self._at = until
            try:
                block = self._inflater.decompress(self._waiting, most)
            except zlib.error:
                raise self._damaged() from None
            self._waiting = self._inflater.unconsumed_tail
            if block:
                self.position += len(block)
                self._crc = zlib.crc32(block, self._crc)
                if self.position == self.member.size and self._crc != self.member.crc:
                    raise UnreadableInput(
                        f"{self.archive.file}: {self.member.name!r} is damaged: its checksum is wrong"
                    )
                return block
            if self._inflater.eof or (not self._waiting and self._at == self._end):
                raise self._damaged()

    def _damaged(self) -> UnreadableInput:
        return UnreadableInput(
            f"{self.archive.file}: {self.member.name!r} is damaged: it cannot be inflated past byte {self.position:,}"
        )


_archives: OrderedDict[tuple[int, str], Archive] = OrderedDict()
_archives_lock = threading.Lock()


def open_archive(files: Files, file: str) -> Archive:
    """The archive with its table of contents, cached, because every read of a tensor needs it."""
    key = (id(files), file)  # valid as long as the Archive is kept, because that keeps `files`
    with _archives_lock:
        archive = _archives.get(key)
        if archive is not None:
            _archives.move_to_end(key)
            return archive
    archive = Archive(files, file)
    with _archives_lock:
        _archives[key] = archive
        while len(_archives) > _OPEN_ARCHIVES:
            _archives.popitem(last=False)
    return archive


def read_member(files: Files, file: str, member: str, begin: int, end: int) -> bytes:
    """Bytes begin:end of the inflated `member`."""
    return open_archive(files, file).read(member, begin, end)


class _Window:
    """The part of a file object's interface that `zipfile` needs to read a table of contents; reads the tail once."""

    def __init__(self, files: Files, file: str, size: int) -> None:
        self._files, self._file, self._size = files, file, size
        self._position = 0
        self._tail_begin = max(0, size - _TAIL)
        self._tail = files.read(file, self._tail_begin, size)

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        position = offset + (0, self._position, self._size)[whence]
        if position < 0:
            raise OSError("a position before the start of the file")
        self._position = position
        return position

    def read(self, count: int = -1) -> bytes:
        begin = min(self._position, self._size)
        end = self._size if count < 0 else min(begin + count, self._size)
        if end - begin > MAX_ZIP_DIRECTORY:
            raise UnreadableInput(
                f"{self._file} has a table of contents of {end - begin:,} bytes, which exceeds the limit of "
                f"{MAX_ZIP_DIRECTORY:,}; refusing to read"
            )
        self._position = end
        if begin >= self._tail_begin:
            raw = self._tail[begin - self._tail_begin : end - self._tail_begin]
        else:
            raw = self._files.read(self._file, begin, end)
        if raw.count(b"PK\x01\x02") > MAX_ZIP_MEMBERS:  # before `zipfile` makes an object of each
            raise UnreadableInput(
                f"{self._file} has more members than the limit of {MAX_ZIP_MEMBERS:,}; refusing to read"
            )
        return raw

    def close(self) -> None:
        """Nothing is held open."""


def _unusable(entry: zipfile.ZipInfo) -> str:
    if entry.flag_bits & 0x2041:  # encrypted, strongly encrypted, with a hidden table of contents
        return _ENCRYPTED
    # PyTorch leaves the numbers of such a member uninitialised.
    return "marked as a directory" if entry.external_attr & 0x10 and entry.file_size else ""


def _lower(error: Exception) -> str:
    text = str(error) or type(error).__name__
    return text[0].lower() + text[1:]
