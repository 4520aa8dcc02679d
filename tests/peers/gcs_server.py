"""A local server with the part of Google Cloud Storage's JSON API that reads: list, metadata, and media by ranges.

gcsfs talks to it where STORAGE_EMULATOR_HOST names it. The emulators in the registry answer a range with the whole
object, which is what the test must be able to tell.
"""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit


class Bucket(ThreadingHTTPServer):
    """The files of `directory` as objects under `prefix` of the bucket `models`; counts the bytes that it sends."""

    def __init__(self, directory: Path, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {f"{prefix}/{path.name}": path.read_bytes() for path in sorted(directory.iterdir())}
        self.sent, self.forbid = 0, False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Bucket

    def log_message(self, *arguments: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        match = re.fullmatch(r"(?:/download)?(?:/storage/v1)?/b/models/o(?:/(.+))?", url.path)
        name = unquote(match[1]) if match and match[1] else None
        if self.server.forbid:
            self._json({"error": {"code": 403, "message": "caller does not have storage.objects.get access"}}, 403)
        elif match and name is None:
            self._json(self._listing(query.get("prefix", ""), query.get("delimiter", "")))
        elif name not in self.server.objects:
            self._json({"error": {"code": 404, "message": "Not Found"}}, 404)
        elif query.get("alt") == "media" or url.path.startswith("/download"):
            self._media(self.server.objects[name])
        else:
            self._json(self._entry(name))

    def _entry(self, name: str) -> dict[str, str]:
        return {"kind": "storage#object", "bucket": "models", "name": name, "size": str(len(self.server.objects[name]))}

    def _listing(self, prefix: str, delimiter: str) -> dict[str, object]:
        items, prefixes = [], set()
        for name in self.server.objects:
            rest = name.removeprefix(prefix)
            if not name.startswith(prefix):
                continue
            if delimiter and delimiter in rest:
                prefixes.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                items.append(self._entry(name))
        return {"kind": "storage#objects", "items": items, "prefixes": sorted(prefixes)}

    def _media(self, data: bytes) -> None:
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            return self._answer(200, data, "application/octet-stream")
        begin, end = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        where = {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"}
        return self._answer(206, data[begin:end], "application/octet-stream", where)

    def _json(self, document: object, status: int = 200) -> None:
        self._answer(status, json.dumps(document).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        self.server.sent += len(body)
