"""Reading a partition: from files where they are, through the server elsewhere; rows as Arrow batches [K-11, K-14].

What is missing goes by `onDataLoss`:

    fail    the read stops and says which seqs are missing and why
    emit    a row of kind `gap` [K-10]; neighbouring gaps of one reason are one row
    skip    nothing is told

What was deleted since the plan is absent: a partition begins with a look at the floors and at the deletes that no mark
in a file tells yet. Files that vanished since the plan were given up to retention, or deleted. Which of the two, the
server tells, or the newest snapshot and the marks behind it [S-277]: deleted records are absent, given up ones are
lost, and what no floor explains is damage. Any thread, no Spark.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import chain, groupby
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from msgspec.structs import replace

from topics.codec.control import MarkRow
from topics.codec.frame import NotAFrame
from topics.codec.place import topic_mask
from topics.codec.segment import IDX
from topics.codec.snapshot import TopicItem
from topics.fs import Fs
from topics.spark import arrow
from topics.spark.arrow import BadRecord, GapRow, Layout
from topics.spark.directory import plan_directory, same_store
from topics.spark.failure import SourceError
from topics.spark.options import ReadOptions
from topics.spark.plan import RECREATED, Floors, Lost, Partition, Piece, Rows, Source, floors_of, partitions
from topics.spark.remote import Page, Remote, plan_server
from topics.storage import dropped
from topics.storage.reindex import DAMAGE
from topics.storage.tiers.reading import ColdTier, ColdUnavailable
from topics.storage.view import (
    DROPPED,
    Batch,
    Deleted,
    Gap,
    StoreView,
    Told,
    TopicView,
    Wanted,
    newest_snapshot,
    taken,
)

LOOKS: Final = 10
LOOK_S: Final = 0.1
"""How often, and how long after each other, files that are missing are looked for again."""
LOG_READS: Final = 2
"""How often the log is read in vain for what is missing: it may have been cut behind a newer snapshot."""
JOINED_RECORDS: Final = 4096
JOINED_BYTES: Final = 256 << 10
"""Smaller batches are put together until there is so much of them; well below `view.BATCH_BYTES`, which is full."""
AHEAD: Final = 4
"""Pieces that are fetched at a time from an object store."""
AHEAD_BYTES: Final = 64 << 20

Found: TypeAlias = Batch | Lost | pa.RecordBatch
"""What a piece holds: records as they are stored, and what is told besides."""


def plan_read(fs: Fs, options: ReadOptions, now_ms: int) -> list[Partition]:
    """What tasks read; none where there is nothing."""
    if options.url is not None:
        return partitions(*plan_server(fs, options))
    return partitions(*plan_directory(fs, options, now_ms))


def read_partition(fs: Fs, partition: Partition) -> Iterator[pa.RecordBatch]:
    """The rows of a partition, in order of its pieces; never an empty batch."""
    reading = Reading(fs, partition.source)
    try:
        for topic, pieces in groupby(partition.pieces, key=lambda piece: piece.item.name):
            rows = _joined(chain.from_iterable(_in_order(reading, _by_now(reading, list(pieces)))))
            for batch in _policed(topic, _decoded(topic, rows, reading), reading):
                if batch.num_rows:
                    yield batch
    finally:
        reading.close()


class Reading:
    """What the pieces of a partition are read with: the directory of the plan, and the server behind it."""

    def __init__(self, fs: Fs, source: Source) -> None:
        self.fs = fs
        self.source = source
        self.options = source.options
        self.layout = Layout(source.options.columns, source.options.binary, source.options.meta_json)
        self.has_files = same_store(fs, source)
        self.cold = ColdTier(fs, source.cold, source.store)
        self.listed: dict[int, list[int]] = {}
        """Where segments begin, by topic: a directory that each piece listed would take the square of its size."""
        self._remote: Remote | None = None
        self._asking = threading.Lock()
        self._store: StoreView | None = None
        self._marks: dict[int, MarkRow] = {}
        self._vain_reads = 0

    @property
    def path(self) -> str:
        assert self.source.data_dir is not None
        return self.source.data_dir

    def remote(self) -> Remote:
        """Any thread: pieces that are fetched ahead may all find the cold tier gone."""
        with self._asking:
            if self._remote is None:
                self._remote = Remote.of(self.options)
                self._remote.met = True  # whoever made the plan had it from there
            return self._remote

    def is_as_planned(self) -> bool:
        """Whether the directory has no newer snapshot than the plan."""
        return newest_snapshot(self.fs, self.path) == self.source.snapshot

    def item_now(self, id: int) -> TopicItem | None:
        """A topic of the directory by its newest snapshot; None if it is gone. Any thread."""
        with self._asking:
            return self._newest(id)

    def _newest(self, id: int) -> TopicItem | None:
        if self._store is None:
            self._store = StoreView(self.fs, self.path)
        else:
            self._store.refresh()
        return next((one.item for one in self._store.topics() if one.id == id), None)

    def item_without(self, id: int, seq: int) -> TopicItem | None:
        """The same for who misses the segment of a seq: unless the snapshot explains it, with the floors of the log.

        The log may be cut behind a newer snapshot while it is read, so both are looked at again. Any thread.
        """
        with self._asking:
            while (item := self._newest(id)) is not None:
                item = dropped.raised(item, self._marks.get(id))
                if max(floors_of(item).evict, item.delete_below) > seq:
                    self._vain_reads = 0
                    break
                if self._vain_reads == LOG_READS:
                    break
                self._vain_reads += 1
                assert self._store is not None
                self._marks = dropped.marks(self._store)
            return item

    def close(self) -> None:
        self.cold.close()
        if self._remote is not None:
            self._remote.close()


def _by_now(reading: Reading, pieces: list[Piece]) -> list[Piece]:
    """The pieces of a topic with what was deleted since they were planned [K-11]; the server tells it as it reads."""
    in_files = [piece for piece in pieces if not piece.stretch.remote and piece.stretch.first <= piece.stretch.last]
    if not in_files or not reading.has_files:
        return pieces
    item = in_files[0].item
    pending: Sequence[tuple[int, int]] = ()
    if reading.options.url is not None:
        told = reading.remote().deleted(item, in_files[0].stretch.first, in_files[-1].stretch.last)
        if told is None:  # the topic is gone, which the server tells again where it is asked for records
            return [piece._replace(stretch=piece.stretch._replace(remote=True)) for piece in pieces]
        below, pending = told
    elif reading.is_as_planned():
        return pieces
    else:
        now = reading.item_now(item.id)
        below = item.delete_below if now is None else now.delete_below
    return [_less(piece, below, pending) for piece in pieces]


def _less(piece: Piece, below: int, pending: Sequence[tuple[int, int]]) -> Piece:
    """The piece without these seqs, which were deleted."""
    stretch = piece.stretch
    inside = [one for one in pending if one[0] <= stretch.last and one[1] >= stretch.first]
    return piece._replace(
        item=replace(piece.item, delete_below=max(piece.item.delete_below, below)),
        stretch=stretch._replace(pending=(*stretch.pending, *inside)),
    )


def _in_order(reading: Reading, pieces: list[Piece]) -> Iterator[Iterable[Found]]:
    """What each piece holds. Objects are fetched ahead: a request takes longer than decoding what it brings [K-13]."""
    if not (reading.has_files and reading.cold.is_remote) or any(piece.stretch.remote for piece in pieces):
        yield from (_piece(reading, piece) for piece in pieces)
        return
    with ThreadPoolExecutor(AHEAD, "topics-ahead") as pool:
        waiting: deque[tuple[int, Future[list[Found]]]] = deque()
        for piece in pieces:
            while waiting and (len(waiting) == AHEAD or sum(n for n, _ in waiting) + piece.bytes > AHEAD_BYTES):
                yield waiting.popleft()[1].result()
            waiting.append((piece.bytes, pool.submit(_fetched, reading, piece)))
        while waiting:
            yield waiting.popleft()[1].result()


def _fetched(reading: Reading, piece: Piece) -> list[Found]:
    return list(_piece(reading, piece))


def _joined(found: Iterable[Found]) -> Iterator[Found]:
    """Small batches together: a filter leaves a few rows of each segment, and making rows of them has its price."""
    held: list[Batch] = []
    records = size = 0
    for one in found:
        if isinstance(one, Batch):
            if not len(one.seqs):
                continue
            held.append(one)
            records, size = records + len(one.seqs), size + len(one.data)
            if records < JOINED_RECORDS and size < JOINED_BYTES:
                continue
        if held:
            yield _together(held)
            held, records, size = [], 0, 0
        if not isinstance(one, Batch):
            yield one
    if held:
        yield _together(held)


def _together(held: list[Batch]) -> Batch:
    if len(held) == 1:
        return held[0]
    begins = np.cumsum([0, *(len(one.data) for one in held)])[:-1]
    offsets = [one.offsets + begin for one, begin in zip(held, begins.tolist(), strict=True)]
    seqs, data = np.concatenate([one.seqs for one in held]), b"".join([one.data for one in held])
    # By their bytes: fields that lie over one another do not survive `concatenate`.
    entries = np.frombuffer(b"".join([one.entries.tobytes() for one in held]), IDX)
    return Batch(held[0].first, held[-1].last, seqs, entries, np.concatenate(offsets), data, held[0].mask)


def _decoded(topic: str, found: Iterable[Found], reading: Reading) -> Iterator[Rows]:
    """Batches of records as rows."""
    for one in found:
        if isinstance(one, Batch):
            yield from _records(topic, one, reading.options, reading.layout)
        else:
            yield one


def _piece(reading: Reading, piece: Piece) -> Iterator[Found]:
    if piece.lost is not None:
        yield Lost(*piece.lost, "" if piece.lost.reason == RECREATED else "retention had passed this start")
    if piece.stretch.first > piece.stretch.last:
        return
    if reading.has_files and not piece.stretch.remote:
        yield from _from_files(reading, piece)
    elif reading.options.url is not None:
        yield from _from_server(reading, piece)
    else:
        raise SourceError(
            "no_store",
            f"{reading.source.data_dir} is not the store that was planned, or cannot be reached from here",
            "every machine that reads needs the directory at the same path",
        )


def _from_files(reading: Reading, piece: Piece) -> Iterator[Found]:
    options, layout, stretch = reading.options, reading.layout, piece.stretch
    told_deletes = options.include_deleted and options.all_kept
    wanted = Wanted(
        piece.min_ts, options.verify, options.tags, stretch.pending, told_deletes, piece.max_ts
    )  # fmt: skip
    view = TopicView(reading, piece.item, reading.listed.get(piece.item.id))
    at = max(stretch.first, view.evict_floor)
    try:
        for told in _settled(view, stretch.first, stretch.last, wanted, LOOKS):
            if view.listed is not None:
                reading.listed[view.id] = view.listed
            if isinstance(told, Deleted):
                yield arrow.deleted(piece.item.name, told.seqs, told.ts, layout)
                continue
            at = told.last + 1
            if isinstance(told, Gap):
                yield from _missing(reading, piece.item, told)
            else:
                yield told
    except ColdUnavailable as error:
        if options.url is None:
            hint = "mount the cold tier, or set `cold`; for an object store: `topics[s3]` and its credentials"
            raise SourceError(error.code, f"{piece.item.name}: {error}", hint) from error
        rest = piece._replace(stretch=stretch._replace(first=at))  # the server can read what we cannot
        yield from _from_server(reading, rest)
        return
    at = max(at, view.floor)  # files of what is deleted need not be there
    if at <= stretch.last:  # only an unsealed segment ends a scan, and what a snapshot claims of it was synced
        detail = f"the unsealed segment at {view.files.dir} ends at seq {at - 1}"
        yield Lost(at, stretch.last, arrow.REASONS[DAMAGE], detail)


def _settled(view: TopicView, first: int, last: int, wanted: Wanted, looks: int) -> Iterator[Told]:
    """What a range holds. Missing files are looked for again: segments are dropped and moved file by file."""
    for told in view.tell(first, last, wanted):
        if isinstance(told, Gap) and told.absent and looks:
            threading.Event().wait(LOOK_S)
            yield from _settled(view, told.first, told.last, wanted, looks - 1)
        else:
            yield told


def _from_server(reading: Reading, piece: Piece) -> Iterator[Found]:
    """What a piece holds, page by page, as frames; those of another instance do not verify [A-21]."""
    item, at, last = piece.item, piece.stretch.first, piece.stretch.last
    while at <= last:
        page = _page(reading.remote(), item, at, last)
        if page is None:
            yield Lost(at, last, RECREATED, "the topic was deleted since the read was planned")
            return
        yield from _paged(reading, piece, page, at)
        at = max(page.next_seq, at + 1)


def _page(remote: Remote, item: TopicItem, first: int, last: int) -> Page | None:
    """The records from `first` on, of this instance; None if it is gone."""
    try:
        page = remote.scan(item, first, last)
    except SourceError as error:
        if error.code == "topic_not_found":
            return None
        raise
    except NotAFrame as error:
        if remote.floors(item) is None:
            return None
        raise SourceError(
            "bad_answer", f"{remote.url}: {item.name}: {error}", "try again, or look at the way"
        ) from error
    is_told = len(page.found.seqs) > 0 and page.head_seq >= last
    if not is_told and remote.floors(item) is None:
        return None
    if page.head_seq < last:
        raise SourceError("data_loss", f"{item.name} ends at {page.head_seq} before {last}", "plan anew")
    return page


def _paged(reading: Reading, piece: Piece, page: Page, at: int) -> Iterator[Found]:
    """The rows of one page: what it says is missing, what it leaves out as deleted, and its records."""
    options, layout, last = reading.options, reading.layout, piece.stretch.last
    gap, found = page.tombstone, page.found
    if gap is not None and max(gap.gap_from, at) <= min(gap.gap_to, last):
        yield Lost(max(gap.gap_from, at), min(gap.gap_to, last), gap.reason, "the server says so")
    if options.include_deleted and options.all_kept:
        low = at if gap is None else max(gap.gap_to + 1, at)
        yield from _left_out(piece.item.name, found.seqs, low, min(page.next_seq - 1, last), layout)
    dated = Wanted(piece.min_ts, max_ts=piece.max_ts).dated(found.entries)
    kept = taken(np.flatnonzero(dated & (found.seqs <= np.uint64(last))))
    entries = found.entries[kept]
    yield Batch(
        at, last, found.seqs[kept], entries, entries["offset"].astype(np.int64), bytes(found.frames),
        topic_mask(piece.item.id),
    )  # fmt: skip


def _left_out(name: str, seqs: npt.NDArray[np.uint64], low: int, high: int, layout: Layout) -> Iterator[Rows]:
    """Seqs that were examined and not delivered were deleted; when they were written is not told."""
    if low > high:
        return
    dead = np.ones(high + 1 - low, np.bool_)
    dead[(seqs[(seqs >= low) & (seqs <= high)] - np.uint64(low)).astype(np.int64)] = False
    gone = np.flatnonzero(dead).astype(np.uint64) + np.uint64(low)
    if len(gone):
        yield arrow.deleted(name, gone, None, layout)


def _records(topic: str, batch: Batch, options: ReadOptions, layout: Layout) -> Iterator[Rows]:
    """Rows of a batch; without `verify` a frame may turn out to hold no record."""
    while len(batch.seqs):
        try:
            rows = arrow.records(topic, batch, layout.with_filters(options.tags, options.nodes))
        except BadRecord as error:
            yield Lost(error.seq, error.seq, arrow.REASONS[DAMAGE], str(error))
            kept = np.flatnonzero(batch.seqs != np.uint64(error.seq))
            batch = batch._replace(
                seqs=batch.seqs[kept], entries=batch.entries[kept], offsets=batch.offsets[kept]
            )  # fmt: skip
            continue
        yield arrow.filtered(rows, options.tags, options.nodes).select(list(layout.columns))
        return


def _missing(reading: Reading, item: TopicItem, gap: Gap) -> Iterator[Lost]:
    """What a gap means now: a hole as it is stored; files that vanished as the floors explain it, else as damage."""
    is_stored = gap.reason != DROPPED and not gap.detail
    if is_stored:
        yield Lost(gap.first, gap.last, arrow.REASONS[gap.reason])
        return
    floors = _floors_now(reading, item, gap)
    if floors is None:
        yield Lost(gap.first, gap.last, RECREATED, "the topic was deleted since the read was planned")
        return
    first = max(gap.first, floors.deleted_below)
    if first <= min(gap.last, floors.evict - 1):
        yield Lost(first, min(gap.last, floors.evict - 1), floors.reason(first), "given up since the read was planned")
    beyond = max(first, floors.evict)
    if beyond > gap.last:
        return
    # A segment goes when floors that cover it are durable [S-277]: no drop explains this one.
    reason, detail = (DAMAGE, "no segment holds these seqs") if gap.reason == DROPPED else (gap.reason, gap.detail)
    yield Lost(beyond, gap.last, arrow.REASONS[reason], detail)


def _floors_now(reading: Reading, item: TopicItem, gap: Gap) -> Floors | None:
    """The floors of an instance as they are now; None if it is gone."""
    if reading.options.url is not None:
        return reading.remote().floors(item)
    is_absent = gap.absent or gap.reason == DROPPED
    now = reading.item_without(item.id, gap.last) if is_absent else reading.item_now(item.id)
    return None if now is None else floors_of(now)


def _policed(topic: str, rows: Iterator[Rows], reading: Reading) -> Iterator[pa.RecordBatch]:
    """Batches alone: what is lost is told, passed over or raised."""
    policy, layout, held = reading.options.on_data_loss, reading.layout, None
    for one in rows:
        if isinstance(one, Lost):
            if policy == "fail":
                raise failure(topic, one, reading.source)
            if policy == "emit":
                if held is not None and held.last + 1 == one.first and held.reason == one.reason:
                    held = held._replace(last=one.last)
                    continue
                if held is not None:
                    yield arrow.gaps(topic, [held], layout)
                held = GapRow(one.first, one.last, one.reason)
            continue
        if held is not None and one.num_rows:
            yield arrow.gaps(topic, [held], layout)
            held = None
        yield one
    if held is not None:
        yield arrow.gaps(topic, [held], layout)


def failure(topic: str, lost: Lost, source: Source) -> SourceError:
    """What `onDataLoss=fail` says."""
    if lost.reason == RECREATED:
        what = f"{topic} was deleted, or made anew, since the read was planned"
        return SourceError(RECREATED, what, "read it anew, or with onDataLoss=emit or skip")
    one = lost.first == lost.last
    seqs = f"seq {lost.first}" if one else f"seqs {lost.first} to {lost.last}"
    detail = f": {lost.detail}" if lost.detail else ""
    if lost.reason == arrow.REASONS[DAMAGE]:
        where = source.data_dir or "the server's data directory"
        todo = f"run `topics doctor {where}`; onDataLoss=emit reads on and tells the gap"
        return SourceError("corrupt", f"{topic}: {seqs} cannot be read{detail}", todo)
    todo = "start behind them, or read with onDataLoss=emit (gap rows) or skip"
    return SourceError("data_loss", f"{topic}: {seqs} {'is' if one else 'are'} missing ({lost.reason}){detail}", todo)
