"""This API as an OpenAPI 3.1 document, made from the route table and the types beside the handlers [A-9].

    routes.ROUTES    method, path, scopes, kind of body; rows without a handler are left out
    OPERATIONS       what the rows do not say: types of bodies and answers, parameters, refusals of their own
    msgspec          the types as JSON schemas

Every refusal that can occur on a route is there with the error envelope: those of every request (malformed, another
site's, late, too large), those of its access (401), of its body (415), of readiness (503), and its own. Pure; any
thread.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec

import topics as package
from topics.model import Gap, TopicConfig
from topics.server import compact, metrics, ops, queues, records, routers, scan, topics, txn, watch
from topics.server.describe import ROUTER_NAME, TOPIC_NAME, U32, U64
from topics.server.records import CLOUDEVENT, CLOUDEVENTS
from topics.server.routes import ROUTES, Access, Body, Route

Json = dict[str, Any]

REF: Final = "#/components/schemas/{name}"
SCHEME: Final = "bearer"
ALWAYS: Final = (400, 403, 408, 413, 429, 431, 500)
"""Refusals that any request may meet, before or while it is handled."""

CODES: Final[dict[int, tuple[str, ...]]] = {
    400: ("invalid_request", "batch_too_large", "record_too_large"),
    401: ("unauthorized",),
    403: ("forbidden",),
    404: ("topic_not_found", "router_not_found", "not_found"),
    406: ("not_acceptable",),
    408: ("request_timeout",),
    409: (
        "not_a_queue",
        "producer_gap",
        "router_cycle",
        "topic_exists_incompatible",
        "topic_not_empty",
        "txn_committed",
        "txn_conflict",
        "txn_incomplete",
    ),
    413: ("payload_too_large",),
    415: ("unsupported_media_type",),
    422: ("topic_full",),
    429: ("throttled",),
    431: ("headers_too_large",),
    500: ("internal",),
    503: ("not_ready", "shutting_down"),
}
MEANINGS: Final[dict[int, str]] = {
    400: "The request is malformed, ill-typed, or beyond a limit.",
    401: "A valid key is needed.",
    403: "The key, the site or the host does not permit this.",
    404: "There is no such topic or router, or nothing at this path.",
    406: "The answer is a stream, and `Accept` does not allow one.",
    408: "The request was not complete in time; the connection closes.",
    409: "It contradicts what is there.",
    413: "The body is larger than `TOPICS_MAX_BODY_BYTES`.",
    415: "The body has another media type or encoding than the route takes.",
    422: "The topic is full and refuses writes.",
    429: "A resource is used up; try again after `Retry-After`.",
    431: "The request head is larger than 64 KiB or has more than 128 fields; the connection closes.",
    500: "The storage failed, or the server has a bug.",
    503: "The server is starting, stopping, or its storage takes no writes; try again after `Retry-After`.",
}
_SAID: Final = ("description", "minimum", "maximum", "pattern")
_RULE = re.compile(r" ?(\[[A-Z]+-[^\]]*\]|\([0-9]{2} §[^)]*\))")


class ErrorBody(msgspec.Struct):
    """Why a request was refused."""

    code: str
    message: str
    detail: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class Error(msgspec.Struct):
    """The answer to every request that is refused."""

    error: ErrorBody


class Parameter(NamedTuple):
    """A query parameter or a header."""

    name: str
    schema: Json
    description: str
    place: str = "query"
    required: bool = False


class Operation(NamedTuple):
    """What a row of the route table does not say."""

    id: str
    answer: type | None
    """None: it has no body."""
    statuses: Mapping[int, str] = {200: "Done."}
    refusals: tuple[str, ...] = ()
    """Codes of its own."""
    body: type | None = None
    parameters: tuple[Parameter, ...] = ()
    text: str = ""
    """Media type of the answer where it is text unless JSON is asked for; with the answer `str` or `bytes`, always."""
    headers: Mapping[str, tuple[Json, str]] = {}
    """Of the answer: schema and what it says."""


def _flag(name: str, default: bool, description: str) -> Parameter:
    return Parameter(name, {"type": "boolean", "default": default}, description)


def _count(name: str, description: str, **bounds: int) -> Parameter:
    return Parameter(name, {"type": "integer", **bounds}, description)


_MADE: Final = {200: "The topic was there.", 201: "This call created the topic."}
_QUEUE: Final = ("topic_not_found", "not_a_queue")
_HEALTH: Final = Operation("health", ops.HealthAnswer, {200: "The process is alive."})
_HOME: Final = Operation("home", None, {302: "To `/console/`."})
_READY: Final = Operation("ready", ops.ReadyAnswer, {200: "The server takes requests."}, CODES[503])

OPERATIONS: Final[dict[tuple[str, str], Operation]] = {
    ("PUT", "/v0/topics/{topic}"): Operation(
        "put_topic", topics.PutAnswer, _MADE, ("topic_exists_incompatible",), topics.ConfigBody
    ),
    ("GET", "/v0/topics/{topic}"): Operation(
        "topic_state", topics.StateAnswer, refusals=("topic_not_found",),
        parameters=(_flag("touch", True, "count this as reading the topic"),),
    ),
    ("GET", "/v0/topics"): Operation(
        "list_topics", topics.ListAnswer,
        parameters=(
            Parameter("prefix", {"type": "string"}, "names that begin with this"),
            _count("page_size", "topics of one page", minimum=1, maximum=1000, default=100),
            Parameter("cursor", {"type": "string"}, "`next_cursor` of the page before"),
            _flag("touch", False, "keep the priority of what is listed"),
            _flag("system", False, "list the server's own topics, too"),
        ),
    ),
    ("DELETE", "/v0/topics/{topic}"): Operation(
        "delete_topic", topics.TopicDeleteAnswer, refusals=("topic_not_empty",),
        parameters=(_flag("if_empty", False, "only if it has no live record"),),
    ),
    ("POST", "/v0/topics/{topic}"): Operation(
        "write", records.WriteAnswer, _MADE, ("topic_not_found", "producer_gap", "topic_full"), records.WriteRequest,
        (
            _flag("return_seqs", True, "list the seqs in the answer"),
            Parameter(
                "Idempotency-Key", {"type": "string", "minLength": 1, "maxLength": 256},
                "makes a retry harmless: the same key within the topic's window appends nothing", "header",
            ),
        ),
    ),
    ("POST", "/v0/topics/{topic}/diff"): Operation(
        "read", records.DiffAnswer, refusals=("topic_not_found",), body=records.DiffBody
    ),
    ("POST", "/v0/topics/{topic}/delete"): Operation(
        "delete_records", records.DeleteAnswer, refusals=("topic_not_found",), body=records.DeleteBody
    ),
    ("GET", "/v0/topics/{topic}/segments"): Operation(
        "segments", ops.SegmentsAnswer, refusals=("topic_not_found", "not_found"),
        parameters=(
            _count("from_seq", "segments that hold this seq or later ones", default=0, **U64),
            _count("to_seq", "segments that hold this seq or earlier ones", **U64),
            _count("limit", "segments of one page", minimum=1, maximum=10_000, default=10_000),
            _count("pin_ms", "hold the files for so long", minimum=0, maximum=3_600_000, default=0),
            Parameter("pin", {"type": "string"}, "id of a pin: a further page of its instant"),
        ),
    ),
    ("POST", "/v0/topics/{topic}/stage"): Operation(
        "stage", txn.StageAnswer, refusals=("txn_committed", "txn_conflict"), body=txn.StageRequest,
        parameters=(
            Parameter("id", {"type": "string", "minLength": 1, "maxLength": 128}, "the writer; with a body of frames"),
            _count("version", "of the writer; with a body of frames", **U64),
            Parameter("part", {"type": "string", **txn.PART}, "of the version; with a body of frames"),
            _count("chunk", "of the part; with a body of frames", **U32),
        ),
    ),
    ("POST", "/v0/txn/commit"): Operation(
        "commit", txn.CommitAnswer, {200: "All records are there, or were before."},
        ("topic_not_found", "topic_full", "txn_committed", "txn_incomplete"), txn.CommitBody,
    ),
    ("POST", "/v0/txn/abort"): Operation("abort", txn.AbortAnswer, body=txn.AbortBody),
    ("GET", "/v0/txn/{id}"): Operation("writer_state", txn.WriterAnswer),
    ("POST", "/v0/topics/{topic}/scan"): Operation(
        "scan", bytes, {200: "`n` u32, n index entries, n stored frames; see the format of segments."},
        ("topic_not_found",), scan.ScanBody, text="application/vnd.topics.frames",
        headers={
            "Topics-Next-Seq": ({"type": "integer", **U64}, "`from_seq` of the next scan"),
            "Topics-Head-Seq": ({"type": "integer", **U64}, "highest seq; nothing is left once the next is above it"),
            "Topics-Tombstone": (
                {"type": "string"}, "the tombstone that a read tells, as JSON; absent where there is none"
            ),
        },
    ),
    ("POST", "/v0/topics/{topic}/compact"): Operation(
        "compact", compact.CompactAnswer, refusals=("topic_not_found",), body=compact.CompactBody
    ),
    ("POST", "/v0/topics/{topic}/claim"): Operation(
        "claim", queues.ClaimAnswer, refusals=_QUEUE, body=queues.ClaimBody
    ),
    ("POST", "/v0/topics/{topic}/ack"): Operation("ack", queues.AckAnswer, refusals=_QUEUE, body=queues.AckBody),
    ("POST", "/v0/topics/{topic}/nack"): Operation("nack", queues.NackAnswer, refusals=_QUEUE, body=queues.NackBody),
    ("POST", "/v0/topics/{topic}/extend"): Operation(
        "extend", queues.ExtendAnswer, refusals=_QUEUE, body=queues.ExtendBody
    ),
    ("GET", "/v0/topics/{topic}/work"): Operation(
        "work_stream", str, refusals=(*_QUEUE, "not_acceptable"), text="text/event-stream",
        parameters=(
            Parameter("node", {"type": "string", "minLength": 1}, "who works", required=True),
            _count("max", "jobs held at once; lowered to `TOPICS_MAX_CLAIM`", minimum=1, default=1),
            _count("lease_ms", "how long each is leased; the topic's by default", minimum=100, maximum=86_400_000),
            Parameter("token", {"type": "string"}, "the key, for clients that cannot send headers"),
        ),
    ),
    ("GET", "/v0/topics/{topic}/leases"): Operation(
        "leases", queues.LeasesAnswer, refusals=_QUEUE,
        parameters=(
            _count("page_size", "jobs of one page", minimum=1, maximum=1000, default=100),
            Parameter("cursor", {"type": "string"}, "`next_cursor` of the page before"),
        ),
    ),
    ("PUT", "/v0/routers/{router}"): Operation(
        "put_router", routers.RouterAnswer, {200: "The router was there.", 201: "This call created the router."},
        ("topic_not_found", "topic_exists_incompatible", "router_cycle"), routers.RouterBody,
    ),
    ("GET", "/v0/routers/{router}"): Operation("router_state", routers.RouterAnswer, refusals=("router_not_found",)),
    ("GET", "/v0/routers"): Operation(
        "list_routers", routers.RouterListAnswer,
        parameters=(
            Parameter("prefix", {"type": "string"}, "names that begin with this"),
            Parameter("source", {"type": "string"}, "routers from this topic"),
            Parameter("dest", {"type": "string"}, "routers into this topic"),
            _count("page_size", "routers of one page", minimum=1, maximum=1000, default=100),
            Parameter("cursor", {"type": "string"}, "`next_cursor` of the page before"),
        ),
    ),
    ("DELETE", "/v0/routers/{router}"): Operation("delete_router", routers.RouterDeleteAnswer),
    ("POST", "/v0/watch"): Operation(
        "watch", watch.WatchAnswer, refusals=("topic_not_found",), body=watch.WatchBody,
        parameters=(_flag("lenient", False, "leave out topics that do not exist"),),
    ),
    ("GET", "/v0/watch/{wid}"): Operation(
        "watch_stream", str, refusals=("not_found", "not_acceptable"), text="text/event-stream",
        parameters=(
            Parameter("Last-Event-ID", {"type": "string"}, "`id` of the last frame received: resume there", "header"),
            Parameter("token", {"type": "string"}, "the key, for clients that cannot send headers"),
        ),
    ),
    ("GET", "/v0/ws"): Operation(
        "websocket", None, {101: "From here on the connection speaks WebSocket: commands and frames are JSON texts."},
        parameters=(
            Parameter("Upgrade", {"type": "string", "enum": ["websocket"]}, "and `Connection: Upgrade`", "header"),
            Parameter("Sec-WebSocket-Version", {"type": "string", "enum": ["13"]}, "RFC 6455", "header"),
            Parameter("Sec-WebSocket-Key", {"type": "string"}, "16 bytes in base64", "header"),
        ),
    ),
    ("POST", "/v0/checkpoint"): Operation("checkpoint", ops.CheckpointAnswer, body=ops.CheckpointBody),
    ("DELETE", "/v0/pins/{id}"): Operation("release_pin", ops.ReleaseAnswer, refusals=("not_found",)),
    ("GET", "/v0/settings"): Operation("settings", ops.SettingsAnswer),
    ("GET", "/v0/metrics"): Operation("metrics", metrics.MetricsAnswer, text="text/plain"),
    ("GET", "/v0/health"): _HEALTH,
    ("GET", "/healthz"): _HEALTH._replace(id="healthz"),
    ("GET", "/v0/ready"): _READY,
    ("GET", "/readyz"): _READY._replace(id="readyz"),
    ("GET", "/openapi.json"): Operation("openapi", dict),
    ("GET", "/"): _HOME,
    ("GET", "/console"): _HOME._replace(id="console_home"),
    ("GET", "/console/{file}"): Operation(
        "console", bytes, {200: "A file; the page itself where no name follows."}, ("not_found",), text="*/*",
        headers={
            "ETag": ({"type": "string"}, "of these bytes; sent back in `If-None-Match` it is answered 304"),
            "Content-Security-Policy": ({"type": "string"}, "nothing from elsewhere, nothing inline"),
        },
    ),
}  # fmt: skip


@lru_cache(maxsize=1)
def rendered() -> bytes:
    """The document as it is served."""
    return msgspec.json.encode(document())


def document() -> Json:
    """The document."""
    paths: dict[str, Json] = {}
    for route in ROUTES:
        if route.handler is not None:
            paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "topics",
            "version": package.__version__,
            "description": (
                "A durable event log. Times are integer milliseconds. Unknown members and parameters are ignored; so "
                "must clients ignore members they do not know. `HEAD` is answered like `GET`, without the body. "
                "Parameters that cannot be parsed take their default."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": _schemas(),
            "responses": {f"Error{status}": _refusal(status, codes) for status, codes in CODES.items()},
            "securitySchemes": {
                SCHEME: {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "A key of the server. Without configured keys none is needed.",
                }
            },
        },
    }


def operation_of(route: Route) -> Operation:
    """What is known of a row; every row with a handler has one."""
    return OPERATIONS[route.method, route.path]


def refusals_of(route: Route) -> dict[int, tuple[str, ...]]:
    """Status and codes of every refusal that can occur on a route."""
    own = operation_of(route).refusals
    found = {status: tuple(code for code in codes if code in own) for status, codes in CODES.items()}
    found |= {status: CODES[status] for status in ALWAYS}
    if route.access is not Access.OPEN:
        found[401] = CODES[401]
    if route.body is not Body.NONE:
        found[415] = CODES[415]
    if not route.early:
        found[503] = CODES[503]
    return {status: codes for status, codes in found.items() if codes}


# -- operations ------------------------------------------------------------------------------------------------------


def _operation(route: Route) -> Json:
    told = operation_of(route)
    summary = route.summary[0].upper() + route.summary[1:]
    made: Json = {"operationId": told.id, "summary": summary, "description": _described(route), "tags": [_tag(route)]}
    parameters = [*_path_parameters(route), *map(_parameter, told.parameters)]
    if parameters:
        made["parameters"] = parameters
    if told.body is not None:
        made["requestBody"] = _request(route, told.body)
    made["responses"] = {
        **{str(status): _success(told, meaning) for status, meaning in told.statuses.items()},
        **{str(status): _refused(status, codes) for status, codes in refusals_of(route).items()},
    }
    # An empty requirement stands for a server without keys.
    made["security"] = [] if route.access is Access.OPEN else [{SCHEME: sorted(route.scopes)}, {}]
    return made


def _described(route: Route) -> str:
    if route.access is Access.OPEN:
        return "Needs no key."
    if route.access is Access.PROBE:
        return "Needs no key unless `TOPICS_PROBE_AUTH` is on; then any."
    return f"Needs a key with the scope {' and '.join(sorted(route.scopes))}." if route.scopes else "Needs a key."


def _tag(route: Route) -> str:
    if route.path.startswith("/v0/routers"):
        return "routers"
    operated = route.path.endswith(("/segments", "/compact"))
    return "topics" if route.path.startswith("/v0/topics") and not operated else "operation"


def _path_parameters(route: Route) -> list[Json]:
    names = re.findall(r"{(\w+)}", route.path)
    return [
        {"name": name, "in": "path", "required": True, "schema": _name(route), "description": f"name of the {name}"}
        for name in names
    ]


def _name(route: Route) -> Json:
    """The server's own names begin with a `$` and can only be read."""
    if "{router}" in route.path:
        return {"type": "string", **ROUTER_NAME}
    if route.path == "/v0/txn/{id}":
        return {"type": "string", "minLength": 1, "maxLength": 128}
    if route.path == "/v0/pins/{id}":
        return {"type": "string", "pattern": "^[0-9a-f]{32}$"}
    pattern = TOPIC_NAME["pattern"]
    readable = route.scopes == {"read"}
    return {"type": "string", "pattern": pattern.replace("^[A", "^[$A", 1) if readable else pattern}


