"""OpenAPI 3.1 description of the JSON API; the tests fuzz the API from it."""

from __future__ import annotations

from typing import Any

from tiebeam._version import __version__

_COUNT = {"type": "integer", "minimum": 0}
_MAYBE_COUNT = {"type": ["integer", "null"]}
_SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
_TEXT = {"type": "string"}
_MAYBE_TEXT = {"type": ["string", "null"]}


def _object(properties: dict[str, Any], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [p for p in properties if p not in optional]}


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


_SCHEMAS: dict[str, Any] = {
    "Error": _object({"error": {"type": "string", "description": "What is wrong, the value, and the fix."}}),
    "Plan": _object(
        {
            "vocab": _COUNT, "dim": _COUNT, "trunk": _MAYBE_COUNT, "matrix": _COUNT, "tied_total": _MAYBE_COUNT,
            "untied_total": _MAYBE_COUNT, "saved": _COUNT, "head_share": _SHARE,
            "bytes": _object({"fp32": _COUNT, "bf16": _COUNT, "int8": _COUNT}), "optimizer_bytes": _COUNT,
            "verdict": _TEXT, "within": _object({"1B": _SHARE, "7B": _SHARE, "70B": _SHARE}), "nearest": _list(_TEXT),
        }
    ),
    "Source": _object({"id": _TEXT, "name": _TEXT, "where": _TEXT, "named": {"type": "boolean"}}),
    "Score": _object({"id": _COUNT, "score": {"type": "number"}, "text": _MAYBE_TEXT}),
    "Direct": _object(
        {
            "tied": {"type": "boolean"},
            "tokens": _list(
                _object(
                    {"id": _COUNT, "text": _MAYBE_TEXT, "top": _list({"$ref": "#/components/schemas/Score"}),
                     "itself": {"type": "number"}}
                )
            ),
            "between": _list(_list({"type": "number"})),
        }
    ),
    "Neighbours": _object(
        {
            "tied": {"type": "boolean"},
            "tokens": _list(
                _object(
                    {"id": _COUNT, "text": _MAYBE_TEXT, "embed": _list({"$ref": "#/components/schemas/Score"}),
                     "head": _list({"$ref": "#/components/schemas/Score"})},
                    optional=("head",),
                )
            ),
        }
    ),
    "Spectrum": _object(
        {"tied": {"type": "boolean"}, "values": _list({"type": "number"}), "energy": {"type": "object"}}
    ),
    "Run": _object(
        {"id": _TEXT, "name": _TEXT, "tied": {"type": ["boolean", "null"]}, "live": {"type": "boolean"},
         "model": {"type": "boolean"}, "state": {"enum": ["running", "finished", "stopped"]},
         "step_tokens": _MAYBE_COUNT,
         "settings": {"type": "object"}, "last": {"type": "object"}}
    ),
    "Comparison": _object(
        {"id": _TEXT, "name": _TEXT, "sentences": _list(_TEXT), "report": {"type": "boolean"}}
    ),
    "Generation": {
        **_object(
            {
                "model": {"type": "string", "description": "An id from /api/models."},
                "prompt": {"type": "string", "minLength": 1},
                "new": {"type": "integer", "minimum": 1, "maximum": 512, "default": 48},
                "temperature": {"type": "number", "minimum": 0, "default": 0},
                "top_k": {"type": ["integer", "null"], "minimum": 1},
                "top_p": {"type": ["number", "null"], "exclusiveMinimum": 0, "maximum": 1},
                "seed": {"type": ["integer", "null"], "minimum": 0},
                "top": {"type": "integer", "minimum": 1, "maximum": 50, "default": 8},
            },
            optional=("new", "temperature", "top_k", "top_p", "seed", "top"),
        ),
        "additionalProperties": False,
    },
}  # fmt: skip

_ERRORS = {
    "400": "The request is invalid.",
    "403": "The path is not allowed, or the request comes from another origin.",
    "404": "No model or run has this id.",
    "413": "The body exceeds the limit.",
    "414": "The URL exceeds the limit.",
    "422": "The model cannot be read.",
    "501": "An optional package is missing; the message names it.",
}


def _operation(summary: str, schema: dict[str, Any], *parameters: dict[str, Any], body: str = "") -> dict[str, Any]:
    kind = "text/event-stream" if schema.get("x-stream") else "application/json"
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "OK", "content": {kind: {"schema": schema}}},
            **{status: {"description": why, "content": error} for status, why in _ERRORS.items()},
        },
    }
    if body:
        content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{body}"}}}
        described["requestBody"] = {"required": True, "content": content}
    return described


