"""Work of seconds to minutes as server-sent events: `progress` with an estimate of the time left, `partial` with what
is known already, then `result`.

The work runs in a thread and reports its progress through a callback. When the page goes away or cancels the request,
the callback raises, which ends the work at its next report.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from tiebeam.errors import TiebeamError
from tiebeam.studio.http_answers import event

Progress = Callable[[str, int, int], None]
Work = Callable[[Progress], Any]
_POLL_SECONDS = 0.25


class Cancelled(TiebeamError):
    """The page that asked for the work went away."""


class JobProgress:
    """The progress callback of a job: keeps the last report, and raises `Cancelled` once the job is cancelled."""

    def __init__(self) -> None:
        self.cancelled = False
        self.stage, self.done, self.total = "starting", 0, 0
        self.partial: Any = None
        self._began = time.monotonic()

    def show(self, partial: Any) -> None:
        """What the page can show before the result."""
        self.partial = partial

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self.cancelled:
            raise Cancelled("cancelled")
        if stage != self.stage:
            self._began = time.monotonic()
        self.stage, self.done, self.total = stage, done, total

    def to_dict(self) -> dict[str, Any]:
        """`seconds_left` of this stage is null until a part of it is done."""
        passed = time.monotonic() - self._began
        left = passed * (self.total - self.done) / self.done if self.done and self.total else None
        return {"stage": self.stage, "done": self.done, "total": self.total, "seconds_left": left}


async def job_events(request: Request, work: Work) -> AsyncIterator[bytes]:
    """Run `work` in a thread; yields events until it ends, or the client disconnects."""
    progress = JobProgress()
    task = asyncio.ensure_future(run_in_threadpool(work, progress))
    task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())  # nobody asks after a disconnect
    try:
        last: dict[str, Any] | None = None
        while not task.done():
            partial, progress.partial = progress.partial, None
            if partial is not None:
                yield event("partial", partial)
            now = progress.to_dict()
            if last is None or (now["stage"], now["done"]) != (last["stage"], last["done"]):
                last = now
                yield event("progress", now)
            if await request.is_disconnected():
                return
            await asyncio.wait({task}, timeout=_POLL_SECONDS)
        yield event("result", task.result())
    except TiebeamError as error:
        yield event("error", {"error": str(error)})
    finally:
        progress.cancelled = True
