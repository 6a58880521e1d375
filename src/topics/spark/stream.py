"""A stream of topics, batch after batch [K-20, K-21]; Spark's own class around it is in `streaming`.

    initial      where a new stream begins, decided once
    latest       the next offset: nothing new, all there is, or as much as a trigger may take
    partitions   what the batch that ends at an offset reads; no more is asked of the past than this offset
    heads        how far topics reach, for the progress report [K-22]

What happened since the last batch:

    more records        the batch grows up to what no crash takes back
    a new topic         joins with its first record, from 0
    retention came      seqs between the offset and what is left are data loss, told in `partitions`
    made anew           `fail` stops; otherwise on from 0 of the new instance, `emit` with a row that says so; a topic
                        of another store, or of one restored from a backup, is a new instance, too
    a topic is gone     its entry stays as it was

One thread per object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from topics.clock import Clock
from topics.codec.snapshot import TopicItem
from topics.fs import Fs
from topics.spark import offsets
from topics.spark.arrow import GapRow
from topics.spark.directory import check_named
from topics.spark.failure import SourceError
from topics.spark.offsets import Behind, Entry, Offset
from topics.spark.options import LATEST, StreamOptions
from topics.spark.origin import EPHEMERAL, Head, check_reach, origin_of
from topics.spark.plan import RECREATED, Lost, Partition, Source, TopicPlan, partitions
from topics.spark.reader import failure

NS_PER_MS: Final = 1_000_000


class Stream:
    """One stream. `limit` below is a number of records; None: everything, whatever the options say."""

    def __init__(self, fs: Fs, options: StreamOptions, clock: Clock) -> None:
        self._options = options
        self._read = options.read
        self._clock = clock
        self._origin = origin_of(fs, options.read, clock)
        self._initial: Offset | None = None
        self._fixed: dict[str, Head] | None = None
        """Heads of a run that ends with what was there when it began."""
        self._seen: dict[str, Head] | None = None
        self._held: Offset | None = None
        """The batch whose files are held."""
        self._waiting_ns: int | None = None
        """Since when there is something, but less than wanted."""

    def initial(self) -> Offset:
        """Where a new stream begins; the same for every call."""
        if self._initial is None:
            heads = self._look()
            check_named(self._read, heads)
            begins = {name: self._begin(name, head) for name, head in heads.items()}
            self._initial = {name: Entry(heads[name].epoch, at, at, heads[name].store) for name, at in begins.items()}
        return self._initial

    def _begin(self, name: str, head: Head) -> int:
        asked = self._options.starts.of(name)
        if asked == LATEST:
            return head.readable
        if asked is None or self._read.start_ts.of(name) is not None:
            return max(self._origin.first(name), asked or 0) - 1
        return max(asked - 1, 0)

    def _is_start(self, name: str, entry: Entry) -> bool:
        """Whether it stands where the options let it begin: then nothing was read, and it may be beyond the head."""
        asked = self._options.starts.of(name)
        return entry.is_empty and isinstance(asked, int) and entry.seq == asked - 1

    def fix(self) -> None:
        """From now on nothing is new: this run ends at what there is [K-21]."""
        self._fixed = self._look()

    def heads(self) -> Offset:
        """How far the topics reach that were looked at last."""
        heads = self._seen if self._seen is not None else self._look()
        return {name: Entry(head.epoch, head.readable, head.readable, head.store) for name, head in heads.items()}

    def _look(self) -> dict[str, Head]:
        heads = self._origin.look()
        for name, head in list(heads.items()):
            if head.durability == EPHEMERAL:
                if self._read.pattern is None:
                    what = f"{name} is ephemeral: no batch of it could be read again"
                    raise SourceError("invalid_option", what, "give it another durability, or leave it out")
                del heads[name]
        self._seen = heads
        return heads

    def latest(self, start: Offset, limit: int | None) -> Offset:
        """The end of the batch that begins where `start` ends; `start` itself if there is none.

        Whatever was held is over: Spark asks for a batch when the one before is done; of the last one it says no more.
        """
        self._let_go()
        heads = self._look() if self._fixed is None else self._fixed
        bases = {name: self._base(name, start.get(name), heads.get(name)) for name in sorted({*start, *heads})}
        begun = {name: base for name, base in bases.items() if base is not None}
        is_new = any(name not in start or not start[name].is_of(*_instance(base)) for name, base in begun.items())
        behind = [_behind(name, base, heads.get(name)) for name, base in begun.items()]
        if not is_new and all(one.until == begun[one.name].seq for one in behind):
            return start
        if limit is not None and self._is_too_little(sum(one.seqs for one in behind)):
            return start
        self._waiting_ns = None
        ends = self._ends(begun, behind, limit)
        return {name: base._replace(seq=ends[name]) for name, base in begun.items()}

    def _base(self, name: str, entry: Entry | None, head: Head | None) -> Entry | None:
        """Where a topic goes on; None: it has not begun."""
        if entry is None:
            assert head is not None
            return Entry(head.epoch, 0, 0, head.store) if head.readable else None
        if head is None:
            return entry.after()
        if entry.is_of(head.epoch, head.store):
            if self._fixed is None and not self._is_start(name, entry):
                check_reach(name, head.head, entry.seq)
            return entry.after()._replace(store=head.store)
        if self._read.on_data_loss == "fail":
            raise _changed(name, entry, head)
        return Entry(head.epoch, 0, 0, head.store)

    def _is_too_little(self, count: int) -> bool:
        """Whether to wait for more."""
        if self._fixed is not None or count >= self._options.min_records:
            return False
        now = self._clock.monotonic_ns()
        if self._waiting_ns is None:
            self._waiting_ns = now
        return now - self._waiting_ns < self._options.max_delay_ms * NS_PER_MS

    def _ends(self, begun: Mapping[str, Entry], behind: list[Behind], limit: int | None) -> dict[str, int]:
        ends = {one.name: one.until for one in behind}
        due = [one for one in behind if one.seqs]
        if limit is None or not due:
            return ends
        ends |= offsets.within_records(min(limit, self._options.max_records or limit), due)
        if self._options.max_bytes is not None:
            ranges = {one.name: begun[one.name]._replace(begin=one.at, seq=one.until) for one in due}
            _, plans = self._origin.plan(ranges)
            sizes = {one.name: plans[one.name].stretches if one.name in plans else [] for one in due}
            for name, end in offsets.within_bytes(self._options.max_bytes, due, sizes).items():
                ends[name] = min(ends[name], end)
        return ends

    def partitions(self, start: Offset, end: Offset) -> list[Partition]:
        """What the batch that ends at `end` reads."""
        if start == end:
            return []
        if self._held != end:
            self._let_go()
        self._held = end
        source, found = self._origin.plan({name: one for name, one in end.items() if not one.is_empty}, hold=True)
        plans = []
        for name in sorted(end):
            entry = end[name]
            if name in start and not start[name].is_of(*_instance(entry)):  # what is new is all of it [EPO-3]
                plans.append(_without_records(name, entry, GapRow(1, entry.seq, RECREATED)))
            if name in found:
                plans.append(found[name])
            elif not entry.is_empty:
                plans.append(_without_records(name, entry, GapRow(entry.begin + 1, entry.seq, RECREATED)))
        self._check(source, plans)
        return partitions(source, plans)

    def _check(self, source: Source, plans: list[TopicPlan]) -> None:
        """What is known to be lost stops the stream here, not in a task that would be tried again."""
        for plan in plans:
            if plan.lost is not None and self._read.on_data_loss == "fail":
                raise failure(plan.item.name, Lost(*plan.lost, "retention has passed the stream"), source)

    def done(self, end: Offset) -> None:
        """A batch is over; Spark may never say so of the last one [K-22]."""
        if self._held == end:
            self._let_go()

    def _let_go(self) -> None:
        if self._held is not None:
            self._held = None
            self._origin.release()

    def close(self) -> None:
        """Let go of everything; what is left held ends by itself."""
        self._origin.close()


def _instance(entry: Entry) -> tuple[int, str]:
    return entry.epoch, entry.store


def _changed(name: str, entry: Entry, head: Head) -> SourceError:
    """Why a stream cannot simply go on."""
    todo = "start with a new checkpoint, or go on with onDataLoss=emit or skip: from its first record"
    if entry.is_of(entry.epoch, head.store):
        what = f"{name} was deleted and made anew since the stream was at seq {entry.seq}"
        return SourceError(RECREATED, what, todo)
    what = f"the checkpoint is of store {entry.store}, and {name} is in {head.store}: restored, or another one"
    return SourceError("other_store", what, todo)


def _behind(name: str, base: Entry, head: Head | None) -> Behind:
    """What is to be read of a topic; seqs that floors have passed cost nothing."""
    if head is None:
        return Behind(name, base.seq, base.seq)
    until = max(head.readable, base.seq)
    return Behind(name, min(max(base.seq, head.floor - 1), until), until)


def _without_records(name: str, entry: Entry, lost: GapRow) -> TopicPlan:
    """A topic of which there is nothing but a row that tells why."""
    item = TopicItem(
        id=0, name=name, epoch=entry.epoch, cfg={}, config_version=0, base=1, head_seq=entry.seq, ckpt_seq=entry.seq,
        reserved=0, cap_floor=0, ttl_floor=0, delete_below=0, delete_number=0, deletes_recorded=0, last_write_ms=0,
        segments=(),
    )  # fmt: skip
    return TopicPlan(item, 1, 0, 0, 0, lost, [])
