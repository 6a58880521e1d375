"""Which writes were there before: idempotency keys (01 §15, 00 A-3) and producers (00 A-4).

Both tables answer the same question for a write that names itself:

    Verdict.NEW     go on; `stage` it before anything can come in between
    a Pending       the same write is staged and undecided: wait for its outcome [IDM-3]
    an entry        it is published; the entry has its seqs [IDM-2]
    Verdict.OLDER   (producers) it is published or overtaken, and its seqs are no longer known

A staged write ends in `publish`, which remembers it, or in `fail`, which leaves no trace [IDM-4]; either calls those
who wait. Entries know whether they are `logged`: what an `ephemeral` topic was given is remembered while the process
lives and is in no snapshot, as its records are not [IDM-6].

For snapshots and recovery [S-219]: `rows(topic_id, ck)` is the table as of `ck`, `restore` takes such rows back,
`replay` applies one Dedupe frame, `drop_range` forgets what points into a gap of damage or crash. Replayed frames of
a topic come in seq order, behind the restored rows or among them: the higher seq wins, whatever the clock said.

The tables know no clock and no configuration: `now_ms` and windows are given. Owner thread only.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from enum import Enum

from msgspec import Struct

from topics.errors import LimitReached, ProducerGap
from topics.model import Producer

KeyRow = tuple[str, int, int, int]
"""`[key, first, n, ts]` of a snapshot's `idem`."""
ProducerRow = tuple[str, int, int, int, int, int]
"""`[id, epoch, index, first, n, ts]` of a snapshot's `prod`."""


class Verdict(Enum):
    """What is known without an entry."""

    NEW = "new"
    OLDER = "older"


class Entry(Struct, frozen=True, gc=False):
    """A published write."""

    first_seq: int
    count: int
    head_seq: int
    """Head after its publication; after a restart its own last seq [IDM-2]."""
    ts: int
    logged: bool

    @property
    def last_seq(self) -> int:
        """Seq of its last record."""
        return self.first_seq + self.count - 1

    def touches(self, first: int, last: int) -> bool:
        """Whether one of its seqs lies in `first..last`."""
        return self.first_seq <= last and self.last_seq >= first


class KeyEntry(Entry, frozen=True, gc=False):
    """A published write and its key."""

    key: str


class Pair(Entry, frozen=True, gc=False):
    """A published write of a producer."""

    epoch: int
    index: int


Outcome = Callable[[Entry | None], None]
"""Called with the entry of the published write, or with `None` when it failed: then ask again."""


class Pending:
    """A staged write that has a name, and those who wait for its outcome.

    Invariant: it is settled once; from then on it is in no table and nobody can begin to wait.
    """

    __slots__ = ("_waiting", "epoch", "index", "name", "settled", "topic_id")

    def __init__(self, topic_id: int, name: str, epoch: int = 0, index: int = 0) -> None:
        self.topic_id = topic_id
        self.name = name
        self.epoch = epoch
        self.index = index
        self.settled = False
        self._waiting: list[Outcome] = []

    def wait(self, outcome: Outcome) -> None:
        """Have `outcome` called, in order of waiting, when the write is published or has failed."""
        assert not self.settled, "the outcome is known"
        self._waiting.append(outcome)

    def settle(self, entry: Entry | None) -> None:
        """Tell the outcome; for the tables only."""
        assert not self.settled
        self.settled = True
        waiting, self._waiting = self._waiting, []
        for outcome in waiting:
            outcome(entry)


class _Keys:
    """Entries of one topic: by key, and in order of publication with replaced ones still in it."""

    __slots__ = ("entries", "order", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, KeyEntry] = {}
        self.order: deque[KeyEntry] = deque()
        self.pending: dict[str, Pending] = {}

    def trim(self) -> None:
        """Make the first of `order` the oldest entry there is."""
        order, entries = self.order, self.entries
        while order and entries.get(order[0].key) is not order[0]:
            order.popleft()


