"""The embedded engine: open, use from any thread, close (06 §18).

    with Engine.open("./data") as engine:
        engine.append("orders", [{"data": {"sku": "B-12"}}])
        engine.read("orders").records

Verbs run on the owner: whoever holds the engine's lock. A caller stages under it and waits without it, so that many
callers share one sync. With an injected clock nothing runs by itself: every call is carried out to its end in the
caller's thread, and `tick` does what is due [S-355].
"""

from __future__ import annotations

import asyncio
import logging
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from topics import paths
from topics.clock import Clock, SystemClock
from topics.codec import control, frame, kernel
from topics.engine import append as appending
from topics.engine import delete as deleting
from topics.engine import forward, lifecycle, recover, retention, route, system, txn, watch
from topics.engine import plan as planning
from topics.engine import queue as queues
from topics.engine import read as reading
from topics.engine.attach import Attacher
from topics.engine.audit import AFTER_NS as AUDIT_AFTER_NS
from topics.engine.audit import Audit
from topics.engine.checkpoint import Checkpointer, CheckpointResult
from topics.engine.cold import START_S
from topics.engine.compact import Asked, Compactor, CompactResult
from topics.engine.config import EngineConfig
from topics.engine.core import Core, Outcome
from topics.engine.follow import Inbox
from topics.engine.metrics import Sweep
from topics.engine.pins import PIN_MS_MAX
from topics.engine.reclaim import Rewriter
from topics.engine.records import Given
from topics.engine.rederive import rederive
from topics.engine.relocate import Relocator
from topics.engine.settle import ReadyMark
from topics.engine.snapshot import Rows, Snapshots
from topics.engine.subscribe import Receiver, Subscription
from topics.engine.timer import LoopTimer, Timer
from topics.engine.topic import Topic
from topics.errors import CallerError, EngineClosed, TopicsError, WalError, WalFull, WalIo
from topics.fs import Fs, OsFs, ensure_dir, fds_permit, process_id
from topics.fs import boot_id as machine_boot_id
from topics.interrupts import unbroken
from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    ClaimResult,
    CommitResult,
    DeleteResult,
    ExtendResult,
    Gap,
    LeasePage,
    NackResult,
    Producer,
    ReadResult,
    Record,
    RouterConfig,
    RouterState,
    StageResult,
    TopicConfig,
    TopicState,
    WriterState,
    check_u64,
    is_system_name,
)
from topics.settings import Settings
from topics.storage import discover, group, staging
from topics.storage.lockfile import FailedSync, StoreLock
from topics.storage.owner import InlineOwner, LockedOwner, LoopOwner
from topics.storage.shards import Recovered, Shards, group_dir, group_keys
from topics.storage.snapshot import SnapshotStore
from topics.storage.tail import WalFiles
from topics.storage.tiers.open import open_root
from topics.storage.tiers.store import ColdRoot
from topics.wal.events import Meter

log = logging.getLogger("topics.engine")

NS_PER_MS = 1_000_000
STARTS_MAX = 256
"""As many operations as an event loop begins in one change: others wait for it."""
ROUTERS_MS = 50
"""How often edges that had to stop are tried again [FWD-8]."""
FORWARD_REST_NS = 4_000_000
"""Nobody who follows a copy notices, and a writer that never pauses meets forwarding seldom [FWD-2]."""
FRAMES_ASIDE_BYTES = 1 << 20
"""About a millisecond and a half of framing [P-10]."""


class Health(NamedTuple):
    """Whether an engine takes writes."""

    ready: bool
    state: str
    """`ok`, `read_only` or `full`: the worst of its shards."""
    progress: float
    """Of recovery."""
    shards: dict[str, str]


class ToldGap(NamedTuple):
    """Seqs of a topic that a recovery found to be gone: reason 2 damage, 3 crash, 0 silent."""

    topic: str
    first: int
    last: int
    reason: int


class RecoveryReport(NamedTuple):
    """What a recovery could not bring back."""

    gaps: tuple[ToldGap, ...] = ()
    skipped: Mapping[int, int] = {}
    """Frames of topics whose creation was lost, by topic id; only after salvage [S-66]."""


