"""Histories of an engine on the simulated disk: write, stop in any way, start again, and look at what is there.

A `Store` is one data directory through its lives: the disk, the clock, the boot id, the engine on it, and what was
acknowledged (the model). Stops differ in what they leave:

    stop     clean close
    kill     the process dies: same boot, the page cache alive
    crash    the machine dies: another boot, the disk keeps what a style and a seed choose

A `fork` is a store on an image of the same disk, with the model of that moment: the history itself goes on undisturbed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from topics import paths
from topics.codec import control, frame, segment, snapshot
from topics.codec.place import segment_mask
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.fs import Mode
from topics.model import Record
from topics.testing import FaultFs, ManualClock, MonitorFs, SimFs
from topics.testing.simfs import Call, SimFile, Style, SyncMode

DIR = "store"
PAD = "pad"
"""The topic that `Store.trim` writes to."""

TINY: dict[str, Any] = {
    "wal_file_bytes": 16384,
    "min_free_bytes": 0,
    "segment_max_events": 40,
    "snapshot_gap_ms": 0,
    "reserve_min": 64,
    "reserve_max": 64,
}

CRASHES: tuple[tuple[Style, int], ...] = (
    ("nothing", 1),
    ("everything", 1),
    ("prefix", 1),
    ("prefix", 2),
    *(("random", seed) for seed in range(1, 7)),
)
"""The machine crashes that a history is put through: every style, several seeds."""

GapRange = tuple[int, int, str]


class Written(NamedTuple):
    """A record as it was acknowledged."""

    data: str
    tag: str | None = None


class Seen(NamedTuple):
    """All that a reader from 0 is given."""

    records: dict[int, Record]
    gaps: list[GapRange]
    head: int

    @property
    def seqs(self) -> list[int]:
        return list(self.records)

    def told(self) -> set[int]:
        """The seqs inside tombstones."""
        return {seq for first, last, _ in self.gaps for seq in range(first, last + 1)}


def read_all(engine: Engine, topic: str, from_seq: int = 0, limit: int = 100) -> Seen:
    """Follow `next_from_seq` until caught up [CUR-4, CUR-5, TMB-1]."""
    records: dict[int, Record] = {}
    gaps: list[GapRange] = []
    cursor = from_seq
    while True:
        result = engine.read(topic, cursor, limit=limit)
        assert len(result.records) <= limit
        if result.tombstone is not None:
            gap = result.tombstone
            assert cursor < gap.gap_from <= gap.gap_to, f"tombstone {gap} for a reader at {cursor}"
            gaps.append((gap.gap_from, gap.gap_to, gap.reason))
            cursor = gap.gap_to
        for record in result.records:
            assert record.seq > cursor, f"seq {record.seq} for a reader at {cursor}"
            cursor = record.seq
            records[record.seq] = record
        assert result.next_from_seq >= cursor
        assert result.caught_up or result.records or result.tombstone or result.next_from_seq > cursor, "no progress"
        cursor = result.next_from_seq
        if result.caught_up:
            return Seen(records, gaps, result.head_seq)


def look(engine: Engine, topic: str) -> Seen:
    """What a reader gets; the topic's state must say the same [STA-1, INV-7].

    Damage that only a read can find is not in the counts [S-157, S-176].
    """
    seen = read_all(engine, topic)
    state = engine.state(topic, touch=False)
    assert state.head_seq == seen.head
    if any(reason == "corrupt" for _, _, reason in seen.gaps):
        assert state.count >= len(seen.records)
        assert state.earliest_seq <= min(seen.records, default=seen.head + 1)
    else:
        assert state.count == len(seen.records)
        assert state.earliest_seq == min(seen.records, default=seen.head + 1)
    return seen


class EngineMonitor(MonitorFs):
    """The order monitor; sidecars and descriptors may be renamed unsynced: nothing trusts them [S-13, S-187]."""

    def rename(self, old: str, new: str) -> None:
        if old.endswith((".tag.tmp", paths.tmp(paths.TOPIC_FILE))):
            watched = self._watch(old)
            watched.dirty.discard(0, 1 << 62)
            watched.resized = False
        super().rename(old, new)


class Store:
    """One data directory through its lives, with the model of what was acknowledged."""

    def __init__(
        self, sim: SimFs | None = None, *, clock: ManualClock | None = None, boot: int = 0, **config: Any
    ) -> None:
        self.clock = ManualClock() if clock is None else clock
        self.boot = boot
        self.config: dict[str, Any] = {**TINY, **config}
        self.written: dict[str, dict[int, Written]] = {}
        self.deleted: dict[str, set[int]] = {}
        self.unsure: dict[str, set[str]] = {}
        self.number = 0
        self.label = "the run itself"
        self._engine: Engine | None = None
        self._mount(SimFs(7) if sim is None else sim)

    def _mount(self, sim: SimFs, *, trust: bool = True) -> None:
        self.sim = sim
        self.faults = FaultFs(sim)
        self.fs = EngineMonitor(self.faults, trust_existing=trust)

    @property
    def engine(self) -> Engine:
        assert self._engine is not None, "the engine is not running"
        return self._engine

    @property
    def running(self) -> bool:
        return self._engine is not None

    def start(self, **config: Any) -> Store:
        """Open the engine; settings given here stay in force for later starts."""
        self.config.update(config)
        self._engine = Engine.open(
            DIR, EngineConfig(**self.config), clock=self.clock, fs=self.fs, boot_id=f"boot-{self.boot}"
        )
        return self

    def stop(self) -> Store:
        """A clean stop."""
        self.engine.close()
        self._engine = None
        assert self.fs.violations == []
        self._mount(self.sim)
        return self

    def kill(self) -> Store:
        """The process dies here."""
        assert self.fs.violations == []
        self._engine = None
        self._mount(self.sim.kill_image(), trust=False)
        return self

    def crash(self, style: Style = "nothing", seed: int = 1) -> Store:
        """The machine dies here."""
        assert self.fs.violations == []
        self._engine = None
        self._mount(self.sim.crash_image(seed, style))
        self.boot += 1
        return self

    def end(self, how: str) -> Store:
        """Stop in the named way: stop, kill or crash."""
        ways: dict[str, Callable[[], Store]] = {"stop": self.stop, "kill": self.kill, "crash": self.crash}
        return ways[how]()

    def fork(self, sim: SimFs, label: str, *, boot: int | None = None) -> Store:
        """A store on another disk, knowing what this one knows."""
        twin = Store(
            sim, clock=ManualClock(self.clock.now_ms()), boot=self.boot if boot is None else boot, **self.config
        )
        twin.written = {topic: dict(records) for topic, records in self.written.items()}
        twin.deleted = {topic: set(seqs) for topic, seqs in self.deleted.items()}
        twin.unsure = {topic: set(texts) for topic, texts in self.unsure.items()}
        twin.number = self.number
        twin.label = label
        return twin

    def killed(self) -> Store:
        """A fork at which the process died."""
        return self.fork(self.sim.kill_image(), "kill")

    def crashed(self, style: Style = "nothing", seed: int = 1) -> Store:
        """A fork at which the machine died."""
        return self.fork(self.sim.crash_image(seed, style), f"crash {style} {seed}", boot=self.boot + 1)

    def crashes(self) -> Iterator[Store]:
        """A fork for every machine crash."""
        for style, seed in CRASHES:
            yield self.crashed(style, seed)

    def ends(self) -> Iterator[Store]:
        """A fork for a kill and for every machine crash."""
        yield self.killed()
        yield from self.crashes()

    def tick(self, ms: int = 0, step_ms: int = 1000) -> None:
        """Let time pass in steps, and do what is due after each."""
        while ms > 0:
            self.clock.advance(min(step_ms, ms))
            ms -= step_ms
            self.engine.tick()
        self.engine.tick()

    def sync(self) -> None:
        """Let the background sync of every shard run [S-76]; checkpoints are not due."""
        self.clock.advance(1000)
        self.engine.tick()

    def rest(self) -> None:
        """Do nothing for so long that every reservation is given back, synced [A-2]."""
        self.tick(15_000)

    def put(self, topic: str, durability: str = "fsync", **config: Any) -> None:
        """Create a topic, or change its configuration."""
        self.engine.put_topic(topic, {"durability": durability, **config})
        self.written.setdefault(topic, {})
        self.deleted.setdefault(topic, set())

    def text(self, topic: str, size: int = 0) -> str:
        """A payload that no other record has."""
        self.number += 1
        return f"{topic}/{self.number}".ljust(size, ".")

    def write(
        self, topic: str, count: int = 1, *, batch: int = 1, size: int = 0, tag: str | None = None, **options: Any
    ) -> list[int]:
        """Append records, `batch` in a write, and remember what was acknowledged; their seqs.

        A write in flight, or one that failed, is indeterminate: it may appear once [R-6, S-81].
        """
        seqs: list[int] = []
        while len(seqs) < count:
            records = [Written(self.text(topic, size), tag) for _ in range(min(batch, count - len(seqs)))]
            texts = {one.data for one in records}
            self.unsure.setdefault(topic, set()).update(texts)
            result = self.engine.append(topic, [{"data": one.data, "tag": one.tag} for one in records], **options)
            self.unsure[topic] -= texts
            assert result.seqs is not None
            assert not result.deduped
            assert len(result.seqs) == len(records)
            mine = self.written.setdefault(topic, {})
            for seq, record in zip(result.seqs, records, strict=True):
                assert seq not in mine, f"seq {seq} of {topic} was given to {mine[seq]} and to {record}"
                mine[seq] = record
            seqs += result.seqs
        return seqs

    def delete(self, topic: str, seqs: Sequence[int]) -> None:
        """Delete records by their seqs, all of them live."""
        result = self.engine.delete(topic, seqs=list(seqs))
        self.deleted.setdefault(topic, set()).update(seqs)
        assert result.deleted == len(seqs)

    def delete_tag(self, topic: str, tag: str) -> None:
        """Delete by tag."""
        gone = self.deleted.setdefault(topic, set())
        targets = {seq for seq, one in self.written[topic].items() if one.tag == tag} - gone
        result = self.engine.delete(topic, match=["tag", "Eq", tag])
        gone |= targets
        assert result.deleted == len(targets)

    def live(self, topic: str) -> dict[int, Written]:
        """The acknowledged records that nobody deleted."""
        gone = self.deleted.get(topic, set())
        return {seq: one for seq, one in self.written[topic].items() if seq not in gone}

    def look(self, topic: str) -> Seen:
        return look(self.engine, topic)

    def latch(self, path: str = "wal-", mode: SyncMode = "clean") -> None:
        """Let the next sync of a WAL file fail: the shard stays read-only for the rest of the run [S-78]."""
        struck: list[str] = []

        def fail(op: str, where: str) -> SyncMode | None:
            if struck or op == "sync_dir" or path not in where or not where.endswith(".log"):
                return None
            struck.append(where)
            return mode

        self.sim.sync_mode = fail

    def trim(self, *topics: str) -> None:
        """Bring everything into segments and have the WAL trimmed: of what is there now only marks are left.

        With several shards name topics on all of them: a log nobody writes to keeps its file.
        """
        before = self.wal_files()
        if PAD not in self.written:
            self.put(PAD)
        for _ in range(3):
            for topic in (PAD, *topics):
                self.write(topic)
            self.engine.checkpoint(full=True)
        left = {path for path in before & self.wal_files() if self._holds_more_than_marks(path)}
        assert not left, f"the WAL was not trimmed: {sorted(left)}"

    def _holds_more_than_marks(self, path: str) -> bool:
        return bool((frame.scan_frames(self.sim.files()[path]).rows["type"] != control.MARK).any())

    def wal_files(self) -> set[str]:
        """The WAL files with content."""
        found = {path: data for path, data in self.sim.files().items() if path.startswith(f"{DIR}/{paths.WAL_DIR}/")}
        return {path for path, data in found.items() if path.endswith(".log") and data.strip(b"\0")}

    def snapshots(self) -> list[snapshot.Snapshot]:
        """The snapshots on disk, oldest first."""
        files = self.sim.files()
        meta = f"{DIR}/{paths.META_DIR}/"
        return [snapshot.decode(files[path]) for path in sorted(files) if path.startswith(meta + "snapshot-")]

    def topic_id(self, topic: str) -> int:
        """The id under which the newest snapshot has a topic."""
        return next(item.id for item in self.snapshots()[-1].topics if item.name == topic)

    def segments(self, topic: str, topic_id: int | None = None) -> list[SegmentFiles]:
        """The segments of a topic as they lie on disk, ascending."""
        id = self.topic_id(topic) if topic_id is None else topic_id
        folder = f"{DIR}/{paths.TOPICS_DIR}/{paths.topic_dir(id)}/"
        files = {path.removeprefix(folder): data for path, data in self.sim.files().items() if path.startswith(folder)}
        found = []
        for name, idx in sorted(files.items()):
            parsed = paths.parse_segment(name)
            if parsed is not None and parsed.kind == "idx":
                footer = segment.read_footer(idx, segment_mask(id, parsed.first_seq))
                found.append(SegmentFiles(folder, parsed.first_seq, footer, len(idx) // segment.ENTRY_BYTES))
        return found


class SegmentFiles(NamedTuple):
    """One segment on disk."""

    folder: str
    first: int
    footer: segment.Footer | None
    rows: int
    """20-byte rows of the `.idx`, the footer included."""

    @property
    def n(self) -> int:
        return self.rows if self.footer is None else self.footer.n

    @property
    def last(self) -> int:
        return self.first + self.n - 1

    def path(self, kind: paths.SegmentKind) -> str:
        generation = self.footer.generation if self.footer is not None and kind == "data" else 0
        return self.folder + paths.segment(self.first, kind, generation)


def is_right(store: Store, topic: str, seen: Seen) -> None:
    """What is shown was acknowledged, byte for byte, and is not deleted; tombstones and records do not overlap.

    A write without an answer may be there too, once, at a seq nobody else has.
    """
    live = store.live(topic)
    unsure = set(store.unsure.get(topic, ()))
    for seq, record in seen.records.items():
        if seq not in store.written[topic] and record.data in unsure:
            unsure.remove(record.data)
            continue
        assert seq in live, f"{store.label}: {topic} shows seq {seq}, {record}"
        assert (record.data, record.tag) == live[seq], f"{store.label}: {topic} shows {record} for {live[seq]}"
    assert not seen.told() & set(seen.records)
    assert seen.head >= max(store.written[topic], default=0), f"{store.label}: the head of {topic} went back"


def is_whole(store: Store, topic: str) -> Seen:
    """Every acknowledged record is there, nothing is told as lost, and the head is the last one's."""
    seen = store.look(topic)
    is_right(store, topic, seen)
    assert seen.gaps == [], f"{store.label}: {topic} tells {seen.gaps}"
    missing = sorted(set(store.live(topic)) - set(seen.records))
    assert not missing, f"{store.label}: {topic} lost {missing}"
    last = max([*store.written[topic], *seen.records], default=0)
    assert seen.head == last, f"{store.label}: the head of {topic} jumped to {seen.head}"
    return seen