def _parameter(one: Parameter) -> Json:
    made = {"name": one.name, "in": one.place, "schema": one.schema, "description": one.description}
    return {**made, "required": True} if one.required else made


def _request(route: Route, body: type) -> Json:
    content: Json = {"application/json": {"schema": _ref(body)}}
    if route.body is Body.EVENTS:
        event = _ref(records.Event)
        content[CLOUDEVENT.decode()] = {"schema": event}
        content[CLOUDEVENTS.decode()] = {"schema": {"type": "array", "items": event, "minItems": 1}}
    if route.body is Body.FRAMES:
        content[txn.FRAMES.decode()] = {"schema": {"type": "string", "format": "binary"}}
    return {"required": route.body not in (Body.OPTIONAL, Body.MAYBE), "content": content}


def _success(told: Operation, meaning: str) -> Json:
    if told.answer is None:
        return {"description": meaning}
    if told.answer is str:
        return {"description": meaning, "content": {told.text: {"schema": {"type": "string"}}}}
    if told.answer is bytes:
        headers = {name: {"schema": schema, "description": said} for name, (schema, said) in told.headers.items()}
        return {"description": meaning, "headers": headers, "content": {told.text: {}}}
    content: Json = {"application/json": {"schema": {"type": "object"} if told.answer is dict else _ref(told.answer)}}
    if told.text:
        content = {told.text: {"schema": {"type": "string"}}, **content}
    return {"description": meaning, "content": content}