def _query(name: str, about: str, schema: dict[str, Any], required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": "query", "required": required, "description": about, "schema": schema}


def _ref(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string", "pattern": "^[0-9a-f]{12}$"}}
_TOKENS = (
    _query("text", "Text; the model's tokenizer encodes it.", {"type": "string", "maxLength": 400}),
    _query(
        "ids",
        "Token ids instead of text, for example 1,2,3.",
        {"type": "string", "pattern": r"^[0-9]{1,6}(,[0-9]{1,6}){0,7}$"},
    ),
    _query("k", "Number of results per token.", {"type": "integer", "minimum": 1, "maximum": 50, "default": 8}),
)
_NORM = _query(
    "norm",
    "1: with the final norm, as `tiebeam lens`; 0: without.",
    {"type": "integer", "minimum": 0, "maximum": 1, "default": 1},
)
_SIZE = {"type": "string", "pattern": r"^[1-9][0-9]{0,8}[kM]?$", "examples": ["50257", "50k", "3.2B"]}
_STREAM = {
    "type": "object",
    "properties": {"event": _TEXT, "data": {"type": "string", "description": "JSON"}},
    "required": ["event", "data"],
    "x-stream": True,
}

_SCHEMAS["WhatIf"] = {
    **_object(
        {
            "text": {"type": "string", "minLength": 2000, "maxLength": 8000},
            "rows": {"type": ["integer", "null"], "minimum": 1},
        },
        optional=("rows",),
    ),
    "additionalProperties": False,
}
_SCHEMAS["Find"] = {**_object({"path": {"type": "string", "minLength": 1}}), "additionalProperties": False}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "tiebeam studio",
        "version": __version__,
        "description": "Local API of `tiebeam studio`, on the loopback interface only.",
    },
    "paths": {
        "/api/status": {
            "get": _operation(
                "Version, the root directory of the listed models, and the models whose weights are in memory.",
                _object({"version": _TEXT, "root": _MAYBE_TEXT, "memory": _object({
                    "limit": _MAYBE_COUNT,
                    "loaded": _list(_object({"id": _TEXT, "name": _TEXT, "bytes": _COUNT})),
                })}),
            )
        },
        "/api/plan": {
            "get": _operation(
                "Parameters and bytes that tying saves.", _ref("Plan"),
                _query("vocab", "Tokens in the vocabulary.", _SIZE, required=True),
                _query("dim", "Model width.", _SIZE, required=True),
                _query("trunk", "Non-embedding parameters.", _SIZE),
            )
        },
        "/api/catalog": {
            "get": _operation("Known models, and how many tie by share of the LM head.",
                              _object({"models": _list({"type": "object"}), "bands": _list({"type": "object"})}))
        },
        "/api/models": {
            "get": _operation("Models that the studio may read.", _object({"models": _list(_ref("Source"))}))
        },
        "/api/find": {
            "post": _operation("The model at a path below the root.", _ref("Source"), body="Find")
        },
        "/api/models/{id}": {
            "get": _operation(
                "The reports of `inspect` and `doctor`.", {"type": "object", "required": ["tie", "findings"]}, _ID
            )
        },
        "/api/models/{id}/tensors": {
            "get": _operation("All tensors.", _object({"tensors": _list({"type": "object"})}), _ID)
        },
        "/api/models/{id}/direct": {
            "get": _operation("Direct-path logits: embedding times LM head.", _ref("Direct"), _ID, *_TOKENS, _NORM)
        },
        "/api/models/{id}/neighbours": {
            "get": _operation("Nearest rows of the embedding and the LM head.", _ref("Neighbours"), _ID, *_TOKENS)
        },
        "/api/models/{id}/spectrum": {
            "get": _operation("Singular values of the direct path.", _ref("Spectrum"), _ID, _NORM)
        },
        "/api/models/{id}/rows": {
            "get": _operation(
                "Rows that look untrained or unusual, by kind.",
                _object({"matrices": _list({"type": "object"}), "skipped": _list(_TEXT)}), _ID,
            )
        },
        "/api/models/{id}/what-if": {
            "post": _operation(
                "What fewer rows (`rows`) or fewer bits would cost on a text.",
                _object({"commands": _list(_TEXT)}), _ID, body="WhatIf",
            )
        },
        "/api/models/{id}/load": {
            "post": _operation("Load the weights of a model for /api/generate.", {"type": "object"}, _ID)
        },
        "/api/runs": {
            "get": _operation(
                "Runs that the studio may read, and verdicts of comparisons.",
                _object({"runs": _list(_ref("Run")), "comparisons": _list(_ref("Comparison"))}),
            )
        },
        "/api/runs/{id}": {"get": _operation("A run with all its metrics.", _ref("Run"), _ID)},
        "/api/events": {
            "get": _operation(
                "New metrics of runs (server-sent events).", _STREAM,
                _query("runs", "Ids, separated by commas.", {"type": "string", "minLength": 12}, required=True),
            )
        },
        "/api/generate": {
            "post": _operation("Generated tokens (server-sent events).", _STREAM, body="Generation")
        },
    },
    "components": {"schemas": _SCHEMAS},
}  # fmt: skip
