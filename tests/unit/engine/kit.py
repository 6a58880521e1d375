"""Engines on a simulated disk and a clock moved by hand, the ways they can stop, and what a reader sees of a topic.

A rule about reading holds wherever the records lie. Such a test takes a `place`, writes, calls `settle`, and looks:

    tail       as written: the newest records are read from the log
    active     checkpointed into one growing segment
    sealed     checkpointed into many small segments
    reopened   closed and opened again
    killed     the process died; its page cache lived on
    trimmed    only segments and snapshots are left, then the process died
    crashed    the machine died and lost every byte that was not synced
    cold       checkpointed into many small segments, and those moved to the cold tier
    restored   the same, then the process died
    ram        an engine without a directory, where everything stays in memory

Topics made by `Store.put` are of class `fsync`, so that every place must show the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import pytest

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import CallerError
from topics.fs import File, Fs, Mode, OsFs
from topics.model import SYSTEM_TOPICS, AppendResult, Gap, ReadResult, Record, TopicState, new
from topics.testing import Fault, FaultFs, ManualClock, MonitorFs, SimFs
from topics.testing.simfs import Style, SyncMode

T = TypeVar("T")

PATH = "store"
TOPIC = "t"
COLD = "cold"
PLACES = ("tail", "active", "sealed", "reopened", "killed", "trimmed", "crashed", "cold", "restored", "ram")
STOPS = ("reopened", "killed", "crashed")
U64_MAX = 2**64 - 1
WAIT_S = 60.0
"""Bound of every wait for another thread: only a broken product reaches it."""

EVENTS = {"active": 10_000}
"""Records per segment, by place; elsewhere segments are tiny."""

at_every_place = pytest.mark.parametrize("place", PLACES)
after_every_stop = pytest.mark.parametrize("stop", STOPS)


class OrderMonitor(MonitorFs):
    """The order monitor, but what is derived or advisory may be renamed unsynced [S-13, S-187]."""

    def rename(self, old: str, new: str) -> None:
        if old.endswith((".tag.tmp", "topic.json.tmp")):
            watched = self._watch(old)
            watched.dirty.discard(0, 1 << 62)
            watched.lost.discard(0, 1 << 62)
            watched.resized = False
        super().rename(old, new)


class Store:
    """A data directory on a simulated disk, the engine that has it open, and the clock of both."""

    def __init__(self, place: str = "tail", *, sim: SimFs | None = None, opened: bool = True, **options: Any) -> None:
        self.place = place
        self.options: dict[str, Any] = {
            "wal_file_bytes": 65536,
            "wal_init_zero": False,
            "segment_max_events": EVENTS.get(place, 3),
            "reserve_min": 16,
            **({"cold_dir": COLD, "hot_retain_segments": 0} if place in ("cold", "restored") else {}),
            **options,
        }
        self.clock = ManualClock()
        self.boot = 0
        self._monitor: OrderMonitor | None = None
        self._use(SimFs(7) if sim is None else sim, trust=True)
        if opened:
            self.open()

    def _use(self, sim: SimFs, *, trust: bool) -> None:
        self.check_order()
        self.sim = sim
        self.faults = FaultFs(sim)
        self.fs = self._monitor = OrderMonitor(self.faults, trust_existing=trust)

    def check_order(self) -> None:
        """The engine did nothing before what it had to wait for, also where an exception was swallowed."""
        assert self._monitor is None or self._monitor.violations == []

    @property
    def path(self) -> str | None:
        return None if self.place == "ram" else PATH

    def open(self, **more: Any) -> Engine:
        """Open the engine on the disk as it is."""
        options = {name: more.pop(name, value) for name, value in self.options.items()}
        known = {name: more.pop(name) for name in list(more) if name not in ("assume_crash", "meter")}
        config = EngineConfig(**{**options, **known})
        fs = None if self.path is None else self.fs
        self.engine = Engine.open(
            self.path, config, clock=self.clock, fs=fs, boot_id=None if fs is None else f"boot-{self.boot}", **more
        )
        return self.engine

    def put(self, name: str = TOPIC, **config: Any) -> Engine:
        """Make or configure a topic, of class `fsync` unless told otherwise."""
        if "durability" not in config and "durable" not in config:
            config["durability"] = "fsync"
        self.engine.put_topic(name, config)
        return self.engine

    def reopen(self, **more: Any) -> Engine:
        """A clean stop and a start."""
        self.engine.close()
        return self.open(**more)

    def kill(self, **more: Any) -> Engine:
        """The process dies and another one starts on the same boot."""
        self._use(self.sim.kill_image(), trust=False)
        return self.open(**more)

    def crash(self, style: Style = "nothing", seed: int = 1, **more: Any) -> Engine:
        """The machine dies; by default nothing survives that was not synced."""
        self._use(self.sim.crash_image(seed, style), trust=True)
        self.boot += 1
        return self.open(**more)

    def stop(self, how: str) -> Engine:
        """One of `STOPS`."""
        return {"reopened": self.reopen, "killed": self.kill, "crashed": self.crash}[how]()

    def settle(self) -> Engine:
        """Bring what was written to the place that the test is about."""
        engine, place = self.engine, self.place
        if place in ("active", "sealed"):
            engine.checkpoint(full=True)
        elif place == "trimmed":
            self.trim()
            return self.kill()
        elif place in ("cold", "restored"):
            engine.checkpoint(full=True)
            self.relocate()
            return engine if place == "cold" else self.kill()
        elif place in STOPS:
            return self.stop(place)
        return engine

    def relocate(self) -> None:
        """What is due to move to the cold tier moves, without waiting for the time of it."""
        with self.engine._owner:
            self.engine._relocator.tick()

    def trim(self) -> None:
        """Leave nothing to the log: both retained snapshots lie behind everything written so far."""
        for n in range(3):
            self.engine.put_topic(f"filler-{n}", {"durability": "fsync"})
            self.engine.append(f"filler-{n}", [new(n)])
            self.engine.checkpoint(full=True)
            self.clock.advance(60_000)
            self.engine.snapshot()

    def fail(
        self,
        op: str,
        error: Any = "EIO",
        times: Any = "once",
        *,
        path: str = "",
        index: int = 1,
        mode: SyncMode = "clean",
    ) -> None:
        """Let the next call of `op` fail."""
        self.faults.inject(Fault(op, index, error, times, path=path, sync_mode=mode))

    def fail_log_sync(self, group: str = "wal/", mode: SyncMode = "clean", times: Any = "once") -> None:
        """Let the next sync of a file of the log fail."""
        for op in ("fdatasync", "fsync"):
            self.fail(op, times=times, path=f"{group}wal-", mode=mode)

    def mend(self) -> None:
        """Take all faults away."""
        self.faults.clear()

    def pass_time(self, ms: int, step_ms: int = 1000) -> None:
        """Let time pass the way a running engine lives it: in steps, each with its tick."""
        while ms > 0:
            step = min(ms, step_ms)
            self.clock.advance(step)
            self.engine.tick()
            ms -= step

    def files(self, ending: str = "") -> list[str]:
        """Paths of the data directory's files, but those of topics that the server keeps for itself [A-14]."""
        prefix, core = PATH + "/", self.engine.core
        own = tuple(f"{core.topic_dir(core.names[name].id)}/" for name in SYSTEM_TOPICS if name in core.names)
        mine = [path for path in self.sim.files() if not path.startswith(own)]
        return sorted(path.removeprefix(prefix) for path in mine if path.endswith(ending))


