"""The files of a repository on the Hub, read by range requests; nothing is written to disk.

For large files the Hub redirects to a signed address, which is kept for the next range of the same file.
"""

from __future__ import annotations

import re
from urllib.parse import quote

from tiebeam.checkpoint.files import contained
from tiebeam.checkpoint.hub.http_ranges import RangeReader, Refused, Reply, is_web_address
from tiebeam.checkpoint.json_files import parse_json
from tiebeam.checkpoint.remote_files import RemoteFiles
from tiebeam.errors import UnreadableInput
from tiebeam.limits import MAX_JSON

_WHOLE = 1 << 24  # accept a whole file up to this size if the server ignores ranges


class HubFiles(RemoteFiles):
    """The files in one folder of one revision of a repository. Implements `Files`."""

    def __init__(self, repository: str, revision: str) -> None:
        """List the files of the revision: one request."""
        from huggingface_hub import constants

        super().__init__()
        self.repository, self.revision, self.folder = repository, revision, ""
        self.endpoint = constants.ENDPOINT
        if not is_web_address(self.endpoint):
            raise UnreadableInput(f"HF_ENDPOINT is {self.endpoint!r}, which is not a web address")
        self._token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else _token()
        self._reader = RangeReader(
            self.endpoint,
            self._token,
            float(constants.HF_HUB_DOWNLOAD_TIMEOUT),
            f"check the network, or download the model where there is one: hf download {repository}",
        )
        self._locations: dict[str, str] = {}
        self.commit, self.paths = self._list()

    def _list(self) -> tuple[str, list[str]]:
        """The commit of the revision, and its files. All later reads use that commit."""
        url = f"{self.endpoint}/api/models/{quote(self.repository)}/revision/{quote(self.revision, safe='')}"
        try:
            reply = self._reader.get(url, None, MAX_JSON, self.repository)
        except Refused as refused:
            raise UnreadableInput(self._explain(refused, "")) from None
        document = parse_json(reply.data, f"the answer of {self.endpoint} for {self.repository}")
        commit, siblings = document.get("sha"), document.get("siblings")
        if not isinstance(siblings, list):
            raise UnreadableInput(f"{self.endpoint} does not list the files of {self.repository}; is it a Hub?")
        names = [entry.get("rfilename") for entry in siblings if isinstance(entry, dict)]
        if not isinstance(commit, str) or not re.fullmatch(r"\w+", commit):
            commit = self.revision
        return commit, sorted(name for name in names if isinstance(name, str))

    def names(self) -> list[str]:
        return [name for name in self._inside() if "/" not in name]

    def folders(self) -> list[str]:
        return sorted({name.partition("/")[0] for name in self._inside() if "/" in name})

    def _inside(self) -> list[str]:
        return [path.removeprefix(self.folder) for path in self.paths if path.startswith(self.folder)]

    def _label(self, name: str) -> str:
        return f"{self.repository}/{self.folder}{name}"

    def _fetch(self, name: str, begin: int, end: int) -> Reply:
        path = self.folder + contained(name, self.repository)
        if path not in self.paths:
            raise UnreadableInput(f"{self.repository} has no file {path}")
        resolve = f"{self.endpoint}/{quote(self.repository)}/resolve/{quote(self.commit, safe='')}/{quote(path)}"
        limit = MAX_JSON if name.endswith(".json") else _WHOLE
        try:
            try:
                location = self._locations.pop(name, resolve)
                reply = self._reader.get(location, (begin, end), limit, self._label(name))
            except Refused as refused:
                if refused.by_host or location == resolve:
                    raise
                # The signed address has expired; the Hub gives a new one.
                reply = self._reader.get(resolve, (begin, end), limit, self._label(name))
        except Refused as refused:
            raise UnreadableInput(self._explain(refused, name)) from None
        self._locations[name] = reply.url
        return reply

    def _explain(self, refused: Refused, name: str) -> str:
        """The error message for an answer of the Hub."""
        repository, status = self.repository, refused.status
        code, message = (refused.headers.get(key, "") for key in ("x-error-code", "x-error-message"))
        if not refused.by_host:
            return f"{self._label(name)} cannot be read: the storage behind {self.endpoint} answered {status}"
        if code == "GatedRepo":
            token = "the token in use has not been granted access" if self._token else "no token is set"
            return (
                f"{repository} is gated and {token}; ask for access at {self.endpoint}/{repository} "
                "and set HF_TOKEN (or run: hf auth login)"
            )
        if code == "RevisionNotFound":
            return f"{repository} has no revision {self.revision!r}; look at {self.endpoint}/{repository}/tree/main"
        if code == "EntryNotFound" or (name and status == 404):
            return f"{repository} has no file {self.folder}{name} at revision {self.revision!r}"
        if status == 401 and message.startswith("Invalid credentials"):
            return f"{self.endpoint} does not accept the token in use; renew it (hf auth login) or unset HF_TOKEN"
        if code == "RepoNotFound" or status in (401, 404):
            advice = "use a token that may read it" if self._token else "set HF_TOKEN if it is private"
            return f"there is no model {repository} on {self.endpoint} or on this disk; check the name, or {advice}"
        if status == 403:
            return f"{self.endpoint} does not let this token or this network read {repository} (403)"
        if status == 429:
            return f"{self.endpoint} limits the rate of requests (429); wait a minute and try again"
        return f"{self.endpoint} answered {status} for {repository}; try again later"


def _token() -> str | None:
    from huggingface_hub import get_token

    try:
        return get_token()
    except Exception as error:  # keyless logins can fail in many ways
        raise UnreadableInput(f"the token for the Hub cannot be read: {error}") from None
