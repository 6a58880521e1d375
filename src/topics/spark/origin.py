"""Where a stream comes from: how far its topics reach now, and plans of their ranges [K-20].

    DirectoryOrigin    the newest snapshot of a data directory; readable up to its checkpoint [S-345]
    ServerOrigin       a running server; readable up to `durable_seq`: no crash takes back what a batch held [A-8]

A server's plan may hold a pin, so that the files of a batch stay until it is done; there are few pins, so the one who
planned gives them back. One thread per object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple, Protocol

from topics.clock import Clock
from topics.fs import Fs
from topics.spark.directory import matching, open_store, plan_topic, source_of
from topics.spark.failure import SourceError
from topics.spark.offsets import Entry
from topics.spark.options import Bound, ReadOptions
from topics.spark.plan import Source, TopicPlan
from topics.spark.remote import Listed, Remote, plan_told, segments_of
from topics.storage.view import StoreView, TopicView

EPHEMERAL: Final = "ephemeral"


class Head(NamedTuple):
    """How far a topic reaches."""

    epoch: int
    store: str
    readable: int
    """The last seq that a batch may hold."""
    head: int
    floor: int
    """No record below it is live."""
    durability: str


Planned = tuple[Source, dict[str, TopicPlan]]
"""A plan by topics; one whose instance is gone is not in it."""


class Origin(Protocol):
    """What a stream asks."""

    def look(self) -> dict[str, Head]:
        """The topics that are selected and are there."""
        ...

    def first(self, name: str) -> int:
        """Where a stream begins that takes all of a topic that was seen, or all from the wanted instant on."""
        ...

    def plan(self, ranges: Mapping[str, Entry], *, hold: bool = False) -> Planned:
        """How to read ranges; `hold` keeps their files until `release`."""
        ...

    def release(self) -> None:
        """Nothing has to be kept any more."""
        ...

    def close(self) -> None: ...


def origin_of(fs: Fs, options: ReadOptions, clock: Clock) -> Origin:
    """The origin that the options name."""
    if options.url is not None:
        return ServerOrigin(fs, options)
    return DirectoryOrigin(fs, options, clock)


def bounded(options: ReadOptions, ranges: Mapping[str, Entry]) -> ReadOptions:
    """The options of a read of these ranges."""
    return options._replace(
        topics=tuple(ranges),
        pattern=None,
        start_seq=Bound(by_topic=tuple((name, entry.begin + 1) for name, entry in ranges.items())),
        end_seq=Bound(by_topic=tuple((name, entry.seq) for name, entry in ranges.items())),
        start_ts=Bound(),
    )


class DirectoryOrigin:
    """A data directory."""

    def __init__(self, fs: Fs, options: ReadOptions, clock: Clock) -> None:
        self._fs = fs
        self._options = options
        self._clock = clock
        self._store: StoreView | None = None
        self._topics: dict[str, TopicView] = {}

    def look(self) -> dict[str, Head]:
        assert self._options.path is not None
        store = self._store = open_store(self._fs, self._options.path, self._options.cold)
        self._topics = {topic.name: topic for topic in matching(store.topics(), self._options)}
        id = _id(store)
        return {name: _head(topic, id) for name, topic in self._topics.items()}

    def first(self, name: str) -> int:
        assert self._store is not None
        return plan_topic(self._store, self._topics[name], self._options, self._clock.now_ms()).first

    def plan(self, ranges: Mapping[str, Entry], *, hold: bool = False) -> Planned:
        assert self._options.path is not None
        options = bounded(self._options, ranges)
        store = open_store(self._fs, self._options.path, self._options.cold)
        found = {}
        for topic in matching(store.topics(), options):
            if ranges[topic.name].is_of(topic.epoch, _id(store)):
                check_reach(topic.name, topic.ckpt_seq, ranges[topic.name].seq)
                found[topic.name] = plan_topic(store, topic, options, self._clock.now_ms())
        return source_of(store, options), found

    def release(self) -> None:
        """Nothing is held: files that vanish are found again by their index."""

    def close(self) -> None:
        """Nothing is open."""


def _head(topic: TopicView, store: str) -> Head:
    durability = str(topic.config.get("durability"))
    return Head(topic.epoch, store, topic.ckpt_seq, topic.head_seq, topic.floor, durability)


def _id(store: StoreView) -> str:
    return (store.header.store or "") if store.header is not None else ""


class ServerOrigin:
    """A running server."""

    def __init__(self, fs: Fs, options: ReadOptions) -> None:
        self._fs = fs
        self._options = options
        self._remote = Remote.of(options)
        self._told: dict[str, dict[str, Any]] = {}
        self._listed: Mapping[str, Listed | None] = {}
        self._pins: list[str] = []

    def look(self) -> dict[str, Head]:
        pattern = self._options.pattern
        listed = dict.fromkeys(self._options.topics) if pattern is None else self._remote.listed(pattern)
        self._told = {name: told for name in listed if (told := self._state(name, listed[name])) is not None}
        self._listed = listed
        return {name: _told_head(told) for name, told in self._told.items()}

    def _state(self, name: str, listed: Listed | None) -> dict[str, Any] | None:
        """A topic as it is now; one of many that nobody has written to is not asked for again."""
        told = self._told.get(name)
        if told is not None and listed is not None and listed == self._listed.get(name):
            if told["durable_seq"] == told["head_seq"] == listed.head_seq:
                return told
        return self._remote.state(name)

    def first(self, name: str) -> int:
        told, instant = self._told[name], self._options.start_ts.of(name)
        first: int = told["earliest_seq"]
        return first if instant is None else max(first, self._remote.first_at(name, instant, told["head_seq"]))

    def plan(self, ranges: Mapping[str, Entry], *, hold: bool = False) -> Planned:
        options = bounded(self._options if hold else self._options._replace(pin_ms=0), ranges)
        told = [one for name, entry in ranges.items() if (one := self._segments(name, entry, options)) is not None]
        source, plans = plan_told(self._fs, self._remote, told, options)
        return source, {plan.item.name: plan for plan in plans}

    def _segments(self, name: str, entry: Entry, options: ReadOptions) -> dict[str, Any] | None:
        try:
            told = segments_of(self._remote, name, options)
        except SourceError as error:
            if error.code == "topic_not_found":
                return None
            raise
        if told.get("pin"):
            self._pins.append(told["pin"]["id"])
        if not entry.is_of(told["epoch"], told["store"] or ""):
            return None
        check_reach(name, told["head_seq"], entry.seq)
        return told

    def release(self) -> None:
        while self._pins:
            self._remote.release(self._pins.pop())

    def close(self) -> None:
        self.release()
        self._remote.close()


def _told_head(told: Mapping[str, Any]) -> Head:
    durability = EPHEMERAL if told["store"] is None else told["class"]
    floor = max(told["floors"].values())
    return Head(told["epoch"], told["store"] or "", told["durable_seq"], told["head_seq"], floor, durability)


def check_reach(name: str, end: int, seq: int) -> None:
    """A topic that ends before what was read of it is not the one that was read, whatever it says of itself."""
    if end < seq:
        raise SourceError(
            "data_loss",
            f"{name} ends at seq {end}, and the stream has been at {seq}: the store is an older one",
            "after a restore, start the stream with a new checkpoint",
        )
