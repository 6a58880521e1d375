"""A cold tier that is slow, hangs or fails holds up whoever asked for its records, and nobody else [S-320]."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.test_engine_scan import rows_of, scan
from tests.unit.engine.test_tiering import cold_of, mount, segments_of, store_of, unmount
from tests.unit.engine.watchkit import Tap
from topics.clock import SystemClock
from topics.codec import control
from topics.codec.project import Projection
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import lifecycle
from topics.engine import read as reading
from topics.engine.alarms import Alarms
from topics.engine.append import Write
from topics.engine.cold import Cold
from topics.engine.core import Core
from topics.engine.delete import Removal
from topics.engine.engine import Engine
from topics.engine.read import Query
from topics.engine.records import prepare
from topics.engine.topic import Lsn
from topics.engine.turns import PATIENCE_NS, Turns
from topics.errors import EngineClosed, StoreUnavailable, TopicNotFound
from topics.fs import File, Mode, OsFile, OsFs
from topics.model import Gap, Limits, Record, new
from topics.storage.owner import LoopOwner
from topics.storage.tiers.blocks import BlockKey, Place, Wanted
from topics.storage.tiers.folder import FolderRoot
from topics.storage.tiers.store import SegmentId
from topics.testing import ManualClock
from topics.testing.delayedstore import DelayedRoot
from topics.testing.simfs import STYLES

OLD, LIVE = "old", "live"
OPTIONS = {"segment_max_events": 10, "hot_retain_segments": 0, "wal_init_zero": False, "checkpoint_ms": 3_600_000}


class Tier:
    """A folder behind a gate: while it is shut every ranged read and every put hangs."""

    def __init__(self, path: Path) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Semaphore(0)
        """Released by every call that meets the gate shut."""
        self.root = DelayedRoot(FolderRoot(OsFs(), str(path)), self._before)

    def _before(self, call: str) -> None:
        if not self.gate.is_set():
            self.asked.release()
            self.gate.wait()


@pytest.fixture
def tier(tmp_path: Path) -> Iterator[Tier]:
    tier = Tier(tmp_path / "cold")
    yield tier
    tier.gate.set()


@pytest.fixture
def engine(tmp_path: Path, tier: Tier) -> Iterator[Engine]:
    """A real engine with threads: 40 records of `old`, all cold; `live` has none."""
    with Engine.open(str(tmp_path / "store"), config_of(), cold=tier.root) as engine:
        for name in (OLD, LIVE):
            engine.put_topic(name, {"durability": "fsync"})
        engine.append(OLD, [new(n) for n in range(1, 41)])
        engine.checkpoint(full=True)
        move(engine)
        assert cold_of(engine, OLD) == [True] * 4 or cold_of(engine, OLD) == [True] * 3 + [False]
        yield engine


def config_of(**more: Any) -> Any:
    from topics.engine.config import EngineConfig

    return EngineConfig(**{**OPTIONS, **more})


def move(engine: Engine) -> None:
    """A round of the relocator, to its end."""
    owner = engine.core.owner
    with owner:  # type: ignore[attr-defined]
        engine._relocator.tick()
    owner.wait_idle(kit.WAIT_S)  # type: ignore[attr-defined]


def in_thread(call: Callable[[], Any]) -> Any:
    return ThreadPoolExecutor(1).submit(call)


def test_a_tier_that_hangs_slows_no_write_no_live_delivery_and_no_close(engine: Engine, tier: Tier) -> None:
    """[S-320] Proven by completion: everything below is done while every call of the tier hangs."""
    inbox: queue.Queue[Record | Gap] = queue.Queue()
    tap = Tap(engine)
    tier.gate.clear()
    reads = [in_thread(lambda n=n: engine.read(OLD, n)) for n in (0, 5, 10, 20)]
    tap.follow(OLD, 0)
    tap.follow(LIVE, 0)
    with engine.subscribe(LIVE, 0, inbox):
        for _ in range(3):
            assert tier.asked.acquire(timeout=kit.WAIT_S)
        for n in range(200):
            engine.append(LIVE, [new(n)])
            got = inbox.get(timeout=kit.WAIT_S)
            assert isinstance(got, Record)
            assert got.data == n
        engine.append(OLD, [new("newest")])
        assert kit.values(engine.read(OLD, 40)) == ["newest"]
        assert engine.delete(OLD, seqs=[3]).deleted == 1
        assert engine.state(OLD).count == 40
        engine.checkpoint(full=True)
        with engine.core.owner:  # type: ignore[attr-defined]
            engine._relocator.tick()
        engine.append(LIVE, [new("last")])
        last = inbox.get(timeout=kit.WAIT_S)
    assert isinstance(last, Record)
    assert last.data == "last"
    live = [seq for one in tap.got if one.name == LIVE for seq in one.seqs]
    assert live == list(range(1, 202))
    assert [one for one in tap.got if one.name == OLD and one.kind == "record"] == []
    assert not any(read.done() for read in reads)
    engine.close()
    for read in reads:
        assert isinstance(read.exception(timeout=kit.WAIT_S), EngineClosed)


def test_followers_and_readers_go_on_when_a_tier_answers_again(engine: Engine, tier: Tier) -> None:
    tap = Tap(engine)
    tier.gate.clear()
    tap.follow(OLD, 0)
    read = in_thread(lambda: engine.read(OLD, 0, limit=1000))
    assert tier.asked.acquire(timeout=kit.WAIT_S)
    engine.append(OLD, [new(41)])
    tier.gate.set()
    assert kit.values(read.result(timeout=kit.WAIT_S))[:40] == list(range(1, 41))
    engine.core.owner.wait_idle(kit.WAIT_S)  # type: ignore[attr-defined]
    while tap.seqs() != list(range(1, 42)):
        with engine.core.owner:  # type: ignore[attr-defined]
            assert tap.error is None
        assert engine.read(OLD, 40).records
    tap.close()


def test_a_store_opens_although_its_tier_hangs(tmp_path: Path, tier: Tier, monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-318]"""
    with Engine.open(str(tmp_path / "store"), config_of(), cold=tier.root) as engine:
        engine.append(OLD, [new(n) for n in range(25)])
        engine.checkpoint(full=True)
        move(engine)
        assert cold_of(engine, OLD)[:2] == [True, True]
    monkeypatch.setattr("topics.engine.engine.START_S", 0.1)
    tier.gate.clear()
    with Engine.open(str(tmp_path / "store"), config_of(), cold=tier.root) as engine:
        assert kit.values(engine.read(OLD, 20)) == list(range(20, 25))
        engine.append(OLD, [new("more")])
    tier.gate.set()
    with Engine.open(str(tmp_path / "store"), config_of(), cold=tier.root) as engine:
        assert kit.everything(engine, OLD).values == [*range(25), "more"]


