"""Record a change in the model card (README.md), with digests of the model before and after.

A digest is SHA-256 over the sorted tensor table: per tensor a line with name, dtype, shape and the SHA-256 of its
content. The embedding and head are hashed whole, every other tensor by its first 4 KiB: enough to distinguish models
without reading them whole (every copied byte is compared elsewhere). How tensors are split into files does not matter.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from pathlib import Path

from tiebeam._version import __version__
from tiebeam._visible import visible
from tiebeam.checkpoint import Checkpoint, TensorInfo
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.write.copy_bytes import Span
from tiebeam.errors import UnreadableInput
from tiebeam.inspection import Report
from tiebeam.surgery.output_shards import local_files, real_path
from tiebeam.surgery.plan import Plan

CARD = "README.md"
_BLOCK = 1 << 17
_HEAD = 4096
_TITLE = "## Changed by tiebeam"
_ABOUT = (
    "Digests are SHA-256 over the sorted tensor table (name, dtype, shape and content; the embedding and head whole, "
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
    """SHA-256 of the tensor's first `end` bytes. A large tensor is read into one reused buffer."""
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
                raise UnreadableInput(f"{info.file} became shorter while it was read; run the command again")
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


def source_hashes(plan: Plan) -> dict[str, str]:
    """Content hashes of the source; an embedding and head that are known to be equal are hashed once."""
    pair, source = plan.report.pair, plan.checkpoint
    whole = {matrix.name for matrix in (pair.embed, pair.head) if matrix}
    if pair.equal and pair.embed and pair.head and plan.report.how == "every byte was compared":
        hashes = content_hashes(source, {pair.embed.name}, {pair.head.name: ""})
        return {**hashes, pair.head.name: hashes[pair.embed.name]}
    return content_hashes(source, whole)


def digests(plan: Plan, result: Checkpoint, report: Report, hashes: Mapping[str, str]) -> tuple[str, str]:
    """The digests before and after. `hashes` are the source's; copied tensors are not hashed again."""
    pair, source = plan.report.pair, plan.checkpoint
    by_span = {
        Span(real_path(local_files(source), source.tensors[name].file), *source.tensors[name][4:6]): hashes[name]
        for name in (matrix.name for matrix in (pair.embed, pair.head) if matrix)
    }
    whole = {matrix.name for matrix in (report.pair.embed, report.pair.head) if matrix}
    known = {
        entry.name: by_span[entry.content]
        for shard in plan.shards
        for entry in shard.entries
        if entry.name in whole and isinstance(entry.content, Span) and entry.content in by_span
    }
    return table_digest(source, hashes), table_digest(result, content_hashes(result, whole, known))


def has_record(directory: Path) -> bool:
    """Whether the model card in `directory` has a record of a change."""
    path = directory / CARD
    return path.is_file() and _TITLE.encode() in path.read_bytes()


def add_to(directory: Path, plan: Plan, digests: tuple[str, str]) -> None:
    """Append a record to the model card in `directory`; existing text is kept byte for byte."""
    path = directory / CARD
    card = path.read_bytes() if path.exists() else b""
    source = plan.checkpoint.source
    source = Path(source).name if Path(source).exists() else source  # a Hub id is kept whole
    shown = visible(source).replace("`", "'")
    lines = [f"`tiebeam {plan.verb}` {__version__} made this from `{shown}`:", ""]
    lines += [f"- {_markdown(str(change))}" for change in plan.changes]
    lines += [f"- digest before: `{digests[0]}`", f"- digest after: `{digests[1]}`"]
    section = "\n".join(lines) + "\n"
    if _TITLE.encode() not in card:
        section = f"{_TITLE}\n\n{_ABOUT}\n\n{section}"
    path.write_bytes(card.rstrip(b"\n") + b"\n\n" + section.encode() if card else section.encode())


def _markdown(text: str) -> str:
    """Text in which a tensor's name cannot be a link, an image, code or HTML."""
    return re.sub(r"[<\[`]", r"\\\g<0>", visible(text))
