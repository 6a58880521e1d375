"""The document at `/openapi.json`: valid, complete, and true of the examples of the specification [A-9]."""

from __future__ import annotations

import json
from typing import Any

import httpx
import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from tests.api.kit import records, running
from topics.model import TopicConfig
from topics.server import failure, openapi
from topics.server.routes import ROUTES, Access, Body
from topics.server.topics import ConfigBody

DOCUMENT = openapi.document()
HANDLED = [route for route in ROUTES if route.handler is not None]

EXAMPLES = [
    ("PutAnswer", """{"topic":"kiln-7","created":true,
      "config":{"type":"log","ttl_ms":90000,"cap_records":0,"cap_bytes":0,"discard":"old","durable":false,
      "durability":"disk","priority":null,"auto_priority":true,"auto_create":true,"idempotency_window_ms":120000,
      "dedupe_node":true,"lease_ms":30000,"claim_jitter_ms":0,"max_deliveries":0,"dead_letter":null,
      "leases_durable":false},"performance":{"server_total_ms":0.4}}"""),
    ("TopicDeleteAnswer", """{"topic":"kiln-7","deleted":true,"routers_removed":["kiln-7->archive"],
      "performance":{"server_total_ms":0.6}}"""),
    ("WriteRequest", """{"node":"dock-7","idempotency_key":"shift-3/0041",
      "records":[{"data":{"kg":412.5},"tag":"pallet:A19"},{"data":null}]}"""),
    ("WriteAnswer", """{"topic":"weighbridge","first_seq":31,"last_seq":32,"seqs":[31,32],"head_seq":32,"count":2,
      "created":false,"deduped":false,"performance":{"server_total_ms":0.9,"wal_append_ms":0.1,"fsync_ms":0.0}}"""),
    ("DiffBody", """{"from_seq":29,"limit":2,"include_tags":true}"""),
    ("DiffAnswer", """{"topic":"weighbridge","records":[
      {"$seq":31,"$ts":1790000123456,"$node":"dock-7","$tag":"pallet:A19","data":{"kg":412.5}},
      {"$seq":32,"$ts":1790000123456,"$node":"dock-7","data":null}],
      "next_from_seq":32,"head_seq":40,"earliest_seq":12,"caught_up":false,"tombstone":null,"lag":8,
      "performance":{"server_total_ms":0.2,"records_scanned":3}}"""),
    ("Gap", """{"gap_from":5,"gap_to":11,"reason":"ttl","missed_estimate":7,"earliest_seq":12,"head_seq":40}"""),
    ("DeleteBody", """{"match":["tag","Glob","pallet:A*"],"before_seq":32}"""),
    ("DeleteAnswer", """{"topic":"weighbridge","deleted":1,"earliest_seq":12,"head_seq":40,"count":28,"bytes":3010,
      "performance":{"server_total_ms":0.3}}"""),
    ("HealthAnswer", """{"status":"ok","version":"0.1.0","kernel":"pure","uptime_ms":5}"""),
    ("ReadyAnswer", """{"status":"ready","wal_replay_complete":true,"topics":3}"""),
    ("Error", """{"error":{"code":"topic_not_found","message":"no topic","detail":{"topic":"kiln-7"}}}"""),
]  # fmt: skip
WRONG = [
    ("WriteRequest", '{"records":[]}'),
    ("WriteRequest", '{"records":[{"tag":"no data"}]}'),
    ("WriteRequest", '{"records":[{"data":1}],"config":{"ttl_ms":-1}}'),
    ("DiffBody", '{"from_seq":-1}'),
    ("DiffBody", '{"limit":4294967296}'),
    ("DiffBody", '{"include_tags":null}'),
    ("ConfigBody", '{"durability":"paper"}'),
    ("PutAnswer", '{"topic":"t","created":true,"config":{"type":"log"},"performance":{"server_total_ms":0.4}}'),
    ("ReadyAnswer", '{"status":"ready","wal_replay_complete":false,"topics":3}'),
]