def test_a_reader_gets_every_record_once_while_segments_move_under_it(tmp_path: Path) -> None:
    """Issue 8: from seq 1 to head across cold, hot, active and log, 100 times, with a writer beside it."""
    cold = FolderRoot(OsFs(), str(tmp_path / "cold"))
    with Engine.open(str(tmp_path / "store"), config_of(cold_cache_bytes=20_000), cold=cold) as engine:
        engine.put_topic(OLD, {"durability": "disk"})
        written = 0
        for run in range(100):
            engine.append(OLD, [new(written + n) for n in range(7)])
            written += 7
            ending = in_thread(lambda run=run: engine.checkpoint(full=run % 2 == 0))
            with engine.core.owner:  # type: ignore[attr-defined]
                engine._relocator.tick()
            assert kit.everything(engine, OLD, limit=1 + run * 7 % 97).values == list(range(written)), run
            ending.result(timeout=kit.WAIT_S)
        states = {"cold" if one.cold else "hot" for one in segments_of(engine, OLD)}
        assert states == {"cold", "hot"} or states == {"cold"}


# -- on one thread, with a clock ---------------------------------------------------------------------------------------


def test_a_follower_in_a_failing_tier_waits_and_the_others_of_its_connection_do_not() -> None:
    """[A-12, S-320] No stream ends because history cannot be read now."""
    store = store_of(9)
    store.put("other")
    tap = Tap(store.engine)
    store.fail("open", times="always", path="cold/topics")
    tap.follow(kit.TOPIC, 0)
    tap.follow("other", 0)
    kit.write(store.engine, "x", name="other")
    assert [one.name for one in tap.got] == ["other"] * len(tap.got)
    assert tap.seqs() == [1]
    tap.take()
    store.mend()
    store.pass_time(12_000)
    assert tap.error is None
    assert tap.seqs() == list(range(1, 10))