def is_sound(store: Store) -> None:
    """A mere crash is no damage, and nothing is counted as such [S-176, S-250]."""
    assert store.engine.metrics()["topics_segment_corrupt_total"] == 0, f"{store.label}: a crash was taken for damage"


def is_told(store: Store, topic: str, reason: str = "crash") -> Seen:
    """Every acknowledged record is there or inside a tombstone of that reason; the head covers it."""
    seen = store.look(topic)
    is_right(store, topic, seen)
    assert {gap[2] for gap in seen.gaps} <= {reason}, f"{store.label}: {topic} tells {seen.gaps}"
    silent = sorted(set(store.live(topic)) - set(seen.records) - seen.told())
    assert not silent, f"{store.label}: {topic} lost {silent} without a word"
    return seen


def is_prefix(store: Store, topic: str, durable: int) -> Seen:
    """A `disk` topic after a machine crash [DUR-4]: a prefix of what was acknowledged, at least up to seq `durable`,
    and what is missing behind it told as one run."""
    seen = is_told(store, topic)
    missing = [seq for seq in store.live(topic) if seq not in seen.records]
    assert missing == [] or min(missing) > durable, f"{store.label}: {topic} lost synced {missing}"
    if missing:
        assert [seq for seq in seen.records if seq > min(missing)] == [], f"{store.label}: {topic} is not a prefix"
    return seen


