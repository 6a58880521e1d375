"""Watch sessions: what a client follows, kept between its connections (03 §1 to §7).

    POST /v0/watch         ─▶ Session: topics with cursors, what of records is wanted, the key it is bound to
    GET /v0/watch/{wid}    ─▶ SseStream: a copy of the session's cursors, lowered by `Last-Event-ID` [RSM-3]

Event loop only.
"""

from __future__ import annotations

import base64
import secrets
from typing import Annotated, Final, NamedTuple

import msgspec

from topics.codec.project import Projection
from topics.engine import read as reading
from topics.engine.core import Core
from topics.engine.topic import Topic
from topics.engine.watch import Follower, Instance, View
from topics.errors import TopicNotFound
from topics.model import check_u32, check_u64
from topics.server import failure, sse, wire
from topics.server.describe import U32, U64, about
from topics.server.exchange import Exchange
from topics.server.failure import Failure, Refused, bad_request, forbidden
from topics.server.keys import Key, KeyRing, presented
from topics.server.sse import SseStream
from topics.settings import Settings

SESSION_TTL_MS: Final = 300_000
NAMES_BYTES_MAX: Final = 16 << 10
"""Names of one watch, together (02 §1.9); every frame carries them."""
BATCH_BYTES: Final = 256 << 10
HEARTBEAT_MIN_MS: Final = 1000
HEARTBEAT_MAX_MS: Final = 60_000
UNKNOWN = Failure(404, "not_found", "there is no such watch; POST /v0/watch makes one")


class TopicOptions(msgspec.Struct):
    """How one topic is watched."""

    from_seq: Annotated[int, about("deliver seqs above this", U64)] = 0
    tail: Annotated[bool, about("begin at the head; `from_seq` is ignored then")] = False


class WatchBody(msgspec.Struct):
    """`POST /v0/watch`."""

    topics: Annotated[dict[str, TopicOptions], about("what to watch, by name")]
    node: Annotated[str | list[str] | None, about("leave out records of this node, or these 64 at most")] = None
    limit: Annotated[int, about("records of one frame, 0 means 256; lowered to `TOPICS_MAX_LIMIT`", U32)] = 256
    max_batch_bytes: Annotated[int, about("bytes of one frame, 0 means 1 MiB; lowered to 8 MiB", U64)] = BATCH_BYTES
    heartbeat_ms: Annotated[int, about("a comment when nothing was sent for so long; 1000 to 60000", U64)] = 15_000
    include_meta: Annotated[bool, about("whether records carry `meta`")] = True
    include_tags: Annotated[bool, about("whether records carry `$tag`")] = False
    include_data: Annotated[bool, about("whether records carry `data`")] = True
    consistency: Annotated[
        str, about("`strong`: only what a power failure cannot take back", {"enum": ["eventual", "strong"]})
    ] = "eventual"


class WatchedTopic(msgspec.Struct):
    """Where one topic begins."""

    from_seq: Annotated[int, about("delivered are seqs above this", U64)]
    head_seq: Annotated[int, about("highest seq", U64)]
    earliest_seq: Annotated[int, about("lowest live seq, one above the head without any", U64)]


class WatchAnswer(msgspec.Struct):
    """A session."""

    wid: Annotated[str, about("names the session; not to be guessed")]
    stream_url: Annotated[str, about("GET it to open the stream")]
    session_ttl_ms: Annotated[int, about("how long it is kept without a stream", U64)]
    topics: Annotated[dict[str, WatchedTopic], about("what is watched")]
    performance: wire.Performance


_BODY: Final = msgspec.json.Decoder(WatchBody)


class Place(msgspec.Struct):
    """Where a session is in a topic [STR-7]."""

    instance: Instance
    seq: int
    before: Place | None = None
    """Where it was in the instance before this one, or further in one before that."""
    is_lowered: bool = False
    """It was above the head, where nothing was ever sent [EPO-3]."""

    def after(self, follower: Follower) -> Place:
        """Where it is, with what a stream of it was sent."""
        found = follower.instance
        if found is None or found.id < self.instance.id or follower.is_first:
            return self
        if found == self.instance:
            if follower.is_lowered and not self.is_lowered:
                self.is_lowered, self.seq = True, follower.cursor
            elif not follower.is_stale:
                self.seq = max(self.seq, follower.cursor)
            if self.before is not None:
                self.before.seq = max(self.before.seq, follower.was)
            return self
        was = max(self.seq, follower.was, 0 if self.before is None else self.before.seq)
        if follower.is_stale:  # nothing of the new one was sent yet
            self.seq = max(self.seq, follower.was)
            return self
        return Place(found, follower.cursor, Place(self.instance, was))

    def start(self, told: int | None) -> Start:
        """Where a stream begins that was told this cursor last; it never raises one [RSM-3]."""
        before = self.before
        if told is None:
            return Start(self.seq, self.instance)
        if before is not None and (told > self.seq or told <= before.seq):
            # It is of the instance before, or may be: whatever was sent of this one may be lost [RSM-5].
            return Start(0, before.instance)
        return Start(min(self.seq, told), self.instance)


