"""The JSON API, described as OpenAPI 3.1: what a client may rely on, and what the tests fuzz."""

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
    "Error": _object({"error": {"type": "string", "description": "One sentence: what, the value, the way out."}}),
    "Plan": _object(
        {
            "vocab": _COUNT, "dim": _COUNT, "trunk": _MAYBE_COUNT, "matrix": _COUNT, "tied_total": _MAYBE_COUNT,
            "untied_total": _MAYBE_COUNT, "saved": _COUNT, "head_share": _SHARE,
            "bytes": _object({"fp32": _COUNT, "bf16": _COUNT, "int8": _COUNT}), "optimizer_bytes": _COUNT,
            "verdict": _TEXT, "within": _object({"1B": _SHARE, "7B": _SHARE, "70B": _SHARE}), "nearest": _list(_TEXT),
        }
    ),
    "Entry": _object({"id": _TEXT, "name": _TEXT, "where": _TEXT, "named": {"type": "boolean"}}),
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
         "model": {"type": "boolean"},
         "settings": {"type": "object"}, "last": {"type": "object"}}
    ),
    "Comparison": _object({"name": _TEXT, "sentences": _list(_TEXT)}),
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

_REFUSALS = {
    "400": "What was asked cannot be.",
    "403": "The studio was not told to read this, or the request comes from elsewhere.",
    "404": "There is no such model or run.",
    "413": "The request is too large.",
    "414": "The request's address is too long.",
    "422": "The model cannot be read.",
    "501": "An optional package is missing; the sentence names it.",
}


def _operation(summary: str, schema: dict[str, Any], *parameters: dict[str, Any], body: str = "") -> dict[str, Any]:
    kind = "text/event-stream" if schema.get("x-stream") else "application/json"
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    described: dict[str, Any] = {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": {"description": "The answer.", "content": {kind: {"schema": schema}}},
            **{status: {"description": why, "content": refusal} for status, why in _REFUSALS.items()},
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
    _query("text", "Text, taken apart by the model's own tokenizer.", {"type": "string", "maxLength": 400}),
    _query(
        "ids", "Token ids instead of text: 1,2,3.", {"type": "string", "pattern": r"^[0-9]{1,6}(,[0-9]{1,6}){0,7}$"}
    ),
    _query("k", "How many answers for each.", {"type": "integer", "minimum": 1, "maximum": 50, "default": 8}),
)
_SIZE = {"type": "string", "pattern": r"^[1-9][0-9]{0,8}[kM]?$", "examples": ["50257", "50k", "3.2B"]}
_STREAM = {
    "type": "object",
    "properties": {"event": _TEXT, "data": {"type": "string", "description": "JSON"}},
    "required": ["event", "data"],
    "x-stream": True,
}

_SCHEMAS["Find"] = {**_object({"path": {"type": "string", "minLength": 1}}), "additionalProperties": False}

DESCRIPTION: dict[str, Any] = {
    "openapi": "3.1.0",
    "info": {
        "title": "tiebeam studio",
        "version": __version__,
        "description": "The local API of `tiebeam studio`. It answers on the loopback interface only.",
    },
    "paths": {
        "/api/status": {
            "get": _operation("The version, and the directory below which models are listed.",
                              _object({"version": _TEXT, "root": _MAYBE_TEXT}))
        },
        "/api/plan": {
            "get": _operation(
                "What tying saves.", _ref("Plan"),
                _query("vocab", "Tokens in the vocabulary.", _SIZE, required=True),
                _query("dim", "Width of the table.", _SIZE, required=True),
                _query("trunk", "Parameters of everything but the two matrices.", _SIZE),
            )
        },
        "/api/catalog": {
            "get": _operation("The known models, and how many tie by the share of their head.",
                              _object({"models": _list({"type": "object"}), "bands": _list({"type": "object"})}))
        },
        "/api/models": {
            "get": _operation("The models that may be read.", _object({"models": _list(_ref("Entry"))}))
        },
        "/api/find": {
            "post": _operation("The model at a path below the root.", _ref("Entry"), body="Find")
        },
        "/api/models/{id}": {
            "get": _operation(
                "What `inspect` and `doctor` say.", {"type": "object", "required": ["tie", "findings"]}, _ID
            )
        },
        "/api/models/{id}/tensors": {
            "get": _operation("Every tensor of the files.", _object({"tensors": _list({"type": "object"})}), _ID)
        },
        "/api/models/{id}/direct": {
            "get": _operation("What the two tables say with no layer between them.", _ref("Direct"), _ID, *_TOKENS)
        },
        "/api/models/{id}/neighbours": {
            "get": _operation("The nearest rows of each table.", _ref("Neighbours"), _ID, *_TOKENS)
        },
        "/api/models/{id}/spectrum": {
            "get": _operation("Singular values of the direct path.", _ref("Spectrum"), _ID)
        },
        "/api/runs": {
            "get": _operation(
                "The runs that may be read, and what comparisons among them found.",
                _object({"runs": _list(_ref("Run")), "comparisons": _list(_ref("Comparison"))}),
            )
        },
        "/api/runs/{id}": {"get": _operation("A run with all its reports.", _ref("Run"), _ID)},
        "/api/events": {
            "get": _operation(
                "The reports of runs as they come (server-sent events).", _STREAM,
                _query("runs", "Their ids, with commas between.", {"type": "string", "minLength": 12}, required=True),
            )
        },
        "/api/generate": {
            "post": _operation("Tokens as they are made (server-sent events).", _STREAM, body="Generation")
        },
    },
    "components": {"schemas": _SCHEMAS},
}  # fmt: skip