def test_jobs_that_are_in_memory_are_claimed_whatever_the_tier_does() -> None:
    store = kit.Store("cold")
    store.put("jobs", type="queue")
    kit.each(store.engine, 7, name="jobs")
    store.settle()
    assert cold_of(store.engine, "jobs") == [True, True, False]
    store.fail("open", times="always", path="cold/topics")
    assert [job.data for job in store.engine.claim("jobs", "w", 10).jobs] == [1, 2, 3, 4, 5, 6, 7]


def test_jobs_in_the_tier_are_claimed_and_those_behind_them_while_it_fails() -> None:
    store = kit.Store("cold")
    store.put("jobs", type="queue")
    kit.each(store.engine, 7, name="jobs")
    store.settle()
    store.reopen()
    assert cold_of(store.engine, "jobs") == [True, True, False]
    store.fail("open", times="always", path="cold/topics")
    first = store.engine.claim("jobs", "w", 10)
    assert [job.data for job in first.jobs] == [7]
    with pytest.raises(StoreUnavailable):
        store.engine.claim("jobs", "w", 10)
    store.mend()
    store.clock.advance(10_001)
    again = store.engine.claim("jobs", "w", 10)
    assert [job.data for job in again.jobs] == [1, 2, 3, 4, 5, 6]


def test_dead_letters_leave_the_tier() -> None:
    store = kit.Store("cold")
    store.put("jobs", type="queue", max_deliveries=1, dead_letter="dead", lease_ms=1000)
    kit.each(store.engine, 4, name="jobs")
    store.settle()
    assert len(store.engine.claim("jobs", "w", 2).jobs) == 2
    store.clock.advance(5000)
    store.engine.claim("jobs", "w", 1)
    assert kit.everything(store.engine, "dead").values == [1, 2]


@pytest.mark.parametrize("stop", ["", *kit.STOPS])
def test_a_router_copies_out_of_the_tier_and_waits_for_it_where_it_must(stop: str) -> None:
    """05 FWD-9: a reader of the destination never waits for a cold read; deleted copies stay deleted [RRC-7]."""
    store = kit.Store("cold")
    store.put()
    store.put("copy", cap_records=1, discard="reject")
    store.engine.put_router("r", {"source": kit.TOPIC, "dest": "copy"})
    kit.each(store.engine, 9)
    store.settle()
    assert cold_of(store.engine)[:2] == [True, True]
    files = unmount(store)
    store.put("copy")
    store.pass_time(200, 50)
    assert kit.everything(store.engine, "copy").values == [1]
    if stop:
        store.stop(stop)
        assert kit.everything(store.engine, "copy").values == [1]
    mount(store, files)
    store.pass_time(12_000)
    assert kit.everything(store.engine, "copy").values == list(range(1, 10))
    store.engine.delete("copy", seqs=[4])
    store.kill()
    assert kit.everything(store.engine, "copy").values == [1, 2, 3, 5, 6, 7, 8, 9]


def behind(records: int = 9) -> kit.Store:
    """A router that has copied one record of its source; all others are sealed there, and may be copied now."""
    store = kit.Store("cold")
    store.put()
    store.put("copy", cap_records=1, discard="reject")
    store.engine.put_router("r", {"source": kit.TOPIC, "dest": "copy"})
    kit.each(store.engine, records)
    store.engine.checkpoint(full=True)
    return store


