"""A running server as a source: plans by `GET …/segments` [A-8], rows by diff where no file can be read.

A server that is busy (429, 503) is asked again after the time it names, for up to a minute. One connection per object;
one thread at a time.
"""

from __future__ import annotations

import http.client
import json
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec
import numpy as np

from topics import paths
from topics.codec.snapshot import TopicItem
from topics.fs import Fs
from topics.spark import arrow
from topics.spark.arrow import Layout, Rendered
from topics.spark.directory import covering, same_store
from topics.spark.failure import SourceError
from topics.spark.options import ReadOptions
from topics.spark.plan import ENTRY_COST, GAP_COST, Floors, Lost, Piece, Rows, Source, Stretch, TopicPlan, lost_before

TIMEOUT_S: Final = 60.0
ATTEMPTS: Final = 8
WAIT_S_MAX: Final = 8.0
RECORD_COST: Final = 256
"""Guess at the bytes of a record that lies in no segment yet."""
PAGE: Final = 1000
PAGE_BYTES: Final = 8 << 20
_KEY_TODO: Final = "set `apiKey` or `apiKeyFile` to a key that may read these topics"


class Tombstone(msgspec.Struct):
    """A gap as the server tells it."""

    gap_from: int
    gap_to: int
    reason: str


class Page(msgspec.Struct):
    """One answer of diff."""

    records: list[Rendered]
    next_from_seq: int
    head_seq: int
    tombstone: Tombstone | None = None


class Answered(NamedTuple):
    """Status and body."""

    status: int
    body: bytes
    retry_after_s: float

    def error(self) -> tuple[str, str]:
        """Code and message of an answer that is none."""
        try:
            told = json.loads(self.body)["error"]
            return str(told["code"]), str(told["message"])
        except (ValueError, KeyError, TypeError):
            return f"http_{self.status}", f"the server answered with status {self.status}"


class Remote:
    """A server, as a reader sees it."""

    def __init__(self, url: str, api_key: str | None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SourceError("invalid_option", f"url: {url!r} is no address of a server", "use http://HOST:PORT")
        self.url = url
        self._secure, self._host, self._port = parts.scheme == "https", parts.hostname, parts.port
        self._base = parts.path.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def of(cls, options: ReadOptions) -> Remote:
        assert options.url is not None
        return cls(options.url, options.api_key)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def topics(self, pattern: str) -> list[str]:
        """Names that match, in order; system topics match no pattern [K-21]."""
        matches, found, cursor = re.compile(pattern).fullmatch, [], ""
        while True:
            query = {"page_size": "1000"} | ({"cursor": cursor} if cursor else {})
            answer = json.loads(self._get(f"/v0/topics?{urlencode(query)}"))
            found += [one["topic"] for one in answer["topics"] if matches(one["topic"])]
            cursor = answer.get("next_cursor")
            if not cursor:
                return sorted(name for name in found if not name.startswith("$"))

    def segments(self, topic: str, pin_ms: int = 0) -> dict[str, Any]:
        """The plan of a topic, all pages; pinned if the server has a pin to give."""
        base = f"/v0/topics/{quote(topic, safe='')}/segments"
        try:
            told = self._plan(f"{base}?pin_ms={pin_ms}" if pin_ms else base)
        except SourceError as error:
            if not pin_ms or error.code in ("topic_not_found", "unauthorized", "forbidden", "unreachable"):
                raise
            told = self._plan(base)  # all pins are taken: files that vanish are found again by their index
        page = told
        while page["next_seq"] is not None:
            more = {"from_seq": page["next_seq"]} | ({"pin": told["pin"]["id"]} if told.get("pin") else {})
            page = self._plan(f"{base}?{urlencode(more)}")
            told["segments"] += page["segments"]
        return told

    def floors(self, item: TopicItem) -> Floors | None:
        """The floors of an instance as they are now; None if it is gone."""
        try:
            told = self._plan(f"/v0/topics/{quote(item.name, safe='')}/segments?limit=1")
        except SourceError as error:
            if error.code == "topic_not_found":
                return None
            raise
        return _floors(told) if (told["id"], told["epoch"]) == (item.id, item.epoch) else None

    def page(self, topic: str, query: Mapping[str, object]) -> Page:
        """One diff."""
        body = self._ask("POST", f"/v0/topics/{quote(topic, safe='')}/diff", json.dumps(query).encode())
        return _PAGE.decode(body)

    def first_at(self, topic: str, ts: int, head: int) -> int:
        """The first record that is as late as `ts`, `head + 1` if there is none."""
        found = self.page(topic, {"from_ts": ts, "limit": 1, "include_meta": False}).records
        return found[0].seq if found else head + 1

    def rows(self, piece: Piece, options: ReadOptions, layout: Layout) -> Iterator[Rows]:
        """What a piece holds, read page by page."""
        item, at, last = piece.item, piece.stretch.first, piece.stretch.last
        self._same_instance(item)
        while at <= last:
            query = {"from_seq": at - 1, "limit": PAGE, "include_tags": True, "max_batch_bytes": PAGE_BYTES}
            page = self.page(item.name, query)
            if page.head_seq < last:
                self._same_instance(item)
                raise SourceError("data_loss", f"{item.name} ends at {page.head_seq} before {last}", "plan anew")
            yield from _paged(piece, page, at, options, layout)
            at = max(page.next_from_seq, page.tombstone.gap_to if page.tombstone else 0, at) + 1
        self._same_instance(item)

    def _same_instance(self, item: TopicItem) -> None:
        if self.floors(item) is None:
            what = f"{item.name} was deleted, or made anew, since the read was planned"
            raise SourceError("recreated", what, "read it anew")

    def _plan(self, target: str) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self._get(target))
        return told

    def _get(self, target: str) -> bytes:
        return self._ask("GET", target, None)

    def _ask(self, method: str, target: str, body: bytes | None) -> bytes:
        for attempt in range(ATTEMPTS):
            answer = self._once(method, target, body)
            if answer.status == 200:
                return answer.body
            if answer.status not in (429, 503) or attempt == ATTEMPTS - 1:
                break
            threading.Event().wait(min(answer.retry_after_s or 0.1 * 2**attempt, WAIT_S_MAX))
        code, message = answer.error()
        if answer.status in (401, 403):
            raise SourceError(code, f"{self.url}: {message}", _KEY_TODO)
        if code == "topic_not_found":
            raise SourceError(code, f"{self.url}: {message}", "create the topic, or correct its name")
        raise SourceError(code, f"{self.url}: {message}", "look at the server's log, or try again later")

    def _once(self, method: str, target: str, body: bytes | None) -> Answered:
        """One exchange; a connection that was closed meanwhile is opened again, once."""
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        for fresh in (self._connection is None, True):
            if self._connection is None:
                maker = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
                self._connection = maker(self._host, self._port, timeout=TIMEOUT_S)
            try:
                self._connection.request(method, self._base + target, body, headers)
                answer = self._connection.getresponse()
                return Answered(answer.status, answer.read(), _seconds(answer.getheader("Retry-After")))
            except (OSError, http.client.HTTPException) as error:
                self.close()
                if fresh:
                    what = f"{self.url} does not answer: {str(error) or type(error).__name__}"
                    raise SourceError("unreachable", what, "start the server, or correct `url`") from error
        raise AssertionError("unreachable")


