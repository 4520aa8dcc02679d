"""List the files of the target before any edit: weight shards, config.json, and the other files to copy.

The target is safetensors whatever the source is, unless a GGUF stays GGUF. A dense, uncompressed tensor is copied as
a byte range of the source's file; any other tensor is read and written densely. Other copies of the weights (a .bin
beside the .safetensors) are not copied, because they would no longer match the config.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tiebeam.checkpoint import Checkpoint, TensorInfo, dtypes
from tiebeam.checkpoint.distributed.detect import FORMATS as DISTRIBUTED
from tiebeam.checkpoint.download import download_command
from tiebeam.checkpoint.file_roles import is_adapter, is_document, is_training_state, is_weights_copy
from tiebeam.checkpoint.files import LocalFiles
from tiebeam.checkpoint.formats.safetensors import read_header
from tiebeam.checkpoint.write.copy_bytes import BLOCK, Content, Made, Span
from tiebeam.checkpoint.write.safetensors import INDEX, Entry, arrange
from tiebeam.errors import BadRequest, UnreadableInput
from tiebeam.surgery.edits import Shard

_NUMBER = re.compile(r"-(\d{5,}-of-\d{5,})\.\w+$")
_SKIPPED_FOLDERS = {".git", ".cache", "__pycache__"}
_FILE_SIZE = 5 << 30  # the shard size of the Hub's tools
_UNSIGNED = {8: "U8", 16: "U16", 32: "U32", 64: "U64"}


@dataclass(frozen=True, slots=True)
class Companions:
    """The other files of a model: `kept` are copied, as (name in the target, path); `left` are not."""

    kept: tuple[tuple[str, Path], ...]
    left: tuple[str, ...]


def local_files(checkpoint: Checkpoint) -> LocalFiles:
    if not isinstance(checkpoint.files, LocalFiles):
        command, _ = download_command(checkpoint.source)
        raise BadRequest(f"{checkpoint.source} is not a local file; download it first: {command}")
    return checkpoint.files


def is_directory(checkpoint: Checkpoint) -> bool:
    """Whether the source is a directory (or a snapshot in the Hub cache), not a single file."""
    return not Path(checkpoint.source).is_file()


@dataclass(frozen=True)
class Layout:
    """The files of the target before any edit: weight files, config.json as text, and files made by a conversion.
    `index` is the name of the index, where the target has one."""

    shards: tuple[Shard, ...]
    config: Mapping[str, Any] | None
    config_text: str | None
    documents: Mapping[str, bytes] = field(default_factory=dict)
    index: str = INDEX


def layout_of(checkpoint: Checkpoint) -> Layout:
    """The source unchanged, as safetensors."""
    files, text, name = local_files(checkpoint), None, checkpoint.config_name
    if checkpoint.config is not None:
        text = files.read(name, 0, files.size(name)).decode("utf-8-sig")
    return Layout(tuple(shards_of(checkpoint)), checkpoint.config, text)


def gguf_layout(checkpoint: Checkpoint) -> Layout:
    """A GGUF file unchanged."""
    from tiebeam.checkpoint.write.gguf import read_preamble

    files = local_files(checkpoint)
    names = {info.file for info in checkpoint.tensors.values()}
    if len(names) > 1:
        raise BadRequest(f"{checkpoint.source} is split into {len(names)} files; merge them: llama-gguf-split --merge")
    (name,) = names
    path = real_path(files, name)
    entries = [Entry(t.name, t.dtype, t.shape, Span(path, t.begin, t.end)) for t in checkpoint.tensors.values()]
    return Layout((Shard(name, tuple(entries), container=read_preamble(files, name, path)),), None, None)


def shards_of(checkpoint: Checkpoint) -> list[Shard]:
    """The weight files of the target before any edit."""
    files = local_files(checkpoint)
    names = sorted({info.file for info in checkpoint.tensors.values()})
    if checkpoint.format == "safetensors":
        return [_shard(checkpoint, files, name) for name in names]
    if checkpoint.format in DISTRIBUTED:
        return _gathered(checkpoint)
    return [_converted(checkpoint, name, len(names)) for name in names]


def _shard(checkpoint: Checkpoint, files: LocalFiles, name: str) -> Shard:
    header = read_header(files, name)
    path = real_path(files, name)
    metadata = {key: value for key, value in header.metadata.items() if isinstance(value, str)}
    entries = [Entry(t.name, t.dtype, t.shape, Span(path, t.begin, t.end)) for t in _in_order(header.tensors.values())]
    return Shard(name, tuple(entries), metadata, path)


def _in_order(tensors: Iterable[TensorInfo]) -> list[TensorInfo]:
    return sorted(tensors, key=lambda t: (t.begin, t.end))


def _converted(checkpoint: Checkpoint, name: str, count: int) -> Shard:
    """A PyTorch or npz file as the safetensors file that replaces it."""
    infos = [info for info in checkpoint.tensors.values() if info.file == name]
    number = _NUMBER.search(name)
    target = f"model-{number[1]}.safetensors" if number and count > 1 else "model.safetensors"
    if count > 1 and not number:
        raise BadRequest(f"{checkpoint.source} has {count} weight files that are not numbered shards; pass one of them")
    entries = [Entry(info.name, info.dtype, info.shape, content_of(checkpoint, info)) for info in infos]
    entries.sort(key=lambda entry: (-dtypes.BITS[entry.dtype], entry.name))
    return Shard(target, tuple(arrange(entries)), {"format": "pt"})


def _gathered(checkpoint: Checkpoint) -> list[Shard]:
    """A sharded checkpoint of several ranks as one file, or as several of at most _FILE_SIZE bytes."""
    entries = [Entry(info.name, info.dtype, info.shape, content_of(checkpoint, info)) for info in _by_name(checkpoint)]
    groups: list[list[Entry]] = [[]]
    for entry in entries:
        if groups[-1] and sum(e.nbytes for e in groups[-1]) + entry.nbytes > _FILE_SIZE:
            groups.append([])
        groups[-1].append(entry)
    many = len(groups) > 1
    names = [f"model-{i:05d}-of-{len(groups):05d}.safetensors" if many else "model.safetensors"
             for i in range(1, len(groups) + 1)]  # fmt: skip
    return [Shard(name, tuple(arrange(group)), {"format": "pt"}) for name, group in zip(names, groups, strict=True)]


def _by_name(checkpoint: Checkpoint) -> list[TensorInfo]:
    return sorted(checkpoint.tensors.values(), key=lambda info: (-dtypes.BITS[info.dtype], info.name))


def content_of(checkpoint: Checkpoint, info: TensorInfo) -> Content:
    """The dense bytes of a tensor, as a byte range of the file where they are stored densely."""
    if info.dtype not in dtypes.BITS:
        raise BadRequest(f"{info.name} is {info.dtype}, which safetensors cannot store; dequantize it first")
    if info.strides is None and not info.packing:
        return Span(real_path(local_files(checkpoint), info.file), info.begin, info.end)
    total = dtypes.nbytes(info.dtype, info.shape)
    if total is None:
        raise UnreadableInput(f"{info.name} is {info.dtype} {list(info.shape)}, which is not a whole number of bytes")
    if info.strides is None:
        return Made(total, lambda: _packed_blocks(checkpoint, info))
    return Made(total, lambda: _strided_blocks(checkpoint, info))


def _packed_blocks(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[bytes]:
    for at in range(0, info.nbytes, 16 * BLOCK):
        yield checkpoint.read_bytes(info.name, at, at + 16 * BLOCK)


def _strided_blocks(checkpoint: Checkpoint, info: TensorInfo) -> Iterator[bytes]:
    """Copied as unsigned integers of the same width, so that no value changes, not even a NaN."""
    assert info.strides is not None
    if not info.shape:
        yield checkpoint.read_bytes(info.name)
        return
    unsigned = _UNSIGNED[dtypes.BITS[info.dtype]]
    view = dtypes.decode_strided(unsigned, checkpoint.read_bytes(info.name), info.shape, info.strides)
    row = max(1, view[:1].nbytes)
    step = max(1, BLOCK // row)
    for start in range(0, info.shape[0], step):
        yield view[start : start + step].tobytes()


def real_path(files: LocalFiles, name: str) -> Path:
    """The path of the content: links in the Hub cache are resolved."""
    path = files.path(name)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def companions(checkpoint: Checkpoint, target_names: set[str]) -> Companions:
    """The files beside the weights."""
    files = local_files(checkpoint)
    if checkpoint.format in DISTRIBUTED:
        return _beside_distributed(checkpoint, files, target_names)
    used = {info.file for info in checkpoint.tensors.values()}
    kept: list[tuple[str, Path]] = []
    left: list[str] = []
    for name in files.names():
        if name in used or name in target_names:
            continue
        if not is_directory(checkpoint):
            if is_document(name) and checkpoint.format != "gguf":
                kept.append((name, _checked(files, name)))
        elif (is_weights_copy(name) and not is_adapter(name)) or is_training_state(name):
            left.append(name)
        else:
            kept.append((name, _checked(files, name)))
    if is_directory(checkpoint):
        inner_kept, inner_left = _folders(files)
        kept, left = kept + inner_kept, left + inner_left
    return Companions(tuple(kept), tuple(left))


def _beside_distributed(checkpoint: Checkpoint, files: LocalFiles, target_names: set[str]) -> Companions:
    """The documents in the config's folder; the other files of a training run are not part of the model."""
    folder = checkpoint.config_name.rpartition("/")[0]
    names = LocalFiles(files.root / folder).names()
    kept = [name for name in names if is_document(name) and name not in target_names]
    return Companions(tuple((name, _checked(files, f"{folder}/{name}" if folder else name)) for name in kept), ())


def _folders(files: LocalFiles) -> tuple[list[tuple[str, Path]], list[str]]:
    """The files of subfolders, without other copies of the weights."""
    kept: list[tuple[str, Path]] = []
    left: list[str] = []
    for directory, folders, names in os.walk(files.root):
        inside = Path(directory).relative_to(files.root)
        left += [f"{inside / folder}/" for folder in folders if Path(directory, folder).is_symlink()]
        folders[:] = sorted(f for f in folders if f not in _SKIPPED_FOLDERS and not Path(directory, f).is_symlink())
        if inside == Path():
            continue
        for name in sorted(names):
            where = (inside / name).as_posix()
            if is_weights_copy(name):
                left.append(where)
            else:
                kept.append((where, _checked(files, where)))
    return kept, left


def _checked(files: LocalFiles, name: str) -> Path:
    files.size(name)  # raises for anything but a regular file, and for a link that leaves the directory
    return real_path(files, name)
