"""ASGI middleware that protects the studio: host and origin checks, size limits, and security headers.

A web page can make a browser send requests to 127.0.0.1, and with DNS rebinding it could read the responses. So the
Host header must name this server, the request must not come from another origin, and no other origin may embed or read
the response.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiebeam.errors import TiebeamError

MAX_BODY = 64 << 10
MAX_TARGET = 8 << 10

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'"
)
REPORTS = "/reports/"
REPORT_POLICY = (  # of pages that a comparison wrote: inline scripts in an origin of their own, and no requests
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
_HEADERS = {
    b"content-security-policy": (POLICY + "; frame-ancestors 'none'").encode(),
    b"x-content-type-options": b"nosniff",
    b"referrer-policy": b"no-referrer",
    b"cross-origin-resource-policy": b"same-origin",
    b"cross-origin-opener-policy": b"same-origin",
    b"cache-control": b"no-store",
}
_REPORT_HEADERS = {
    **_HEADERS,
    b"content-security-policy": (REPORT_POLICY + "; frame-ancestors 'none'").encode(),
    b"cross-origin-opener-policy": b"unsafe-none",  # browsers refuse any other on a page that is sandboxed
}


class BodyTooLarge(TiebeamError):
    """The request body exceeds the limit."""


class RequestGuard:
    """ASGI middleware. `port` is the listening port: another port of this machine is another origin."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]")}
        if port == 80:
            self.hosts |= {"127.0.0.1", "localhost", "[::1]"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        received = 0
        headers = _REPORT_HEADERS if scope["path"].startswith(REPORTS) else _HEADERS

        async def receive_bounded() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > MAX_BODY:
                raise BodyTooLarge(_too_large(received))
            return message

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                kept = [(name, value) for name, value in message["headers"] if name.lower() not in _HEADERS]
                message["headers"] = [*kept, *headers.items()]
            await send(message)

        rejection = self._rejection(scope)
        if rejection is not None:
            status, message = rejection
            await JSONResponse({"error": message}, status)(scope, receive, send_with_headers)
            return
        await self.app(scope, receive_bounded, send_with_headers)

    def _rejection(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self.hosts:
            return 403, f"the studio answers only at {min(self.hosts)}; the Host header is {_shown(host)}"
        origin = headers.get("origin", [])
        if origin and origin != [f"http://{host[0]}"]:
            return 403, f"the studio answers only its own pages; this request comes from {_shown(origin)}"
        site = headers.get("sec-fetch-site", ["none"])
        navigation = headers.get("sec-fetch-mode") == ["navigate"] and not scope["path"].startswith("/api")
        if site not in (["same-origin"], ["none"]) and not navigation:
            return 403, "the studio answers only its own pages; this request comes from another site"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_TARGET:
            return 414, f"the URL exceeds the limit of {MAX_TARGET:,} bytes"
        length = headers.get("content-length", ["0"])[0]
        if not length.isdigit() or len(length) > 12 or int(length) > MAX_BODY:
            return 413, _too_large(length)
        return None


def _too_large(size: int | str) -> str:
    return f"the request body has {str(size)[:20]} bytes, which exceeds the limit of {MAX_BODY:,}"


def _shown(values: list[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values[:2]) or "none"
