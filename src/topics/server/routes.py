"""The one route table (02 §2, 09 §2): method, path, scopes, body, handler.

Authorisation, 404 and 405, OpenAPI and the reference page all read these rows. It is complete from the start; a row
without a handler answers 404 behind its scope check.

    {topic} {router}     a name; the key's prefixes apply to it [PFX-1]
    {id} {wid}           anything else
    {file}               everything that follows, also nothing

Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote_to_bytes

from topics.server import (
    compact,
    ops,
    queues,
    records,
    routers,
    scan,
    static,
    topics,
    txn,
    watch,
    websocket,
    wire,
    work,
)
from topics.server.failure import MEDIA_TYPE, NOT_FOUND, Failure
from topics.server.keys import ADMIN, DELETE, READ, WRITE, Key
from topics.server.records import CLOUDEVENT, CLOUDEVENTS
from topics.server.txn import FRAMES

if TYPE_CHECKING:
    from topics.server.exchange import Exchange

Handler = Callable[["Exchange"], None]


class Body(Enum):
    """What a route does with a body [API-9, API-10]."""

    NONE = "none"
    """Read within the limit and ignored."""
    JSON = "json"
    OPTIONAL = "optional"
    """JSON; nothing means `{}`."""
    NEEDED = "needed"
    """JSON; that it is missing is told before anything about its type [CLM-1]."""
    EVENTS = "events"
    """JSON, or CloudEvents."""
    MAYBE = "maybe"
    """JSON, nothing meaning `{}`; of any other type it is read and ignored [API-10, A-15]."""
    FRAMES = "frames"
    """JSON, or frames of records."""


class Access(Enum):
    """Who may call a route apart from its scopes."""

    KEY = "key"
    """Any valid key with the scopes."""
    OPEN = "open"
    """Everybody: it holds no data [IDX-1]."""
    PROBE = "probe"
    """Everybody, unless `TOPICS_PROBE_AUTH` is on."""
    OWN = "own"
    """Checks its key itself."""


class Route(NamedTuple):
    """One row."""

    method: str
    path: str
    scopes: frozenset[str]
    handler: Handler | None
    summary: str
    body: Body = Body.NONE
    access: Access = Access.KEY
    stream: bool = False
    """No HEAD."""
    early: bool = False
    """Also answered while the log is replayed and while draining."""
    token: bool = False
    """`?token=` may stand for the header [API-8]."""


def _row(
    methods: str, path: str, scopes: str, handler: Handler | None, summary: str, body: Body = Body.NONE, **more: bool
) -> Route:
    return Route(methods, path, frozenset(scopes.split()), handler, summary, body, **more)  # type: ignore[arg-type]


ROUTES: Final[tuple[Route, ...]] = (
    _row("PUT", "/v0/topics/{topic}", ADMIN, topics.put, "create a topic or replace its configuration", Body.OPTIONAL),
    _row("GET", "/v0/topics/{topic}", READ, topics.state, "state of a topic"),
    _row("GET", "/v0/topics", READ, topics.listing, "list topics"),
    _row("DELETE", "/v0/topics/{topic}", DELETE, topics.delete, "delete a topic"),
    _row("POST", "/v0/topics/{topic}", WRITE, records.write, "append records", Body.EVENTS),
    _row("POST", "/v0/topics/{topic}/diff", READ, records.diff, "read after a cursor", Body.OPTIONAL),
    _row("POST", "/v0/topics/{topic}/delete", DELETE, records.delete, "delete records", Body.JSON),
    _row("POST", "/v0/topics/{topic}/claim", f"{READ} {WRITE}", queues.claim, "claim jobs", Body.NEEDED),
    _row("POST", "/v0/topics/{topic}/ack", WRITE, queues.ack, "complete jobs", Body.JSON),
    _row("POST", "/v0/topics/{topic}/nack", WRITE, queues.nack, "give jobs back", Body.JSON),
    _row("POST", "/v0/topics/{topic}/extend", WRITE, queues.extend, "keep jobs longer", Body.JSON),
    _row("GET", "/v0/topics/{topic}/work", f"{READ} {WRITE}", work.stream, "stream of jobs", stream=True, token=True),
    _row("GET", "/v0/topics/{topic}/leases", READ, queues.leases, "jobs in flight"),
    _row("GET", "/v0/topics/{topic}/segments", READ, ops.segments, "segment files, for external readers"),
    _row("POST", "/v0/topics/{topic}/stage", WRITE, txn.stage, "stage records of a transaction", Body.FRAMES),
    _row("POST", "/v0/topics/{topic}/compact", ADMIN, compact.compact, "rewrite sealed segments", Body.JSON),
    _row("POST", "/v0/topics/{topic}/scan", READ, scan.scan, "read stored frames", Body.JSON),
    _row("PUT", "/v0/routers/{router}", ADMIN, routers.put, "create a router or replace it", Body.JSON),
    _row("GET", "/v0/routers/{router}", READ, routers.get, "state of a router"),
    _row("DELETE", "/v0/routers/{router}", DELETE, routers.delete, "delete a router"),
    _row("GET", "/v0/routers", READ, routers.listing, "list routers"),
    _row("POST", "/v0/watch", READ, watch.create, "open a watch session", Body.JSON),
    Route(
        "GET",
        "/v0/watch/{wid}",
        frozenset(),
        watch.stream,
        "stream of a watch session",
        access=Access.OWN,
        stream=True,
        token=True,
    ),
    _row("GET", "/v0/ws", "", websocket.upgrade, "WebSocket", stream=True),
    _row("POST", "/v0/txn/commit", WRITE, txn.commit, "commit a transaction", Body.JSON),
    _row("POST", "/v0/txn/abort", WRITE, txn.abort, "abort a transaction", Body.JSON),
    _row("GET", "/v0/txn/{id}", READ, txn.state, "state of a writer of transactions"),
    _row("DELETE", "/v0/pins/{id}", READ, ops.release_pin, "release a pin"),
    _row("POST", "/v0/checkpoint", ADMIN, ops.checkpoint, "bring everything into segment files", Body.MAYBE),
    _row("GET", "/v0/settings", ADMIN, ops.settings, "settings in force"),
    _row("GET", "/v0/metrics", READ, ops.show_metrics, "metrics", early=True),
    *(
        Route("GET", path, frozenset(), handler, summary, access=Access.PROBE, early=True)
        for path, handler, summary in (
            ("/v0/health", ops.health, "is the process alive"),
            ("/healthz", ops.health, "alias of /v0/health"),
            ("/v0/ready", ops.ready, "does the server take requests"),
            ("/readyz", ops.ready, "alias of /v0/ready"),
        )
    ),
    Route("GET", "/openapi.json", frozenset(), ops.openapi, "this API", access=Access.OPEN, early=True),
    Route("GET", "/", frozenset(), static.home, "to the console", access=Access.OPEN, early=True),
    Route("GET", "/console", frozenset(), static.home, "to the console", access=Access.OPEN, early=True),
    Route("GET", "/console/{file}", frozenset(), static.file, "the console's files", access=Access.OPEN, early=True),
)


class Match(NamedTuple):
    """What a method and a path lead to."""

    route: Route | None
    failure: Failure | None
    """404 or 405, told behind the scope check [API-20]."""
    scopes: frozenset[str]
    access: Access
    name: str | None
    """The topic or router in the path."""
    params: Mapping[str, str]
    allow: bytes
    """For `Allow`; empty where the path is unknown."""
    or_scopes: tuple[frozenset[str], ...] = ()
    """Any of these is enough as well."""

    @property
    def takes_body(self) -> bool:
        """Whether a body is kept."""
        return self.route is not None and self.route.body is not Body.NONE

    @property
    def takes_token(self) -> bool:
        """Whether a token may stand in the query."""
        return self.route is not None and self.route.token

    @property
    def early(self) -> bool:
        """Whether it is answered before recovery is complete and while draining."""
        return self.route is not None and self.route.early

    def missing_scopes(self, key: Key) -> frozenset[str] | None:
        """What a key lacks; None: nothing."""
        if self.scopes <= key.scopes or any(scopes <= key.scopes for scopes in self.or_scopes):
            return None
        return self.scopes - key.scopes

    def without_foreign_body(self, content_type: bytes | None) -> Match:
        """Itself, or as if it took no body, where this one is of a type that is none of its business [API-10]."""
        if self.route is None or self.route.body is not Body.MAYBE:
            return self
        if content_type is not None and wire.media_type(content_type) == b"application/json":
            return self
        return self._replace(route=self.route._replace(body=Body.NONE))

    def unfit_type(self, content_type: bytes | None, *, empty: bool) -> Failure | None:
        """415 unless the media type suits the route [API-9, API-10]."""
        if not self.takes_body:
            return None
        assert self.route is not None
        if empty and self.route.body in (Body.NEEDED, Body.MAYBE):
            return None
        if content_type is None:
            return None if empty and self.route.body is Body.OPTIONAL else MEDIA_TYPE
        media = wire.media_type(content_type)
        if media == b"application/json":
            return None
        if self.route.body is Body.EVENTS and media in (CLOUDEVENT, CLOUDEVENTS):
            return None
        return None if self.is_binary(content_type) else MEDIA_TYPE

    def is_binary(self, content_type: bytes | None) -> bool:
        """Whether a body of this type is no text."""
        frames = self.route is not None and self.route.body is Body.FRAMES
        return frames and content_type is not None and wire.media_type(content_type) == FRAMES


class _Node:
    """One level of paths."""

    __slots__ = ("below", "param", "routes")

    def __init__(self) -> None:
        self.below: dict[str, _Node] = {}
        self.param: tuple[str, _Node] | None = None
        self.routes: dict[str, Route] = {}


def _tree() -> _Node:
    root = _Node()
    for route in ROUTES:
        node = root
        for part in route.path.split("/")[1:]:
            if part.startswith("{"):
                if node.param is None:
                    node.param = (part[1:-1], _Node())
                node = node.param[1]
            else:
                node = node.below.setdefault(part, _Node())
        assert route.method not in node.routes
        node.routes[route.method] = route
    return root


_TREE = _tree()
REMEMBERED_PATH_BYTES: Final = 512
REMEMBERED_METHOD_BYTES: Final = 16
"""Longer ones are looked up each time: what a stranger sends must not fill memory."""
_WRITE_SCOPE = frozenset({WRITE})
_ADMIN_SCOPE = frozenset({ADMIN})
_NO_SCOPE: frozenset[str] = frozenset()


def resolve(method: str, path: bytes) -> Match:
    """Find the row of a request; never raises [API-21, API-27]."""
    if len(path) <= REMEMBERED_PATH_BYTES and len(method) <= REMEMBERED_METHOD_BYTES:
        return _remembered(method, path)
    return _resolve(method, path)


@lru_cache(maxsize=4096)
def _remembered(method: str, path: bytes) -> Match:
    return _resolve(method, path)


def _resolve(method: str, path: bytes) -> Match:
    parts = [_decoded(part) for part in path.split(b"/")[1:]] if path.startswith(b"/") else []
    node, params = _walk(parts)
    name, unknown = _name_in(parts), _scopes_of_unknown(parts)
    offered = {} if node is None else {one.method: one for one in node.routes.values() if one.handler is not None}
    route = None if node is None else _route(node, method)
    if route is not None:
        missing = NOT_FOUND if route.handler is None else None
        return Match(route, missing, route.scopes, route.access, name, params, b"")
    if not offered:
        return Match(None, NOT_FOUND, unknown, Access.KEY, name, params, b"")
    allow = _allow(offered)
    if method == "OPTIONS":
        # Whoever may call one of the methods may ask which there are.
        access = next(iter(offered.values())).access
        scopes, *others = (one.scopes for one in offered.values())
        return Match(
            None, None, scopes, Access.KEY if access is Access.OWN else access, name, params, allow, tuple(others)
        )
    wrong = Failure(405, "method_not_allowed", "this method is not for this path", headers=((b"allow", allow),))
    return Match(None, wrong, unknown, Access.KEY, name, params, allow)


def _walk(parts: list[str]) -> tuple[_Node | None, dict[str, str]]:
    """Down the tree; None where it ends before the path does."""
    node = _TREE
    params: dict[str, str] = {}
    for at, part in enumerate(parts):
        if part in node.below:
            node = node.below[part]
        elif node.param is not None and node.param[0] == "file":
            params["file"] = "/".join(parts[at:])
            return node.param[1], params
        elif node.param is not None and part:
            params[node.param[0]] = part
            node = node.param[1]
        else:
            return None, params
    return node, params


def _route(node: _Node, method: str) -> Route | None:
    """The row of a method; HEAD is a GET of what is no stream [API-21]."""
    if method != "HEAD":
        return node.routes.get(method)
    found = node.routes.get("GET")
    return None if found is None or found.stream else found


def _allow(offered: Mapping[str, Route]) -> bytes:
    methods = set(offered)
    if "GET" in methods and not offered["GET"].stream:
        methods.add("HEAD")
    return ", ".join(sorted(methods)).encode()


def _name_in(parts: list[str]) -> str | None:
    """The name that the key's prefixes apply to, also on paths that lead nowhere."""
    if len(parts) >= 3 and parts[0] == "v0" and parts[1] in ("topics", "routers") and parts[2]:
        return parts[2]
    return None


def _scopes_of_unknown(parts: list[str]) -> frozenset[str]:
    """What it takes to be told that there is nothing, or not this method [SCP-4]."""
    if len(parts) >= 3 and parts[0] == "v0" and parts[2]:
        if parts[1] == "topics":
            return _WRITE_SCOPE
        if parts[1] == "routers":
            return _ADMIN_SCOPE
    return _NO_SCOPE


def _decoded(part: bytes) -> str:
    """Percent-decoded once; what is not UTF-8, or no escape, becomes something that no name is [API-27]."""
    return unquote_to_bytes(part).decode("utf-8", "replace")
