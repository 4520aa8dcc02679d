"""The ASGI application: pages, the JSON API under /api, and errors as {"error": message}, the same as in the CLI."""

from __future__ import annotations

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
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from tiebeam._version import __version__
from tiebeam._visible import visible
from tiebeam.errors import BadRequest, TiebeamError
from tiebeam.studio import pages
from tiebeam.studio.http_answers import EventStream, JsonAnswer, StreamLimit, error_answer, event
from tiebeam.studio.jobs import JobProgress, Progress, job_events
from tiebeam.studio.model_list import ModelList, NotFound
from tiebeam.studio.open_models import OpenModel, OpenModels
from tiebeam.studio.openapi import DESCRIPTION
from tiebeam.studio.request_guard import REPORTS, RequestGuard
from tiebeam.studio.request_parsing import generation_request, json_body, norm_query, token_query, what_if_request
from tiebeam.studio.result_cache import ResultCache

_MAX_FOLLOWED = 200
_POLL_SECONDS = 0.5
_KEEPALIVE_SECONDS = 15.0


def build(models: ModelList, port: int, memory: int | None = None) -> ASGIApp:
    """Build the app for the models and runs in `models`; it answers only to 127.0.0.1, localhost or [::1] at `port`.

    `memory` limits the bytes of weights that are held; without it, those of one model are.
    """
    studio = _Studio(models, memory)
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
        "/api/models/{id}/rows": ("GET", studio.rows),
        "/api/models/{id}/load": ("POST", studio.load),
        "/api/models/{id}/what-if": ("POST", studio.what_if),
        "/api/runs": ("GET", studio.runs),
        "/api/runs/{id}": ("GET", studio.run),
        "/api/events": ("GET", studio.events),
        "/api/generate": ("POST", studio.generate),
    }
    routes = [Route(path, _with_json_errors(handler), methods=[method]) for path, (method, handler) in api.items()]
    routes.append(Route(f"{REPORTS}{{id}}.html", _with_json_errors(studio.report), methods=["GET"]))
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
            return error_answer(error)
        except ClientDisconnect:
            return Response(status_code=408)  # nobody reads it
        except Exception:
            sys.stderr.write(visible(traceback.format_exc(), keep="\n"))
            return JsonAnswer({"error": "internal error; the traceback is in the studio's terminal"}, 500)

    return answer


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = {404: f"no page or endpoint at {request.url.path[:200]}", 405: f"{request.method} is not supported here"}
    if error.status_code == 404 and "text/html" in request.headers.get("accept", ""):
        return Response(pages.not_found(request.url.path[:200]), 404, media_type="text/html; charset=utf-8")
    return JsonAnswer({"error": message.get(error.status_code, error.detail)}, error.status_code, headers=error.headers)


async def _page(request: Request) -> Response:
    name = request.url.path.removeprefix("/") or "index.html"
    return Response(pages.files(live=True)[name], media_type=pages.media_type(name))


