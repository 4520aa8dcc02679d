"""A small Hub for the tests: the parts of the HTTP interface that reading a model needs, over real sockets.

Like the real Hub it lists a repository under /api/models, answers /resolve/ for large files with a redirect to a signed
address on another host (here: another port), and names its refusals in X-Error-Code. A test downloads from it with the
real huggingface_hub client, to check that it behaves like the real Hub.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE = (".safetensors", ".gguf", ".bin", ".npz")


class Seen(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]


class Host:
    """One listening host: records requests and counts bytes sent; `rule` may answer a request instead."""

    def __init__(self, answer: Callable[[Host, _Handler], None]) -> None:
        self.answer = answer
        self.rule: Callable[[_Handler], bool] = lambda handler: False
        self.seen: list[Seen] = []
        self.bytes_sent = 0
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self.server.daemon_threads = True
        self.server.host = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def asked(self, text: str) -> list[Seen]:
        return [seen for seen in self.seen if text in seen.path]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def host(self) -> Host:
        return self.server.host  # type: ignore[attr-defined]

    def do_GET(self) -> None:
        headers = {key.lower(): value for key, value in self.headers.items()}
        with self.host.lock:
            self.host.seen.append(Seen(self.command, unquote(self.path), headers))
        if not self.host.rule(self):
            self.host.answer(self.host, self)

    do_HEAD = do_GET  # noqa: N815

    def reply(self, status: int, headers: dict[str, Any], body: bytes = b"") -> bool:
        """Send an answer; True, so that a rule can return the call: the request is answered."""
        self.send_response(status)
        for key, value in {"Content-Length": len(body), **headers}.items():
            if value is not None:
                self.send_header(key, str(value))
        self.end_headers()
        if self.command != "HEAD":
            with self.host.lock:  # before the reader can have them and ask how many there were
                self.host.bytes_sent += len(body)
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # the reader had enough
        return True

    def reply_file(self, path: Path, headers: dict[str, Any]) -> None:
        size = path.stat().st_size
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not match:
            self.reply(200, headers | {"Accept-Ranges": "bytes"}, path.read_bytes())
            return
        begin = int(match[1])
        end = min(int(match[2] or size - 1), size - 1)
        if begin >= size:
            self.reply(416, headers | {"Content-Range": f"bytes */{size}"})
            return
        with path.open("rb") as handle:
            handle.seek(begin)
            body = handle.read(end + 1 - begin)
        self.reply(206, headers | {"Content-Range": f"bytes {begin}-{end}/{size}"}, body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Hub:
    """Repositories are the folders org/name under `root`; all known revisions are the same commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.canonical: dict[str, str] = {}
        self.revisions = {"main", COMMIT, "refs/pr/1"}
        self.storage = Host(self._answer_storage)
        self.front = Host(self._answer_front)
        self.url = self.front.url
        self.signature = "first"

    @property
    def bytes_sent(self) -> int:
        return self.front.bytes_sent + self.storage.bytes_sent

    @property
    def seen(self) -> list[Seen]:
        return self.front.seen + self.storage.seen

    def close(self) -> None:
        for host in (self.front, self.storage):
            host.server.shutdown()
            host.server.server_close()

    def _answer_front(self, host: Host, handler: _Handler) -> None:
        path = urlsplit(handler.path).path
        if match := re.fullmatch(r"(/api/models)?/([^/]+)(/(?:revision|tree|resolve)/.+)?", path):
            full = self.canonical.get(match[2])  # a name without an organisation leads to the one that has it
            if full is not None:
                handler.reply(307, {"Location": f"{match[1] or ''}/{full}{match[3] or ''}"})
            else:
                handler.reply(401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}')
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?", path):
            repository, what, revision = match[1], match[2], unquote(match[3] or "main")
            if not self._known(handler, repository, revision):
                return
            files = sorted(p for p in (self.root / repository).rglob("*") if p.is_file())
            names = [p.relative_to(self.root / repository).as_posix() for p in files]
            if what == "tree":
                listing: Any = [
                    {"type": "file", "path": name, "size": p.stat().st_size, "oid": _digest(name)}
                    for name, p in zip(names, files, strict=True)
                ]
            else:
                siblings = [{"rfilename": name} for name in names]
                listing = {"id": repository, "modelId": repository, "sha": COMMIT, "siblings": siblings}
            handler.reply(200, {"Content-Type": "application/json"}, json.dumps(listing).encode())
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            repository, revision, name = match[1], unquote(match[2]), unquote(match[3])
            if self._known(handler, repository, revision):
                self._resolve(handler, repository, name)
        else:
            handler.reply(404, {})

    def _known(self, handler: _Handler, repository: str, revision: str) -> bool:
        if not (self.root / repository).is_dir():
            handler.reply(401, {"X-Error-Code": "RepoNotFound"}, b'{"error": "Repository not found"}')
        elif revision not in self.revisions:
            handler.reply(404, {"X-Error-Code": "RevisionNotFound"}, b'{"error": "Invalid rev id"}')
        else:
            return True
        return False

    def _resolve(self, handler: _Handler, repository: str, name: str) -> None:
        path = self.root / repository / name
        if not path.is_file():
            handler.reply(404, {"X-Error-Code": "EntryNotFound"}, b'{"error": "Entry not found"}')
            return
        headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_digest(name)}"'}
        if name.endswith(LARGE):
            location = f"{self.storage.url}/{repository}/{name}?signature={self.signature}"
            linked = {"X-Linked-Size": path.stat().st_size, "X-Linked-ETag": f'"{_digest(name)}"'}
            handler.reply(302, headers | linked | {"Location": location})
        else:
            handler.reply_file(path, headers)

    def _answer_storage(self, host: Host, handler: _Handler) -> None:
        parts = urlsplit(handler.path)
        if parts.query != f"signature={self.signature}":
            handler.reply(403, {})
        else:
            handler.reply_file(self.root / unquote(parts.path).lstrip("/"), {})


def _digest(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    hub = Hub(root)
    try:
        yield hub
    finally:
        hub.close()