def _refused(status: int, codes: tuple[str, ...]) -> Json:
    """One for all routes, unless the route knows only some of its codes."""
    return {"$ref": f"#/components/responses/Error{status}"} if codes == CODES[status] else _refusal(status, codes)


def _refusal(status: int, codes: tuple[str, ...]) -> Json:
    known = {"properties": {"error": {"properties": {"code": {"enum": list(codes)}}}}}
    made: Json = {
        "description": MEANINGS[status],
        "content": {"application/json": {"schema": {"allOf": [_ref(Error), known]}}},
    }
    if status in (429, 503):
        made["headers"] = {
            "Retry-After": {"required": True, "schema": {"type": "integer", "minimum": 1}, "description": "in seconds"}
        }
    if status == 401:
        made["headers"] = {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}
    return made


# -- schemas ---------------------------------------------------------------------------------------------------------


def _ref(kind: type) -> Json:
    return {"$ref": REF.format(name=kind.__name__)}


def _schemas() -> Json:
    bodies = {told.body for told in OPERATIONS.values() if told.body is not None} | {records.Event}
    answers = {told.answer for told in OPERATIONS.values() if told.answer not in (None, dict, str, bytes)} | {Error}
    _, given = msgspec.json.schema_components(sorted(bodies, key=_name_of), ref_template=REF)
    _, told = msgspec.json.schema_components(sorted(answers, key=_name_of), ref_template=REF)
    for schema in told.values():
        for member in schema.get("properties", {}).values():
            # What an answer leaves out is left out, not defaulted.
            member.pop("default", None)
    _complete(told[TopicConfig.__name__], given[topics.ConfigBody.__name__]["properties"])
    for kind in (records.WriteRequest, txn.CommitBody):
        given[kind.__name__]["properties"]["config"]["anyOf"][0] = _ref(topics.ConfigBody)
    given[records.DeleteBody.__name__] |= _one_of_the_selectors()
    for member in told[Gap.__name__]["properties"].values():
        if member.get("type") == "integer":
            member.update(U64)
    found = {**given, **told}
    for schema in found.values():
        schema["description"] = _RULE.sub("", schema.get("description", "")).strip()
        schema.pop("title", None)
    return dict(sorted(found.items()))


def _complete(config: Json, described: Json) -> None:
    """An answered configuration has all members; what they mean is said beside those of a request."""
    config["description"] = "A topic's configuration in force."
    config["required"] = list(config["properties"])
    for name, member in config["properties"].items():
        member |= {key: value for key, value in described[name].items() if key in _SAID}


def _one_of_the_selectors() -> Json:
    """What members of a delete go together [DLR-1]."""
    set_to = {"not": {"type": "null"}}
    alternatives = [{"properties": {name: set_to}, "required": [name]} for name in ("before_seq", "match", "seqs")]
    both = {"properties": {"before_seq": set_to, "seqs": set_to}, "required": ["before_seq", "seqs"]}
    return {"anyOf": alternatives, "not": both}


def _name_of(kind: type) -> str:
    return kind.__name__