def write(
    engine: Engine,
    *values: object,
    name: str = TOPIC,
    tag: str | None = None,
    node: str | None = None,
    **more: Any,
) -> AppendResult:
    """One write, one record per value."""
    return engine.append(name, [new(value, tag=tag, node=node) for value in values], **more)


def each(
    engine: Engine, count: int, *, name: str = TOPIC, tag: str | None = None, node: str | None = None, start: int = 1
) -> None:
    """`count` writes of one record each, with the values `start`, `start + 1` …"""
    for n in range(start, start + count):
        write(engine, n, name=name, tag=tag, node=node)


def tagged(engine: Engine, *tags: str | None, name: str = TOPIC) -> None:
    """One write of one record per tag; its value is its place, from 1."""
    engine.append(name, [new(n, tag=tag) for n, tag in enumerate(tags, 1)])


def seqs(result: ReadResult) -> list[int]:
    return [record.seq for record in result.records]


def values(result: ReadResult) -> list[Any]:
    return [record.data for record in result.records]


def gap(result: ReadResult) -> tuple[int, int, str] | None:
    """Range and reason of a tombstone."""
    told = result.tombstone
    return None if told is None else (told.gap_from, told.gap_to, told.reason)


class Seen(NamedTuple):
    """What a reader that starts at the beginning gets to see until it has caught up."""

    records: list[Record]
    gaps: list[Gap]

    @property
    def seqs(self) -> list[int]:
        return [record.seq for record in self.records]

    @property
    def values(self) -> list[Any]:
        return [record.data for record in self.records]

    @property
    def ranges(self) -> list[tuple[int, int, str]]:
        return [(told.gap_from, told.gap_to, told.reason) for told in self.gaps]


def everything(engine: Engine, name: str = TOPIC, from_seq: int = 0, **options: Any) -> Seen:
    """Page through a topic; every page keeps the promises that hold for any page."""
    records: list[Record] = []
    gaps: list[Gap] = []
    cursor = from_seq
    for _ in range(100_000):
        page = engine.read(name, cursor, **options)
        check_page(page, cursor)
        records += page.records
        gaps += [page.tombstone] if page.tombstone else []
        if page.caught_up:
            return Seen(records, gaps)
        assert page.next_from_seq > cursor or page.tombstone is not None, "a reader must not loop for ever [INV-10]"
        cursor = page.next_from_seq
    raise AssertionError("the reader never caught up")


