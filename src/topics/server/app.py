"""The server apart from its sockets: what a request meets, in the order of [API-20].

    origin and host → key → in-flight cap → scope and prefix → readiness → route and method → size → media type → body

`App` lives as long as the process. Its engine comes with recovery and goes with the drain. Event loop only.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from topics.clock import Clock
from topics.engine.engine import Engine
from topics.server import browser, failure
from topics.server.exchange import Carrier, Exchange, Head
from topics.server.failure import Failure
from topics.server.gather import Gathering
from topics.server.keys import Key, KeyRing, presented
from topics.server.known import Heads, Known
from topics.server.routes import Access, Match, resolve
from topics.server.scan import Turns
from topics.server.streams import Streams
from topics.server.watch import Sessions
from topics.server.watchdog import Stalls
from topics.settings import Loaded

log = logging.getLogger("topics.server")

WARNINGS_KEPT: Final = 20


class Buffered:
    """Body bytes received and not yet staged, all connections together [RES-3]."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.used = 0

    def take(self, size: int) -> bool:
        """Reserve; False: over the bound."""
        if self.most and self.used + size > self.most:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """They are staged, or dropped."""
        self.used -= size

    def refusal(self) -> Failure:
        """What is answered then."""
        return failure.limit("max_buffered_bytes", self.most)


class Warned(NamedTuple):
    """One of the last warnings, for the metrics [MET-6]."""

    ts: int
    message: str


