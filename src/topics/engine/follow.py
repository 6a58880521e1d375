"""Following several topics in this process: the events of a watch, as a server's clients get them (03 §5) [U-20].

    Inbox            the sink of a feed: frames wait here, up to a mark, until somebody takes them
    LogWatch         takes them on any thread, blocking
    AsyncLogWatch    takes them on an event loop

A frame is lines: `at {cursors behind it}`, then `record {…}`, `tombstone {…}` and so on, which `codec.rendered` takes
apart off the owner. Frames are put on the owner; nothing is built for a watch whose inbox is full.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from topics.codec import rendered
from topics.codec.project import Projection
from topics.engine.read import nodes_of
from topics.engine.topic import Topic
from topics.engine.watch import Batch, Feed, Framing, Instance, View
from topics.errors import CallerError, EngineClosed, TopicNotFound
from topics.interrupts import Flag, unbroken
from topics.model import Event, Gap
from topics.surface.watch import AsyncWatch, From, Watch, starts

if TYPE_CHECKING:
    from topics.engine.engine import Engine

log = logging.getLogger("topics.engine")

FULL_BYTES: Final = 1 << 20
_encode = msgspec.json.Encoder().encode
_AT: Final = msgspec.json.Decoder(dict[str, int])


class LineFraming:
    """Frames as lines; the members are those of server-sent events."""

    names_first_gap = True

    def record(self, batch: Batch) -> bytes:
        head = b'record {"topic":"%b","to_seq":%d,"records":[' % (batch.name.encode(), batch.to_seq)
        return b"%b%b]}\n" % (head, b",".join(batch.records))

    def caught_up(self, name: str, head: int) -> bytes:
        return b'caught-up {"topic":"%b","head_seq":%d}\n' % (name.encode(), head)

    def tombstone(self, name: str, gap: Gap, reason: str) -> bytes:
        return b"tombstone %b\n" % _encode({**msgspec.structs.asdict(gap), "topic": name, "reason": reason})

    def deleted(self, name: str) -> bytes:
        return b'topic-deleted {"topic":"%b"}\n' % name.encode()


class Inbox:
    """What a watch has been sent and has not taken yet; `wake` is called when there is something to see."""

    framing: Framing = LineFraming()
    kind: object = None

    def __init__(self, engine: Engine, wake: Callable[[], None]) -> None:
        self.is_full = False
        self.is_over = False
        self.is_left = False
        """Whoever took from it is gone, without having closed it."""
        self.error: Exception | None = None
        self.feed = Feed(engine.core, self)
        self._engine = engine
        self._wake = wake
        self._frames: deque[bytes] = deque()
        self._bytes = 0

    # -- on the owner ------------------------------------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        self._add(self._at() + frame)

    def render(self, batch: Batch) -> bytes:
        reached = self.framing.caught_up(batch.name, batch.head) if batch.is_last else b""
        return self._at() + self.framing.record(batch) + reached

    def send(self, rendered: bytes, now_ns: int) -> None:
        self._add(rendered)

    @staticmethod
    def send_all(sinks: Sequence[Inbox], rendered: bytes, now_ns: int) -> bool:
        return False

    def over(self) -> None:
        self.is_over = True
        self._wake()

    def broken(self, error: Exception) -> None:
        self.error = self.error or error
        self.feed.close()
        self._wake()

    def _at(self) -> bytes:
        return b"at %b\n" % _encode(self.feed.cursors())

    def _add(self, frame: bytes) -> None:
        if self.is_left:
            self._close()
            return
        self._frames.append(frame)
        self._bytes += len(frame)
        self.is_full = self._bytes >= FULL_BYTES
        self._wake()

    # -- on any thread -----------------------------------------------------------------------------------------------

    @property
    def has_news(self) -> bool:
        """Whether there is something to take, or no use in waiting for it."""
        return bool(self._frames) or self.is_over or self.error is not None

    def take(self) -> bytes:
        """Everything that is here; there is room again."""
        return self._engine.owner.do(self._take)

    def _take(self) -> bytes:
        whole = b"".join(self._frames)
        self._frames.clear()
        self._bytes = 0
        if self.is_full:
            self.is_full = False
            self.feed.room()
        return whole

    def leave(self) -> None:
        """Nobody takes from it any more; a collector says so, which must not wait for the owner."""
        self.is_left = True

    def close(self) -> None:
        """Follow nothing any more."""
        with suppress(EngineClosed):
            self._engine.owner.do(self._close)

    def _close(self) -> None:
        self.feed.close()
        self._engine.inboxes.discard(self)


class Reader:
    """Events out of an inbox, and where they lead."""

    def __init__(self) -> None:
        self.cursors: dict[str, int] = {}
        self._ready: deque[tuple[Event, dict[str, int]]] = deque()

    def feed_from(self, inbox: Inbox) -> bytes:
        """Take frames, and apart; no signal may come in between, or they are passed over."""
        lines = inbox.take()
        self._feed(lines)
        return lines

    def _feed(self, lines: bytes) -> None:
        after: dict[str, int] = {}
        for line in lines.split(b"\n"):
            kind, _, data = line.partition(b" ")
            if kind == b"at":
                after = _AT.decode(data)
            elif kind:
                found = rendered.events(kind.decode(), data)
                self._ready += [(one, {one.topic: one.seq} if kind == b"record" else {}) for one in found]  # type: ignore[union-attr]
                event, _ = self._ready.pop()
                self._ready.append((event, after))

    def next(self) -> Event | None:
        """The next event that is here; its place is counted as reached."""
        if not self._ready:
            return None
        # No call in here: a signal strikes before all of it or behind all of it.
        event, places = self._ready[0]
        del self._ready[0]
        self.cursors |= places
        return event


def open_inbox(
    engine: Engine,
    topics: Mapping[str, From],
    node: str | Iterable[str] | None,
    consistency: str,
    wake: Callable[[], None],
) -> tuple[Inbox, Reader]:
    """Follow topics from where they are to begin; `TopicNotFound` for one that is not there."""
    wanted = starts(topics)
    core = engine.core
    if len(wanted) > core.limits.max_watch_topics:
        raise CallerError(f"{len(wanted)} topics; at most {core.limits.max_watch_topics} are watched at once")
    if consistency not in ("eventual", "strong"):
        raise CallerError("consistency is eventual or strong")
    view = View(Projection(tags=True), nodes=nodes_of(node, core.limits), strong=consistency == "strong")
    inbox, reader = Inbox(engine, wake), Reader()
    engine.check_open()

    def follow() -> None:
        found = {name: _topic(core.names.get(name), name) for name in sorted(wanted)}
        for name, topic in found.items():
            start = wanted[name]
            reader.cursors[name] = topic.head if start == "tail" else start
        inbox.feed.past = dict(reader.cursors)
        engine.inboxes.add(inbox)
        for name, topic in found.items():
            inbox.feed.follow(name, reader.cursors[name], view, Instance(topic.id, topic.epoch))

    try:
        engine.owner.do(follow)
    except BaseException:
        inbox.leave()
        raise
    return inbox, reader


def _topic(found: Topic | None, name: str) -> Topic:
    if found is None:
        raise TopicNotFound(name)
    return found


class LogWatch(Watch):
    """A watch over a store in this process; see `Watch`."""

    def __init__(
        self, engine: Engine, topics: Mapping[str, From], node: str | Iterable[str] | None, consistency: str
    ) -> None:
        self._news = Flag()
        self._closed = False
        self._is_struck = False
        """By a signal between taking and handing on: what was taken then is not passed over."""
        self._inbox, self._reader = open_inbox(engine, topics, node, consistency, self._news.set)
        weakref.finalize(self, self._inbox.leave)

    @property
    def cursors(self) -> Mapping[str, int]:
        return dict(self._reader.cursors)

    def __next__(self) -> Event:
        while not self._closed:
            event = self._reader.next()
            if event is not None:
                return event
            if self._is_struck:
                raise EngineClosed("a signal ended this watch: begin another one at its cursors")
            self._news.clear()
            if self._inbox.has_news:
                unbroken(self._take)
            else:
                self._news.wait()
        raise StopIteration

    def _take(self) -> None:
        self._is_struck = True
        lines = self._reader.feed_from(self._inbox)
        self._is_struck = False
        if not lines and self._inbox.error is not None:
            self.close()
            raise self._inbox.error
        if not lines and self._inbox.is_over:
            self.close()

    def close(self) -> None:
        self._closed = True
        self._news.set()
        self._inbox.close()


class AsyncLogWatch(AsyncWatch):
    """The same on an event loop."""

    def __init__(
        self, engine: Engine, topics: Mapping[str, From], node: str | Iterable[str] | None, consistency: str
    ) -> None:
        self._open = partial(open_inbox, engine, starts(topics), node, consistency)
        self._inbox: Inbox | None = None
        self._reader = Reader()
        self._news = asyncio.Event()
        self._closed = False

    @property
    def cursors(self) -> Mapping[str, int]:
        return dict(self._reader.cursors)

    async def begin(self) -> None:
        if self._inbox is None and not self._closed:
            loop, news = asyncio.get_running_loop(), self._news

            def wake() -> None:
                try:
                    loop.call_soon_threadsafe(news.set)
                except RuntimeError:
                    log.info("nobody waits for events any more: the event loop is closed")

            self._inbox, self._reader = self._open(wake)
            weakref.finalize(self, self._inbox.leave)

    async def __anext__(self) -> Event:
        await self.begin()
        while not self._closed:
            event = self._reader.next()
            if event is not None:
                return event
            assert self._inbox is not None
            self._news.clear()
            if not self._inbox.has_news:
                await self._news.wait()
            if not self._closed:
                await self._take(self._inbox)
        raise StopAsyncIteration

    async def _take(self, inbox: Inbox) -> None:
        lines = unbroken(partial(self._reader.feed_from, inbox))
        if not lines and inbox.error is not None:
            await self.close()
            raise inbox.error
        if not lines and inbox.is_over:
            await self.close()

    async def close(self) -> None:
        self._closed = True
        self._news.set()
        if self._inbox is not None:
            self._inbox.close()
