"""Open a model that a person named: a directory, a file, an address on the Hub, or an fsspec URL.

A path on disk is tried first, then the URL or the Hub. After that everything works on `Files`, so a directory and a
repository follow the same rules.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tiebeam.checkpoint.distributed import detect
from tiebeam.checkpoint.file_roles import WEIGHT_SUFFIXES, holds_weights
from tiebeam.checkpoint.files import Files, LocalFiles
from tiebeam.checkpoint.formats import safetensors
from tiebeam.checkpoint.json_files import read_json
from tiebeam.checkpoint.model_files import FileSet, find_model, model_of_file
from tiebeam.checkpoint.not_a_model import refuse_lfs_pointers, transformer_folder
from tiebeam.checkpoint.tensors import Checkpoint, Header, TensorInfo
from tiebeam.errors import UnreadableInput, reader

if TYPE_CHECKING:
    from pathlib import Path

    from tiebeam.checkpoint.remote_files import FoundModel


@reader
def open_checkpoint(source: str | os.PathLike[str]) -> Checkpoint:
    """Open `source`: a directory, a file, `org/name[@rev]`, `hf://org/name[@rev]` or `s3://bucket/model`. Reads headers
    only. A name without a slash (`gpt2`) is a model on the Hub if there is no such path.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from safetensors.numpy import save_file
    >>> path = Path(tempfile.mkdtemp()) / "model.safetensors"
    >>> save_file({"lm_head.weight": np.zeros((4, 2), np.float32)}, path)
    >>> open_checkpoint(path).tensors["lm_head.weight"].shape
    (4, 2)
    """
    text = os.fspath(source)
    if not text:
        raise UnreadableInput("the name of the model is empty; name a directory, a file or org/name")
    if not text.startswith("hf://") and os.path.isdir(text):  # noqa: PTH112 - without importing pathlib
        return _open_local(text, LocalFiles(_normal(text)))
    from pathlib import Path

    path = Path(text)
    if not text.startswith("hf://"):
        try:
            if path.exists():
                return _open_local_file(text, path)
        except OSError as error:
            raise UnreadableInput(f"{text} cannot be read: {error.strerror or error}") from None
        if path.is_symlink():
            raise UnreadableInput(f"{text} is a symbolic link to a missing file, or to itself")
    return _open_remote(text, path)


def _normal(path: str) -> str:
    """`str(Path(path))`, without importing pathlib for a path in which that changes nothing."""
    odd = path.endswith(("/", "/.")) or path.startswith("./") or "//" in path or "/./" in path
    if os.sep == "/" and not odd:
        return path
    from pathlib import Path

    return str(Path(path))


def _open_remote(text: str, path: Path) -> Checkpoint:
    from tiebeam.checkpoint.url_files import is_url  # here and below: a model on disk needs neither

    return _open_url(text) if is_url(text) else _open_hub(text, path)


def _open_url(text: str) -> Checkpoint:
    if text.startswith("file://"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname  # not at the top: it imports http and ssl

        return open_checkpoint(url2pathname(urlsplit(text).path))
    from tiebeam.checkpoint.url_files import find_url_model

    return _open_found(text, find_url_model(text))


def _open_hub(text: str, path: Path) -> Checkpoint:
    from pathlib import Path

    from tiebeam.checkpoint.hub.repository import as_address, find_hub_model, parse_address

    if text.startswith("hf://"):
        return _open_found(text, find_hub_model(text))
    address, bare = parse_address(text), as_address(text)
    if address:
        # org/name/file is a file on the Hub only if it has the suffix of weights and its first part is not a local
        # directory. Otherwise it is a mistyped path, and so is some/weights.gguf.
        is_hub_file = address.path.endswith(WEIGHT_SUFFIXES) and not Path(path.parts[0]).is_dir()
        address = address if is_hub_file or not (address.path or text.endswith(WEIGHT_SUFFIXES)) else None
    near = similar_path(path)
    if near is not None:
        on_hub = f" For a model on the Hub, write {bare or f'hf://{text}'}" if address or bare else ""
        raise UnreadableInput(f"{text} does not exist; did you mean {near}?{on_hub}")
    if address is None and bare is None:
        raise UnreadableInput(f"{text} does not exist, and is not a model on the Hub (org/name)")
    if address is not None:
        return _open_found(text, find_hub_model(text))
    assert bare is not None
    try:
        found = find_hub_model(bare)
    except UnreadableInput as error:
        raise UnreadableInput(f"{text} does not exist on this disk; as a model on the Hub: {error}") from None
    note = f"there is no path {text} here: this is the model {bare} on the Hub"
    return _open_found(bare, found._replace(notes=(*found.notes, note)))


def _open_found(source: str, found: FoundModel) -> Checkpoint:
    checkpoint = _open_fileset(source, found.files, found.names, found.fileset)
    return replace(checkpoint, notes=(*checkpoint.notes, *found.notes))


def similar_path(path: Path) -> Path | None:
    """A path beside the missing `path` with nearly its name, for "did you mean"."""
    import difflib

    try:
        names = os.listdir(path.parent)[:10_000]  # noqa: PTH208 - names, not paths
    except OSError:
        return None
    same = [name for name in names if name.lower() == path.name.lower()]
    near = same or difflib.get_close_matches(path.name, names, n=1, cutoff=0.8)
    return path.with_name(near[0]) if near and path.name else None


def _open_local_file(source: str, path: Path) -> Checkpoint:
    from pathlib import Path

    files = LocalFiles(path.parent)
    if path.is_symlink():
        real = Path(os.path.realpath(path))
        if not files.holds(real):  # a link inside a model may not leave its directory; a link that a person names may
            files, path = LocalFiles(real.parent), real
    return _open_local(source, files, path.name)


def _open_local(source: str, files: LocalFiles, name: str = "") -> Checkpoint:
    """The model in a directory, or the one that its file `name` belongs to."""
    names, where = files.names(), files.where
    if not name and not any(map(holds_weights, names)):
        folder = transformer_folder(files, names)
        if folder is not None:
            from pathlib import Path

            checkpoint = _open_local(str(Path(source) / folder), LocalFiles(files.root / folder))
            note = f"{source} is a sentence-transformers tree; its model is in {folder}/"
            return replace(checkpoint, notes=(*checkpoint.notes, note))
    fileset = model_of_file(where, files, names, name) if name else find_model(where, files, names)
    if fileset.format in detect.FORMATS and "config.json" not in [*names, *_names_in(files, fileset.folder)]:
        parent = _parent_with_config(files)
        if parent is not None:
            folder = f"{files.root.resolve().name}/{fileset.folder}"
            checkpoint = _open_fileset(source, parent, parent.names(), replace(fileset, folder=folder))
            return replace(checkpoint, notes=(*checkpoint.notes, "config.json is the one in the folder above"))
    return _open_fileset(source, files, names, fileset)


def _names_in(files: LocalFiles, folder: str) -> list[str]:
    return LocalFiles(files.root / folder).names() if folder else []


def _parent_with_config(files: LocalFiles) -> LocalFiles | None:
    """The folder above, if it has a model's config.json: trainers keep config and tokenizer beside the shards."""
    from pathlib import Path

    parent = LocalFiles(Path(os.path.realpath(files.root)).parent)
    try:
        return parent if isinstance(read_json(parent, "config.json").get("model_type"), str) else None
    except UnreadableInput:  # missing, or not a model's config
        return None


