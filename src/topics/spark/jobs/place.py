"""A store as jobs see it: a data directory or a server, its topics, and how far each is sealed [K-42].

Takes no lock. Instances are what ranges are counted in: a topic made anew under its old name is another one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from urllib.parse import quote

from topics.codec.snapshot import GAP, SEALED, TopicItem
from topics.fs import Fs
from topics.spark.directory import open_store
from topics.spark.failure import SourceError
from topics.spark.options import ReadOptions, parse_read
from topics.spark.remote import Remote

DELETES = "$deletes"
PIPELINES = "$pipelines"


class Instance(NamedTuple):
    """A topic between its creation and its deletion."""

    name: str
    id: int
    epoch: int
    upto: int
    """End of its last sealed segment that no crash can take back; 0 if there is none."""
    queue: bool

    @property
    def key(self) -> str:
        return f"{self.id}-{self.epoch}"


class Place(NamedTuple):
    """Where a store is; exactly one of `path` and `url`."""

    path: str | None = None
    url: str | None = None
    api_key: str | None = None
    cold: str | None = None

    def options(self, **more: Any) -> ReadOptions:
        """Options that read from here."""
        return ReadOptions(path=self.path, url=self.url, api_key=self.api_key, cold=self.cold, **more)

    def given(self) -> dict[str, str]:
        """The same as options of the format."""
        named = {"path": self.path, "url": self.url, "apiKey": self.api_key, "cold": self.cold}
        return {name: value for name, value in named.items() if value}

    def server(self) -> Remote:
        """The server here."""
        assert self.url is not None
        return Remote(self.url, self.api_key)


class Store(NamedTuple):
    """What a look at a place told."""

    id: str | None
    instances: list[Instance]

    def keys(self) -> list[str]:
        return [one.key for one in self.instances]


def look(fs: Fs, place: Place, names: tuple[str, ...] = (), *, system: bool = False) -> Store:
    """The named topics, each once, or all but the system's; `SourceError` for one that is not there."""
    names = tuple(dict.fromkeys(names))
    if place.url is not None:
        return _asked(place, names, system)
    assert place.path is not None
    view = open_store(fs, place.path, place.cold)
    if view.header is None:
        raise SourceError("no_snapshot", f"{place.path} has no snapshot yet", "run `topics checkpoint`, or close it")
    found = [_instance(topic.item) for topic in view.topics()]
    return Store(view.header.store, _chosen(found, names, system, place))


def _chosen(found: list[Instance], names: tuple[str, ...], system: bool, place: Place) -> list[Instance]:
    if not names:
        return [one for one in found if system or not one.name.startswith("$")]
    by_name = {one.name: one for one in found}
    missing = [name for name in names if name not in by_name]
    if missing:
        what = f"{place.path or place.url} has no topic `{missing[0]}`"
        hint = "a topic shows in a directory once it was checkpointed: `topics checkpoint`, or use --url"
        raise SourceError("topic_not_found", what, hint)
    return [by_name[name] for name in names]


def _instance(item: TopicItem) -> Instance:
    ends = [row.first + row.count - 1 for row in item.segments if row.flags & (SEALED | GAP)]
    upto = max((end for end in ends if end <= item.ckpt_seq), default=0)
    return Instance(item.name, item.id, item.epoch, upto, item.cfg.get("type") == "queue")


def _asked(place: Place, names: tuple[str, ...], system: bool) -> Store:
    remote = place.server()
    try:
        wanted = list(names) or remote.topics(".*") + ([DELETES] if system else [])
        told = [remote.segments(name) for name in wanted]
        store = told[0]["store"] if told else _store_without_topics(remote)
        return Store(store, [_told(remote, one) for one in told])
    finally:
        remote.close()


def _store_without_topics(remote: Remote) -> str | None:
    """What the system's own topics say; None where there are none yet, and so nothing that a job could do."""
    for name in (DELETES, PIPELINES):
        try:
            return str(remote.segments(name)["store"])
        except SourceError as error:
            if error.code != "topic_not_found":
                raise
    return None


def _told(remote: Remote, told: dict[str, Any]) -> Instance:
    ends = [one["last_seq"] for one in told["segments"] if one["sealed"] and one["last_seq"] <= told["durable_seq"]]
    state = remote.call("GET", f"/v0/topics/{quote(told['topic'], safe='')}")
    queue = (state.get("config") or state).get("type") == "queue"
    return Instance(told["topic"], told["id"], told["epoch"], max(ends, default=0), queue)


def place_from(given: dict[str, str]) -> Place:
    """A place from options of the format; they are checked."""
    options = parse_read({**given, "topics": "x"})
    return Place(options.path, options.url, options.api_key, options.cold)


def as_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
