"""The application: pages, the JSON API under /api, and errors as {"error": one sentence}, as the CLI says them."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from tiebeam._version import __version__
from tiebeam.errors import BadRequest, MissingExtra, TiebeamError
from tiebeam.studio import pages
from tiebeam.studio.model_list import METRICS, Forbidden, NotFound, Shelf
from tiebeam.studio.open_models import Reader, Readers
from tiebeam.studio.openapi import DESCRIPTION
from tiebeam.studio.request_guard import BodyTooLarge, Guard

_STREAMS, _FOLLOWED = 16, 200
_POLL = 0.5
_BEAT = 15.0


def build(shelf: Shelf, port: int) -> ASGIApp:
    """The studio over what `shelf` allows, answering only as 127.0.0.1, localhost or [::1] at `port`."""
    studio = _Studio(shelf)
    api = {
        "/api/openapi.json": ("GET", studio.description),
        "/api/status": ("GET", studio.status),
        "/api/plan": ("GET", studio.plan),
        "/api/catalog": ("GET", studio.catalog),
        "/api/models": ("GET", studio.models),
        "/api/find": ("POST", studio.find),
        "/api/models/{id}": ("GET", studio.model),
        "/api/models/{id}/tensors": ("GET", studio.tensors),
        "/api/models/{id}/direct": ("GET", studio.direct),
        "/api/models/{id}/neighbours": ("GET", studio.neighbours),
        "/api/models/{id}/spectrum": ("GET", studio.spectrum),
        "/api/runs": ("GET", studio.runs),
        "/api/runs/{id}": ("GET", studio.run),
        "/api/events": ("GET", studio.events),
        "/api/generate": ("POST", studio.generate),
    }
    routes = [Route(path, _answering(handler), methods=[method]) for path, (method, handler) in api.items()]
    routes += [Route(f"/{name}", _page, methods=["GET"]) for name in pages.files(live=True)]
    routes.append(Route("/", _page, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refused})
    return Guard(app, port)


def _answering(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Errors become JSON here and nowhere else."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except TiebeamError as error:
            return JSONResponse({"error": str(error)}, status_of(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return JSONResponse({"error": "the studio failed on this; the reason is in its terminal"}, 500)

    return answer


def status_of(error: TiebeamError) -> int:
    kinds = {NotFound: 404, Forbidden: 403, BadRequest: 400, MissingExtra: 501, BodyTooLarge: 413}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), 422)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = {404: f"there is nothing at {request.url.path[:200]}", 405: f"{request.method} is not answered here"}
    return JSONResponse(
        {"error": sentence.get(error.status_code, error.detail)}, error.status_code, headers=error.headers
    )


async def _page(request: Request) -> Response:
    name = request.url.path.removeprefix("/") or "index.html"
    return Response(pages.files(live=True)[name], media_type=pages.media_type(name))


class _Studio:
    def __init__(self, shelf: Shelf) -> None:
        self.shelf, self.readers = shelf, Readers()
        self.streams = 0

    async def description(self, request: Request) -> Response:
        return JSONResponse(DESCRIPTION)

    async def status(self, request: Request) -> Response:
        root = self.shelf.root
        return JSONResponse({"version": __version__, "root": str(root) if root else None})

    async def catalog(self, request: Request) -> Response:
        return JSONResponse(pages.catalog())

    async def plan(self, request: Request) -> Response:
        from tiebeam.budget import parse_count, price
        from tiebeam.catalog import neighbours, verdict, verdict_by_size, within_sizes

        query = request.query_params
        sizes = {name: parse_count(query[name]) for name in ("vocab", "dim", "trunk") if query.get(name)}
        missing = [name for name in ("vocab", "dim") if name not in sizes]
        if missing:
            raise BadRequest(f"a plan needs a vocab and a dim; add {' and '.join(missing)}")
        budget = price(sizes["vocab"], sizes["dim"], sizes.get("trunk"))
        share = budget.head_share
        said = verdict(share).sentence if share is not None else verdict_by_size(budget)
        near = [] if share is None else [model.slug for model in neighbours(share)]
        within = {name: inside and inside.head_share for name, inside in within_sizes(budget)}
        return JSONResponse({**budget.to_dict(), "verdict": said, "within": within, "nearest": near})

    async def models(self, request: Request) -> Response:
        found = await run_in_threadpool(self.shelf.models)
        return JSONResponse({"models": [entry.to_dict() for entry in found]})

    async def find(self, request: Request) -> Response:
        path = (await _body(request)).get("path")
        if not isinstance(path, str):
            raise BadRequest('the body must be {"path": "..."}')
        return JSONResponse((await run_in_threadpool(self.shelf.find, path)).to_dict())

    def _reader(self, id: str) -> Reader:
        return self.readers.open(self.shelf.model(id))

    async def _ask(self, request: Request, question: Callable[[Reader], Any]) -> Response:
        """One question about one model, answered on a thread."""
        id = request.path_params["id"]
        return JSONResponse(await run_in_threadpool(lambda: question(self._reader(id))))

    async def model(self, request: Request) -> Response:
        return await self._ask(request, Reader.report)

    async def tensors(self, request: Request) -> Response:
        return await self._ask(request, lambda reader: {"tensors": reader.tensors()})

    async def direct(self, request: Request) -> Response:
        text, ids, k = _tokens(request)
        return await self._ask(request, lambda reader: reader.direct(text, ids, k))

    async def neighbours(self, request: Request) -> Response:
        text, ids, k = _tokens(request)
        return await self._ask(request, lambda reader: reader.neighbours(text, ids, k))

    async def spectrum(self, request: Request) -> Response:
        return await self._ask(request, lambda reader: reader.spectrum)

    async def runs(self, request: Request) -> Response:
        from tiebeam.studio.run_stream import summary, verdict

        def found() -> dict[str, Any]:
            runs = [summary(entry) for entry in self.shelf.runs()]
            return {"runs": runs, "comparisons": [verdict(path) for path in self.shelf.comparisons()]}

        return JSONResponse(await run_in_threadpool(found))

    async def run(self, request: Request) -> Response:
        from tiebeam.studio.run_stream import records, summary

        entry = await run_in_threadpool(self.shelf.run, request.path_params["id"])
        document = await run_in_threadpool(lambda: {**summary(entry), "records": records(entry)})
        return JSONResponse(document)

    async def events(self, request: Request) -> Response:
        """Server-sent events of several runs on one connection, of which a browser has only six for a host.

        `records` has a list of reports, `reset` says that a run's reports start over; both name the run.
        """
        from tiebeam.studio.run_stream import follow

        ids = list(dict.fromkeys(id for id in request.query_params.get("runs", "").split(",") if id))
        if not 1 <= len(ids) <= _FOLLOWED:
            raise BadRequest(f"name 1 to {_FOLLOWED} runs to follow; {len(ids):,} are named")
        known = {entry.id: entry for entry in await run_in_threadpool(self.shelf.runs)}
        for id in ids:
            if id not in known:
                raise NotFound(f"no run here has the id {id[:40]!r}")
        self._check_room()

        async def stream() -> AsyncIterator[bytes]:
            tails = {id: follow(Path(known[id].where) / METRICS) for id in ids}
            quiet = 0.0
            self.streams += 1  # here and not before: a stream that nobody reads is never counted
            try:
                yield b"retry: 2000\n\n"
                while not await request.is_disconnected():
                    news = [(id, found) for id, tail in tails.items() if (found := next(tail)) is not None]
                    for id, found in news:
                        if found == "reset":
                            yield _event("reset", {"run": id})
                        else:
                            yield _event("records", {"run": id, "records": found})
                    quiet = 0.0 if news else quiet + _POLL
                    if quiet >= _BEAT:
                        quiet = 0.0
                        yield b": still here\n\n"
                    if not news:
                        await anyio.sleep(_POLL)
            finally:
                self.streams -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def generate(self, request: Request) -> Response:
        """Server-sent events, one per token; settings that cannot be are refused before the stream starts."""
        from tiebeam.studio import generation

        body = await _body(request)
        id = body.pop("model", None)
        if not isinstance(id, str):
            raise BadRequest("say which model: its id from /api/models")
        wanted = _generation_request(body)
        tokens = await run_in_threadpool(lambda: generation.generate(self._reader(id), wanted))
        self._check_room()

        async def stream() -> AsyncIterator[bytes]:
            self.streams += 1
            try:
                async for token in _on_threads(tokens):
                    yield _event("token", token)
            except TiebeamError as error:
                yield _event("error", {"error": str(error)})
            finally:
                self.streams -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    def _check_room(self) -> None:
        if self.streams >= _STREAMS:
            raise BadRequest(f"{_STREAMS} streams are open already; close a page first")


async def _on_threads(tokens: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    try:
        while (token := await run_in_threadpool(partial(next, tokens, None))) is not None:
            yield token
    finally:
        close = getattr(tokens, "close", None)
        if close is not None:
            close()  # lets go of the decoder when the page went away in the middle


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()


async def _body(request: Request) -> dict[str, Any]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadRequest("the body must be JSON, sent as application/json")
    try:
        document = json.loads(await request.body())
    except (ValueError, RecursionError):
        raise BadRequest("the body is not JSON") from None
    if not isinstance(document, dict):
        raise BadRequest("the body must be a JSON object")
    return document


def _tokens(request: Request) -> tuple[str | None, list[int] | None, int]:
    """text or ids, and k, from the query."""
    query = request.query_params
    text, listed, k = query.get("text"), query.get("ids"), query.get("k", "8")
    if not k.isdecimal() or not 1 <= int(k[:4]) <= 50 or len(k) > 2:
        raise BadRequest(f"k is {k[:20]!r}; it must be a number from 1 to 50")
    if listed is None:
        return text, None, int(k)
    parts = [part for part in listed.replace(",", " ").split() if part]
    wrong = next((part for part in parts if not (part.isascii() and part.isdecimal() and len(part) < 10)), None)
    if wrong is not None:
        raise BadRequest(f"token ids are whole numbers, 1, 2, 3; {wrong[:20]!r} is not one")
    return None, [int(part) for part in parts], int(k)


def _generation_request(body: dict[str, Any]) -> Any:
    from tiebeam.studio.generation import Request as Wanted

    kinds: dict[str, tuple[type, ...]] = {
        "prompt": (str,), "new": (int,), "temperature": (int, float), "top_k": (int, type(None)),
        "top_p": (int, float, type(None)), "seed": (int, type(None)), "top": (int,),
    }  # fmt: skip
    for name, value in body.items():
        if name not in kinds:
            raise BadRequest(f"{name[:40]!r} is not a setting; the settings are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise BadRequest(f"{name} cannot be {json.dumps(value)[:40]}")
    if not isinstance(body.get("prompt"), str):
        raise BadRequest("give a prompt")
    wanted = Wanted(**body)
    if not 1 <= wanted.top <= 50:
        raise BadRequest(f"top is {wanted.top}; it must be from 1 to 50")
    return wanted