def validator(name: str) -> Any:
    schema = {"$ref": f"#/components/schemas/{name}", "components": DOCUMENT["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


def test_the_document_is_served_to_everybody_as_it_was_made() -> None:
    """[A-9, IDX-1]: also with keys, and while the log is replayed."""
    with running(env={"TOPICS_API_KEYS": "k"}, recover=False) as server, server.client() as client:
        answer = client.get("/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == DOCUMENT


def test_the_document_is_valid_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1.")
    assert [str(error) for error in jsonschema_rs.Draft202012Validator(OPENAPI_31).iter_errors(DOCUMENT)] == []


def test_every_schema_is_valid_and_every_reference_leads_somewhere() -> None:
    for name in DOCUMENT["components"]["schemas"]:
        validator(name)
    for line in json.dumps(DOCUMENT, indent=1).splitlines():
        if '"$ref"' in line:
            at: Any = DOCUMENT
            for part in line.split('"')[3].removeprefix("#/").split("/"):
                at = at[part]


def test_every_route_with_a_handler_is_there_and_no_other() -> None:
    """[A-9]"""
    listed = {(method.upper(), path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert listed == {(route.method, route.path) for route in HANDLED} == set(openapi.OPERATIONS)
    ids = [told["operationId"] for item in DOCUMENT["paths"].values() for told in item.values()]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("route", HANDLED, ids=lambda route: f"{route.method} {route.path}")
def test_a_route_says_what_it_takes_and_whom_it_serves(route: Any) -> None:
    """02 §1.6, §2"""
    told = DOCUMENT["paths"][route.path][route.method.lower()]
    assert {"400", "403", "408", "413", "429", "431", "500"} <= set(told["responses"])
    assert ("401" in told["responses"]) == (route.access is not Access.OPEN)
    assert ("415" in told["responses"]) == ("requestBody" in told) == (route.body is not Body.NONE)
    assert "503" in told["responses"] or route.early
    assert told["security"] == ([] if route.access is Access.OPEN else [{"bearer": sorted(route.scopes)}, {}])
    path = [one["name"] for one in told.get("parameters", ()) if one["in"] == "path"]
    assert path == [part[1:-1] for part in route.path.split("/") if part.startswith("{")]


def test_every_member_of_a_request_is_described_and_every_integer_bounded() -> None:
    for name, schema in DOCUMENT["components"]["schemas"].items():
        for member, told in schema["properties"].items():
            where = f"{name}.{member}"
            if name.endswith(("Body", "Request")) and name != "ErrorBody":
                assert told.get("description"), where
            kinds = [told, *told.get("anyOf", ())]
            if any(kind.get("type") == "integer" for kind in kinds):
                assert "minimum" in told, where
                assert "maximum" in told, where


def test_the_configuration_of_a_request_has_the_members_and_defaults_of_the_real_one() -> None:
    """[CFG-1]"""
    assert ConfigBody.__struct_fields__ == TopicConfig.__struct_fields__
    given = {name: getattr(ConfigBody(), name) for name in ConfigBody.__struct_fields__}
    assert {**given, "durability": "disk"} == TopicConfig().as_dict()


@pytest.mark.parametrize(("name", "text"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_the_examples_of_the_specification_fit(name: str, text: str) -> None:
    assert [str(error) for error in validator(name).iter_errors(json.loads(text))] == []


@pytest.mark.parametrize(("name", "text"), WRONG)
def test_what_the_server_refuses_or_never_says_does_not_fit(name: str, text: str) -> None:
    assert not validator(name).is_valid(json.loads(text))


def test_codes_and_statuses_are_those_of_the_error_table() -> None:
    """02 §1.6"""
    of = {code: status for status, codes in openapi.CODES.items() for code in codes}
    for error, (status, _) in failure._FIELDS.items():
        assert of[error.code] == status, error
    for made in (failure.NOT_FOUND, failure.SHUTTING_DOWN, failure.TOO_LARGE, failure.UNAUTHORIZED, failure.MEDIA_TYPE):
        assert of[made.code] == made.status


ANSWERS = [
    ("PUT", "/v0/topics/{topic}", {"json": {"ttl_ms": 5000}}),
    ("POST", "/v0/topics/{topic}", {"json": records(1, "two", None)}),
    ("POST", "/v0/topics/{topic}/diff", {"json": {"include_tags": True}}),
    ("POST", "/v0/topics/{topic}/delete", {"json": {"before_seq": 2}}),
    ("POST", "/v0/topics/{topic}/stage", {"json": {**records(1), "id": "w", "version": 1, "part": "p", "chunk": 0}}),
    (
        "POST",
        "/v0/txn/commit",
        {"json": {"id": "w", "version": 1, "parts": [{"part": "p", "chunks": 1, "records": 1}]}},
    ),
    ("POST", "/v0/txn/abort", {"json": {"id": "w", "version": 1}}),
    ("GET", "/v0/txn/{id}", {}),
    ("GET", "/v0/topics/{topic}", {}),
    ("GET", "/v0/topics", {}),
    ("POST", "/v0/checkpoint", {}),
    ("GET", "/v0/topics/{topic}/segments", {}),
    ("GET", "/v0/settings", {}),
    ("GET", "/v0/metrics", {"headers": {"accept": "application/json"}}),
    ("GET", "/v0/health", {}),
    ("GET", "/v0/ready", {}),
    ("DELETE", "/v0/topics/{topic}", {}),
]


def test_what_the_server_answers_is_what_the_document_says(client: httpx.Client, topic: str) -> None:
    """[A-9]: all members, and none that is not described."""
    for method, path, request in ANSWERS:
        text = json.dumps(request).replace('"w"', json.dumps(topic[:100]))
        answer = client.request(method, path.replace("{topic}", topic).replace("{id}", topic[:100]), **json.loads(text))
        assert answer.is_success, (path, answer.text)
        kind = openapi.OPERATIONS[method, path].answer
        assert kind is not None
        schema = kind.__name__
        assert [str(error) for error in validator(schema).iter_errors(answer.json())] == [], path
        assert set(answer.json()) <= set(DOCUMENT["components"]["schemas"][schema]["properties"]), path
