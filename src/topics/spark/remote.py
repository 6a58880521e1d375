"""A running server as a source: plans by `GET …/segments` [A-8], frames by scan [A-21] where no file can be read.

A server that is busy (429, 503) is asked again after the time it names, for up to a minute, and so is one that has
answered before and does not now: it may be starting again. One connection per object; one thread at a time.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import msgspec

from topics import paths
from topics.client.http1 import Answer, Request
from topics.client.sync import Client
from topics.codec.place import topic_mask
from topics.codec.segment import Scanned, decode_scan
from topics.codec.snapshot import TopicItem
from topics.errors import CallerError
from topics.fs import Fs
from topics.spark.directory import covering, same_store
from topics.spark.failure import SourceError
from topics.spark.options import ReadOptions
from topics.spark.plan import ENTRY_COST, GAP_COST, Floors, Source, Stretch, TopicPlan, lost_before

TIMEOUT_S: Final = 60.0
ATTEMPTS: Final = 12
WAIT_S_MAX: Final = 8.0
RECORD_COST: Final = 64
"""Bytes of a record beside its payload, about."""
PAGE_BYTES: Final = 8 << 20
_LOG = logging.getLogger("topics.spark")
_KEY_TODO: Final = "set `apiKey` or `apiKeyFile` to a key that may read these topics"


class Tombstone(msgspec.Struct):
    """A gap as the server tells it."""

    gap_from: int
    gap_to: int
    reason: str


class Listed(NamedTuple):
    """What a list tells of a topic; as long as it is the same, so is the topic."""

    head_seq: int
    earliest_seq: int
    last_write_ts: int | None
    durability: str


class Page(NamedTuple):
    """One answer of scan."""

    found: Scanned
    next_seq: int
    """Where the next one begins."""
    head_seq: int
    tombstone: Tombstone | None


class First(msgspec.Struct):
    """The record that a diff is asked for."""

    seq: int = msgspec.field(name="$seq")


class Firsts(msgspec.Struct):
    """An answer of diff, as far as it is looked at."""

    records: list[First]


class Answered(NamedTuple):
    """An answer."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    """Names in lower case."""

    @property
    def retry_after_s(self) -> float:
        text = self.headers.get("retry-after", "")
        return float(text) if text.isdigit() else 0.0

    def error(self) -> tuple[str, str]:
        """Code and message of an answer that is none."""
        try:
            told = json.loads(self.body)["error"]
            return str(told["code"]), str(told["message"])
        except (ValueError, KeyError, TypeError):
            return f"http_{self.status}", f"the server answered with status {self.status}"


class Remote:
    """A server, as a reader sees it."""

    def __init__(self, url: str, api_key: str | None, timeout_s: float = TIMEOUT_S) -> None:
        try:
            self._client = Client(url, api_key or None)
        except CallerError as error:
            raise SourceError("invalid_option", f"url: {error}", "use http://HOST:PORT") from None
        self.url = url
        self._timeout_s = timeout_s
        self.met = False
        """Whether it is known to be there."""

    @classmethod
    def of(cls, options: ReadOptions) -> Remote:
        assert options.url is not None
        return cls(options.url, options.api_key)

    def close(self) -> None:
        self._client.close()

    def topics(self, pattern: str) -> list[str]:
        """Names that match, in order."""
        return list(self.listed(pattern))

    def listed(self, pattern: str) -> dict[str, Listed]:
        """The topics whose names match, in order; system topics match no pattern [K-21]."""
        matches, found, cursor = re.compile(pattern).fullmatch, [], ""
        while True:
            query = {"page_size": "1000"} | ({"cursor": cursor} if cursor else {})
            answer = json.loads(self._get(f"/v0/topics?{urlencode(query)}"))
            found += [one for one in answer["topics"] if matches(one["topic"]) and not one["topic"].startswith("$")]
            cursor = answer.get("next_cursor")
            if not cursor:
                return {
                    one["topic"]: Listed(one["head_seq"], one["earliest_seq"], one["last_write_ts"], one["durability"])
                    for one in sorted(found, key=lambda one: str(one["topic"]))
                }

    def segments(self, topic: str, pin_ms: int = 0, first: int = 0, last: int = paths.U64_MAX) -> dict[str, Any]:
        """The plan of a range of a topic, all pages; pinned if the server has a pin to give."""
        asked = {"from_seq": first, "to_seq": last}
        try:
            told = self._plan(topic, asked | {"pin_ms": pin_ms}, 1) if pin_ms else self._plan(topic, asked)
        except SourceError as error:
            if not pin_ms or error.code in ("topic_not_found", "unauthorized", "forbidden", "unreachable"):
                raise
            told = self._plan(topic, asked)  # all pins are taken: files that vanish are found again by their index
        page = told
        while page["next_seq"] is not None:
            held = {"pin": told["pin"]["id"]} if told.get("pin") else {}
            page = self._plan(topic, asked | {"from_seq": page["next_seq"]} | held)
            told["segments"] += page["segments"]
        return told

    def state(self, topic: str) -> dict[str, Any] | None:
        """A plan without segments: instance, ends and floors; None if there is no such topic."""
        try:
            return self._plan(topic, {"from_seq": paths.U64_MAX, "limit": 1})
        except SourceError as error:
            if error.code == "topic_not_found":
                return None
            raise

    def release(self, pin: str) -> None:
        """End a pin; one that has ended by itself is no matter."""
        try:
            self._ask("DELETE", f"/v0/pins/{quote(pin, safe='')}", None, 1)
        except SourceError as error:
            _LOG.debug("the pin %s was not released: %s", pin, error)

    def floors(self, item: TopicItem) -> Floors | None:
        """The floors of an instance as they are now; None if it is gone."""
        told = self.state(item.name)
        return _floors(told) if told is not None and (told["id"], told["epoch"]) == (item.id, item.epoch) else None

    def deleted(self, item: TopicItem, first: int, last: int) -> tuple[int, list[tuple[int, int]]] | None:
        """What of a range is deleted and no file says so: all below a seq, and ranges. None if the instance is gone."""
        try:
            told = self.segments(item.name, 0, first, last)
        except SourceError as error:
            if error.code == "topic_not_found":
                return None
            raise
        if (told["id"], told["epoch"]) != (item.id, item.epoch):
            return None
        pending = [(low, high) for one in told["segments"] for low, high in one.get("pending", ())]
        return _floors(told).deleted_below, pending

    def call(self, method: str, target: str, body: object = None) -> dict[str, Any]:
        """One exchange of JSON."""
        raw = None if body is None else json.dumps(body).encode()
        told: dict[str, Any] = json.loads(self._ask(method, target, raw).body)
        return told

    def first_at(self, topic: str, ts: int, head: int) -> int:
        """The first record that is as late as `ts`, `head + 1` if there is none."""
        query = {"from_ts": ts, "limit": 1, "include_meta": False}
        found = _FIRSTS.decode(self._post(f"/v0/topics/{quote(topic, safe='')}/diff", query).body).records
        return found[0].seq if found else head + 1

    def record_bytes(self, topic: str) -> int:
        """How large a record of a topic is on average."""
        told = json.loads(self._get(f"/v0/topics/{quote(topic, safe='')}"))
        return RECORD_COST + int(told["bytes"] // max(told["count"], 1))

    def scan(self, item: TopicItem, first: int, last: int) -> Page:
        """Records from `first` on; `NotAFrame` if they are another instance's, whose frames carry another mask."""
        query = {"from_seq": first, "to_seq": last, "max_bytes": PAGE_BYTES}
        answer = self._post(f"/v0/topics/{quote(item.name, safe='')}/scan", query)
        tombstone = answer.headers.get("topics-tombstone")
        return Page(
            decode_scan(answer.body, topic_mask(item.id)),
            int(answer.headers["topics-next-seq"]),
            int(answer.headers["topics-head-seq"]),
            None if tombstone is None else _TOMBSTONE.decode(tombstone),
        )

    def _plan(self, topic: str, query: Mapping[str, object], attempts: int = ATTEMPTS) -> dict[str, Any]:
        target = f"/v0/topics/{quote(topic, safe='')}/segments?{urlencode(query)}"
        told: dict[str, Any] = json.loads(self._ask("GET", target, None, attempts).body)
        return told

    def _get(self, target: str) -> bytes:
        return self._ask("GET", target, None).body

    def _post(self, target: str, body: Mapping[str, object]) -> Answered:
        return self._ask("POST", target, json.dumps(body).encode())

    def _ask(self, method: str, target: str, body: bytes | None, attempts: int = ATTEMPTS) -> Answered:
        for attempt in range(attempts):
            is_last, wait_s = attempt == attempts - 1, 0.1 * 2**attempt
            try:
                answer = self._once(method, target, body)
            except SourceError:
                if is_last or not self.met:
                    raise
            else:
                self.met = True
                if answer.status in (200, 201):
                    return answer
                if answer.status not in (429, 503) or is_last:
                    break
                wait_s = answer.retry_after_s or wait_s
            threading.Event().wait(min(wait_s, WAIT_S_MAX))
        code, message = answer.error()
        if answer.status in (401, 403):
            raise SourceError(code, f"{self.url}: {message}", _KEY_TODO)
        if code == "topic_not_found":
            raise SourceError(code, f"{self.url}: {message}", "create the topic, or correct its name")
        raise SourceError(code, f"{self.url}: {message}", "look at the server's log, or try again later")

    def _once(self, method: str, target: str, body: bytes | None, kind: str = "application/json") -> Answered:
        """One exchange; a connection that was closed meanwhile is opened again, once."""
        request = Request(method, target, body, answer_s=self._timeout_s, content_type=kind)
        outcome = self._client.exchange(request)
        if not isinstance(outcome, Answer) and outcome.stale:
            outcome = self._client.exchange(request)
        if isinstance(outcome, Answer):
            return Answered(outcome.status, outcome.body, outcome.headers)
        what = f"{self.url} does not answer: {outcome.message}"
        raise SourceError("unreachable", what, "start the server, or correct `url`")