class Engine:
    """One store, opened. All methods are thread-safe."""

    def __init__(self, core: Core, owner: InlineOwner | LockedOwner) -> None:
        """For `open`."""
        self._core = core
        self._owner = owner
        self._pid = process_id()
        self._meter: Meter | None = None
        self._lock: StoreLock | None = None
        self._snapshots: Snapshots | None = None
        self._checkpointer: Checkpointer | None = None
        core.serve = forward.serve
        self._rewriter = Rewriter(core)
        self._relocator = Relocator(core)
        self.audit = Audit(core)
        self.compactor = Compactor(core, self._relocator.rewrite)
        """Rewrites on request; on the owner only."""
        self._timer: Timer | LoopTimer | None = None
        self._progress = 0.0
        self._due: dict[str, int] = {}
        self._opened_ns = core.clock.monotonic_ns()
        self._rotations = 0
        self._closed = False
        self._close_lock = threading.RLock()
        """A signal's handler may close what is being closed."""
        self._latches: set[_Latch] = set()
        """Of calls that wait for their outcome."""
        self.inboxes: set[Inbox] = set()
        """Of watches in this process; on the owner only."""
        self.recovered = RecoveryReport()
        """What opening found to be lost."""
        self.aio = EngineAio(self)
        """The same operations as coroutines."""
        if isinstance(owner, LockedOwner):
            owner.on_struck = self._note_struck

    # -- opening -----------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | None,
        config: EngineConfig | Settings | None = None,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        boot_id: str | None = None,
        assume_crash: bool = False,
        salvage: bool = False,
        progress: Callable[[float], None] | None = None,
        owner: LoopOwner | None = None,
        cold: ColdRoot | None = None,
        meter: Meter | None = None,
    ) -> Engine:
        """Open the store in a directory, made if missing; `None` is a store in memory [S-351].

        With an `owner` the engine is for an event loop: see `lend_to`. `cold` is a tier that is used instead of the
        one that `cold_dir` names. `meter` gets what the log's shards do, as from `topics.wal`; `node` is the shard.
        """
        if path is not None and not str(path):
            raise CallerError("path: a non-empty one is needed, or None for a store in memory")
        settings = EngineConfig.of(config or EngineConfig())
        kernel.select(settings.kernel)
        owns: InlineOwner | LockedOwner = owner or (LockedOwner() if clock is None else InlineOwner())
        core = Core(settings, fs or OsFs(), clock or SystemClock(), owns, "" if path is None else str(path))
        core.service = partial(watch.service, core)
        core.tell = partial(system.write, core)
        engine = cls(core, owns)
        engine._meter = meter
        if path is not None:
            core.boot = boot_id or (machine_boot_id() if fs is None else "boot-0")
            if cold is None and settings.cold_dir is not None:
                cold = open_root(settings.cold_dir, core.fs)
            core.cold.root = cold
            core.cold.patience_s = START_S if clock is None else None
            try:
                engine._recover(assume_crash=assume_crash or settings.assume_crash, salvage=salvage, tell=progress)
            except BaseException:
                engine._let_go()
                raise
        engine._progress = 1.0
        if clock is None and owner is None:
            timer = Timer(engine)
            engine._use(timer)
            timer.start()
        return engine

    def lend_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """From now on everything happens on this loop, which calls verbs with `core` itself; called on the loop."""
        assert isinstance(self._owner, LoopOwner)
        self._owner.lend(loop)
        self._core.frames_aside_bytes = FRAMES_ASIDE_BYTES
        self._core.pump.scheduler.forward_rest_ns = FORWARD_REST_NS
        self._core.turns.give_way(self._core.is_writing, self._owner.has_more)
        self._core.admission.patient = True
        self._core.load.queued = self._owner.queued
        timer = LoopTimer(self, loop)
        self._use(timer)
        timer.wake()

    def take_back(self) -> None:
        """The loop starts nothing any more: `close` may be called on any thread while it still runs."""
        assert isinstance(self._owner, LoopOwner)
        if self._timer is not None:
            self._timer.stop()
        self._core.frames_aside_bytes = None
        self._core.pump.scheduler.forward_rest_ns = 0
        self._core.turns.give_way()
        self._core.load.end()
        self._owner.take_back()

    def begin_checkpoint(self, done: Outcome, pin_ms: int = 0) -> None:
        """On the loop: a full checkpoint with a snapshot [A-15].

        Answers a `CheckpointResult`, or with `pin_ms` a `Pinned`; a store in memory has nothing to pin.
        """
        if pin_ms and self._checkpointer is not None and not self._core.closing:
            self._checkpointer.ask_pinned(min(pin_ms, PIN_MS_MAX), done)
        else:
            self._checkpoint(True, False, done)

    def end_waits(self) -> None:
        """On the loop: who waits for records is answered with what there was, who waits to write is refused [API-5]."""
        for late in list(self._core.polls.values()):
            late()
        self._core.cold.end()
        self._core.admission.end()

    def _use(self, timer: Timer | LoopTimer) -> None:
        core = self._core
        self._timer = timer
        core.alarms.armed = core.pump.armed = timer.wake
        for shard in core.wal.shards if core.wal is not None else ():
            shard.on_due = timer.wake

    @property
    def core(self) -> Core:
        """The state, for verbs that are called on the loop the engine is lent to."""
        return self._core

    @property
    def owner(self) -> InlineOwner | LockedOwner:
        """Whoever holds it is the owner."""
        return self._owner

    def _recover(self, *, assume_crash: bool, salvage: bool, tell: Callable[[float], None] | None) -> None:
        core = self._core
        try:
            if not core.fs.exists(core.dir):
                ensure_dir(core.fs, core.dir)
            lock = self._lock = StoreLock(core.fs, core.dir, core.boot, core.clock.now_ms())
        except (NotADirectoryError, FileExistsError):
            raise CallerError(f"path: {core.dir} is not a directory, or is below a file") from None
        # Only now: whoever is refused has synced nothing, so no error was told to him instead of the holder.
        ensure_dir(core.fs, core.dir)
        lock.write()
        store = SnapshotStore(core.fs, f"{core.dir}/{paths.META_DIR}")
        found = discover.discover(core.fs, core.dir, store)
        store.tidy()
        core.store_id = found.store_id
        core.cold.check(core.store_id)
        core.run = 1 + max((*found.runs, lock.previous.run), default=0)
        self._note_lost_caches(found, lock, assume_crash)
        core.failed_syncs = set(lock.failed)
        core.wal = self._shards(found)
        for shard in core.wal.shards:
            shard.on_finished = partial(core.finished, shard)
            shard.on_latched = partial(self._note_latched, lock, FailedSync(core.run, shard.key))
        core.load.shards = core.wal.shards

        def progress(share: float) -> None:
            self._progress = share
            if tell is not None:
                tell(share)

        core.losses.again = True
        recovery = recover.Recovery(core, found, assume_crash=assume_crash, salvage=salvage, progress=progress)
        recovery.run()
        gaps = tuple(ToldGap(one.topic.name, one.first, one.last, one.reason) for one in recovery.decided)
        self.recovered = RecoveryReport(gaps, recovery.skipped)
        for decided in recovery.decided:
            core.losses.note_hole(decided.topic, decided.reason, decided.first, decided.last)
        for one in gaps:
            if one.reason:
                core.holes[one.reason] += one.last - one.first + 1
        recover.mend(core, found)
        lock.write(core.run)
        core.cold.claim(has_cold=recovery.has_cold)
        self._tidy(recovery.deleted)
        retained: list[Rows] = [{row.group: row for row in header.wal} for header in found.headers[:2]]
        newest = found.headers[0].id if found.headers else None
        self._snapshots = Snapshots(core, store, retained, newest)
        self._checkpointer = Checkpointer(core, self._snapshots, recovery.checkpoint)
        core.bring_in = self._checkpointer.bring_in
        core.attaching = Attacher(core, self._checkpointer.seal)
        core.logged = bool(found.files) and found.replay_bytes > 0
        self._settle(lock, recovery)
        txn.recovered(core)
        rederive(core, recovery.deletes, self._carry_out)
        recovery.settle_leases()
        recovery.let_go()
        core.losses.again = False
        core.deletes.begin(system.recorded(core, core.deletes.known_through))
        if core.wal.orphans and core.settling is None:
            self._checkpointer.ask(lambda outcome: None, full=True, snapshot=True)
            self._run_out()

    def _note_lost_caches(self, found: discover.Found, lock: StoreLock, assume_crash: bool) -> None:
        """Groups whose page cache was lost, noted before anything is cut [S-245]."""
        lost = set(found.islands)
        if assume_crash and found.ready:
            lost |= {FailedSync(max(found.ready), key) for key in found.groups}
        lock.note(lost)

    def _note_latched(self, lock: StoreLock, failed: FailedSync) -> None:
        """A later start must not believe the page cache of this run [S-78]; as good as it can be done."""
        what = f"sync_failed={failed.run}:{failed.group} in the lock file"
        self._core.owner.aside("lock", lambda: lock.note([failed]), self._core.note_failure(what))

    def _shards(self, found: discover.Found) -> Shards:
        core, config = self._core, self._core.config
        wal_dir = f"{core.dir}/{paths.WAL_DIR}"
        recovered = {}
        for key in {*found.groups, *group_keys(config.wal_shards)}:
            dir = group_dir(wal_dir, key)
            ensure_dir(core.fs, dir)
            known = found.groups.get(key) or group.Group(key, dir, (), (), ())
            recovered[key] = Recovered(known, found.first_file(key))
        return Shards(
            core.fs, wal_dir, config.wal_shards, recovered, WalFiles(), owner=core.owner, clock=core.clock,
            run=core.run, boot=core.boot, file_bytes=config.wal_file_bytes, init_zero=config.wal_init_zero,
            min_free_bytes=config.min_free_bytes, max_fds=fds_permit(config.max_fds),
            max_submissions=config.queue_submissions, max_pending_bytes=config.queue_bytes,
            retired=[row for row in found.rows if row.retired], meter=self._meter,
        )  # fmt: skip

    def _tidy(self, deleted: set[int]) -> None:
        """Finish what deleting topics left undone [S-275]."""
        core = self._core
        root = f"{core.dir}/{paths.TOPICS_DIR}"
        for id in sorted(deleted):
            alive = core.topic_dir(id)
            dead = f"{root}/{paths.topic_dir(id, deleted=True)}"
            if core.fs.exists(alive):
                if core.fs.exists(dead):
                    lifecycle.clear_dir(core, dead)
                    if core.cold.root is not None:
                        core.fs.rmdir(dead)
                core.fs.rename(alive, dead)
        if deleted:
            core.fs.sync_dir(root)
        staging.clear(core.fs, f"{core.dir}/{paths.STAGING_DIR}")
        for name in core.fs.listdir(root):
            parsed = paths.parse_topic_dir(name)
            if parsed is not None and parsed.deleted:
                lifecycle.clear_dir(core, f"{root}/{name}")
                lifecycle.remember_cleared(core, parsed.topic_id, f"{root}/{name}")
            elif parsed is not None and parsed.topic_id not in core.topics:
                core.orphan_dirs += 1

    def _settle(self, lock: StoreLock, recovery: recover.Recovery) -> None:
        core = self._core
        settling = ReadyMark(core, lock, recovery.decided, recovery.unborn)
        core.settling = settling
        if not recovery.must_settle:
            return
        self._owner.do(settling.begin)
        self._run_out()
        if core.settling is not None and not settling.is_full:
            raise settling.failed or TopicsError("the run could not begin")

    def _carry_out(self, work: Callable[[], object]) -> None:
        """Do something as the owner, and wait for what follows from it."""
        self._owner.do(work)
        self._run_out(START_S)

    def _run_out(self, cold_s: float | None = None) -> None:
        """Wait for what is under way, while nobody else uses the engine; for the cold tier at most `cold_s`."""
        if isinstance(self._owner, InlineOwner):
            self._owner.run()
        else:
            self._owner.do(_nothing)
            self._owner.wait_idle(cold_s)

    # -- operations --------------------------------------------------------------------------------------------------

    def put_topic(
        self, name: str, config: TopicConfig | Mapping[str, object] | None = None
    ) -> tuple[bool, TopicConfig]:
        """Create a topic, or replace its configuration; whether it was created, and the configuration in force."""
        return self._call(lambda done: lifecycle.put(self._core, name, config, done))  # type: ignore[no-any-return]

    def delete_topic(self, name: str) -> bool:
        """Delete a topic with everything in it and every router that touches it; whether there was one."""
        return bool(self._call(lambda done: lifecycle.delete(self._core, name, done)).deleted)

    def put_router(self, name: str, config: RouterConfig | Mapping[str, object]) -> tuple[bool, RouterState]:
        """Create a router, or replace its definition; whether it was created, and how it is."""
        return self._call(lambda done: route.put(self._core, name, RouterConfig.parse(config), done))  # type: ignore[no-any-return]

    def router(self, name: str) -> RouterState:
        """A router, once it has handled what its source had."""
        return self._call(lambda done: route.get(self._core, name, done))  # type: ignore[no-any-return]

    def routers(self, prefix: str = "", *, source: str | None = None, dest: str | None = None) -> list[RouterState]:
        """Routers as they are now, by name."""
        self.check_open()
        return self._owner.look(lambda: [one.state() for one in route.listed(self._core, prefix, source, dest)])

    def delete_router(self, name: str) -> bool:
        """Delete a router; copies it made stay. Whether there was one."""
        return self._call(lambda done: route.delete(self._core, name, done))  # type: ignore[no-any-return]

    def append(
        self,
        name: str,
        records: Iterable[Given],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> AppendResult:
        """Append records, all or none; they are visible, and as durable as the topic's class says, on return."""
        write = self._write(name, records, node, idempotency_key, producer, create, config)
        return self._call(lambda done: appending.append(self._core, write, done))  # type: ignore[no-any-return]

    def _write(
        self,
        name: str,
        records: Iterable[Given],
        node: str | None,
        key: str | None,
        producer: Any,
        create: Any,
        config: Any,
    ) -> appending.Write:
        return appending.Write.prepare(
            name, records, self._core.limits, node=node, idempotency_key=key, producer=producer, create=create,
            config=config,
        )  # fmt: skip

    def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        node: str | Iterable[str] | None = None,
        wait_ms: int = 0,
    ) -> ReadResult:
        """Read behind a cursor; with `wait_ms`, wait that long for the next publication if there is nothing."""
        query = reading.Query.parse(name, from_seq, from_ts, limit, max_bytes, node, wait_ms, self._core.limits)
        return self._call(lambda done: reading.read(self._core, query, done))  # type: ignore[no-any-return]

    def subscribe(
        self, name: str, from_seq: int = 0, receiver: Receiver | None = None, *, node: str | Iterable[str] | None = None
    ) -> Subscription:
        """Hand every `Record` and `Gap` behind a cursor to a callback or a queue, in order, as they come.

        The topic must exist. A slow receiver misses nothing that the topic still has.
        """
        if receiver is None or not (callable(receiver) or hasattr(receiver, "put")):
            raise CallerError("subscribe needs somebody to give records to: a callback, or a queue")
        limits = self._core.limits
        query = reading.Query.parse(name, from_seq, None, 256, 1 << 20, node, limits.max_wait_ms, limits)
        self.state(name, touch=False)
        return Subscription(self, query, receiver)

    def poll(self, query: reading.Query, until: Callable[[Callable[[], None]], None]) -> ReadResult | None:
        """Read, or wait to; `until` is given what calls it off, and then there is no result."""
        waiting = reading.Waiting()

        def begin(told: Outcome) -> None:
            def end() -> None:
                waiting.end()
                told(None)

            def call_off() -> None:
                with suppress(EngineClosed):
                    self._owner.do(end)

            self._owner.do(partial(_start, lambda done: reading.read(self._core, query, done, None, waiting), told))
            until(call_off)

        return self._wait(begin)  # type: ignore[no-any-return]

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """Delete the records that exist now and are selected; nothing brings them back."""
        removal = deleting.Removal.parse(before_seq, match, seqs, self._core.limits)
        deleting.check_flag(dry_run, "dry_run")
        return self._call(lambda done: deleting.delete(self._core, name, removal, dry_run, done))  # type: ignore[no-any-return]

    def stage(
        self,
        id: str,
        version: int,
        part: str,
        chunk: int,
        topic: str,
        records: Iterable[Given],
        *,
        node: str | None = None,
    ) -> StageResult:
        """Put records where nobody sees them, until `commit_staged` names their part [A-19].

        Chunks of a part are numbered from 0, over all topics. The same chunk again is known; other records under its
        number are a conflict.
        """
        staged = self._stage(id, version, part, chunk, topic, records, node)
        return self._call(lambda done: txn.stage(self._core, staged, done))  # type: ignore[no-any-return]

    def _stage(
        self, id: str, version: int, part: str, chunk: int, topic: str, records: Iterable[Given], node: str | None
    ) -> txn.Stage:
        limits = self._core.limits
        return txn.Stage.prepare(txn.Place.parse(topic, id, version, part, chunk, limits), records, limits, node)

    def commit_staged(
        self,
        id: str,
        version: int,
        parts: Iterable[Mapping[str, object] | tuple[str, int, int]],
        *,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        attach: txn.AttachMode = "auto",
    ) -> CommitResult:
        """Publish what is staged under the parts, in their order, all or none, once per version of the writer.

        A part is `{"part", "chunks", "records"}`. It is durable on return; repeat a call that failed.
        """
        asked = txn.Commit.parse(id, version, list(parts), create, config, attach, self._core.limits)
        return self._call(lambda done: txn.commit(self._core, asked, done))  # type: ignore[no-any-return]

    def abort_staged(self, id: str, version: int) -> AbortResult:
        """Drop what is staged for a version; one that is committed is left alone."""
        writer, number = txn.writer_id(id, self._core.limits), check_u64(version, "version")
        return self._call(lambda done: txn.abort(self._core, writer, number, done))  # type: ignore[no-any-return]

    def writer(self, id: str) -> WriterState:
        """A writer of staged commits: its committed version, and what it has staged."""
        self.check_open()
        return self._owner.look(lambda: txn.state(self._core, txn.writer_id(id, self._core.limits)))

    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """Lease jobs of a queue to a node: what came back first, then what was never delivered, in seq order.

        None is an answer too; where the queue has a window, the call lasts until it ends.
        """
        asked = queues.Claim.parse(node, max, lease_ms, self._core.limits)
        return self._call(lambda done: queues.claim(self._core, name, asked, done))  # type: ignore[no-any-return]

    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """Delete jobs that a node holds, for good; with `lease_ids` only those whose lease is still that one."""
        asked = queues.Ask.parse(node, seqs, lease_ids, self._core.limits)
        return self._call(lambda done: queues.ack(self._core, name, asked, done))  # type: ignore[no-any-return]

    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """Give jobs back, to be claimed again at once or after a delay."""
        asked = queues.Ask.parse(node, seqs, lease_ids, self._core.limits)
        delay = check_u64(delay_ms, "delay_ms")
        return self._call(lambda done: queues.nack(self._core, name, asked, delay, done))  # type: ignore[no-any-return]

    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """Have leases end so many milliseconds from now."""
        asked = queues.Ask.parse(node, seqs, lease_ids, self._core.limits)
        span = check_u64(lease_ms, "lease_ms")
        return self._call(lambda done: queues.extend(self._core, name, asked, span, done))  # type: ignore[no-any-return]

    def leases(self, name: str, cursor: int = 0, *, page_size: int = 100) -> LeasePage:
        """What of a queue is leased and what is delayed, by seq, behind a cursor."""
        after, size = check_u64(cursor, "cursor"), check_u64(page_size, "page_size")
        return self._call(lambda done: queues.leases(self._core, name, after, size or 1, done))  # type: ignore[no-any-return]

    def state(self, name: str, *, touch: bool = True) -> TopicState:
        """A topic at this instant; `touch` counts as reading it."""
        return self._call(lambda done: reading.state(self._core, name, touch, done))  # type: ignore[no-any-return]

    def topics(self, prefix: str = "", *, system: bool = False) -> Iterator[str]:
        """The names of topics that begin with a prefix, sorted; the server's own only if asked for [A-14]."""
        self.check_open()
        names = self._owner.look(lambda: [name for name in self._core.names if system or not is_system_name(name)])
        return iter(sorted(name for name in names if name.startswith(prefix)))

    def plan(
        self,
        name: str,
        from_seq: int = 0,
        to_seq: int = paths.U64_MAX,
        *,
        limit: int = planning.SEGMENTS_MAX,
        pin_ms: int = 0,
        pin: str | None = None,
    ) -> planning.Plan:
        """Which files hold a topic, for a reader that opens them itself [A-8].

        With `pin_ms` they stay for so long, and further pages of the same instant are had by the pin's id.
        """
        asked = planning.Range(from_seq, to_seq, limit, check_u64(pin_ms, "pin_ms"), pin)
        return self._call(lambda done: self.begin_plan(name, asked, done))  # type: ignore[no-any-return]

    def begin_plan(self, name: str, asked: planning.Range, done: Outcome) -> None:
        """The same on the loop."""
        bring_in = None if self._checkpointer is None else self._checkpointer.bring_in
        planning.plan(self._core, name, asked, bring_in, done)

    def release_pin(self, id: str) -> None:
        """End a pin before its time; `PinNotFound` if there is none."""
        self.check_open()
        self._owner.do(partial(self._core.pins.release, id))

    def compact(
        self,
        name: str,
        segments: Iterable[int] | None = None,
        *,
        min_dead_ratio: float | None = None,
        bytes_per_sec: int | None = None,
        wait_ms: int | None = None,
    ) -> CompactResult:
        """Rewrite sealed segments without what was deleted: named by first seq, or all that are dead by a ratio.

        Returns when it is done, or after `wait_ms` with how far it is; it goes on by itself, and asking again tells.
        """
        asked = Asked.parse(segments, min_dead_ratio, bytes_per_sec, wait_ms, self._core.limits)
        return self._call(lambda done: self.compactor.ask(name, asked, done))  # type: ignore[no-any-return]

    def checkpoint(self, full: bool = False) -> CheckpointResult:
        """Bring tails into segments; full: everything acknowledged before, and a snapshot behind it [A-15]."""
        return self._call(lambda done: self._checkpoint(full, snapshot=False, done=done))  # type: ignore[no-any-return]

    def snapshot(self) -> int:
        """Write a snapshot behind a checkpoint; its number."""
        result = self._call(lambda done: self._checkpoint(False, snapshot=True, done=done))
        return result.snapshot or 0

    def _checkpoint(self, full: bool, snapshot: bool, done: Outcome) -> None:
        if self._core.closing:
            done(EngineClosed("the engine is closing"))
        elif self._checkpointer is None:
            done(CheckpointResult())
        else:
            self._checkpointer.ask(done, full=full, snapshot=snapshot)

    def metrics(self) -> dict[str, float]:
        """Counters and gauges under the names of 06 §21; where there are labels, their sum."""
        self.check_open()
        sweep = self._owner.look(self.begin_metrics)
        while not self._owner.do(sweep.step):
            pass
        return sweep.found.flat()

    def begin_metrics(self) -> Sweep:
        """On the owner: everything there is to count, in steps that are short."""
        return Sweep(self._core, self._checkpointer, self._snapshots, self._progress)

    def health(self) -> Health:
        """Whether writes are taken, and how far recovery is."""
        shards = {shard.key: shard.state for shard in self._core.wal.shards} if self._core.wal is not None else {}
        states = set(shards.values())
        state = "read_only" if "read_only" in states else "full" if "full" in states else "ok"
        ready = state == "ok" and self._progress >= 1.0 and not self._core.closing
        return Health(ready, state, self._progress, dict(shards))

    # -- time --------------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Do everything that is due, and return when it is done [S-355]."""
        self.check_open()
        self._owner.do(self._tick)

    def _tick(self) -> None:
        core = self._core
        now = core.clock.monotonic_ns()
        core.alarms.ring(now)
        core.pump.tick()
        core.load.look()
        if core.routers.behind:
            self._every("routers", ROUTERS_MS, now, partial(forward.retry, core))
        if core.wal is None:
            self._every("ttl", core.config.ttl_sweep_ms, now, self._sweep)
            return
        for shard in core.wal.shards:
            shard.tick()
        if isinstance(core.settling, ReadyMark):
            core.settling.tick()
        self._every("ttl", core.config.ttl_sweep_ms, now, self._sweep)
        if self._checkpointer is not None:
            rotations = sum(shard.counters.rotations for shard in core.wal.shards)
            if rotations != self._rotations or self._checkpointer.is_early:
                self._rotations = rotations
                self._due["checkpoint"] = now
            self._every("checkpoint", core.config.checkpoint_ms, now, self._checkpointer.tick)
        self._every("rewrite", core.config.ttl_sweep_ms, now, self._rewriter.tick)
        if not self.audit.begun and now >= self._opened_ns + AUDIT_AFTER_NS:
            self.audit.begin()
        if core.cold.root is not None:
            self._every("relocate", core.config.relocate_ms, now, self._relocator.tick)
        for id in list(core.unremoved):
            lifecycle.remove_files(core, id)

    def _every(self, what: str, ms: int, now: int, call: Callable[[], None]) -> None:
        due = self._due.setdefault(what, self._opened_ns + ms * NS_PER_MS)
        if now >= due:
            self._due[what] = now + ms * NS_PER_MS
            try:
                call()
            except (OSError, TopicsError) as error:  # the others are due all the same
                log.error("%s: %s", what, error)

    def _sweep(self) -> None:
        """Once a second: TTL, keys whose window is over, reservations of idle topics."""
        core = self._core
        now = core.clock.now_ms()
        for id in list(core.expiring):
            topic = core.topics.get(id)
            if topic is not None and not topic.removed and not _expire(core, topic):
                break
        txn.expire(core)
        for id in core.keys.topic_ids():
            topic = core.topics.get(id)
            if topic is not None:
                core.keys.expire(id, now, topic.config.idempotency_window_ms)
        for id in list(core.reserved):
            topic = core.topics.get(id)
            if topic is None or not topic.reservation.ceiling:
                core.reserved.discard(id)
            elif not topic.tickets and now - (topic.last_write_ms or 0) >= core.config.reserve_idle_ms:
                lifecycle.give_back(core, topic)

    def idle_s(self) -> float | None:
        """How long `tick` has nothing to do; None: as things stand, nothing ever."""
        self.check_open()
        return self._owner.look(self._find_idle_s)

    def _find_idle_s(self) -> float:
        core = self._core
        dues = list(self._due.values())
        dues += [due for due in (core.alarms.next_ns(), core.pump.next_due_ns()) if due is not None]
        if core.wal is not None:
            dues += [due for shard in core.wal.shards if (due := shard.next_due_ns()) is not None]
        if not self._due:
            return 0.0
        if not core.routers.behind and "routers" in self._due:
            dues.remove(self._due["routers"])
        return (min(dues) - core.clock.monotonic_ns()) / 1e9

    # -- ending ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Finish what was accepted, checkpoint, snapshot, and let go of the directory [S-352]. Again is fine."""
        with self._close_lock:
            self.aio.flush()
            if self._closed or process_id() != self._pid:
                return
            self._closed = True
            try:
                if self._timer is not None:
                    self._timer.stop()
                if not self._is_struck:
                    self._finish()
            finally:
                self._let_go()

    def _finish(self) -> None:
        self._owner.do(self._begin_closing)
        self._run_out()
        self._tell_the_rest()
        if self._core.wal is not None:
            self._close_store()

    @property
    def _is_struck(self) -> bool:
        return isinstance(self._owner, LockedOwner) and bool(self._owner.struck)

    def _tell_the_rest(self) -> None:
        """Deletes and losses that wait for company are told now; what cannot be, after the next start [A-20]."""
        self._owner.do(self._core.deletes.flush)
        self._owner.do(self._core.losses.flush)
        self._run_out()

    def _begin_closing(self) -> None:
        self.end_waits()
        for inbox in list(self.inboxes):
            inbox.broken(EngineClosed("the engine is closed"))
        core = self._core
        core.closing = True
        core.load.end()
        if core.attaching is not None:
            core.attaching.end()
        core.pins.end()
        if core.wal is not None:
            for shard in core.wal.shards:
                shard.flush()
                shard.sync()

    def _close_store(self) -> None:
        core = self._core
        assert core.wal is not None
        assert self._checkpointer is not None
        assert self._snapshots is not None
        # Heads of `ephemeral` topics are kept by marks alone [DUR-7]; a snapshot of this run is not a clean one yet.
        wrote = core.settling is None or bool(core.changed) or self._snapshots.total > 0
        if wrote:
            checkpointed: list[object] = []
            ask = partial(self._checkpointer.ask, checkpointed.append, full=False, snapshot=False, final=True)
            self._owner.do(ask)
            self._run_out()
            clean = not any(isinstance(one, Exception) for one in checkpointed)
            clean = clean and all(shard.state == "ok" for shard in core.wal.shards)
            if clean:
                snapped: list[object] = []
                number = self._checkpointer.number
                self._owner.do(partial(self._snapshots.take, number, force=True, clean=True, done=snapped.append))
                self._run_out()
                clean = not any(isinstance(one, Exception) for one in snapped)
            if clean:
                self._mark_closed()
        for shard in core.wal.shards:
            shard.close()

    def _mark_closed(self) -> None:
        """Everything is synced: say so, in every group that has a file of this run, group 0 last."""
        core = self._core
        assert core.wal is not None
        raw = frame.encode_control(control.CloseMark(run=core.run), 0, core.clock.now_ms(), durable=True)
        for shard in reversed(core.wal.shards):
            if shard.is_open:
                submit = partial(shard.submit, raw, 1, lambda outcome: None, durable=True, control=True)
                try:
                    self._owner.do(submit)
                except TopicsError as error:
                    log.warning("no close mark: %s", error)
                    return
                self._run_out()

    def _let_go(self) -> None:
        core = self._core
        core.closing = True
        try:
            self._owner.close()
            if self._is_struck:
                self._note_struck()  # the first time may have been struck itself
            if core.wal is not None:
                if self._is_struck:
                    self._leave_logs()
                core.wal.reader.close()
            core.maps.clear()
            if core.cold.root is not None:
                core.cold.root.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    def _leave_logs(self) -> None:
        """As they are: the next start mends them."""
        assert self._core.wal is not None
        for shard in self._core.wal.shards:
            try:
                shard.log.close(finalize=False)
            except (OSError, WalError) as error:
                log.warning("shard %r: leaving its log: %s", shard.key, error)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # -- calling -----------------------------------------------------------------------------------------------------

    def check_open(self) -> None:
        """Refuse what comes after closing, or from a process that was forked."""
        if process_id() != self._pid:
            raise EngineClosed("the engine was opened by another process; it does not survive a fork [S-11]")
        if self._closed:
            raise EngineClosed("the engine is closed")
        self._owner.check()

    def _note_struck(self) -> None:
        """On the owner: nothing is done any more, which whoever waits is told [S-73]."""
        self._core.closing = True
        latches = [latch.set for latch in tuple(self._latches)]
        inboxes = [inbox.broken for inbox in tuple(self.inboxes)]
        for tell in (*latches, *inboxes, *self.aio.waiting()):
            try:
                self._owner.check()
            except EngineClosed as error:
                tell(error)

    def _call(self, start: Callable[[Outcome], object]) -> Any:
        """Start an operation on the owner and wait for its outcome without being the owner."""
        return self._wait(lambda done: self._owner.do(partial(_start, start, done)))

    def _wait(self, begin: Callable[[Outcome], object]) -> Any:
        self.check_open()
        latch = _Latch()
        self._latches.add(latch)
        try:
            begin(latch.set)
            return latch.wait()
        finally:
            self._latches.discard(latch)

    async def _call_async(self, start: Callable[[Outcome], object]) -> Any:
        self.check_open()
        return await self.aio.bridge().call(start)


