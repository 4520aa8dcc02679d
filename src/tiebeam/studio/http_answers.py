"""Answers of the API: JSON, server-sent events, and errors with their status.

What is read from a model or a run may hold NaN, infinities, lone surrogates and deep nesting, none of which may turn an
answer into an internal error: numbers that JSON lacks become null, and so does what is nested too deep.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from tiebeam.errors import BadRequest, MissingExtra, TiebeamError
from tiebeam.studio.model_list import Forbidden, NotFound
from tiebeam.studio.request_guard import BodyTooLarge

MAX_STREAMS = 16
_DEPTH = 32


def to_json(document: Any) -> bytes:
    """ASCII, so that a lone surrogate is an escape and not an error."""
    try:
        return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError):
        return json.dumps(_plain(document, _DEPTH), allow_nan=False, separators=(",", ":")).encode()


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(inner, depth - 1) for key, inner in value.items()} if depth else None
    if isinstance(value, list | tuple):
        return [_plain(inner, depth - 1) for inner in value] if depth else None
    return value


class JsonAnswer(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content)


def event(name: str, data: Any) -> bytes:
    """One server-sent event."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), to_json(data))


def error_answer(error: TiebeamError) -> JsonAnswer:
    kinds = {NotFound: 404, Forbidden: 403, BadRequest: 400, MissingExtra: 501, BodyTooLarge: 413}
    status = next((status for kind, status in kinds.items() if isinstance(error, kind)), 422)
    return JsonAnswer({"error": str(error)}, status)


class StreamLimit:
    """Counts the open streams. A stream is counted when it is asked for, so that no two requests take one place."""

    def __init__(self) -> None:
        self.count = 0

    def reserve(self) -> Callable[[], None]:
        """Take a place, or raise BadRequest; returns the function that gives it back, once."""
        if self.count >= MAX_STREAMS:
            raise BadRequest(f"{MAX_STREAMS} streams are open, which is the limit; close a page first")
        self.count += 1
        held = True

        def release() -> None:
            nonlocal held
            if held:
                held = False
                self.count -= 1

        return release


class EventStream(StreamingResponse):
    """Server-sent events that give their place back however they end, also if nobody ever read them."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], release: Callable[[], None]) -> None:
        super().__init__(events)
        self._release = release

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._release()
