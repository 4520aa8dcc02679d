"""Models behind an fsspec URL: `s3://bucket/model`, `gs://…`, `memory://…`, any file system that fsspec knows.

Opening lists the folder and reads headers by ranges, as for a model on the Hub. Credentials and endpoints are the file
system's own business: s3fs reads the AWS variables and files, gcsfs Google's, and fsspec reads FSSPEC_S3_ENDPOINT_URL,
FSSPEC_S3_ANON, FSSPEC_GS_TOKEN and the like for every protocol.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tiebeam.checkpoint.files import contained
from tiebeam.checkpoint.hub.http_ranges import Reply
from tiebeam.checkpoint.model_files import find_model, model_of_file
from tiebeam.checkpoint.remote_files import FoundModel, RemoteFiles
from tiebeam.errors import MissingExtra, TiebeamError, UnreadableInput
from tiebeam.limits import MAX_FILES

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_ANONYMOUS = {"gs": "FSSPEC_GS_TOKEN=anon", "gcs": "FSSPEC_GS_TOKEN=anon"}  # others: FSSPEC_S3_ANON=true
# A web server need not answer ranges, and wrappers of other file systems write copies to the disk.
_REFUSED = ("http", "https", "data", "cached", "blockcache", "filecache", "simplecache", "reference", "generic")


def is_url(text: str) -> bool:
    """Whether `text` names a model by an fsspec URL; hf:// is the Hub's and is read without fsspec.

    >>> is_url("s3://bucket/model"), is_url("hf://org/name"), is_url("C:/models")
    (True, False, False)
    """
    return "://" in text and not text.startswith("hf://")


def find_url_model(url: str) -> FoundModel:
    """List the folder of the model, or of the file, at `url`; read its headers in parallel."""
    fs, path = _file_system(url)
    with _explaining(url):
        kind = fs.info(path)["type"]
    folder, _, name = (path, "", "") if kind == "directory" else path.rpartition("/")
    files = UrlFiles(url if kind == "directory" else url.rpartition("/")[0], fs, folder)
    names = files.names()
    fileset = model_of_file(files.url, files, names, name) if name else find_model(files.url, files, names)
    files.prefetch_headers(fileset, names)
    return FoundModel(files, names, fileset)


class UrlFiles(RemoteFiles):
    """The files of one folder of an fsspec file system. Implements `Files`."""

    def __init__(self, url: str, fs: Any, folder: str) -> None:
        super().__init__()
        self.url, self._fs, self._folder = url.rstrip("/"), fs, folder.rstrip("/")
        with _explaining(url):
            entries = fs.ls(folder, detail=True)
        if len(entries) > MAX_FILES:
            raise UnreadableInput(f"{url} holds {len(entries):,} files, which exceeds the limit of {MAX_FILES:,}")
        self._sizes: dict[str, int] = {}
        self._folders: list[str] = []
        for entry in entries:
            name = entry["name"].rstrip("/").rpartition("/")[2]
            if entry["type"] == "directory":
                self._folders.append(name)
            elif entry["name"].rstrip("/") != self._folder:  # S3 may list the folder itself, as an empty object
                self._sizes[name] = int(entry["size"] or 0)

    def names(self) -> list[str]:
        return sorted(self._sizes)

    def folders(self) -> list[str]:
        return sorted(self._folders)

    def _label(self, name: str) -> str:
        return f"{self.url}/{name}"

    def _fetch(self, name: str, begin: int, end: int) -> Reply:
        path = f"{self._folder}/{contained(name, self.url)}"
        with _explaining(self._label(name)):
            if name not in self._sizes:  # in a subfolder
                self._sizes[name] = int(self._fs.info(path)["size"] or 0)
            size = self._sizes[name]
            end = min(end, size)
            data = self._fs.cat_file(path, start=begin, end=end) if begin < end else b""
        if len(data) != max(end - begin, 0):
            raise UnreadableInput(f"{self._label(name)} gave {len(data):,} bytes of {end - begin:,}; try again")
        return Reply(begin, bytes(data), size, path)


def _file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path in it; an error names the package that is missing."""
    protocol = url.partition("://")[0]
    if "::" in url or protocol in _REFUSED:
        raise UnreadableInput(
            f"{url} cannot be read by ranges; download the file and name it, or name a model on the Hub as org/name"
        )
    import fsspec
    from fsspec.registry import known_implementations, registry

    if protocol not in known_implementations and protocol not in registry:
        raise UnreadableInput(f"{url} does not exist, and {protocol}:// is no kind of address that fsspec knows")
    try:
        fs, path = fsspec.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        if protocol in _EXTRAS:
            raise MissingExtra(f"{protocol}://", _EXTRAS[protocol]) from None
        raise UnreadableInput(f"{protocol}:// needs a package that is not installed: {error}") from None
    except Exception as error:
        raise UnreadableInput(f"{url} cannot be opened: {_reason(error)}") from None
    return fs, path.rstrip("/") or path


@contextmanager
def _explaining(url: str) -> Iterator[None]:
    """Turn the errors of a file system, which are of any class, into one sentence."""
    try:
        yield
    except TiebeamError:
        raise
    except FileNotFoundError:
        raise UnreadableInput(f"{url} does not exist") from None
    except Exception as error:
        if _is_refusal(error):
            raise UnreadableInput(f"{url} may not be read: {_reason(error)}; check the credentials") from None
        hint = ""
        if "credentials" in str(error).lower():
            protocol = url.partition("://")[0]
            anonymous = _ANONYMOUS.get(protocol, f"FSSPEC_{protocol.upper()}_ANON=true")
            hint = f"; set them, or {anonymous} if the bucket is public"
        raise UnreadableInput(f"{url} cannot be read: {_reason(error)}{hint}") from None


def _is_refusal(error: Exception) -> bool:
    """Whether the server knows the caller and says no. gcsfs raises OSError("Forbidden: ..."), or its own class."""
    said_so = isinstance(error, PermissionError) or str(error).startswith("Forbidden")
    return said_so or getattr(error, "code", None) in (401, 403, "401", "403")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()).rstrip(".")[:300] or type(error).__name__