class _Bridge:
    """Between one event loop and the engine: what a pass of the loop begins is written together, and what becomes known
    together wakes the loop once.

    What is left to the loop is left to it twice: a signal that strikes as one call begins leaves the other.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._starting: list[tuple[Callable[[Outcome], object], asyncio.Future[Any]]] = []
        self._outcomes: deque[tuple[asyncio.Future[Any], Any]] = deque()
        self._waiting: set[asyncio.Future[Any]] = set()

    def call(self, start: Callable[[Outcome], object]) -> asyncio.Future[Any]:
        """Start an operation, with all others of this pass; the future of its outcome."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        if not self._starting:
            _twice(loop.call_soon, self._flush)
        if self._outcomes:
            loop.call_soon(self._settle)
        self._starting.append((start, future))
        self._waiting.add(future)
        return future

    def flush(self) -> None:
        """Start everything now."""
        while self._starting:
            self._flush()

    def _flush(self) -> None:
        if not self._starting:
            return
        try:
            self._engine.check_open()
            self._engine.owner.do(self._start)
        except EngineClosed as error:
            unbroken(partial(self._refuse, error))
        finally:
            if self._starting:  # there are more, or a signal ended the wait for the owner's lock
                _twice(asyncio.get_running_loop().call_soon, self._flush)

    def _start(self) -> None:
        starting = self._starting[:STARTS_MAX]
        del self._starting[:STARTS_MAX]
        for start, future in starting:
            if future.done():
                self._waiting.discard(future)  # nobody waits for it any more
                continue
            done = partial(self._report, future)
            try:
                _start(start, done)
            except Exception as error:  # noqa: BLE001 - whoever waits is told, and the others have theirs
                done(error)

    def _refuse(self, error: EngineClosed) -> None:
        while self._starting:
            _, future = self._starting.pop()
            self._waiting.discard(future)
            if not future.done():
                future.set_exception(error)

    def waiting(self) -> list[Outcome]:
        """On the owner: what tells those who wait their outcome."""
        return [partial(self._report, future) for future in tuple(self._waiting)]

    def _report(self, future: asyncio.Future[Any], outcome: Any) -> None:
        """On the owner, which may be any thread."""
        self._outcomes.append((future, outcome))
        if len(self._outcomes) == 1:
            loop = future.get_loop()
            is_here = asyncio._get_running_loop() is loop
            try:
                _twice(loop.call_soon if is_here else loop.call_soon_threadsafe, self._settle)
            except RuntimeError:
                log.info("nobody waits for an outcome any more: its event loop is closed")
                self._outcomes.clear()
                self._waiting.clear()

    def _settle(self) -> None:
        unbroken(self._settle_all)

    def _settle_all(self) -> None:
        for _ in range(len(self._outcomes)):
            # It leaves when it is settled: who adds one to an empty line wakes the loop, who finds company need not.
            future, outcome = self._outcomes[0]
            self._waiting.discard(future)
            if not future.done():
                if isinstance(outcome, BaseException):
                    future.set_exception(outcome)
                else:
                    future.set_result(outcome)
            self._outcomes.popleft()
        if self._outcomes:
            _twice(asyncio.get_running_loop().call_soon, self._settle)