def same_after_restarts(store: Store, *topics: str) -> None:
    """Recovering again gives the same [S-249]: after a kill, a machine crash and a clean stop, in any order."""
    before = {topic: store.look(topic) for topic in topics}
    for how in ("kill", "crash", "kill", "stop", "crash"):
        store.end(how).start()
        for topic in topics:
            assert store.look(topic) == before[topic], f"{store.label}: {topic} differs after a {how}"


def start_again(store: Store) -> Store:
    """Start; a disk that reports an error one sync late may refuse once more, and nothing is lost by that [S-88]."""
    for _ in range(2):
        try:
            return store.start()
        except (OSError, TopicsError):
            store.kill()
    return store.start()


ALL_OF = 10**9 if os.environ.get("TOPICS_TEST_SWEEPS") == "full" else 20
"""How many calls of a sweep have all their images judged; `TOPICS_TEST_SWEEPS=full` has all of them."""


class Sweep:
    """Judges images of every disk call while it is on [R-10]: a killed one and some that crashed.

    Behind the first calls every other one of these, beginning with the first at one call, with the second at the next.
    """

    def __init__(
        self, store: Store, judge: Callable[[Store], None], crashes: int, chosen: Callable[[int, Call], bool]
    ) -> None:
        self.images = 0
        self.failure: Exception | None = None
        self._store = store
        self._judge = judge
        self._crashes = crashes
        self._chosen = chosen
        self._calls = self._crashed = 0

    def before(self, call: Call) -> None:
        number = self._store.sim.disk_calls
        if call[0] == "point" or self.failure is not None or not self._chosen(number, call):
            return
        self._calls += 1
        for fork in self._forks(number):
            fork.label = f"{fork.label} before disk call {number} {call}"
            self.images += 1
            try:
                self._judge(fork)
            except Exception as error:  # noqa: BLE001 - the engine must not be the one to catch it
                error.add_note(f"the image: {fork.label}")
                self.failure = error
                return

    def _forks(self, number: int) -> Iterator[Store]:
        every = range(self._crashes + 1)
        for k in every if self._calls <= ALL_OF or not self._crashes else every[self._calls % 2 :: 2]:
            if k == 0:
                yield self._store.killed()
            else:
                style, seed = CRASHES[self._crashed % len(CRASHES)]
                self._crashed += 1
                yield self._store.crashed(style, seed + 100 * number)