@pytest.mark.parametrize("moved", ["before the copies", "behind the copies"])
@pytest.mark.parametrize("stop", ["killed", "crashed"])
def test_a_direct_write_takes_no_seq_of_a_copy_that_was_seen_although_the_tier_is_away(stop: str, moved: str) -> None:
    """[RRC-3, S-212, S-318] Whoever has read the copies gets it, and the copies are where they were."""
    store = behind()
    if moved == "before the copies":
        store.relocate()
    store.put("copy")
    store.pass_time(200, 50)
    seen = kit.everything(store.engine, "copy")
    assert seen.values == list(range(1, 10))
    if moved == "behind the copies":
        store.relocate()
    assert cold_of(store.engine)[:2] == [True, True]
    files = unmount(store)
    store.stop(stop)
    kit.write(store.engine, "own", name="copy")
    page = store.engine.read("copy", seen.seqs[-1])
    assert (kit.gap(page), kit.values(page)) == (None, ["own"])
    mount(store, files)
    store.pass_time(12_000)
    again = kit.everything(store.engine, "copy")
    assert (again.values, again.ranges) == ([*range(1, 10), "own"], [])
    assert kit.everything(store.kill(), "copy").values == again.values


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_stop_at_any_disk_call_of_a_move_takes_no_copy_with_it_although_the_tier_is_away(durability: str) -> None:
    """[RRC-3, S-212, S-311, S-318] The hot segment goes when its copies cannot any more; a copy seen keeps its seq."""
    store = behind()
    store.put("copy", durability=durability)
    store.pass_time(200, 50)
    seen = kit.everything(store.engine, "copy")
    assert seen.values == list(range(1, 10))
    disks = [store.sim.kill_image()]

    def stopped(call: object) -> None:
        disks.extend((store.sim.kill_image(), *(store.sim.crash_image(1, style) for style in STYLES)))

    store.sim.before = stopped
    store.relocate()
    store.sim.before = None
    assert cold_of(store.engine)[:2] == [True, True]
    assert len(disks) > 50
    for disk in (*disks, store.sim.crash_image(1, "nothing")):
        again = kit.Store("cold", sim=disk, opened=False)
        unmount(again)
        again.boot = 1
        again.open()
        kit.write(again.engine, "own", name="copy")
        page = again.engine.read("copy", seen.seqs[-1])
        assert (kit.gap(page), kit.values(page)) == (None, ["own"])


def test_deletes_of_copies_that_are_there_keep_no_log_while_the_tier_is_away() -> None:
    """[S-192, S-318] None of the copies that are missing is meant by them."""
    store = behind()
    store.relocate()
    store.engine.delete("copy", seqs=[1])
    store.put("copy")
    files = unmount(store)
    store.kill()
    before = store.files(".log")
    store.trim()
    assert before
    assert not set(before) & set(store.files(".log"))
    mount(store, files)
    store.pass_time(12_000)
    assert kit.everything(store.engine, "copy").values == list(range(2, 10))


@pytest.mark.parametrize("goes", ["router", "source", "dest"])
def test_a_router_that_goes_while_it_waits_for_the_tier_keeps_no_log(goes: str) -> None:
    """[S-192, RRC-7] The deletes that were held for its copies are needed by nobody then."""
    store = behind()
    store.relocate()
    store.put("copy")
    unmount(store)
    store.kill()
    core = store.engine.core
    edge = core.routers.by_name["r"].edge
    assert edge.fetching
    at = Lsn("", 1, 0)
    edge.deletes, core.held = [(control.Delete(seqs=(5,), bound=10, cap_floor=1, ttl_floor=1), at)], [at]
    if goes == "router":
        store.engine.delete_router("r")
    else:
        store.engine.delete_topic(kit.TOPIC if goes == "source" else "copy")
    assert core.held == []


def test_a_tier_that_was_not_there_at_the_start_is_claimed_and_used_once_it_is(tmp_path: Path) -> None:
    """[S-14, S-318] Without a restart: a bucket that is made later, a network that comes up after the server."""
    gone = [True]

    def before(call: str) -> None:
        if gone[0]:
            raise StoreUnavailable("not there")

    folder = FolderRoot(OsFs(), str(tmp_path / "cold"))
    with Engine.open(str(tmp_path / "store"), config_of(), cold=DelayedRoot(folder, before)) as engine:
        engine.put_topic(OLD, {"durability": "fsync"})
        engine.append(OLD, [new(n) for n in range(1, 41)])
        engine.checkpoint(full=True)
        move(engine)
        assert not any(cold_of(engine, OLD))
        assert folder.store_id() is None
        gone[0] = False
        move(engine)
        assert folder.store_id() == engine.core.store_id
        assert cold_of(engine, OLD)[:3] == [True] * 3
        assert [one.data for one in engine.read(OLD, 0).records] == list(range(1, 41))