class Start(NamedTuple):
    """Where a stream begins in a topic."""

    seq: int
    instance: Instance


class Session:
    """What one client watches."""

    def __init__(self, wid: str, view: View, heartbeat_ms: int, key: Key | None, places: dict[str, Place]) -> None:
        self.wid = wid
        self.view = view
        self.heartbeat_ms = heartbeat_ms
        self.digest = None if key is None else key.digest
        self.places = places
        self.streams: set[SseStream] = set()
        self.seen_ms = 0
        """When it was last used [WGC-1]."""

    def gather(self) -> None:
        """Take over how far its streams are: per topic the newest instance, and the highest cursor in it."""
        for stream in self.streams:
            self.note(stream)

    def note(self, stream: SseStream) -> None:
        """Take over how far one stream is."""
        for name, follower in (stream.feed.gone | stream.feed.followers).items():
            self.places[name] = self.places[name].after(follower)

    def drop(self, frame: bytes) -> None:
        """End its streams with a last word."""
        for stream in list(self.streams):
            stream.say(frame)


class Sessions:
    """All sessions; bounded by `max_watch_sessions`."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._sessions: dict[str, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, wid: str) -> Session | None:
        """The session of a name."""
        return self._sessions.get(wid)

    def add(self, session: Session) -> None:
        """Keep it."""
        self._sessions[session.wid] = session

    def remove(self, session: Session) -> None:
        """It came to nothing."""
        self._sessions.pop(session.wid, None)

    def sweep(self, now_ms: int) -> None:
        """Forget those that nobody used for five minutes [WGC-1, WGC-2]."""
        for wid, one in list(self._sessions.items()):
            if not one.streams and now_ms - one.seen_ms > SESSION_TTL_MS:
                del self._sessions[wid]

    def use_keys(self, keys: KeyRing) -> None:
        """Sessions of keys that are gone are discarded, and their streams told [KEY-4, FRM-9]."""
        known = {key.digest for key in keys.keys}
        for wid, one in list(self._sessions.items()):
            if one.digest is None and known:
                del self._sessions[wid]
                one.drop(sse.error(410, "watches need a key by now; POST /v0/watch again"))
            elif one.digest is not None and one.digest not in known:
                del self._sessions[wid]
                one.drop(sse.error(410, "the key of this watch was removed; POST /v0/watch again"))


# -- POST ------------------------------------------------------------------------------------------------------------


def create(exchange: Exchange) -> None:
    """`POST /v0/watch` (03 §2)."""
    asked = wire.decode(_BODY, exchange.body)
    exchange.body_done()
    app, core = exchange.app, exchange.core
    view = _view(asked, core)
    heartbeat_ms = min(max(check_u64(asked.heartbeat_ms, "heartbeat_ms"), _least_ms(app.settings)), HEARTBEAT_MAX_MS)
    _check_names(exchange, asked)
    app.sessions.sweep(app.clock.now_ms())
    lenient = wire.flag(exchange.params(), "lenient", False)
    found: dict[str, Topic] = {}
    for name in asked.topics:
        topic = core.names.get(name)
        if topic is not None:
            found[name] = topic
        elif not lenient:
            raise TopicNotFound(name)
    if app.sessions.most and len(app.sessions) >= app.sessions.most:
        raise Refused(failure.limit("max_watch_sessions", app.sessions.most))
    session = Session(_new_wid(), view, heartbeat_ms, exchange.key, {})
    session.seen_ms = app.clock.now_ms()
    app.sessions.add(session)

    def done(error: Exception) -> None:
        app.sessions.remove(session)
        exchange.fail(error)

    reading.refresh(core, list(found.values()), lambda: _created(exchange, session, asked, found), done)


def _least_ms(settings: Settings) -> int:
    """The shortest heartbeat; tests may have a shorter one (09 §6)."""
    least = settings.test_min_heartbeat_ms
    return HEARTBEAT_MIN_MS if least is None else min(max(least, 1), HEARTBEAT_MIN_MS)


def _view(asked: WatchBody, core: Core) -> View:
    limits = core.limits
    if asked.consistency not in ("eventual", "strong"):
        raise bad_request("consistency is eventual or strong")
    return View(
        Projection(asked.include_tags, asked.include_meta, asked.include_data),
        limits.read_limit(check_u32(asked.limit, "limit")),
        limits.read_bytes(check_u64(asked.max_batch_bytes, "max_batch_bytes")),
        reading.nodes_of(asked.node, limits),
        asked.consistency == "strong",
    )


def _check_names(exchange: Exchange, asked: WatchBody) -> None:
    for options in asked.topics.values():
        check_u64(options.from_seq, "from_seq")
    most = exchange.app.settings.max_watch_topics
    if not asked.topics:
        raise bad_request("topics names nothing to watch")
    if len(asked.topics) > most:
        raise bad_request(f"topics names {len(asked.topics)} topics; at most {most} are accepted")
    if sum(len(name.encode()) for name in asked.topics) > NAMES_BYTES_MAX:
        raise bad_request(f"the names have more than {NAMES_BYTES_MAX} bytes together")
    for name in asked.topics:
        if not exchange.app.permits(exchange.key, name):
            raise forbidden("the key does not permit this name", {"topic": name})


def _new_wid() -> str:
    """Not to be guessed [WCH-2]."""
    return "wid_" + base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()


def _created(exchange: Exchange, session: Session, asked: WatchBody, found: dict[str, Topic]) -> None:
    core = exchange.core
    watched: dict[str, WatchedTopic] = {}
    for name, topic in found.items():
        if core.names.get(name) is not topic:
            continue  # deleted meanwhile: as if it had not been there
        options = asked.topics[name]
        from_seq = topic.head if options.tail else options.from_seq
        session.places[name] = Place(Instance(topic.id, topic.epoch), from_seq)
        watched[name] = WatchedTopic(from_seq, topic.head, topic.earliest_seq)
    body = wire.encode(
        {
            "wid": session.wid,
            "stream_url": f"/v0/watch/{session.wid}",
            "session_ttl_ms": SESSION_TTL_MS,
            "topics": watched,
        }
    )
    exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))


# -- GET -------------------------------------------------------------------------------------------------------------


def stream(exchange: Exchange) -> None:
    """`GET /v0/watch/{wid}` (03 §3)."""
    app = exchange.app
    sse.check_accept(exchange)
    session = app.sessions.get(exchange.match.params["wid"])
    now_ms = app.clock.now_ms()
    app.sessions.sweep(now_ms)
    if session is None or app.sessions.get(session.wid) is None:
        raise Refused(UNKNOWN)
    key = _key_of(exchange, session)
    opened = Opened(session, exchange)
    refusal = app.streams.enter(opened, key)
    if refusal is not None:
        raise Refused(refusal)
    try:
        opened.begin(exchange)
    except BaseException:
        opened.abandon()
        raise


def _key_of(exchange: Exchange, session: Session) -> Key | None:
    """The key that made the session; nobody else opens its stream [WAU-2]."""
    keys = exchange.app.keys
    if not keys.keys:
        return None
    key = keys.find(presented(exchange.headers.get(b"authorization"), exchange.query))
    if key is None or key.digest != session.digest:
        raise Refused(failure.UNAUTHORIZED)
    return key


class Opened:
    """One stream of a session, and its slot."""

    def __init__(self, session: Session, exchange: Exchange) -> None:
        self._session = session
        self._app = exchange.app
        self._stream = SseStream(exchange.app, session.heartbeat_ms, self._ended)

    def begin(self, exchange: Exchange) -> None:
        """Send the head, then follow every topic, by name [STR-6]."""
        session, stream = self._session, self._stream
        session.gather()
        session.streams.add(stream)
        session.seen_ms = self._app.clock.now_ms()
        told = sse.cursors_of(exchange.headers.get(b"last-event-id", b""))
        starts = {name: place.start(told.get(name)) for name, place in sorted(session.places.items())}
        stream.feed.past = {name: start.seq for name, start in starts.items()}
        stream.open(exchange)
        for name, start in starts.items():
            stream.feed.follow(name, start.seq, session.view, start.instance)
        if not starts:
            stream.over()

    def abandon(self) -> None:
        """It could not begin: nothing of it stays [RES-6]."""
        self._stream.broken(RuntimeError("not begun"))

    def key_removed(self) -> None:
        """`Sessions` tells the streams of a session itself, for they all end with it."""

    def _ended(self, stream: SseStream) -> None:
        self._app.streams.leave(self)
        self._session.note(stream)
        self._session.streams.discard(stream)
        self._session.seen_ms = self._app.clock.now_ms()