class IdempotencyKeys:
    """The keys of all topics, bounded for the whole server: the oldest leave first [A-3].

    Invariant: `len(self) <= max_entries` and `key_bytes <= max_bytes` after every call; staged writes do not count.
    """

    def __init__(self, max_entries: int = 1_000_000, max_bytes: int = 128 * 2**20) -> None:
        self.max_entries = max_entries
        self.max_bytes = max_bytes
        self.key_bytes = 0
        self.evicted = 0
        """Entries that left because the table was full, not because their window was over."""
        self._count = 0
        self._topics: dict[int, _Keys] = {}
        # One (ts, topic) per topic with entries, no later than its oldest; some are of topics that are gone.
        self._oldest: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return self._count

    def check(self, topic_id: int, key: str, now_ms: int, window_ms: int) -> KeyEntry | Pending | Verdict:
        """What is known about a write with this key; a window of 0 turns keys off, do not stage it then [S-219]."""
        topic = self._topics.get(topic_id)
        if topic is None or window_ms == 0:
            return Verdict.NEW
        pending = topic.pending.get(key)
        if pending is not None:
            return pending
        entry = topic.entries.get(key)
        if entry is None or now_ms - entry.ts > window_ms:
            return Verdict.NEW
        return entry

    def stage(self, topic_id: int, key: str) -> Pending:
        """Note a write that was new and is staged now; end it with `publish` or `fail`."""
        pendings = self._topic(topic_id).pending
        assert key not in pendings, "staged twice under one key"
        pending = pendings[key] = Pending(topic_id, key)
        return pending

    def publish(
        self, pending: Pending, *, first_seq: int, count: int, head_seq: int, ts: int, logged: bool = True
    ) -> None:
        """Remember the write and tell those who wait; nothing to do for a write of a topic that was removed."""
        if pending.settled:
            return
        topic = self._topics[pending.topic_id]
        del topic.pending[pending.name]
        entry = KeyEntry(first_seq, count, head_seq, ts, logged, pending.name)
        self._put(pending.topic_id, topic, entry)
        self._evict()
        pending.settle(entry)

    def fail(self, pending: Pending) -> None:
        """Forget a write that came to nothing; those who wait ask again."""
        if pending.settled:
            return
        topic = self._topics[pending.topic_id]
        del topic.pending[pending.name]
        self._forget_if_empty(pending.topic_id, topic)
        pending.settle(None)

    def expire(self, topic_id: int, now_ms: int, window_ms: int) -> int:
        """Remove a topic's entries whose window is over; returns how many."""
        topic = self._topics.get(topic_id)
        if topic is None:
            return 0
        removed = 0
        topic.trim()
        while topic.order and now_ms - topic.order[0].ts > window_ms:
            self._drop(topic, topic.order.popleft())
            removed += 1
            topic.trim()
        self._forget_if_empty(topic_id, topic)
        return removed

    def topic_ids(self) -> list[int]:
        """Topics that have entries or staged keys, for a sweep with `expire`."""
        return list(self._topics)

    def remove(self, topic_id: int) -> None:
        """Forget everything about a deleted topic [NAME-9]; who waits for a staged write of it asks again."""
        topic = self._topics.pop(topic_id, None)
        if topic is None:
            return
        self._count -= len(topic.entries)
        self.key_bytes -= sum(map(_key_bytes, topic.entries))
        self._compact()
        for pending in list(topic.pending.values()):
            pending.settle(None)

    def rows(self, topic_id: int, ck: int) -> list[KeyRow]:
        """The logged entries of submissions with a last seq up to `ck`, oldest first [S-219]."""
        return [(e.key, e.first_seq, e.count, e.ts) for e in self._live(topic_id) if e.logged and e.last_seq <= ck]

    def restore(self, topic_id: int, rows: Iterable[KeyRow]) -> None:
        """Take the rows of a snapshot back."""
        for key, first, count, ts in sorted(rows, key=lambda row: row[1]):
            self.replay(topic_id, key, first, count, ts)

    def replay(self, topic_id: int, key: str, first_seq: int, count: int, ts: int) -> None:
        """Apply a Dedupe frame; one that is not above the newest entry is known, or was forgotten on purpose."""
        topic = self._topics.get(topic_id)
        if topic is not None and topic.order and topic.order[-1].first_seq >= first_seq:
            return
        entry = KeyEntry(first_seq, count, first_seq + count - 1, ts, True, key)
        self._put(topic_id, self._topic(topic_id), entry)
        self._evict()

    def drop_range(self, topic_id: int, first: int, last: int) -> int:
        """Forget entries with a seq in a gap of damage or crash (reason 2 or 3) [S-219]; returns how many."""
        gone = [entry for entry in self._live(topic_id) if entry.touches(first, last)]
        if gone:
            topic = self._topics[topic_id]
            for entry in gone:
                self._drop(topic, entry)
            topic.order = deque(self._live(topic_id))
            self._forget_if_empty(topic_id, topic)
        return len(gone)

    def _live(self, topic_id: int) -> Iterator[KeyEntry]:
        topic = self._topics.get(topic_id)
        if topic is None:
            return iter(())
        entries = topic.entries
        return (entry for entry in topic.order if entries.get(entry.key) is entry)

    def _topic(self, topic_id: int) -> _Keys:
        topic = self._topics.get(topic_id)
        if topic is None:
            topic = self._topics[topic_id] = _Keys()
        return topic

    def _put(self, topic_id: int, topic: _Keys, entry: KeyEntry) -> None:
        order = topic.order
        assert not order or order[-1].first_seq < entry.first_seq, "published out of order"
        if entry.key not in topic.entries:
            self._count += 1
            self.key_bytes += _key_bytes(entry.key)
        topic.entries[entry.key] = entry
        order.append(entry)
        if len(order) == 1:
            heapq.heappush(self._oldest, (entry.ts, topic_id))
            self._compact()

    def _drop(self, topic: _Keys, entry: KeyEntry) -> None:
        del topic.entries[entry.key]
        self._count -= 1
        self.key_bytes -= _key_bytes(entry.key)

    def _evict(self) -> None:
        while self._count > self.max_entries or self.key_bytes > self.max_bytes:
            ts, topic_id = self._oldest[0]
            topic = self._topics.get(topic_id)
            if topic is not None:
                topic.trim()
            if topic is None or not topic.order:
                heapq.heappop(self._oldest)
            elif topic.order[0].ts > ts:
                heapq.heapreplace(self._oldest, (topic.order[0].ts, topic_id))
            else:
                self._drop(topic, topic.order.popleft())
                self.evicted += 1
                self._forget_if_empty(topic_id, topic)

    def _forget_if_empty(self, topic_id: int, topic: _Keys) -> None:
        if not topic.entries and not topic.pending:
            del self._topics[topic_id]

    def _compact(self) -> None:
        # Topics that come and go, or empty and fill again, leave theirs behind: no more of them than there are topics.
        if len(self._oldest) > 2 * len(self._topics) + 64:
            self._oldest = [(topic.order[0].ts, id) for id, topic in self._topics.items() if topic.order]
            heapq.heapify(self._oldest)