class _Studio:
    def __init__(self, listed: ModelList, memory: int | None) -> None:
        self.listed, self.opened = listed, OpenModels(memory)
        self.streams = StreamLimit()
        self.results = ResultCache()

    async def description(self, request: Request) -> Response:
        return JsonAnswer(DESCRIPTION)

    async def status(self, request: Request) -> Response:
        root = self.listed.root
        memory = self.opened.weights.to_dict()
        return JsonAnswer({"version": __version__, "root": str(root) if root else None, "memory": memory})

    async def catalog(self, request: Request) -> Response:
        return JsonAnswer(pages.catalog())

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
        return JsonAnswer({**budget.to_dict(), "verdict": sentence, "within": within, "nearest": near})

    async def models(self, request: Request) -> Response:
        found = await run_in_threadpool(self.listed.models)
        return JsonAnswer({"models": [source.to_dict() for source in found]})

    async def find(self, request: Request) -> Response:
        path = (await json_body(request)).get("path")
        if not isinstance(path, str):
            raise BadRequest('the body must be {"path": "..."}')
        return JsonAnswer((await run_in_threadpool(self.listed.find, path)).to_dict())

    def _open(self, id: str) -> OpenModel:
        return self.opened.open(self.listed.model(id))

    async def _from_model(self, request: Request, answer: Callable[[OpenModel], Any]) -> Response:
        """Open the model and compute the answer in a worker thread."""
        id = request.path_params["id"]

        def compute() -> Any:
            with self.opened.computing:
                return answer(self._open(id))

        return JsonAnswer(await run_in_threadpool(compute))

    async def model(self, request: Request) -> Response:
        """The report; as events, what the headers say comes first."""

        def work(model: OpenModel, progress: Progress) -> dict[str, Any]:
            if isinstance(progress, JobProgress):
                progress.show(model.outline())
            return model.first_look(progress)

        return await self._job(request, None, work)

    async def tensors(self, request: Request) -> Response:
        return await self._from_model(request, lambda model: {"tensors": model.tensors()})

    async def direct(self, request: Request) -> Response:
        (text, ids, k), norm = token_query(request), norm_query(request)
        return await self._from_model(request, lambda model: model.direct(text, ids, k, norm))

    async def neighbours(self, request: Request) -> Response:
        text, ids, k = token_query(request)
        return await self._from_model(request, lambda model: model.neighbours(text, ids, k))

    async def spectrum(self, request: Request) -> Response:
        norm = norm_query(request)
        return await self._job(request, f"spectrum-{int(norm)}", lambda model, progress: model.spectrum(norm, progress))

    async def rows(self, request: Request) -> Response:
        from tiebeam.studio.token_rows import suspicious_rows

        return await self._job(request, "rows", lambda model, progress: suspicious_rows(model))

    async def load(self, request: Request) -> Response:
        """Load the weights for generating, before they are needed."""

        def work(model: OpenModel, progress: Progress) -> dict[str, Any]:
            self.opened.weights.load(model, progress)
            return self.opened.weights.to_dict()

        return await self._job(request, None, work)

    async def what_if(self, request: Request) -> Response:
        """The cost of fewer rows or bits on the text in the body."""
        from tiebeam.studio.what_if import measure

        asked = what_if_request(await json_body(request))
        return await self._job(request, None, lambda model, progress: measure(model, asked, progress))

    async def _job(
        self, request: Request, name: str | None, answer: Callable[[OpenModel, Progress], dict[str, Any]]
    ) -> Response:
        """An answer that takes long: server-sent events with progress if the client accepts them, else JSON. Under a
        `name` the result is kept on disk."""
        id = request.path_params["id"]

        def work(progress: Progress) -> dict[str, Any]:
            with self.opened.computing:
                model = self._open(id)
                if name is None:
                    return answer(model, progress)
                return self.results.get_or_compute(model.digest, name, lambda: answer(model, progress))

        if "text/event-stream" not in request.headers.get("accept", ""):
            return JsonAnswer(await run_in_threadpool(work, lambda stage, done, total: None))
        await run_in_threadpool(self.listed.model, id)  # an unknown id is a 404, not an event
        return EventStream(job_events(request, work), self.streams.reserve())

    async def runs(self, request: Request) -> Response:
        from tiebeam.studio.comparison_reports import comparison_summary
        from tiebeam.studio.run_stream import summary

        def found() -> dict[str, Any]:
            runs = [summary(run) for run in self.listed.runs()]
            return {"runs": runs, "comparisons": [comparison_summary(one) for one in self.listed.comparisons()]}

        return JsonAnswer(await run_in_threadpool(found))

    async def report(self, request: Request) -> Response:
        """report.html of a comparison; RequestGuard adds the policy that keeps its scripts from the API."""
        from tiebeam.studio.comparison_reports import report_page

        id = request.path_params["id"]
        page = await run_in_threadpool(lambda: report_page(self.listed.comparison(id)))
        return Response(page, media_type=pages.media_type("report.html"))

    async def run(self, request: Request) -> Response:
        from tiebeam.studio.run_stream import records, summary

        run = await run_in_threadpool(self.listed.run, request.path_params["id"])
        document = await run_in_threadpool(lambda: {**summary(run), "records": records(run)})
        return JsonAnswer(document)

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
        if request.method == "HEAD":  # it has no body, and would never end
            return Response(media_type=EventStream.media_type)
        release = self.streams.reserve()

        async def stream() -> AsyncIterator[bytes]:
            tails = {id: follow_metrics(Path(known[id].where)) for id in ids}
            quiet = 0.0
            yield b"retry: 2000\n\n"
            while not await request.is_disconnected():
                found = await run_in_threadpool(lambda: [(id, next(tail)) for id, tail in tails.items()])
                updates = [(id, new) for id, new in found if new is not None]
                for id, new in updates:
                    if new == "reset":
                        yield event("reset", {"run": id})
                    else:
                        yield event("records", {"run": id, "records": new})
                quiet = 0.0 if updates else quiet + _POLL_SECONDS
                if quiet >= _KEEPALIVE_SECONDS:
                    quiet = 0.0
                    yield b": keep-alive\n\n"
                if not updates:
                    await anyio.sleep(_POLL_SECONDS)

        return EventStream(stream(), release)

    async def generate(self, request: Request) -> Response:
        """Server-sent events, one per token; invalid settings are an error before the stream starts."""
        from tiebeam.studio import generation

        body = await json_body(request)
        id = body.pop("model", None)
        if not isinstance(id, str):
            raise BadRequest("model is required: an id from /api/models")
        settings = generation_request(body)
        release = self.streams.reserve()
        try:
            tokens = await run_in_threadpool(lambda: generation.generate(self.opened.weights, self._open(id), settings))
        except BaseException:
            release()
            raise

        async def stream() -> AsyncIterator[bytes]:
            try:
                async for token in _on_threads(tokens):
                    yield event("token", token)
            except TiebeamError as error:
                yield event("error", {"error": str(error)})

        return EventStream(stream(), release)


async def _on_threads(tokens: Iterator[dict[str, Any]]) -> AsyncIterator[dict[str, Any]]:
    try:
        while (token := await run_in_threadpool(partial(next, tokens, None))) is not None:
            yield token
    finally:
        close = getattr(tokens, "close", None)
        if close is not None:
            close()
