"""A model on the Hub: `org/name[@rev]`, from the local cache when it is there, else by range requests.

The whole syntax is the Hub's own, hf://[models/]org/name[@rev][/path], where the path is a file or a folder
of the repository; the revision may also come last. A revision with a slash is written with %2F, but for
refs/pr/N. HF_ENDPOINT, HF_TOKEN, HF_HOME and HF_HUB_OFFLINE count as huggingface_hub reads them.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from tiebeam.checkpoint.files import Files, LocalFiles, contained
from tiebeam.checkpoint.model_files import FileSet, find_model, model_of_file
from tiebeam.checkpoint.open import open_set
from tiebeam.checkpoint.tensors import Checkpoint
from tiebeam.errors import UnreadableInput

_ADDRESS = re.compile(
    r"(?P<repository>(\w[\w.-]*/)?\w[\w.-]*)"
    r"(@(?P<revision>refs/(pr/\d+|convert/[\w.-]+)|[^@/]+))?"
    r"(/(?P<path>[^@]+))?"
    r"(@(?P<last>[^@]+))?",
    re.ASCII,
)


class Address(NamedTuple):
    """Where a model is on the Hub."""

    repository: str
    revision: str
    path: str

    def __str__(self) -> str:
        revision = "" if self.revision == "main" else f"@{quote(self.revision, safe='')}"
        return f"hf://{self.repository}{revision}{'/' if self.path else ''}{self.path}"


def parse_address(text: str) -> Address | None:
    """The parts of an address, or None when it is none. Only hf:// may leave out the organisation."""
    plain = text.removeprefix("hf://")
    match = _ADDRESS.fullmatch(plain.removeprefix("models/") if plain != text else text)
    if not match or (match["revision"] and match["last"]) or (plain == text and "/" not in match["repository"]):
        return None
    return Address(
        match["repository"], unquote(match["revision"] or match["last"] or "main"), (match["path"] or "").rstrip("/")
    )


def open_hub(text: str) -> Checkpoint:
    """Open a model of the Hub: the local cache first, then config.json and the headers over the network."""
    from huggingface_hub import constants

    address = parse_address(text)
    if address is None:
        raise UnreadableInput(f"{text} is not an address on the Hub; it should look like hf://org/name@revision")
    contained(address.path or "-", text)
    snapshot = _snapshot(Path(constants.HF_HUB_CACHE), address)
    missing = "it is not in the local cache"
    if snapshot:
        try:
            files, names, fileset = _local_set(address, snapshot)
        except UnreadableInput as error:
            missing = f"the local cache has only a part of it ({error})"
        else:
            checkpoint = open_set(text, files, names, fileset)
            return replace(checkpoint, notes=(*checkpoint.notes, f"from the local cache, commit {snapshot.name[:12]}"))
    if constants.HF_HUB_OFFLINE:
        raise UnreadableInput(
            f"{address.repository} cannot be read: HF_HUB_OFFLINE is set and {missing}; unset it, or fetch the model "
            f"where there is a network: hf download {address.repository}"
        )
    return _open_remote(text, address)


def _snapshot(cache: Path, address: Address) -> Path | None:
    """The cached snapshot of the revision, complete or not. The layout is the documented one of the Hub's cache."""
    folder = cache / f"models--{address.repository.replace('/', '--')}"
    revision = contained(address.revision, address.repository)
    try:
        commit = (folder / "refs" / revision).read_text("ascii")[:100].strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = folder / "snapshots" / commit
    return snapshot if re.fullmatch(r"\w+", commit) and snapshot.is_dir() else None


def _local_set(address: Address, snapshot: Path) -> tuple[Files, list[str], FileSet]:
    where = snapshot / address.path
    is_folder = where.is_dir()
    files = LocalFiles(where if is_folder else where.parent)
    names = files.names()
    return files, names, _find(address, files, names, "" if is_folder else where.name)


def _find(address: Address, files: Files, names: list[str], name: str) -> FileSet:
    return model_of_file(str(address), files, names, name) if name else find_model(str(address), files, names)


def _open_remote(text: str, address: Address) -> Checkpoint:
    from tiebeam.checkpoint.hub.hub_files import HubFiles

    files = HubFiles(address.repository, address.revision)
    folder, name = address.path, ""
    if folder in files.paths:
        folder, _, name = folder.rpartition("/")
    files.folder = f"{folder}/" if folder else ""
    names = files.names()
    if not names and not files.folders():
        raise UnreadableInput(f"{address.repository} has no file {address.path or 'at all'} at {address.revision!r}")
    fileset = _find(address, files, names, name)
    expected = _header_sizes(fileset)
    if "config.json" in names:
        expected["config.json"] = 0
    files.prefetch(expected)
    return open_set(text, files, names, fileset)


def _header_sizes(fileset: FileSet) -> dict[str, int]:
    """How long the header of each shard should be, from the names that the index puts into it.

    Most of a header is its entries: the name and about 100 characters of type, shape and offsets.
    """
    sizes = dict.fromkeys(fileset.shards, 0)
    if fileset.format == "safetensors":
        for name, shard in fileset.weight_map.items():
            sizes[shard] += len(name) + 120
    return {shard: size + 512 if size else 0 for shard, size in sizes.items()}
