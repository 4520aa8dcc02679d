"""Byte ranges over HTTP, through the session of huggingface_hub (which handles proxies and certificates).

Files are never downloaded whole unless they are small: if a server answers a range request with all of a large file,
the connection is closed. Redirects are followed one by one, so that the token is sent to its own host only. Temporary
failures (a dropped connection, a busy server) are retried twice.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from tiebeam._version import __version__
from tiebeam.errors import UnreadableInput

_REDIRECTS = 10
_WAITS = (0.5, 2.0)  # seconds before the second and the third attempt
_TEMPORARY = (408, 429, 500, 502, 503, 504)


class Reply(NamedTuple):
    begin: int
    data: bytes
    total: int
    """Size of the whole file."""
    url: str
    """The final address, after redirects."""


class Refused(Exception):
    """An answer that is neither the bytes nor a redirect; `by_host` if the configured host gave it."""

    def __init__(self, status: int, headers: Mapping[str, str], by_host: bool) -> None:
        super().__init__(status)
        self.status, self.by_host = status, by_host
        self.headers = {key.lower(): value for key, value in headers.items()}


class _Broken(Exception):
    """The connection failed or was closed early."""


class RangeReader:
    """Reads from one host and from where it redirects to; the token is sent to that host only."""

    def __init__(self, endpoint: str, token: str | None, timeout: float, advice: str) -> None:
        self._host, self._token, self._timeout, self._advice = _origin(endpoint), token, timeout, advice
        self._reached = False

    def get(self, url: str, span: tuple[int, int] | None, limit: int, label: str) -> Reply:
        """Bytes span[0]:span[1] of a file, or the whole file if it has at most `limit` bytes.

        Raises `Refused` for an answer that the caller must explain, `UnreadableInput` for every other failure.
        """
        for wait in (*_WAITS, None):
            try:
                return self._attempt(url, span, limit, label)
            except Refused as refused:
                if wait is None or refused.status not in _TEMPORARY:
                    raise
            except _Broken as broken:
                if wait is None or not self._reached:  # no network at all: do not retry
                    raise UnreadableInput(f"{broken}; {self._advice}") from None
            time.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, url: str, span: tuple[int, int] | None, limit: int, label: str) -> Reply:
        headers = {"Accept-Encoding": "identity", "User-Agent": f"tiebeam/{__version__}"}
        if span:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        try:
            for _ in range(_REDIRECTS):
                on_host = _origin(url) == self._host
                secret = {"Authorization": f"Bearer {self._token}"} if on_host and self._token else {}
                with _stream(url, headers | secret, self._timeout) as (status, answer, chunks):
                    self._reached = True
                    if status in (301, 302, 303, 307, 308) and "location" in answer:
                        url = _redirected(url, answer["location"], label)
                        continue
                    if status == 206 and span:
                        return _receive_part(answer, chunks, span, url, label)
                    if status == 416 and answer.get("content-range", "").strip() == "bytes */0":
                        return Reply(0, b"", 0, url)
                    if status != 200:
                        raise Refused(status, answer, on_host)
                    return _receive_whole(answer, chunks, limit, url, label)
        except _http_errors() as error:
            reason = str(error).rstrip(".") or type(error).__name__
            raise _Broken(f"{label} cannot be read from {urlsplit(url).netloc}: {reason}") from None
        raise UnreadableInput(f"{label} cannot be read: {urlsplit(url).netloc} redirects more than {_REDIRECTS} times")


def _redirected(url: str, location: str, label: str) -> str:
    target = urljoin(url, location)
    before, after = _origin(url)[0], _origin(target)[0]
    if after not in ("http", "https") or (before == "https" and after == "http"):
        raise UnreadableInput(
            f"{label} cannot be read: {urlsplit(url).netloc} redirects to {target[:80]!r}, which is not allowed"
        )
    return target


def _receive_part(
    answer: Mapping[str, str], chunks: Iterator[bytes], span: tuple[int, int], url: str, label: str
) -> Reply:
    match = re.fullmatch(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})", answer.get("content-range", "").strip())
    if not match or int(match[1]) != span[0]:
        raise UnreadableInput(f"{label} cannot be read: the server answered with another range than requested")
    total = int(match[3])
    wanted = min(span[1], total) - span[0]
    data = _take(chunks, wanted)
    if len(data) < wanted:
        raise _Broken(f"{label} was cut off after {len(data):,} of {wanted:,} bytes")
    return Reply(span[0], data, total, url)


def _receive_whole(answer: Mapping[str, str], chunks: Iterator[bytes], limit: int, url: str, label: str) -> Reply:
    length = int(answer["content-length"]) if answer.get("content-length", "").isdigit() else 0
    data = _take(chunks, limit + 1) if length <= limit else b""
    if max(length, len(data)) > limit:
        raise UnreadableInput(
            f"{label} cannot be read by ranges: the server would send the whole file; download the model first, "
            "and name its directory"
        )
    if len(data) < length:
        raise _Broken(f"{label} was cut off after {len(data):,} of {length:,} bytes")
    return Reply(0, data, len(data), url)


def _take(chunks: Iterator[bytes], count: int) -> bytes:
    """The first `count` bytes of a stream; the rest is not read."""
    parts, have = [], 0
    for chunk in chunks:
        parts.append(chunk[: count - have])
        have += len(parts[-1])
        if have >= count:
            break
    return b"".join(parts)


@contextmanager
def _stream(
    url: str, headers: dict[str, str], timeout: float
) -> Iterator[tuple[int, Mapping[str, str], Iterator[bytes]]]:
    """GET without reading the body. The session is httpx from huggingface_hub 1.0 on, requests before."""
    from huggingface_hub import get_session

    session: Any = get_session()
    if hasattr(session, "build_request"):
        with session.stream("GET", url, headers=headers, follow_redirects=False, timeout=timeout) as response:
            yield response.status_code, response.headers, response.iter_raw()
    else:
        with session.get(url, headers=headers, stream=True, allow_redirects=False, timeout=timeout) as response:
            yield response.status_code, response.headers, response.iter_content(1 << 16)


def _http_errors() -> tuple[type[BaseException], ...]:
    """Errors of the HTTP library that this huggingface_hub uses: the base of its own error class leads to them."""
    from huggingface_hub.errors import HfHubHTTPError

    base: Any = HfHubHTTPError.__bases__[0]
    library = sys.modules[base.__module__.partition(".")[0]]
    return (OSError, ValueError, base, getattr(library, "InvalidURL", base))


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    except ValueError:
        return "", "", None


def is_web_address(url: str) -> bool:
    scheme, host, port = _origin(url)
    return scheme in ("http", "https") and bool(host) and port is not None