@contextmanager
def at_every_disk_call(
    store: Store,
    judge: Callable[[Store], None],
    crashes: int = 1,
    chosen: Callable[[int, Call], bool] = lambda number, call: True,
) -> Iterator[Sweep]:
    """Judge survivors of every disk call made inside that is `chosen`; the first failure is raised at the end."""
    sweep = Sweep(store, judge, crashes, chosen)
    store.sim.before = sweep.before
    try:
        yield sweep
    finally:
        store.sim.before = None
    if sweep.failure is not None:
        raise sweep.failure
    assert sweep.images, "no disk call was made"


class PointedFs(SimFs):
    """A simulated disk that can be held at a crash point [S-361] or where a file is opened for writing.

    `at` has the name of the point, or a part of the file's path, and what is called there: outside the disk's lock.
    """

    def __init__(self, seed: int = 0) -> None:
        super().__init__(seed)
        self.at: dict[str, Callable[[], None]] = {}

    def point(self, name: str) -> None:
        hook = self.at.get(name)
        if hook is not None:
            hook()
        super().point(name)

    def open(self, path: str, mode: Mode) -> SimFile:
        hook = next((hook for part, hook in list(self.at.items()) if part in path), None)  # others may add to it
        if hook is not None and mode != "r":
            hook()
        return super().open(path, mode)


def appended_seqs(sim: SimFs) -> dict[int, list[int]]:
    """The seqs of the Append frames of every topic in log order, over files in ascending number (one shard)."""
    found: dict[int, list[int]] = {}
    for path, data in sorted(sim.files().items()):
        if path.startswith(f"{DIR}/{paths.WAL_DIR}/wal-"):
            rows = frame.scan_frames(data).rows
            appends = rows[rows["type"] == frame.APPEND]
            for id, seq in zip(appends["topic_id"].tolist(), appends["seq"].tolist(), strict=True):
                found.setdefault(id, []).append(seq)
    return found