def check_page(page: ReadResult, cursor: int) -> None:
    """What is true of every answer to a read (01 §6, §10, §12)."""
    told = page.tombstone
    assert page.caught_up == (page.next_from_seq == page.head_seq)
    assert page.lag == page.head_seq - page.next_from_seq
    assert page.lag >= 0
    assert 1 <= page.earliest_seq <= page.head_seq + 1
    got = seqs(page)
    assert got == sorted(set(got))
    assert not got or got[-1] <= page.next_from_seq
    start = cursor
    if told is not None:
        assert told.head_seq == page.head_seq
        assert told.missed_estimate == max(told.gap_to - told.gap_from + 1, 0)
        if told.reason == "recreated":
            assert (told.gap_from, told.gap_to) == (1, page.head_seq)
            assert told.earliest_seq == page.earliest_seq
            start = 0
        else:
            assert told.gap_from > cursor
            assert told.earliest_seq == told.gap_to + 1
            start = told.gap_to
    assert not got or got[0] > start
    assert page.next_from_seq >= start


class Numbers(NamedTuple):
    """The counting part of a topic's state."""

    head_seq: int
    earliest_seq: int
    count: int  # type: ignore[assignment]
    bytes: int


def numbers(engine: Engine, name: str = TOPIC) -> Numbers:
    state: TopicState = engine.state(name, touch=False)
    return Numbers(state.head_seq, state.earliest_seq, state.count, state.bytes)


def snapshot_of(engine: Engine, name: str = TOPIC) -> tuple[Any, ...]:
    """Everything about a topic that a refused operation must leave as it was."""
    if name not in set(engine.topics()):
        return ()
    state = engine.state(name, touch=False)
    seen = everything(engine, name)
    return (*numbers(engine, name), state.config, seen.records, seen.ranges)


@contextmanager
def invalid_request() -> Iterator[None]:
    """The call is refused for what was given to it, not for the state of the store."""
    with pytest.raises(CallerError) as caught:
        yield
    assert caught.value.code == "invalid_request"
    assert str(caught.value)


@contextmanager
def nothing_changes(engine: Engine, *names: str) -> Iterator[None]:
    """The block leaves the topics as they are, and makes none."""
    names = names or (TOPIC,)
    topics, before = list(engine.topics()), [snapshot_of(engine, name) for name in names]
    yield
    assert list(engine.topics()) == topics
    assert [snapshot_of(engine, name) for name in names] == before


def lose_tail(store: Store, name: str = TOPIC, *, kept: int = 1, lost: int = 3) -> tuple[int, int]:
    """Write `kept` records, sync them, write `lost` more of class `disk` and lose those with the machine.

    Returns the range that is told as lost; nothing else was in it.
    """
    engine = store.engine
    if name not in set(engine.topics()):
        engine.put_topic(name, {"durability": "disk"})
    head = engine.state(name, touch=False).head_seq
    each(engine, kept, name=name, start=head + 1)
    store.pass_time(2_000)
    each(engine, lost, name=name, start=head + kept + 1)
    engine = store.crash()
    state = engine.state(name, touch=False)
    assert state.head_seq >= head + kept + lost, "an acknowledged seq could be handed out again [DUR-4]"
    return head + kept + 1, state.head_seq


def segment_files(store: Store, ending: str = ".data") -> list[str]:
    """Segment files of all topics but fillers, oldest first."""
    return [path for path in store.files(ending) if path.startswith("topics/")]


def flip_in(store: Store, path: str, needle: bytes) -> None:
    """Flip one bit of the first byte of `needle` in a file, at rest."""
    whole = f"{PATH}/{path}"
    at = store.sim.files()[whole].index(needle)
    store.sim.flip_bit(whole, at, 0)


def spawn(function: Callable[[], T]) -> Future[T]:
    """Run in a thread of its own; the future has the outcome."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 the test's to see
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def finish(futures: Iterable[Future[T]]) -> list[T]:
    return [future.result(WAIT_S) for future in futures]


class GatedFs:
    """A disk, the real one by default, where syncs of the log wait while the gate is shut."""

    def __init__(self, inner: Fs | None = None) -> None:
        self._inner = OsFs() if inner is None else inner
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        """Released once for every sync that came to the shut gate."""

    def open(self, path: str, mode: Mode) -> Any:
        file = self._inner.open(path, mode)
        return GatedFile(self, file) if "wal-" in path else file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class GatedFile:
    """A file of the log behind the gate."""

    def __init__(self, fs: GatedFs, inner: File) -> None:
        self._fs = fs
        self._inner = inner

    def fdatasync(self) -> None:
        if not self._fs.gate.is_set():
            self._fs.waiting.release()
            assert self._fs.gate.wait(WAIT_S)
        self._inner.fdatasync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def real_config(**options: Any) -> EngineConfig:
    """For engines on the real disk: small files, and no opinion about how full the machine is."""
    return EngineConfig(**{"wal_file_bytes": 1 << 20, "min_free_bytes": 0, "wal_init_zero": False, **options})


def open_real(path: object, fs: Any = None, **options: Any) -> Engine:
    """An engine as a program uses it: the real disk, threads, the machine's clock."""
    return Engine.open(str(path), real_config(**options), fs=fs)


def metric(engine: Engine, name: str) -> float:
    """A metric that is a number; with labels, their sum."""
    value: Any = engine.metrics()[name]
    return float(sum(value.values()) if isinstance(value, Mapping) else value)
