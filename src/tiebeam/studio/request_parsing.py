"""Parse and check the query strings and bodies of API requests."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from tiebeam.errors import BadRequest
from tiebeam.studio.generation import GenerationRequest
from tiebeam.studio.what_if import WhatIf


async def json_body(request: Request) -> dict[str, Any]:
    """Parse the body as a JSON object. The content type is required, so that HTML forms cannot send one."""
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


def token_query(request: Request) -> tuple[str | None, list[int] | None, int]:
    """Parse text or ids, and k, from the query."""
    query = request.query_params
    text, listed, k = query.get("text"), query.get("ids"), query.get("k", "8")
    if not k.isdecimal() or not 1 <= int(k[:4]) <= 50 or len(k) > 2:
        raise BadRequest(f"k is {k[:20]!r}; use a number from 1 to 50")
    if listed is None:
        return text, None, int(k)
    parts = [part for part in listed.replace(",", " ").split() if part]
    wrong = next((part for part in parts if not (part.isascii() and part.isdecimal() and len(part) < 10)), None)
    if wrong is not None:
        raise BadRequest(f"ids has {wrong[:20]!r}; token ids are whole numbers such as 1,2,3")
    return None, [int(part) for part in parts], int(k)


def norm_query(request: Request) -> bool:
    """Whether the direct path includes the final norm, as in `tiebeam lens`; norm=0 is its --no-norm."""
    norm = request.query_params.get("norm", "1")
    if norm not in ("0", "1"):
        raise BadRequest(f"norm is {norm[:20]!r}; use 1 or 0")
    return norm == "1"


def what_if_request(body: dict[str, Any]) -> WhatIf:
    """Check the body of a what-if request: {"text": ..., "rows": N} or {"text": ...}."""
    unknown = next((name for name in body if name not in ("text", "rows")), None)
    if unknown is not None:
        raise BadRequest(f"{unknown[:40]!r} is not a setting; the settings are text, rows")
    text, rows = body.get("text"), body.get("rows")
    if not isinstance(text, str):
        raise BadRequest("text is required")
    if rows is not None and (not isinstance(rows, int) or isinstance(rows, bool) or rows < 1):
        raise BadRequest(f"rows is {json.dumps(rows)[:40]}; use a whole number above 0")
    asked = WhatIf(text, rows)
    asked.check()
    return asked


def generation_request(body: dict[str, Any]) -> GenerationRequest:
    """Check names and types of the settings in a body of /api/generate."""
    kinds: dict[str, tuple[type, ...]] = {
        "prompt": (str,), "new": (int,), "temperature": (int, float), "top_k": (int, type(None)),
        "top_p": (int, float, type(None)), "seed": (int, type(None)), "top": (int,),
    }  # fmt: skip
    for name, value in body.items():
        if name not in kinds:
            raise BadRequest(f"{name[:40]!r} is not a setting; the settings are {', '.join(kinds)}")
        if not isinstance(value, kinds[name]) or isinstance(value, bool):
            raise BadRequest(f"{name} is {json.dumps(value)[:40]}, which has the wrong type")
    if not isinstance(body.get("prompt"), str):
        raise BadRequest("prompt is required")
    settings = GenerationRequest(**body)
    if not 1 <= settings.top <= 50:
        raise BadRequest(f"top is {settings.top}; use a number from 1 to 50")
    return settings