def _seconds(text: str | None) -> float:
    return float(text) if text is not None and text.isdigit() else 0.0


_PAGE = msgspec.json.Decoder(Page)


def plan_server(fs: Fs, options: ReadOptions) -> tuple[Source, list[TopicPlan]]:
    """The wanted topics of a server; files are used where its directory is here and is the same store."""
    remote = Remote.of(options)
    try:
        names = remote.topics(options.pattern) if options.pattern is not None else options.topics
        told = [remote.segments(name, options.pin_ms) for name in names]
        source = Source(options, None, None, None)
        if told:
            cold = options.cold if options.cold is not None else told[0]["cold"]
            source = Source(options, told[0]["data_dir"], told[0]["store"], cold)
        reachable = source.data_dir is not None and same_store(fs, source)
        if not reachable:
            source = source._replace(data_dir=None)
        return source, [_plan(remote, one, options, reachable) for one in told]
    finally:
        remote.close()


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
    if end_ts is not None:
        last = min(last, remote.first_at(name, end_ts + 1, head) - 1)
    found = [_stretch(one, first, last, reachable) for one in told["segments"]]
    if head > told["ckpt_seq"]:
        low, high = max(told["ckpt_seq"] + 1, first), min(head, last)
        found.append(Stretch(low, high, RECORD_COST * (high + 1 - low), remote=True))
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


def _paged(piece: Piece, page: Page, at: int, options: ReadOptions, layout: Layout) -> Iterator[Rows]:
    """The rows of one page: what it says is missing, what it leaves out as deleted, and its records."""
    name, last = piece.item.name, piece.stretch.last
    told = page.tombstone
    if told is not None and max(told.gap_from, at) <= min(told.gap_to, last):
        yield Lost(max(told.gap_from, at), min(told.gap_to, last), told.reason, "the server says so")
    inside = [row for row in page.records if row.seq <= last]
    if options.include_deleted and options.all_kept:
        low = at if told is None else max(told.gap_to + 1, at)
        yield from _left_out(name, inside, low, min(page.next_from_seq, last), layout)
    kept = [row for row in inside if piece.min_ts <= row.ts <= piece.max_ts]
    if kept:
        rows = arrow.rendered(name, kept, layout.with_filters(options.tags, options.nodes))
        yield arrow.filtered(rows, options.tags, options.nodes).select(list(layout.columns))


def _left_out(name: str, records: list[Rendered], low: int, high: int, layout: Layout) -> Iterator[Rows]:
    """Seqs that were examined and not delivered were deleted; when they were written is not told."""
    if low > high:
        return
    dead = np.ones(high + 1 - low, np.bool_)
    dead[np.array([row.seq for row in records], np.int64) - low] = False
    seqs = np.flatnonzero(dead).astype(np.uint64) + np.uint64(low)
    if len(seqs):
        yield arrow.deleted(name, seqs, None, layout)