@pytest.mark.parametrize("gone", [[3], [3, 180], [3, *range(129, 191)]])
def test_what_is_deleted_while_a_scan_waits_for_the_tier_does_not_leave(
    engine: Engine, tier: Tier, gone: list[int]
) -> None:
    """[A-21] A deleted payload never leaves the server, also one that was found before the wait."""
    engine.append(OLD, [new(n) for n in range(41, 201)])
    engine.checkpoint(full=True)
    move(engine)
    assert len(kit.seqs(engine.read(OLD, 0, limit=130))) == 130  # a first stretch of the scan is in the cache
    tier.gate.clear()
    found = in_thread(lambda: scan(engine, OLD, 1, 190))
    assert tier.asked.acquire(timeout=kit.WAIT_S)
    assert engine.delete(OLD, seqs=gone).deleted == len(gone)
    tier.gate.set()
    rows = rows_of(engine, found.result(kit.WAIT_S), OLD)
    assert [row[0] for row in rows] == [n for n in range(1, 191) if n not in gone]


def test_readers_whose_blocks_come_at_once_go_on_one_at_a_time(tmp_path: Path) -> None:
    """[S-320] What others have put off meanwhile runs between two of them."""
    root = FolderRoot(OsFs(), str(tmp_path))
    root.claim("a" * 32)
    root.topic(10).put(SegmentId(1, 0), b"data", b"index", b"")
    block = Wanted(BlockKey(Place(10, 1, 0), 0), 4)
    seen: list[str] = []

    async def play() -> None:
        owner, ended = LoopOwner(SystemClock()), asyncio.Event()
        owner.lend(asyncio.get_running_loop())
        cold = Cold(owner, SystemClock(), Turns(owner, SystemClock(), Alarms()), 0)
        cold.root, cold.store_id = root, "a" * 32

        def go_on(name: str) -> None:
            seen.append(name)
            owner.soon(lambda: seen.append("somebody else"))

        for name in ("a", "b", "c"):
            cold.fetch(cold.read(), [block], partial(go_on, name))
        cold.fetch(cold.read(), [block], ended.set)
        await asyncio.wait_for(ended.wait(), kit.WAIT_S)
        owner.take_back()
        owner.close()

    asyncio.run(play())
    assert seen == ["a", "somebody else", "b", "somebody else", "c", "somebody else"]


def test_a_page_waits_for_the_write_that_is_under_way(tmp_path: Path) -> None:
    """[S-320] On a server: its blocks are there, but the write's sync is not; the write is answered first."""
    assert read_beside_a_held_write(tmp_path, released=True) == ["write", "page"]


def test_a_page_comes_beside_a_write_that_never_ends(tmp_path: Path) -> None:
    """[S-320] A sync that hangs holds up whoever waits for it, and no reader of the cold tier."""
    assert read_beside_a_held_write(tmp_path, released=False) == ["page", "write"]


class SyncGate(OsFs):
    """The disk; while the gate is shut, syncs of the log hang."""

    __slots__ = ("gate",)

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        assert isinstance(file, OsFile)
        return GatedFile(file.fd, self.gate) if "/wal/" in path and mode != "r" else file


class GatedFile(OsFile):
    __slots__ = ("_gate",)

    def __init__(self, fd: int, gate: threading.Event) -> None:
        super().__init__(fd)
        self._gate = gate

    def fdatasync(self) -> None:
        self._gate.wait()
        super().fdatasync()