_FIRSTS = msgspec.json.Decoder(Firsts)
_TOMBSTONE = msgspec.json.Decoder(Tombstone)


def plan_server(fs: Fs, options: ReadOptions) -> tuple[Source, list[TopicPlan]]:
    """The wanted topics of a server."""
    remote = Remote.of(options)
    try:
        names = remote.topics(options.pattern) if options.pattern is not None else options.topics
        told = [segments_of(remote, name, options) for name in names]
        return plan_told(fs, remote, told, options)
    finally:
        remote.close()


def segments_of(remote: Remote, name: str, options: ReadOptions) -> dict[str, Any]:
    """The segments that hold what the bounds select."""
    first, last = options.start_seq.of(name), options.end_seq.of(name)
    return remote.segments(name, options.pin_ms, first or 0, paths.U64_MAX if last is None else last)


def plan_told(
    fs: Fs, remote: Remote, told: Sequence[Mapping[str, Any]], options: ReadOptions
) -> tuple[Source, list[TopicPlan]]:
    """Plans of what a server told; files are used where its directory is here and is the same store."""
    source = Source(options, None, None, None)
    if told:
        cold = options.cold if options.cold is not None else told[0]["cold"]
        source = Source(options, told[0]["data_dir"], told[0]["store"], cold)
    reachable = source.data_dir is not None and same_store(fs, source)
    if not reachable:
        source = source._replace(data_dir=None)
    return source, [_plan(remote, one, options, reachable) for one in told]