def _twice(soon: Callable[[Callable[[], None]], object], call: Callable[[], None]) -> None:
    soon(call)
    soon(call)


def _expire(core: Core, topic: Topic) -> bool:
    """One topic of a sweep; False: the log takes no more now, the rest is for the next one."""
    try:
        retention.expire(core, topic, lambda: None, lambda error: None)
    except WalFull:
        return False
    except (OSError, TopicsError) as error:
        log.error("topic %r: TTL is not applied now: %s", topic.name, error)
    return True


def _nothing() -> None:
    """For an owner who has only what was put off to do."""


def _start(start: Callable[[Outcome], object], done: Outcome) -> None:
    try:
        start(done)
    except TopicsError as error:
        done(error)
    except OSError as error:
        done(WalIo(error))


class _Latch:
    """The outcome of one call."""

    __slots__ = ("_lock", "_outcome", "_told")

    def __init__(self) -> None:
        self._told = False
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Any = None

    def set(self, outcome: Any) -> None:
        """Tell the outcome, on the owner; the first one counts."""
        if not self._told:
            self._told = True
            self._outcome = outcome
            self._lock.release()

    def wait(self) -> Any:
        self._lock.acquire()
        if isinstance(self._outcome, BaseException):
            raise self._outcome
        return self._outcome


