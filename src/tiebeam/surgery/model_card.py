"""What was done, for whoever finds the model later: two digests and a section in the model card.

The digest is SHA-256 over the sorted tensor table, one line per tensor: name, element type, shape, and the
SHA-256 of its content; the two vocabulary matrices are hashed whole, every other tensor by its first 4 KiB,
which tells any two models apart without reading them through (the surgery itself compares every byte it
copies). It depends on what the tensors are, not on how they are spread over files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping

from tiebeam._version import __version__
from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.errors import UnreadableInput
from tiebeam.surgery.edits import Change

CARD = "README.md"
_BLOCK = 1 << 17
_HEAD = 4096
_TITLE = "## Changed by tiebeam"
_ABOUT = (
    "Digests are SHA-256 over the sorted tensor table (name, type, shape and content; the vocabulary matrices whole, "
    "every other tensor by its first 4 KiB)."
)


def content_hashes(
    checkpoint: Checkpoint, whole: Collection[str], known: Mapping[str, str] | None = None
) -> dict[str, str]:
    """SHA-256 of every tensor's content: whole for the names in `whole`, else of its first 4 KiB."""
    hashes = {}
    for name, info in checkpoint.tensors.items():
        if known and name in known:
            hashes[name] = known[name]
            continue
        end = info.nbytes if name in whole else min(info.nbytes, _HEAD)
        hashes[name] = _content_hash(checkpoint, info, end)
    return hashes


def _content_hash(checkpoint: Checkpoint, info: TensorInfo, end: int) -> str:
    """Of the tensor's first `end` bytes; a large one in a buffer that is reused."""
    running = hashlib.sha256()
    if end <= _HEAD or info.packing or not isinstance(checkpoint.files, LocalFiles):
        for at in range(0, end, _BLOCK):
            running.update(checkpoint.read_bytes(info.name, at, min(at + _BLOCK, end)))
        return running.hexdigest()
    buffer = memoryview(bytearray(_BLOCK))
    with open(checkpoint.files.path(info.file), "rb", buffering=0) as handle:
        handle.seek(info.begin)
        while end:
            n = handle.readinto(buffer[: min(end, _BLOCK)])
            if not n:
                raise UnreadableInput(f"{info.file} became shorter while it was read; run it again")
            running.update(buffer[:n])
            end -= n
    return running.hexdigest()


def table_digest(checkpoint: Checkpoint, hashes: Mapping[str, str]) -> str:
    """The digest of a checkpoint from the hashes of its tensors."""
    running = hashlib.sha256()
    for name in sorted(checkpoint.tensors):
        info = checkpoint.tensors[name]
        running.update(f"{name} {info.dtype} {list(info.shape)} {hashes[name]}\n".encode())
    return f"sha256:{running.hexdigest()}"


def add_to_card(card: bytes, verb: str, source: str, changes: Iterable[Change], before: str, after: str) -> bytes:
    """The card with one more record at its end; what it said before stays byte for byte."""
    lines = [f"`tiebeam {verb}` {__version__} made this from `{source}`:", ""]
    lines += [f"- {change}" for change in changes]
    lines += [f"- digest before: `{before}`", f"- digest after: `{after}`"]
    section = "\n".join(lines) + "\n"
    if _TITLE.encode() not in card:
        section = f"{_TITLE}\n\n{_ABOUT}\n\n{section}"
    if not card:
        return section.encode()
    return card.rstrip(b"\n") + b"\n\n" + section.encode()
