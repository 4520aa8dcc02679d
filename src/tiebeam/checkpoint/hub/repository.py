"""Find a model on the Hub: `org/name[@rev]`, in the local cache if it is there, else by range requests.

The full syntax is the Hub's own, hf://[models/]org/name[@rev][/path], where the path is a file or a folder of the
repository; the revision may also come last. A slash in a revision is written as %2F, except in refs/pr/N. HF_ENDPOINT,
HF_TOKEN, HF_HOME and HF_HUB_OFFLINE are honoured as huggingface_hub reads them.

This module says which files make the model and how to read them; `checkpoint.open` reads their headers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from tiebeam.checkpoint.files import Files, LocalFiles, contained
from tiebeam.checkpoint.model_files import FileSet, find_model, model_of_file
from tiebeam.checkpoint.remote_files import FoundModel
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
    """The parts of an address, or None if it is not one. Only hf:// may leave out the organisation.

    >>> parse_address("hf://openai-community/gpt2@main")
    Address(repository='openai-community/gpt2', revision='main', path='')
    """
    plain = text.removeprefix("hf://")
    match = _ADDRESS.fullmatch(plain.removeprefix("models/") if plain != text else text)
    if not match or (match["revision"] and match["last"]) or (plain == text and "/" not in match["repository"]):
        return None
    return Address(
        match["repository"], unquote(match["revision"] or match["last"] or "main"), (match["path"] or "").rstrip("/")
    )


def as_address(text: str) -> str | None:
    """The address of a model that was named without an organisation (`gpt2`), or None if that reads like a file name.

    >>> as_address("gpt2"), as_address("gpt2@v1"), as_address("notes.txt")
    ('hf://gpt2', 'hf://gpt2@v1', None)
    """
    name = text.partition("@")[0]
    suffix = name.rpartition(".")[2] if "." in name else ""
    if "/" in name or "\\" in name or suffix[:1].isalpha():
        return None
    return f"hf://{text}" if parse_address(f"hf://{text}") else None


def find_hub_model(text: str) -> FoundModel:
    """Find the files of a model: in the local cache first, then over the network."""
    from huggingface_hub import constants

    address = parse_address(text)
    if address is None:
        raise UnreadableInput(f"{text} is not an address on the Hub; it should look like hf://org/name@revision")
    contained(address.path or "-", text)
    snapshot = _snapshot(Path(constants.HF_HUB_CACHE), address)
    missing = "it is not in the local cache"
    if snapshot:
        try:
            return _cached_model(address, snapshot)
        except UnreadableInput as error:
            missing = f"the local cache has only a part of it ({error})"
    if constants.HF_HUB_OFFLINE:
        raise UnreadableInput(
            f"{address.repository} cannot be read: HF_HUB_OFFLINE is set and {missing}; unset it, or download the "
            f"model where there is a network: hf download {address.repository}"
        )
    return _remote_model(address)


def _snapshot(cache: Path, address: Address) -> Path | None:
    """The cached snapshot of the revision, complete or not. The Hub documents this layout of its cache."""
    folder = cache / f"models--{address.repository.replace('/', '--')}"
    revision = contained(address.revision, address.repository)
    try:
        commit = (folder / "refs" / revision).read_text("ascii")[:100].strip()
    except (OSError, ValueError):
        commit = revision
    snapshot = folder / "snapshots" / commit
    return snapshot if re.fullmatch(r"\w+", commit) and snapshot.is_dir() else None


def _cached_model(address: Address, snapshot: Path) -> FoundModel:
    path = snapshot / address.path
    is_folder = path.is_dir()
    files = LocalFiles(path if is_folder else path.parent)
    names = files.names()
    fileset = _find(address, files, names, "" if is_folder else path.name)
    return FoundModel(files, names, fileset, (f"from the local cache, commit {snapshot.name[:12]}",))


def _find(address: Address, files: Files, names: list[str], name: str) -> FileSet:
    return model_of_file(str(address), files, names, name) if name else find_model(str(address), files, names)


def _remote_model(address: Address) -> FoundModel:
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
    files.prefetch_headers(fileset, names)
    return FoundModel(files, names, fileset)