class Held:
    """On a server: 40 records of `old`, all cold, and a write to `live` whose sync hangs until the gate is open.

    It holds up the line of readers, who go on when their patience has run out; the clock stands still.
    """

    def __init__(self, tmp_path: Path, record: object, gone: Sequence[int] = (), **options: object) -> None:
        self.clock = ManualClock()
        self._disk = SyncGate()
        self.gate = self._disk.gate
        self._store = str(tmp_path / "store")
        self._cold = FolderRoot(OsFs(), str(tmp_path / "cold"))
        with Engine.open(self._store, config_of(), cold=self._cold) as engine:
            engine.put_topic(OLD, {"durability": "fsync", **options})
            engine.put_topic(LIVE, {"durability": "fsync"})
            engine.append(OLD, [new(record) for _ in range(40)])
            engine.checkpoint(full=True)
            move(engine)
            if gone:
                engine.delete(OLD, seqs=gone)

    async def begin(self, written: Callable[[object], object], read: Callable[[Any], object], **query: int) -> None:
        """Begin the write and the read, up to where the blocks are there."""
        options = {"fs": self._disk, "clock": self.clock, "owner": LoopOwner(self.clock), "cold": self._cold}
        self._engine = Engine.open(self._store, config_of(), **options)  # type: ignore[arg-type]
        self.core = self._engine.core
        self._engine.lend_to(asyncio.get_running_loop())
        await answered(lambda done: appending.append(self.core, write_of("before"), done))
        self.gate.clear()
        appending.append(self.core, write_of("held"), written)
        asked = Query(OLD, 0, None, query["limit"], 1 << 20, frozenset(), query.get("wait_ms", 0))
        reading.read(self.core, asked, read, Projection())
        await passes_until(lambda: len(self.core.cold._ready) == 1)
        await self.passes()

    async def lose_patience(self) -> None:
        self.clock.advance(PATIENCE_NS // 1_000_000)
        self._engine.tick()
        await self.passes()
        await passes_until(lambda: not self.core.cold.waiting)

    async def passes(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def end(self) -> None:
        self.gate.set()
        self._engine.take_back()
        await asyncio.get_running_loop().run_in_executor(None, self._engine.close)


def read_beside_a_held_write(tmp_path: Path, *, released: bool) -> list[str]:
    """Who was answered first: a write whose sync hangs until it is `released`, or a read whose blocks have come."""
    held, seen = Held(tmp_path, "x"), list[str]()

    async def play() -> None:
        ready = {"write": asyncio.Event(), "page": asyncio.Event()}

        def note(name: str, outcome: object) -> None:
            seen.append(name)
            ready[name].set()

        await held.begin(partial(note, "write"), partial(note, "page"), limit=10)
        assert seen == []
        if not released:
            await held.lose_patience()
            await asyncio.wait_for(ready["page"].wait(), kit.WAIT_S)
        held.gate.set()
        for event in ready.values():
            await asyncio.wait_for(event.wait(), kit.WAIT_S)
        await held.end()

    asyncio.run(play())
    return seen


Between = Callable[[Core, threading.Event], Awaitable[object]]


def sliced(
    tmp_path: Path, *between: Between, limit: int = 30, wait_ms: int = 0, gone: Sequence[int] = (), **options: object
) -> list[Any]:
    """Outcomes of a read of records of 10 KiB, with something done behind its first slices, and then more."""
    held, outcomes = Held(tmp_path, "x" * 10_240, gone, durability="disk", **options), list[Any]()

    async def play() -> None:
        await held.begin(lambda outcome: None, outcomes.append, limit=limit, wait_ms=wait_ms)
        left = list(between)
        async with asyncio.timeout(kit.WAIT_S):
            while not outcomes:
                await held.lose_patience()
                if left:
                    assert not outcomes, "all of it came at once"
                    await left.pop(0)(held.core, held.gate)
        await held.end()

    asyncio.run(play())
    assert len(outcomes) == 1, "a read is answered once"
    return outcomes


def seqs_of(page: Any) -> list[int]:
    return [record["$seq"] for record in json.loads(b"[%b]" % b",".join(page.records))]


async def nothing(core: Core, gate: threading.Event) -> None:
    return


def test_a_large_page_is_made_in_slices_between_which_others_have_their_turn(tmp_path: Path) -> None:
    """[S-320, P-10] It is what one walk finds."""
    [page] = sliced(tmp_path, nothing)
    assert (page.count, page.next_from_seq, page.head_seq, page.tombstone) == (30, 30, 40, None)
    assert (seqs_of(page), page.cold_segments_read) == (list(range(1, 31)), 30)


@pytest.mark.parametrize("gone", [(2,), (1, 12, 13), tuple(range(3, 40, 3))])
def test_so_is_one_that_takes_a_closer_look(gone: tuple[int, ...], tmp_path: Path) -> None:
    """[S-320, P-10] Records that do not lie in a row are walked over one by one, and others have their turn, too."""
    [page] = sliced(tmp_path, nothing, gone=gone, limit=25)
    assert (seqs_of(page), page.tombstone) == ([seq for seq in range(1, 41) if seq not in gone][:25], None)


@pytest.mark.parametrize("gone", [(1, 2, 3), (1, 25), (20, 21, 22)])
def test_what_is_deleted_between_two_slices_does_not_come(gone: tuple[int, ...], tmp_path: Path) -> None:
    """[DEL-7] Once a delete is acknowledged no read returns the record, not one that had found it before either."""

    async def delete(core: Core, gate: threading.Event) -> None:
        removal = Removal.parse(None, None, gone, Limits())
        await answered(lambda done: deleting.delete(core, OLD, removal, False, done))

    [page] = sliced(tmp_path, delete)
    expected = [seq for seq in range(1, 41) if seq not in gone][:30]
    assert (seqs_of(page), page.tombstone, page.next_from_seq) == (expected, None, expected[-1])


def test_what_is_deleted_when_a_page_waits_to_be_answered_does_not_come(tmp_path: Path) -> None:
    async def delete(core: Core, gate: threading.Event) -> None:
        await answered(lambda done: deleting.delete(core, OLD, Removal.parse(41, None, None, Limits()), False, done))

    [page] = sliced(tmp_path, delete, limit=15)
    assert (page.records, page.next_from_seq, page.tombstone) == ([], 40, None)


def test_a_long_poll_of_which_everything_is_deleted_between_slices_waits_for_the_next_record(tmp_path: Path) -> None:
    """[DIF-5] It is made again, finds nothing, and waits from that instant on."""

    async def delete(core: Core, gate: threading.Event) -> None:
        await answered(lambda done: deleting.delete(core, OLD, Removal.parse(41, None, None, Limits()), False, done))

    async def publish(core: Core, gate: threading.Event) -> None:
        gate.set()
        write = Write(OLD, prepare([new("next")], Limits()), None, None, None, None)
        await answered(lambda done: appending.append(core, write, done))

    [page] = sliced(tmp_path, delete, publish, wait_ms=10_000)
    assert seqs_of(page) == [41]


def test_what_is_dropped_between_two_slices_is_told(tmp_path: Path) -> None:
    """[RD-1, RD-8] Loss nobody asked for is told; and head, floor and records are those of one instant."""

    async def overflow(core: Core, gate: threading.Event) -> None:
        write = Write(OLD, prepare([new(n) for n in range(30)], Limits()), None, None, None, None)
        gate.set()
        await answered(lambda done: appending.append(core, write, done))

    [page] = sliced(tmp_path, overflow, cap_records=40)
    assert (page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason) == (1, 30, "cap")
    assert (seqs_of(page), page.earliest_seq, page.head_seq) == (list(range(31, 61)), 31, 70)


def test_a_topic_that_is_deleted_between_two_slices_is_not_found(tmp_path: Path) -> None:
    async def delete(core: Core, gate: threading.Event) -> None:
        gate.set()
        await answered(lambda done: lifecycle.delete(core, OLD, done))

    [outcome] = sliced(tmp_path, delete)
    assert isinstance(outcome, TopicNotFound)


def test_a_store_that_closes_between_two_slices_answers_what_is_there(tmp_path: Path) -> None:
    async def end(core: Core, gate: threading.Event) -> None:
        core.cold.end()

    [page] = sliced(tmp_path, end)
    assert page.count == 30


async def answered(start: Callable[[Callable[[object], None]], None]) -> None:
    event = asyncio.Event()
    start(lambda outcome: event.set())
    await asyncio.wait_for(event.wait(), kit.WAIT_S)


async def passes_until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(kit.WAIT_S):
        while not is_so():
            await asyncio.sleep(0)


def write_of(value: str) -> Write:
    limits = Limits()
    return Write(LIVE, prepare([new(value)], limits), None, None, None, None)


def test_a_read_whose_first_record_is_beyond_its_budget_is_answered_with_it_alone(tmp_path: Path) -> None:
    """[RD-6, S-320] What is next is not cold, and there is nothing left of the budget."""
    root, config = FolderRoot(OsFs(), f"{tmp_path}/cold"), config_of(segment_max_events=3, hot_retain_segments=2)
    with Engine.open(f"{tmp_path}/store", config, cold=root) as engine:
        engine.put_topic(OLD, {"durability": "fsync"})
        for n in range(1, 21):
            engine.append(OLD, [new(f"{n}" + "x" * 40_000)])
        engine.checkpoint(full=True)
        move(engine)
    with Engine.open(f"{tmp_path}/store", config, cold=root) as engine:
        last = max(one.last for one in segments_of(engine, OLD) if one.cold)
        asked = Query.parse(OLD, last - 1, None, 10, 1000, None, 0, engine.core.limits)
        read = in_thread(lambda: engine._call(lambda done: reading.read(engine.core, asked, done, Projection())))
        found = read.result(kit.WAIT_S)
        assert (found.count, found.next_from_seq) == (1, last)