class App:
    """State of the server. `engine` is None until recovery is complete."""

    def __init__(self, loaded: Loaded, keys: KeyRing, clock: Clock, policy: browser.Policy) -> None:
        self.loaded = loaded
        self.settings = loaded.settings
        self.keys = keys
        self.clock = clock
        self.policy = policy
        self.engine: Engine | None = None
        self.progress = 0.0
        self.draining = False
        self.buffered = Buffered(self.settings.max_buffered_bytes)
        self.scans = Turns()
        self.started_ns = clock.monotonic_ns()
        self.warnings: deque[Warned] = deque(maxlen=WARNINGS_KEPT)
        self.stalls = Stalls()
        self.streams = Streams(self.settings)
        self.sessions = Sessions(self.settings.max_watch_sessions)
        self.heads = Heads(policy, self.settings.max_body_bytes, has_keys=bool(keys.keys))
        self.gathering = Gathering(self)

    # -- the way in --------------------------------------------------------------------------------------------------

    def begin(self, carrier: Carrier, head: Head) -> Exchange:
        """A head has arrived. The exchange may be answered already when this returns."""
        path, _, query = head.target.partition(b"?")
        match = resolve(head.method, path)
        exchange = Exchange(self, carrier, head, match, query, self.clock.monotonic_ns())
        exchange.received = head.declared == 0
        refusal = self._check_head(exchange, head, match)
        if refusal is not None:
            exchange.refuse(refusal)
        exchange.received = False
        return exchange

    def begin_known(self, carrier: Carrier, known: Known, started_ns: int) -> Exchange:
        """The same of a head that was seen before: what it says by itself is known to be right."""
        head, match = known.head, known.match
        exchange = Exchange(self, carrier, head, match, known.query, started_ns)
        if known.key is not None:
            refusal = self._admit(exchange, known.key)
        else:
            refusal = self._authorise(exchange, match, head.headers) if self.keys.keys else None
        if refusal is None and not match.early:
            refusal = self._unready()
        if refusal is not None:
            exchange.received = head.declared == 0
            exchange.refuse(refusal)
            exchange.received = False
        return exchange

    def _unready(self) -> Failure | None:
        if self.draining:
            return failure.SHUTTING_DOWN
        return failure.replaying(self.progress) if self.engine is None else None

    def _check_head(self, exchange: Exchange, head: Head, match: Match) -> Failure | None:
        headers = head.headers
        public = match.access in (Access.OPEN, Access.PROBE)
        verdict = browser.judge(self.policy, head.method, headers, public=public, has_keys=bool(self.keys.keys))
        exchange.cors = verdict.cors
        if verdict.failure is not None:
            return verdict.failure
        if verdict.preflight:
            exchange.match = _PREFLIGHT
            return None
        refused = self._authorise(exchange, match, headers)
        if refused is not None:
            return refused
        unready = None if match.early else self._unready()
        if unready is not None or match.failure is not None:
            return unready or match.failure
        if head.declared is not None and head.declared > self.settings.max_body_bytes:
            return failure.TOO_LARGE
        if head.declared == 0:
            return match.unfit_type(headers.get(b"content-type"), empty=True)
        return self._check_body_headers(exchange, head, match)

    def _authorise(self, exchange: Exchange, match: Match, headers: dict[bytes, bytes]) -> Failure | None:
        """401, 429, 403, in this order."""
        if not self.keys.keys or match.access in (Access.OPEN, Access.OWN):
            return None
        if match.access is Access.PROBE and not self.settings.probe_auth:
            return None
        # Also without a token: how long it takes tells nothing.
        key = self.keys.find(presented(headers.get(b"authorization"), exchange.query if match.takes_token else b""))
        if key is None:
            return failure.UNAUTHORIZED
        refused = self._admit(exchange, key)
        if refused is not None:
            return refused
        missing = match.missing_scopes(key)
        if missing is not None:
            return Failure(403, "forbidden", f"the key lacks the scope {', '.join(sorted(missing))}")
        if match.name is not None and not key.permits(match.name):
            return Failure(403, "forbidden", "the key does not permit this name")
        return None

    def _admit(self, exchange: Exchange, key: Key) -> Failure | None:
        """Take one of the slots of a key [RES-7]."""
        if self.is_busy(key):
            return failure.limit("max_inflight_per_key", self.settings.max_inflight_per_key)
        exchange.hold_slot(key)
        return None

    def is_busy(self, key: Key) -> bool:
        """Whether a key has as many requests in flight as it may."""
        most = self.settings.max_inflight_per_key
        return bool(most) and key.usage.inflight >= most

    def _check_body_headers(self, exchange: Exchange, head: Head, match: Match) -> Failure | None:
        exchange.match = match = match.without_foreign_body(head.headers.get(b"content-type"))
        if not match.takes_body:
            return None
        if match.is_binary(head.headers.get(b"content-type")):
            exchange.take_bytes()
        encoding = head.headers.get(b"content-encoding", b"identity").strip().lower()
        if head.declared is not None or head.expects:
            unfit = match.unfit_type(head.headers.get(b"content-type"), empty=False)
            if unfit is not None:
                return unfit
        if encoding == b"gzip":
            exchange.inflate()
        elif encoding not in (b"identity", b""):
            return Failure(415, "unsupported_media_type", "the only accepted content encoding is gzip")
        return None

    def execute(self, exchange: Exchange) -> None:
        """The request is complete: call its handler."""
        match = exchange.match
        if match is _PREFLIGHT:
            exchange.reply(204, b"", b"", browser.PREFLIGHT)
            return
        if match.route is None:
            exchange.reply(204, b"", b"", ((b"allow", match.allow),))
            return
        assert match.route.handler is not None
        try:
            match.route.handler(exchange)
        except Exception as error:  # noqa: BLE001 - whatever a request meets, the others go on
            exchange.fail(error)

    # -- for handlers ------------------------------------------------------------------------------------------------

    def permits(self, key: Key | None, name: str) -> bool:
        """Whether a key may see a name; everybody may without keys."""
        return key is None or key.permits(name)

    def aside(self, work: Callable[[], Any], then: Callable[[Any], None], fail: Callable[[Exception], None]) -> None:
        """Run work on the I/O pool, then go on with its result on the loop, or with what it raised."""

        def ended(done: asyncio.Future[Any]) -> None:
            error = done.exception()
            if isinstance(error, Exception):
                fail(error)
            else:
                then(done.result())

        asyncio.get_running_loop().run_in_executor(None, work).add_done_callback(ended)

    def note_limit(self) -> None:
        """A request is refused because a resource is used up: case 5 of 08 §6."""
        if self.engine is not None:
            self.engine.core.admission.refused["5"] += 1

    def warn(self, message: str) -> None:
        """Log a warning and keep it for the metrics."""
        log.warning("%s", message, extra={"kept": True})
        self.keep_warning(message)

    def keep_warning(self, message: str) -> None:
        """One of the last warnings [MET-6]; any thread."""
        self.warnings.append(Warned(self.clock.now_ms(), message))


_PREFLIGHT = Match(None, None, frozenset(), Access.OPEN, None, {}, b"")