def _open_fileset(source: str, files: Files, names: list[str], fileset: FileSet) -> Checkpoint:
    """Read the config and the header of every shard."""
    if fileset.format in detect.FORMATS:
        return _open_distributed(source, files, names, fileset)
    has_config = "config.json" in names and fileset.format != "gguf"  # a GGUF file has its config in its metadata
    config = read_json(files, "config.json") if has_config else None
    checkpoint = open_shards(source, fileset.format, files, fileset.shards, config)
    stale: tuple[str, ...] = ()
    if not fileset.weight_map.keys() <= checkpoint.tensors.keys():
        stale = tuple(name for name in fileset.weight_map if name not in checkpoint.tensors)
    copy = next((name for name in ("pytorch_model.bin", "pytorch_model.bin.index.json") if name in names), None)
    if copy and fileset.format == "safetensors" and not source.endswith(".safetensors"):
        note = f"{copy} is a second copy; loaders read {fileset.index or fileset.shards[0]}"
        checkpoint = replace(checkpoint, notes=(*checkpoint.notes, note))
    return replace(checkpoint, stale=stale) if stale else checkpoint


def _open_distributed(source: str, files: Files, names: list[str], fileset: FileSet) -> Checkpoint:
    """The config is in the model's directory, or in the folder of the distributed checkpoint."""
    from tiebeam.checkpoint.distributed.open_distributed import open_distributed

    found = detect.DistributedFiles(fileset.format, fileset.shards)
    name = "config.json"
    if name not in names and isinstance(files, LocalFiles) and name in _names_in(files, fileset.folder):
        name = fileset.folder + name
    config = read_json(files, name) if name in names or name != "config.json" else None
    return open_distributed(source, files, fileset.folder, found, config, name)


def open_shards(
    source: str, format: str, files: Files, shards: list[str], config: Mapping[str, Any] | None
) -> Checkpoint:
    """Read the header of every shard and join them into one table of tensors."""
    read_header = _header_reader(format)
    try:
        headers = [read_header(files, shard) for shard in shards]
    except UnreadableInput:
        refuse_lfs_pointers(files, shards)  # a pointer has no header, so nothing is missed by asking only here
        raise
    tensors: dict[str, TensorInfo] = {}
    metadata: dict[str, Any] = {}
    notes: list[str] = []
    stored = 0
    for header in headers:
        tensors.update(header.tensors)
        stored += len(header.tensors)
        if header.metadata:
            metadata = {**header.metadata, **metadata}  # the first shard counts
        notes += header.notes
    if len(tensors) < stored:
        raise UnreadableInput(_stored_twice(source, shards, headers))
    if not tensors:
        raise UnreadableInput(f"{source} holds no tensors")
    if format == "gguf":
        from tiebeam.checkpoint.formats.gguf import check_split

        check_split(source, headers)
    architecture = metadata.get("general.architecture") if format == "gguf" else (config or {}).get("model_type")
    return Checkpoint(
        source=source,
        format=format,
        files=files,
        tensors=tensors,
        config=config,
        metadata=metadata,
        architecture=architecture if isinstance(architecture, str) else None,
        aliases=safetensors.alias_notes(metadata, tensors) if format == "safetensors" else {},
        notes=tuple(notes),
    )


def _stored_twice(source: str, shards: list[str], headers: list[Header]) -> str:
    seen: dict[str, str] = {}
    for shard, header in zip(shards, headers, strict=True):
        for name in header.tensors:
            if name in seen:
                return f"{source} stores {name!r} twice, in {seen[name]} and in {shard}; name one of the files"
            seen[name] = shard
    raise AssertionError("nothing is stored twice")


def _header_reader(format: str) -> Callable[[Files, str], Header]:
    if format == "safetensors":
        return safetensors.read_header
    if format == "pytorch":
        from tiebeam.checkpoint.formats.torch.reader import read_header

        return read_header
    if format == "gguf":
        from tiebeam.checkpoint.formats.gguf import read_header as read_gguf_header

        return read_gguf_header
    from tiebeam.checkpoint.formats.npz import read_header as read_npz_header

    return read_npz_header