def _key_bytes(key: str) -> int:
    return len(key) if key.isascii() else len(key.encode())


class _Kept:
    """One producer of one topic: what it published, as far as needed, and what it has staged, both in order."""

    __slots__ = ("published", "staged", "used_ms")

    def __init__(self, used_ms: int) -> None:
        self.published: deque[Pair] = deque()
        self.staged: list[Pending] = []
        self.used_ms = used_ms

    def newest(self) -> Pending | Pair:
        """The kept pair: the highest staged one, else the published one [A-4]."""
        return self.staged[-1] if self.staged else self.published[-1]


class Producers:
    """The newest writes of all producers of all topics [A-4]; topic 0 holds the committed versions of A-19.

    Kept per producer: the newest published pair, every logged pair above the topic's checkpoint and the newest one
    below, so that `rows` can tell the table as of that checkpoint, and a pair that is lost with its records leaves
    the one before [S-219].
    """

    def __init__(self, max_producers: int = 100_000, ttl_ms: int = 90 * 86_400_000) -> None:
        self.max_producers = max_producers
        """0 = unlimited."""
        self.ttl_ms = ttl_ms
        self._topics: dict[int, dict[str, _Kept]] = {}
        # The same, longest unused first. Restored ones are put in their place by the next sweep.
        self._used: OrderedDict[tuple[int, str], _Kept] = OrderedDict()
        self._unsorted = False

    def __len__(self) -> int:
        return len(self._used)

    def check(self, topic_id: int, producer: Producer, now_ms: int) -> Pair | Pending | Verdict:
        """What is known about this write; `ProducerGap` if it skips an index, `LimitReached` for one too many."""
        kept = self._find(topic_id, producer.id, now_ms)
        if kept is None:
            self._admit(now_ms)
            return Verdict.NEW
        kept.used_ms = max(kept.used_ms, now_ms)
        self._used.move_to_end((topic_id, producer.id))
        epoch, index = producer.epoch, producer.index
        newest = kept.newest()
        if (epoch, index) > (newest.epoch, newest.index):
            if epoch == newest.epoch and index > newest.index + 1:
                raise ProducerGap(newest.epoch, newest.index)
            return Verdict.NEW
        for pending in kept.staged:
            if (pending.epoch, pending.index) == (epoch, index):
                return pending
        if isinstance(newest, Pair) and (newest.epoch, newest.index) == (epoch, index):
            return newest
        return Verdict.OLDER

    def stage(self, topic_id: int, producer: Producer, now_ms: int) -> Pending:
        """Raise the kept pair to that of a write that was new and is staged now; end it with `publish` or `fail`."""
        kept = self._find(topic_id, producer.id, now_ms)
        if kept is None:
            self._admit(now_ms)
            kept = self._add(topic_id, producer.id, now_ms)
        pending = Pending(topic_id, producer.id, producer.epoch, producer.index)
        if kept.staged or kept.published:
            newest = kept.newest()
            assert (newest.epoch, newest.index) < (pending.epoch, pending.index), "staged below the kept pair"
        kept.staged.append(pending)
        return pending

    def publish(
        self, pending: Pending, *, first_seq: int, count: int, head_seq: int, ts: int, logged: bool = True
    ) -> None:
        """Make a staged pair the published one and tell those who wait."""
        if pending.settled:
            return
        kept = self._topics[pending.topic_id][pending.name]
        kept.staged.remove(pending)
        pair = Pair(first_seq, count, head_seq, ts, logged, pending.epoch, pending.index)
        _add_pair(kept.published, pair)
        pending.settle(pair)

    def fail(self, pending: Pending) -> None:
        """Leave the kept pair as it was before; those who wait ask again."""
        if pending.settled:
            return
        kept = self._topics[pending.topic_id][pending.name]
        kept.staged.remove(pending)
        if not kept.staged and not kept.published:
            self._drop(pending.topic_id, pending.name)
        pending.settle(None)

    def newest(self, topic_id: int, id: str) -> Pair | None:
        """The published pair of a producer; under topic 0 the committed version of a writer [A-19]."""
        kept = self._topics.get(topic_id, {}).get(id)
        return kept.published[-1] if kept is not None and kept.published else None

    def topics_of(self, ids: Collection[str]) -> Iterator[tuple[int, str, Pair]]:
        """The published pairs of some producers that are kept, topic by topic; topic 0 is not among them."""
        for topic_id, producers in self._topics.items():
            for id, kept in producers.items() if topic_id else ():
                if id in ids:
                    yield from ((topic_id, id, pair) for pair in kept.published)

    def writers(self) -> Iterator[tuple[str, Pair]]:
        """The committed versions of all writers [A-19]."""
        for id, kept in self._topics.get(0, {}).items():
            if kept.published:
                yield id, kept.published[-1]

    def checkpointed(self, topic_id: int, ck: int) -> None:
        """Let go of pairs that no snapshot from this checkpoint on can ask for [S-219]."""
        for kept in self._topics.get(topic_id, {}).values():
            published = kept.published
            while len(published) > 1 and published[1].logged and published[1].last_seq <= ck:
                published.popleft()

    def sweep(self, now_ms: int) -> int:
        """Forget producers unused for longer than the TTL; returns how many. The last step of a recovery."""
        if self._unsorted:
            self._used = OrderedDict(sorted(self._used.items(), key=lambda item: item[1].used_ms))
            self._unsorted = False
        gone: list[tuple[int, str]] = []
        for at, kept in self._used.items():
            if self._is_forgotten(kept, now_ms):
                gone.append(at)
            elif not kept.staged:
                break  # one that is staged keeps nobody behind it
        for topic_id, id in gone:
            self._drop(topic_id, id)
        return len(gone)

    def remove(self, topic_id: int) -> None:
        """Forget the producers of a deleted topic; who waits for a staged write of it asks again."""
        producers = self._topics.pop(topic_id, {})
        for id in producers:
            del self._used[topic_id, id]
        for kept in producers.values():
            for pending in kept.staged:
                pending.settle(None)

    def rows(self, topic_id: int, ck: int) -> list[ProducerRow]:
        """For each producer the newest logged pair of a submission with a last seq up to `ck` [S-219]."""
        rows = []
        for id, kept in self._topics.get(topic_id, {}).items():
            for pair in reversed(kept.published):
                if pair.logged and pair.last_seq <= ck:
                    rows.append((id, pair.epoch, pair.index, pair.first_seq, pair.count, pair.ts))
                    break
        return rows

    def restore(self, topic_id: int, rows: Iterable[ProducerRow]) -> None:
        """Take the rows of a snapshot back; the bound applies to new producers only."""
        for id, epoch, index, first, count, ts in rows:
            self.replay(topic_id, Producer(id, epoch, index), first, count, ts)

    def replay(self, topic_id: int, producer: Producer, first_seq: int, count: int, ts: int) -> None:
        """Apply a Dedupe frame, or an `attach` mark; one that is not above the newest pair is known already."""
        kept = self._topics.get(topic_id, {}).get(producer.id) or self._add(topic_id, producer.id, ts)
        pair = Pair(first_seq, count, first_seq + count - 1, ts, True, producer.epoch, producer.index)
        # Seqs come first: a producer that was forgotten may have begun again with a lower epoch. Topic 0 has none.
        if kept.published and _place(pair) <= _place(kept.published[-1]):
            return
        kept.used_ms = max(kept.used_ms, ts)
        _add_pair(kept.published, pair)
        self._unsorted = True

    def drop_range(self, topic_id: int, first: int, last: int) -> int:
        """Forget pairs with a seq in a gap of damage or crash (reason 2 or 3) [S-219]; returns how many."""
        dropped = 0
        for id, kept in list(self._topics.get(topic_id, {}).items()):
            left = deque(pair for pair in kept.published if not pair.touches(first, last))
            dropped += len(kept.published) - len(left)
            kept.published = left
            if not left and not kept.staged:
                self._drop(topic_id, id)
        return dropped

    def _find(self, topic_id: int, id: str, now_ms: int) -> _Kept | None:
        kept = self._topics.get(topic_id, {}).get(id)
        if kept is not None and self._is_forgotten(kept, now_ms):
            self._drop(topic_id, id)
            return None
        return kept

    def _is_forgotten(self, kept: _Kept, now_ms: int) -> bool:
        return not kept.staged and now_ms - kept.used_ms > self.ttl_ms

    def check_room(self, topic_ids: Iterable[int | None], id: str, now_ms: int) -> None:
        """`LimitReached` unless a producer may write to all of these topics; None is one that does not exist yet."""
        new = sum(one is None or self._find(one, id, now_ms) is None for one in topic_ids)
        if new:
            self._admit(now_ms, new)

    def _admit(self, now_ms: int, count: int = 1) -> None:
        if self.max_producers and len(self._used) + count > self.max_producers:
            self.sweep(now_ms)
            if len(self._used) + count > self.max_producers:
                raise LimitReached("max_producers", self.max_producers)

    def _add(self, topic_id: int, id: str, now_ms: int) -> _Kept:
        kept = self._used[topic_id, id] = _Kept(now_ms)
        self._topics.setdefault(topic_id, {})[id] = kept
        return kept

    def _drop(self, topic_id: int, id: str) -> None:
        producers = self._topics[topic_id]
        del producers[id]
        if not producers:
            del self._topics[topic_id]
        del self._used[topic_id, id]


def _add_pair(published: deque[Pair], pair: Pair) -> None:
    # A pair that no snapshot will hold is needed only while it is the newest.
    if published and not published[-1].logged:
        published.pop()
    published.append(pair)


def _place(pair: Pair) -> tuple[int, int, int]:
    return pair.first_seq, pair.epoch, pair.index
