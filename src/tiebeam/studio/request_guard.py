"""The door of the studio: who may speak to it, how much they may say, and what a browser may do with the answer.

A page on the open web can make a browser send requests to 127.0.0.1, and with a name that it rebinds to that
address it could even read the answers. So a request must name us as its host, must not come from another
origin, and gets an answer that no other origin may embed or read.
"""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tiebeam.errors import TiebeamError

LARGEST_BODY = 64 << 10
LARGEST_TARGET = 8 << 10

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
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


class BodyTooLarge(TiebeamError):
    """More bytes came than any request of ours needs."""


class Guard:
    """ASGI middleware. `port` is the one we listen on: another port of this machine is another origin."""

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
        taken = 0

        async def bounded() -> Message:
            nonlocal taken
            message = await receive()
            taken += len(message.get("body", b""))
            if taken > LARGEST_BODY:
                raise BodyTooLarge(_too_large(taken))
            return message

        async def sealed(message: Message) -> None:
            if message["type"] == "http.response.start":
                ours = [(name, value) for name, value in message["headers"] if name.lower() not in _HEADERS]
                message["headers"] = [*ours, *_HEADERS.items()]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            status, sentence = refusal
            await JSONResponse({"error": sentence}, status)(scope, receive, sealed)
            return
        await self.app(scope, bounded, sealed)

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        host = headers.get("host", [])
        if len(host) != 1 or host[0].lower() not in self.hosts:
            return 403, f"the studio answers at {min(self.hosts)} only; this request names {_shown(host)}"
        origin = headers.get("origin", [])
        if origin and origin != [f"http://{host[0]}"]:
            return 403, f"the studio answers its own pages only; this request comes from {_shown(origin)}"
        site = headers.get("sec-fetch-site", ["none"])
        arriving = headers.get("sec-fetch-mode") == ["navigate"] and not scope["path"].startswith("/api")
        if site not in (["same-origin"], ["none"]) and not arriving:
            return 403, "the studio answers its own pages only; this request comes from another site"
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LARGEST_TARGET:
            return 414, f"the address of this request is longer than {LARGEST_TARGET:,} bytes"
        length = headers.get("content-length", ["0"])[0]
        if not length.isdigit() or len(length) > 12 or int(length) > LARGEST_BODY:
            return 413, _too_large(length)
        return None


def _too_large(size: int | str) -> str:
    return f"the request's body is {str(size)[:20]} bytes; at most {LARGEST_BODY:,} are read"


def _shown(values: list[str]) -> str:
    return ", ".join(repr(value[:80]) for value in values[:2]) or "none"
