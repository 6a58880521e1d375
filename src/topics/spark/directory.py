"""Plans made from a data directory alone (06 §17): the state of its newest snapshot [S-345].

Takes no lock and needs no server. Instants become seqs here, with a look at a few `.idx` files, so that holes outside
of them are nobody's loss; records are held against them once more when they are read. Any thread.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from topics import paths
from topics.codec.snapshot import GAP as GAP_ROW
from topics.codec.snapshot import SegmentRow
from topics.errors import TopicsError
from topics.fs import Fs
from topics.spark.failure import SourceError
from topics.spark.options import ReadOptions
from topics.spark.plan import ENTRY_COST, GAP_COST, Floors, Source, Stretch, TopicPlan, lost_before, narrowed
from topics.storage.dropped import settled
from topics.storage.view import StoreView, Tags, TopicView, read_store_id

SAMPLES = 4
"""Segments whose tags are looked at for a plan."""


def plan_directory(fs: Fs, options: ReadOptions, now_ms: int) -> tuple[Source, list[TopicPlan]]:
    """The wanted topics of the directory that `path` names, at `now_ms`."""
    assert options.path is not None
    store = open_store(fs, options.path, options.cold)
    topics = wanted(store.topics(), options)
    return source_of(store, options), [plan_topic(store, one, options, now_ms) for one in topics]


def source_of(store: StoreView, options: ReadOptions) -> Source:
    """Where the pieces of a plan are read from."""
    header = store.header
    return Source(
        options,
        options.path,
        None if header is None else header.store,
        options.cold if options.cold is not None else None if header is None else header.cold,
        0 if header is None else header.id,
    )


def open_store(fs: Fs, path: str, cold: str | None) -> StoreView:
    """The store at `path`; `SourceError` if there is none."""
    if not fs.exists(f"{path}/{paths.META_DIR}"):
        raise SourceError(
            "no_store", f"{path} is not a data directory", "set `path` to the directory a server or engine writes to"
        )
    try:
        return StoreView(fs, path, cold=cold)
    except TopicsError as error:
        raise SourceError(error.code, f"{path}: {error}", f"run `topics doctor {path}`") from error


def matching(topics: Sequence[TopicView], options: ReadOptions) -> list[TopicView]:
    """The topics that are asked for and are there, in the order they are named, or by name."""
    by_name = {topic.name: topic for topic in topics}
    if options.pattern is not None:
        matches = re.compile(options.pattern).fullmatch
        return [by_name[name] for name in sorted(by_name) if not name.startswith("$") and matches(name)]
    return [by_name[name] for name in options.topics if name in by_name]


def wanted(topics: Sequence[TopicView], options: ReadOptions) -> list[TopicView]:
    """The topics that are asked for; `SourceError` if one of them is not there."""
    found = matching(topics, options)
    check_named(options, [topic.name for topic in found])
    return found


def check_named(options: ReadOptions, found: Iterable[str]) -> None:
    """Refuse to go on without a topic that was named."""
    there = set(found)
    missing = [name for name in options.topics if name not in there]
    if missing and options.url is not None:
        what = f"{options.url} has no topic `{missing[0]}`"
        raise SourceError("topic_not_found", what, "create the topic, or correct its name")
    if missing:
        raise SourceError(
            "topic_not_found",
            f"{options.path} has no topic `{missing[0]}`",
            "a topic shows here once it was checkpointed: run `topics checkpoint`, or read by `url`",
        )


def plan_topic(store: StoreView, topic: TopicView, options: ReadOptions, now_ms: int) -> TopicPlan:
    """What of a topic the bounds select."""
    topic = settled(store, topic)
    item, name = topic.item, topic.name
    expiry = topic.expiry_ts(now_ms)
    ttl_floor = max(item.ttl_floor, min(topic.first_at(expiry), item.head_seq + 1)) if expiry else item.ttl_floor
    floors = Floors(item.cap_floor, ttl_floor, item.delete_below)
    asked, until = options.start_seq.of(name), options.end_seq.of(name)
    start_ts, end_ts = options.start_ts.of(name), options.end_ts.of(name)
    if asked is None:  # the first live record: no floor is met, and no hole before it [K-10]
        first = topic.first_live(floors.evict, expiry)
    else:
        first = max(asked, floors.evict, item.base)
    last = item.ckpt_seq if until is None else min(until, item.ckpt_seq)
    if start_ts is not None:
        first = max(first, topic.first_at(start_ts))
    if end_ts is not None and end_ts < paths.U64_MAX:
        last = min(last, topic.first_at(end_ts + 1) - 1)
    rows = [row for row in item.segments if _overlaps(row, first, last)]
    kept = 1.0 if options.tags is None else _tagged_share(topic, rows, options.tags)
    stretches = [_stretch(row, first, last, kept) for row in rows]
    return TopicPlan(
        narrowed(item, first, last, floors), first, last, max(start_ts or 0, expiry),
        paths.U64_MAX if end_ts is None else end_ts, lost_before(asked, floors, last), covering(stretches, first, last),
    )  # fmt: skip


def _overlaps(row: SegmentRow, first: int, last: int) -> bool:
    return row.first <= last and row.first + row.count > first


def _tagged_share(topic: TopicView, rows: Sequence[SegmentRow], tags: Tags) -> float:
    """About which share of the records has one of these tags, by a look at a few segments.

    It decides how many tasks there are, not what they read: a tag that one segment in a hundred has may be missed.
    """
    filled = [row for row in rows if not row.flags & GAP_ROW]
    picked = records = 0
    for at in sorted({len(filled) * n // SAMPLES for n in range(SAMPLES)}) if filled else ():
        row = filled[at]
        found = topic.tagged(row.first, row.count, tags)
        picked += row.count if found is None else int(found.sum())
        records += row.count
    return picked / records if records else 1.0


def _stretch(row: SegmentRow, first: int, last: int, kept: float) -> Stretch:
    low, high = max(row.first, first), min(row.first + row.count - 1, last)
    if row.flags & GAP_ROW:
        return Stretch(low, high, GAP_COST)
    share = kept * (high + 1 - low) / row.count
    return Stretch(low, high, int(row.data_len * share) + ENTRY_COST * (high + 1 - low))


def covering(stretches: list[Stretch], first: int, last: int) -> list[Stretch]:
    """The stretches so that none of the range is left out: what has no row is found out when it is read."""
    if first > last:
        return []
    if not stretches:
        return [Stretch(first, last, GAP_COST)]
    covered, at = [], first
    for one in stretches:
        covered.append(one._replace(first=at))
        at = one.last + 1
    covered[-1] = covered[-1]._replace(last=last)
    return covered


def same_store(fs: Fs, source: Source) -> bool:
    """Whether the directory of a plan is here, and is the store that was planned [A-8]."""
    if source.data_dir is None:
        return False
    return source.store is None or read_store_id(fs, source.data_dir) == source.store
