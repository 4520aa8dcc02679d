"""The ASGI application: pages, the JSON API under /api, and errors as {"error": message}, the same as in the CLI."""

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
from tiebeam.studio.model_list import METRICS, Forbidden, ModelList, NotFound
from tiebeam.studio.open_models import OpenModel, OpenModels
from tiebeam.studio.openapi import DESCRIPTION
from tiebeam.studio.request_guard import BodyTooLarge, RequestGuard
from tiebeam.studio.request_parsing import generation_request, json_body, token_query

_MAX_STREAMS, _MAX_FOLLOWED = 16, 200
_POLL_SECONDS = 0.5
_KEEPALIVE_SECONDS = 15.0


def build(models: ModelList, port: int) -> ASGIApp:
    """Build the app for the models and runs in `models`; it answers only to 127.0.0.1, localhost or [::1] at `port`."""
    studio = _Studio(models)
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
    routes = [Route(path, _with_json_errors(handler), methods=[method]) for path, (method, handler) in api.items()]
    routes += [Route(f"/{name}", _page, methods=["GET"]) for name in pages.files(live=True)]
    routes.append(Route("/", _page, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    return RequestGuard(app, port)


def _with_json_errors(handler: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """Convert exceptions of a handler to JSON errors. This is the only place that does."""

    async def answer(request: Request) -> Response:
        try:
            return await handler(request)
        except TiebeamError as error:
            return JSONResponse({"error": str(error)}, status_of(error))
        except Exception:
            traceback.print_exc(file=sys.stderr)
            return JSONResponse({"error": "internal error; the traceback is in the studio's terminal"}, 500)

    return answer


def status_of(error: TiebeamError) -> int:
    kinds = {NotFound: 404, Forbidden: 403, BadRequest: 400, MissingExtra: 501, BodyTooLarge: 413}
    return next((status for kind, status in kinds.items() if isinstance(error, kind)), 422)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: f"no page or endpoint at {request.url.path[:200]}", 405: f"{request.method} is not supported here"}
    return JSONResponse(
        {"error": message.get(error.status_code, error.detail)}, error.status_code, headers=error.headers
    )


async def _page(request: Request) -> Response:
    name = request.url.path.removeprefix("/") or "index.html"
    return Response(pages.files(live=True)[name], media_type=pages.media_type(name))


class _Studio:
    def __init__(self, listed: ModelList) -> None:
        self.listed, self.opened = listed, OpenModels()
        self.streams = 0

    async def description(self, request: Request) -> Response:
        return JSONResponse(DESCRIPTION)

    async def status(self, request: Request) -> Response:
        root = self.listed.root
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
            raise BadRequest(f"vocab and dim are required; add {' and '.join(missing)}")
        budget = price(sizes["vocab"], sizes["dim"], sizes.get("trunk"))
        share = budget.head_share
        sentence = verdict(share).sentence if share is not None else verdict_by_size(budget)
        near = [] if share is None else [model.slug for model in neighbours(share)]
        within = {name: inside and inside.head_share for name, inside in within_sizes(budget)}
        return JSONResponse({**budget.to_dict(), "verdict": sentence, "within": within, "nearest": near})

    async def models(self, request: Request) -> Response:
        found = await run_in_threadpool(self.listed.models)
        return JSONResponse({"models": [source.to_dict() for source in found]})

    async def find(self, request: Request) -> Response:
        path = (await json_body(request)).get("path")
        if not isinstance(path, str):
            raise BadRequest('the body must be {"path": "..."}')
        return JSONResponse((await run_in_threadpool(self.listed.find, path)).to_dict())

    def _open(self, id: str) -> OpenModel:
        return self.opened.open(self.listed.model(id))

    async def _from_model(self, request: Request, answer: Callable[[OpenModel], Any]) -> Response:
        """Open the model and compute the answer in a worker thread."""
        id = request.path_params["id"]
        return JSONResponse(await run_in_threadpool(lambda: answer(self._open(id))))

    async def model(self, request: Request) -> Response:
        return await self._from_model(request, OpenModel.report)

    async def tensors(self, request: Request) -> Response:
        return await self._from_model(request, lambda model: {"tensors": model.tensors()})

    async def direct(self, request: Request) -> Response:
        text, ids, k = token_query(request)
        return await self._from_model(request, lambda model: model.direct(text, ids, k))

    async def neighbours(self, request: Request) -> Response:
        text, ids, k = token_query(request)
        return await self._from_model(request, lambda model: model.neighbours(text, ids, k))

    async def spectrum(self, request: Request) -> Response:
        return await self._from_model(request, lambda model: model.spectrum)

    async def runs(self, request: Request) -> Response:
        from tiebeam.studio.run_stream import comparison_verdict, summary

        def found() -> dict[str, Any]:
            runs = [summary(run) for run in self.listed.runs()]
            return {"runs": runs, "comparisons": [comparison_verdict(path) for path in self.listed.comparisons()]}

        return JSONResponse(await run_in_threadpool(found))

    async def run(self, request: Request) -> Response:
        from tiebeam.studio.run_stream import records, summary

        run = await run_in_threadpool(self.listed.run, request.path_params["id"])
        document = await run_in_threadpool(lambda: {**summary(run), "records": records(run)})
        return JSONResponse(document)

    async def events(self, request: Request) -> Response:
        """Server-sent events of several runs on one connection, because a browser opens only six per host.

        `records` has a list of new records; `reset` means that the records of a run start over. Both name the run.
        """
        from tiebeam.studio.run_stream import follow_metrics

        ids = list(dict.fromkeys(id for id in request.query_params.get("runs", "").split(",") if id))
        if not 1 <= len(ids) <= _MAX_FOLLOWED:
            raise BadRequest(f"runs has {len(ids):,} ids; pass 1 to {_MAX_FOLLOWED}")
        known = {run.id: run for run in await run_in_threadpool(self.listed.runs)}
        for id in ids:
            if id not in known:
                raise NotFound(f"no run has the id {id[:40]!r}; /api/runs lists them")
        self._check_stream_limit()

        async def stream() -> AsyncIterator[bytes]:
            tails = {id: follow_metrics(Path(known[id].where) / METRICS) for id in ids}
            quiet = 0.0
            self.streams += 1  # counted when reading starts: a stream without a reader never ends
            try:
                yield b"retry: 2000\n\n"
                while not await request.is_disconnected():
                    updates = [(id, found) for id, tail in tails.items() if (found := next(tail)) is not None]
                    for id, found in updates:
                        if found == "reset":
                            yield _event("reset", {"run": id})
                        else:
                            yield _event("records", {"run": id, "records": found})
                    quiet = 0.0 if updates else quiet + _POLL_SECONDS
                    if quiet >= _KEEPALIVE_SECONDS:
                        quiet = 0.0
                        yield b": keep-alive\n\n"
                    if not updates:
                        await anyio.sleep(_POLL_SECONDS)
            finally:
                self.streams -= 1

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def generate(self, request: Request) -> Response:
        """Server-sent events, one per token; invalid settings are an error before the stream starts."""
        from tiebeam.studio import generation

        body = await json_body(request)
        id = body.pop("model", None)
        if not isinstance(id, str):
            raise BadRequest("model is required: an id from /api/models")
        settings = generation_request(body)
        tokens = await run_in_threadpool(lambda: generation.generate(self._open(id), settings))
        self._check_stream_limit()

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

    def _check_stream_limit(self) -> None:
        if self.streams >= _MAX_STREAMS:
            raise BadRequest(f"{_MAX_STREAMS} streams are open, which is the limit; close a page first")


async def _on_threads(tokens: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    try:
        while (token := await run_in_threadpool(partial(next, tokens, None))) is not None:
            yield token
    finally:
        close = getattr(tokens, "close", None)
        if close is not None:
            close()  # releases the decoder when the page was closed during generation


def _event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {json.dumps(data, allow_nan=False)}\n\n".encode()