class EngineAio:
    """The engine's operations as coroutines, for use on an event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._bridges: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Bridge] = weakref.WeakKeyDictionary()

    def bridge(self) -> _Bridge:
        """That of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._bridges.get(loop)
        if found is None:
            for other in [one for one in self._bridges if one.is_closed()]:
                del self._bridges[other]
            found = self._bridges[loop] = _Bridge(self._engine)
        return found

    def flush(self) -> None:
        """Start what this thread's loop has begun, if there is one."""
        loop = asyncio._get_running_loop()
        if loop is not None and loop in self._bridges:
            self._bridges[loop].flush()

    def waiting(self) -> list[Outcome]:
        """On the owner: what tells everybody who waits for an outcome, on whichever loop."""
        return [tell for bridge in tuple(self._bridges.values()) for tell in bridge.waiting()]

    async def put_topic(
        self, name: str, config: TopicConfig | Mapping[str, object] | None = None
    ) -> tuple[bool, TopicConfig]:
        """See `Engine.put_topic`."""
        return await self._run(partial(lifecycle.put, self._engine._core, name, config))  # type: ignore[no-any-return]

    async def delete_topic(self, name: str) -> bool:
        """See `Engine.delete_topic`."""
        return bool((await self._run(partial(lifecycle.delete, self._engine._core, name))).deleted)

    async def put_router(self, name: str, config: RouterConfig | Mapping[str, object]) -> tuple[bool, RouterState]:
        """See `Engine.put_router`."""
        parsed = RouterConfig.parse(config)
        return await self._run(partial(route.put, self._engine._core, name, parsed))  # type: ignore[no-any-return]

    async def router(self, name: str) -> RouterState:
        """See `Engine.router`."""
        return await self._run(partial(route.get, self._engine._core, name))  # type: ignore[no-any-return]

    async def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> list[RouterState]:
        """See `Engine.routers`."""
        return self._engine.routers(prefix, source=source, dest=dest)

    async def delete_router(self, name: str) -> bool:
        """See `Engine.delete_router`."""
        return await self._run(partial(route.delete, self._engine._core, name))  # type: ignore[no-any-return]

    async def append(
        self,
        name: str,
        records: Iterable[Given],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
    ) -> AppendResult:
        """See `Engine.append`."""
        write = self._engine._write(name, records, node, idempotency_key, producer, create, config)
        return await self._run(partial(appending.append, self._engine._core, write))  # type: ignore[no-any-return]

    async def read(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        node: str | Iterable[str] | None = None,
        wait_ms: int = 0,
    ) -> ReadResult:
        """See `Engine.read`."""
        core = self._engine._core
        query = reading.Query.parse(name, from_seq, from_ts, limit, max_bytes, node, wait_ms, core.limits)
        return await self._run(partial(reading.read, core, query))  # type: ignore[no-any-return]

    async def subscribe(
        self, name: str, from_seq: int = 0, *, node: str | Iterable[str] | None = None
    ) -> AsyncIterator[Record | Gap]:
        """Every `Record` and `Gap` behind a cursor, in order, as they come; ends with an error when the topic goes."""
        wait_ms = self._engine._core.limits.max_wait_ms
        while True:
            result = await self.read(name, from_seq, node=node, wait_ms=wait_ms)
            if result.tombstone is not None:
                yield result.tombstone
            for record in result.records:
                yield record
            from_seq = result.next_from_seq

    async def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> DeleteResult:
        """See `Engine.delete`."""
        core = self._engine._core
        removal = deleting.Removal.parse(before_seq, match, seqs, core.limits)
        deleting.check_flag(dry_run, "dry_run")
        return await self._run(partial(deleting.delete, core, name, removal, dry_run))  # type: ignore[no-any-return]

    async def stage(
        self,
        id: str,
        version: int,
        part: str,
        chunk: int,
        topic: str,
        records: Iterable[Given],
        *,
        node: str | None = None,
    ) -> StageResult:
        """See `Engine.stage`."""
        staged = self._engine._stage(id, version, part, chunk, topic, records, node)
        return await self._run(partial(txn.stage, self._engine._core, staged))  # type: ignore[no-any-return]

    async def commit_staged(
        self,
        id: str,
        version: int,
        parts: Iterable[Mapping[str, object] | tuple[str, int, int]],
        *,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        attach: txn.AttachMode = "auto",
    ) -> CommitResult:
        """See `Engine.commit_staged`."""
        core = self._engine._core
        asked = txn.Commit.parse(id, version, list(parts), create, config, attach, core.limits)
        return await self._run(partial(txn.commit, core, asked))  # type: ignore[no-any-return]

    async def abort_staged(self, id: str, version: int) -> AbortResult:
        """See `Engine.abort_staged`."""
        core = self._engine._core
        writer, number = txn.writer_id(id, core.limits), check_u64(version, "version")
        return await self._run(partial(txn.abort, core, writer, number))  # type: ignore[no-any-return]

    async def writer(self, id: str) -> WriterState:
        """See `Engine.writer`."""
        return self._engine.writer(id)

    async def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> ClaimResult:
        """See `Engine.claim`."""
        core = self._engine._core
        asked = queues.Claim.parse(node, max, lease_ms, core.limits)
        return await self._run(partial(queues.claim, core, name, asked))  # type: ignore[no-any-return]

    async def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> AckResult:
        """See `Engine.ack`."""
        core = self._engine._core
        asked = queues.Ask.parse(node, seqs, lease_ids, core.limits)
        return await self._run(partial(queues.ack, core, name, asked))  # type: ignore[no-any-return]

    async def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> NackResult:
        """See `Engine.nack`."""
        core = self._engine._core
        asked = queues.Ask.parse(node, seqs, lease_ids, core.limits)
        delay = check_u64(delay_ms, "delay_ms")
        return await self._run(partial(queues.nack, core, name, asked, delay))  # type: ignore[no-any-return]

    async def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> ExtendResult:
        """See `Engine.extend`."""
        core = self._engine._core
        asked = queues.Ask.parse(node, seqs, lease_ids, core.limits)
        span = check_u64(lease_ms, "lease_ms")
        return await self._run(partial(queues.extend, core, name, asked, span))  # type: ignore[no-any-return]

    async def leases(self, name: str, cursor: int = 0, *, page_size: int = 100) -> LeasePage:
        """See `Engine.leases`."""
        core = self._engine._core
        after, size = check_u64(cursor, "cursor"), check_u64(page_size, "page_size")
        return await self._run(partial(queues.leases, core, name, after, size or 1))  # type: ignore[no-any-return]

    async def state(self, name: str, *, touch: bool = True) -> TopicState:
        """See `Engine.state`."""
        return await self._run(partial(reading.state, self._engine._core, name, touch))  # type: ignore[no-any-return]

    async def topics(self, prefix: str = "", *, system: bool = False) -> list[str]:
        """See `Engine.topics`."""
        return list(self._engine.topics(prefix, system=system))

    async def compact(
        self,
        name: str,
        segments: Iterable[int] | None = None,
        *,
        min_dead_ratio: float | None = None,
        bytes_per_sec: int | None = None,
        wait_ms: int | None = None,
    ) -> CompactResult:
        """See `Engine.compact`."""
        asked = Asked.parse(segments, min_dead_ratio, bytes_per_sec, wait_ms, self._engine._core.limits)
        return await self._run(partial(self._engine.compactor.ask, name, asked))  # type: ignore[no-any-return]

    async def checkpoint(self, full: bool = False) -> CheckpointResult:
        """See `Engine.checkpoint`."""
        return await self._run(lambda done: self._engine._checkpoint(full, False, done))  # type: ignore[no-any-return]

    async def snapshot(self) -> int:
        """See `Engine.snapshot`."""
        result = await self._run(lambda done: self._engine._checkpoint(False, True, done))
        return result.snapshot or 0

    async def metrics(self) -> dict[str, float]:
        """See `Engine.metrics`; the loop goes on in between."""
        engine = self._engine
        engine.check_open()
        sweep = engine.owner.look(engine.begin_metrics)
        while not engine.owner.do(sweep.step):
            await asyncio.sleep(0)
        return sweep.found.flat()

    async def tick(self) -> None:
        """See `Engine.tick`."""
        self._engine.tick()

    async def close(self) -> None:
        """See `Engine.close`; the loop goes on meanwhile."""
        self.flush()
        await asyncio.get_running_loop().run_in_executor(None, self._engine.close)

    def _run(self, start: Callable[[Outcome], object]) -> Coroutine[Any, Any, Any]:
        return self._engine._call_async(start)