def _floors(told: Mapping[str, Any]) -> Floors:
    floors = told["floors"]
    return Floors(floors["cap"], floors["ttl"], floors["deleted_below"])


def _plan(remote: Remote, told: Mapping[str, Any], options: ReadOptions, reachable: bool) -> TopicPlan:
    name, head, floors = told["topic"], told["head_seq"], _floors(told)
    asked, until = options.start_seq.of(name), options.end_seq.of(name)
    start_ts, end_ts = options.start_ts.of(name), options.end_ts.of(name)
    first = told["earliest_seq"] if asked is None else max(asked, floors.evict, 1)
    last = head if until is None else min(until, head)
    if start_ts is not None:
        first = max(first, remote.first_at(name, start_ts, head))
    if end_ts is not None and end_ts < paths.U64_MAX:
        last = min(last, remote.first_at(name, end_ts + 1, head) - 1)
    found = [_stretch(one, first, last, reachable) for one in told["segments"]]
    if head > told["ckpt_seq"]:
        low, high = max(told["ckpt_seq"] + 1, first), min(head, last)
        cost = remote.record_bytes(name) * (high + 1 - low) if low <= high else 0
        found.append(Stretch(low, high, cost, remote=True))
    stretches = covering([one for one in found if one.first <= one.last], first, last)
    return TopicPlan(
        _item(told, floors), first, last, start_ts or 0, paths.U64_MAX if end_ts is None else end_ts,
        lost_before(asked, floors, last), stretches,
    )  # fmt: skip


def _item(told: Mapping[str, Any], floors: Floors) -> TopicItem:
    """What a snapshot would say; the rows of sealed segments are not needed to read them."""
    return TopicItem(
        id=told["id"], name=told["topic"], epoch=told["epoch"], cfg={}, config_version=0, base=1,
        head_seq=told["head_seq"], ckpt_seq=told["ckpt_seq"], reserved=0, cap_floor=floors.cap, ttl_floor=floors.ttl,
        delete_below=floors.deleted_below, delete_number=0, deletes_recorded=0, last_write_ms=0, segments=(),
    )  # fmt: skip


def _stretch(one: Mapping[str, Any], first: int, last: int, reachable: bool) -> Stretch:
    low, high = max(one["first_seq"], first), min(one["last_seq"], last)
    share = (high + 1 - low) / (one["last_seq"] + 1 - one["first_seq"])
    cost = GAP_COST if one["gap"] is not None else int(one["bytes"] * share) + ENTRY_COST * (high + 1 - low)
    pending = tuple((low, high) for low, high in one.get("pending", ()))
    return Stretch(low, high, cost, not (reachable and one["sealed"]), one["generation"], pending)
