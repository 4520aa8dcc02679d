"""The API fuzzed from its OpenAPI description: no server errors, and every response matches the description."""

import os

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed")

from hypothesis import HealthCheck, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from tiebeam.studio.openapi import DESCRIPTION  # noqa: E402

CHECKS = [
    not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance,
    unsupported_method,
]  # fmt: skip


# The event stream never ends, so it is excluded here.
described = schemathesis.openapi.from_dict(DESCRIPTION).exclude(path="/api/events")


@pytest.fixture(scope="module")
def a_model(studio):
    import httpx

    return httpx.get(studio + "api/models").json()["models"][0]["id"]


@pytest.mark.parametrize("known_id", [True, False], ids=["known id", "any id"])
@described.parametrize()
@settings(
    max_examples=int(os.environ.get("TIEBEAM_FUZZ", "12")),
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)
def test_every_response_matches_the_description(case, known_id, a_model, studio):
    if known_id and "id" in case.path_parameters:
        case.path_parameters["id"] = a_model  # random ids alone would only give 404
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = a_model
    case.call_and_validate(base_url=studio, checks=CHECKS, timeout=30)
