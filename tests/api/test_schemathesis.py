"""Requests made up from the served OpenAPI document: no crash, no answer that the document does not describe [A-9].

Both what the document permits and what it does not is sent. Not everything of the latter is refused: a parameter that
cannot be parsed means its default [API-18], and unknown members are ignored [API-1].
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.api.kit import WAIT_S, Running, records, running
from topics.server import openapi

CHECKS: list[Any] = [
    status_code_conformance, content_type_conformance, response_headers_conformance, response_schema_conformance,
]  # fmt: skip
TOPICS = ("filled", "empty", "queue")
OPERATIONS = sorted(openapi.OPERATIONS)
WAIT_MS_MAX = 20
EXAMPLES = int(os.environ.get("TOPICS_TEST_EXAMPLES", "10"))
"""For every operation and mode."""


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(env={"TOPICS_SEGMENT_MAX_EVENTS": "5", "TOPICS_MAX_TOPICS": "200"}) as one:
        yield one


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as one:
        one.trust_env = False
        yield one


@pytest.fixture(scope="module")
def served(server: Running) -> Any:
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


@pytest.fixture
def api(server: Running, served: Any) -> Any:
    """The document, and something to find behind it: an earlier test may have deleted it."""
    with server.client() as client:
        client.put("/v0/topics/queue", json={"type": "queue"})
        client.put("/v0/topics/empty")
        client.post("/v0/topics/filled", json=records(*range(12)))
        client.post("/v0/checkpoint")
    return served


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.value)
@pytest.mark.parametrize(("method", "path"), OPERATIONS, ids=lambda part: part)
def test_made_up_requests_are_answered_as_the_document_says(
    api: Any, session: requests.Session, method: str, path: str, mode: GenerationMode
) -> None:
    """[A-9, ERR-1]: of the five hundreds none but 503; only statuses, media types, bodies and headers described."""
    operation = api[path][method]
    if mode is GenerationMode.POSITIVE or operation.body or any(operation.iter_parameters()):
        fuzz(operation, mode, session)


def test_a_status_that_is_not_described_is_found(api: Any, server: Running, session: requests.Session) -> None:
    """So that the test above can fail."""
    document = openapi.document()
    del document["paths"]["/v0/topics/{topic}"]["get"]["responses"]["404"]
    wrong = schemathesis.openapi.from_dict(document)
    wrong.config.update(base_url=server.url)
    with pytest.raises(FailureGroup, match="Undocumented status code"):
        fuzz(wrong["/v0/topics/{topic}"]["GET"], GenerationMode.POSITIVE, session)


def whole(value: Any) -> Any:
    """To JSON schema 5.0 is an integer, to the server it is not [API-12]."""
    if isinstance(value, dict):
        return {name: whole(one) for name, one in value.items()}
    if isinstance(value, list):
        return list(map(whole, value))
    return int(value) if isinstance(value, float) and value.is_integer() else value


def fuzz(operation: Any, mode: GenerationMode, session: requests.Session) -> None:
    # A stream of jobs would not end: its refusals are made up here, what it sends has tests of its own.
    topics = [name for name in TOPICS if not (operation.path.endswith("/work") and name == "queue")]

    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, derandomize=True, print_blob=False,
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(mode), name=st.sampled_from((None, *topics)))
    def check(case: Any, name: str | None) -> None:
        if name is not None and "topic" in (case.path_parameters or {}):
            case.path_parameters["topic"] = name
        if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
            case.body["wait_ms"] %= WAIT_MS_MAX
        if mode is GenerationMode.POSITIVE:
            case.body = whole(case.body)
        answer = case.call(session=session, timeout=WAIT_S)
        assert answer.status_code < 500 or answer.status_code == 503, answer.text
        case.validate_response(answer, checks=CHECKS)

    check()
