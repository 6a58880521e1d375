"""The shard WAL under the sweeps: group commit, rotation, failure states and the verdicts of a restart (06 §5, §6).

Submissions are chains of Append frames with payloads that tell them apart. What a restart replays must be, run by run,
whole submissions in log order: everything synced, after a mere kill everything finished, nothing made up. Half of the
seeds have helpers that work, and report, when chance lets them; some have a slow volume, pressure, or a bound on free
space.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from topics import paths
from topics.codec import envelope, frame
from topics.errors import TopicsError, WalCorrupt
from topics.fs import Fs, ensure_dir
from topics.storage import group as groups
from topics.storage.group import Group
from topics.storage.owner import InlineOwner
from topics.storage.shard import Lsn, Shard
from topics.testing.driver import DiskDriver
from topics.testing.faultfs import Fault, FaultFs
from topics.testing.monitorfs import MonitorFs
from topics.testing.owner import SteppedOwner
from topics.testing.simfs import SYNC_MODES, SimFs
from topics.testing.subject import How, Violation

DIR = "store/wal"
OPS = (
    "write",
    "write_durable",
    "write_large",
    "write_chain",
    "tick_of_many",
    "tick_of_both",
    "tick_behind",
    "wait",
    "sync_mark",
    "trim",
    "damage",
    "close_reopen",
    "kill_reopen",
    "crash_reopen",
    "failed_sync",
    "failed_write",
    "full_disk",
)
Payload = tuple[str, ...]
"""The data of a submission's records: its identity."""


BOUND = 8192
SLOW_NS = 5_000_000
"""A time of pwrite from which it takes some twenty fast ones to be fast again."""


class ShardSetup(NamedTuple):
    """Everything a seed decides about a run."""

    file_bytes: int = 1500
    init_zero: bool = False
    zero_ahead: int = 300
    """Files are small, so these steps are: one file takes several."""
    stepped: bool = False
    """Helpers work, and report, when chance lets them."""
    slow: bool = False
    """Writes begin on the shard's own thread."""
    pressure: float = 0.0
    min_free_bytes: int = 0


def setup_for(seed: int) -> ShardSetup:
    """The configuration of a seed."""
    rng = random.Random(f"setup {seed}")
    return ShardSetup(
        file_bytes=rng.choice((1500, 4096, 9000)),
        init_zero=rng.random() < 0.5,
        stepped=rng.random() < 0.5,
        slow=rng.random() < 0.4,
        pressure=rng.choice((0.0, 0.0, 0.8)),
        min_free_bytes=rng.choice((0, 0, BOUND)),
        zero_ahead=rng.choice((150, 300, 1300)),
    )


class Promise:
    """What is promised about one submission."""

    __slots__ = ("behind", "durable", "finished", "lsn", "payload", "size")

    def __init__(self, payload: Payload, size: int = 0) -> None:
        self.payload = payload
        self.size = size
        self.lsn: Lsn | None = None
        self.behind = Lsn(0, 0)
        """Everything before it was said to be finished while this was not [S-77]."""
        self.finished = False
        self.durable = False


class ShardDriver(DiskDriver):
    """Runs one shard on one group and keeps the promises in step."""

    def __init__(self, setup: ShardSetup, seed: int) -> None:
        super().__init__()
        self.setup = setup
        self.rng = random.Random(f"shard {seed}")
        self._writes = FaultFs(self._fs)
        """For faults of the driver's own making, which are not those of a sweep."""
        self._monitor = MonitorFs(self._writes)
        self._owner: InlineOwner | SteppedOwner = InlineOwner()
        self._shard: Shard | None = None
        self._run = 0
        self._boot = "boot-1"
        self._settled: list[Promise] = []
        """Of earlier runs: recovered once, so durable."""
        self._current: list[Promise] = []
        """Of this run, in log order."""
        self._position = (1, 0)
        self._count = 0
        self._named = 0
        """The highest file that `CURRENT` is known to name durably, or a later one."""
        self._crashed = False
        self._lied = False
        self._was_latched = False

    @property
    def shard(self) -> Shard:
        assert self._shard is not None
        return self._shard

    @property
    def latched(self) -> bool:
        """Whether a failure latched this run: then even the page cache may have gone back to what the medium holds."""
        shard = self._shard
        # The helper knows before the owner hears of it.
        if shard is not None and (shard.state == "read_only" or shard.log.failed is not None):
            self._was_latched = True
        return self._was_latched

    def open(self, fs: Fs, *, killed: bool = False) -> None:
        """Judge the group, mend it, start a new run behind it."""
        strict = killed and not self.latched and not self._lied
        self._crashed = not killed
        self.end()
        self._adopt(fs)
        self._writes = FaultFs(fs)
        self._monitor = MonitorFs(self._writes)
        try:
            group = self._recover(self._monitor)
        except WalCorrupt as error:
            if not self._lied:
                raise Violation(f"refused after a mere restart: {error}") from error
            # A disk that lied about a sync is refused loudly, which is right; the run goes on with an empty one.
            self._settled, self._current, self._position, self._lied = [], [], (1, 0), False
            self.open(SimFs(self.rng.getrandbits(32)))
            return
        found = replayed(self._monitor, group)
        self._compare(found, strict)
        self._settled = [self._known(payload) for payload in found]
        self._current = []
        self._run += 1
        setup = self.setup
        self._owner = SteppedOwner() if setup.stepped else InlineOwner()
        self._shard = Shard(
            self._monitor,
            group,
            owner=self._owner,
            clock=self.clock,
            run=self._run,
            boot=self._boot,
            shard=0,
            shards=1,
            file_bytes=setup.file_bytes,
            init_zero=setup.init_zero,
            min_free_bytes=setup.min_free_bytes,
        )
        if setup.init_zero:
            self._shard.log.zero_ahead = setup.zero_ahead
        self._shard.pressure = setup.pressure
        if setup.slow:
            self._shard._pwrite_ewma_ns, self._shard.writes_aside = SLOW_NS, True
        self._named = 0
        self._crashed = self._lied = self._was_latched = False
        self._lies_known = len(self.disk.lies)

    def _known(self, payload: Payload) -> Promise:
        promise = Promise(payload)
        promise.finished = promise.durable = True
        return promise

    def _recover(self, fs: Fs) -> Group:
        ensure_dir(fs, DIR)
        fs.sync_dir(DIR)
        group = groups.read_group(fs, DIR, "", self._position)
        for _ in groups.mend(fs, group):
            pass
        return group

    def start(self, fs: Fs, *, killed: bool = False) -> None:
        struck = self._struck()
        try:
            self.open(fs, killed=killed)
        except (OSError, TopicsError) as error:
            # Recovery itself passes the system's errors on; naming them is the engine's business.
            if self._struck() == struck and not isinstance(error, OSError):
                raise Violation(f"cannot be opened, and no fault is to blame: {error!r}") from error

    def must_work(self) -> None:
        self.disk.clear_faults()
        for _ in range(3):
            self.do("close_reopen")
            if self._shard is not None:
                break
        else:
            raise Violation("the disk is healthy and the group cannot be opened")
        self.do("write_durable")
        self._settle()
        if self.latched:
            self.do("close_reopen")
            self.do("write_durable")
            self._settle()
        if not self._current or not self._current[-1].durable:
            raise Violation("the disk is healthy and a durable submission was not taken")

    def end(self) -> None:
        """Drop the shard as a kill would."""
        self._was_latched = self.latched
        self._shard = None
        self._owner = InlineOwner()

    def do(self, op: str) -> None:
        if self._shard is None:
            self.start(self._fs)
            return
        getattr(self, f"_op_{op}")()
        if self.setup.stepped and self.rng.random() < 0.7:
            self._move(self.rng.randrange(6))
        else:
            self._settle()
        self._note_lies()

    def _move(self, steps: int) -> None:
        """A few of the things that helpers and the owner could do now."""
        if isinstance(self._owner, SteppedOwner):
            for _ in range(steps):
                self._owner.move(self.rng)
                self._ask_done()

    def _ask_done(self) -> None:
        """How far everything is finished; what is not must then lie behind it."""
        done = self.shard.done_pos()
        for promise in self._current:
            if not promise.finished:
                promise.behind = done

    def _settle(self) -> None:
        """Let everything come to rest: then every accepted submission has its answer."""
        shard = self._shard
        if shard is None:
            return
        self._rest()
        if shard.depth and self.setup.pressure:
            self.clock.advance(10)
            shard.tick()
            self._rest()
        self._note_lies()
        for promise in self._current:
            if not promise.finished:
                raise Violation(f"{promise.payload} was accepted and never finished [S-73]")

    def _rest(self) -> None:
        if isinstance(self._owner, SteppedOwner):
            self._owner.settle()
        else:
            self._owner.run()

    def _tick(self, ms: int) -> None:
        """Let time pass, do what is due, and all that follows from it."""
        self.clock.advance(ms)
        self.shard.tick()
        self._settle()

    def _note_lies(self) -> None:
        if self._disk_lied():
            self._lied = True

    def _submit(self, sizes: list[int], *, durable: bool) -> None:
        payload = []
        for size in sizes:
            self._count += 1
            payload.append(f"{self._count}." + "x" * size)
        records = [(None, None, envelope.build(b'"%b"' % text.encode())) for text in payload]
        frames = frame.encode_appends(records, 7, self._count, self.clock.now_ms(), durable=durable)
        promise = Promise(tuple(payload), len(frames))
        refused = self.shard.state == "read_only"
        # Before it is accepted, because a large one is written inside the call.
        self._current.append(promise)
        try:
            self.shard.submit(frames, len(sizes), partial(self._finished, promise, durable), durable=durable)
        except TopicsError as error:
            self._current.remove(promise)
            if self.shard.state == "ok":
                raise Violation(f"refused although the shard is well: {error!r}") from error
            return
        if refused:
            raise Violation("a latched shard took a submission [S-78]")
        self._move(self.rng.randrange(3))

    def _finished(self, promise: Promise, durable: bool, outcome: Lsn | TopicsError) -> None:
        self._note_lies()
        if promise.finished:
            raise Violation(f"{promise.payload} was finished twice (06 §19, 15)")
        if isinstance(outcome, TopicsError):
            promise.finished = True
            # It may reappear only if bytes could not be taken back or synced [S-81].
            if self.shard.state == "full":
                self._current.remove(promise)
            return
        promise.finished = True
        promise.lsn = outcome
        if outcome < promise.behind:
            raise Violation(f"said to be finished before {promise.behind}, and {outcome} was not [S-77]")
        self._check_current(outcome.file_no)
        if durable and not self._lied:
            self._monitor.acked(f"{DIR}/{paths.wal_file(outcome.file_no)}", outcome.offset + promise.size)
            at = self._current.index(promise)
            for earlier in self._current[: at + 1]:
                earlier.durable = earlier.lsn is not None

    def _check_current(self, file_no: int) -> None:
        """`CURRENT` names a file durably before anything in it is acknowledged [S-86]."""
        if file_no <= self._named or self._lied:
            return
        named = groups.read_current(self.disk.crash_image(0, "nothing"), DIR)
        if named is None or named < file_no:
            raise Violation(f"acknowledged in file {file_no}, and CURRENT names {named} [S-86]")
        self._named = named

    def _op_write(self) -> None:
        self._submit([self.rng.choice((0, 3, 200, 466, 900))], durable=False)

    def _op_write_durable(self) -> None:
        self._submit([self.rng.choice((0, 3, 200, 466, 900))], durable=True)

    def _op_write_large(self) -> None:
        """Larger than a whole file: it gets one of its own size [S-87]."""
        self._submit([self.setup.file_bytes + 10], durable=self.rng.random() < 0.5)

    def _op_write_chain(self) -> None:
        self._submit([self.rng.randrange(150) for _ in range(6)], durable=self.rng.random() < 0.5)

    def _op_tick_of_many(self) -> None:
        for _ in range(5):
            self._submit([self.rng.randrange(120)], durable=False)

    def _op_tick_of_both(self) -> None:
        for n in range(5):
            self._submit([self.rng.randrange(120)], durable=n % 2 == 1)

    def _op_tick_behind(self) -> None:
        """Several sectors are written while the sync of others has not begun."""
        for durable in (True, False, True):
            self._submit([600], durable=durable)
            self._owner.run()

    def _op_wait(self) -> None:
        """Background sync: what was written is durable soon without another call [S-76]."""
        self._settle()
        self._tick(1000)
        if self.shard.state == "ok" and not self._lied:
            for promise in self._current:
                promise.durable = promise.lsn is not None

    def _op_sync_mark(self) -> None:
        self._op_wait()
        self._tick(30)

    def _op_trim(self) -> None:
        """Replay begins at a submission, or behind all that is finished; older files go [S-192, S-89]."""
        self._settle()
        if self.latched or self._lied or not self._current or not all(p.durable for p in self._current):
            return
        self._settled = []
        self._position = self._trim_position()
        self._current = [promise for promise in self._current if promise.lsn and promise.lsn >= self._position]
        self.shard.log.delete_before(self._position[0])
        self.shard.forget_starts(self._position[0])

    def _trim_position(self) -> Lsn:
        needed = self.rng.choice((None, self.rng.choice(self._current).lsn))
        if needed is None:
            # A sync mark behind it may be gone after a crash: no position lies in bytes that are not synced.
            synced = Lsn(*self.shard.log.synced()) if self.shard.is_open else self.shard.done_pos()
            return min(self.shard.done_pos(), synced)
        return Lsn(needed.file_no, self.shard.start_before(*needed))

    def _op_damage(self) -> None:
        """Synced bytes in front of a sync mark or of another file's do not rot unnoticed [S-25, S-68]."""
        places = self._protect()
        quiet = self.shard.state == "ok" and not self.latched and not self._lied
        # The mark has room, and the file is not one whose first write was taken back.
        if not quiet or not places or not self.shard.log.fits(100) or not self.shard.log.position()[1]:
            return
        place, size = self.rng.choice(places)
        path = f"{DIR}/{paths.wal_file(place.file_no)}"
        image = self.disk.kill_image()
        if place.file_no < self.shard.log.position()[0] and self.rng.random() < 0.5:
            image.truncate_at_rest(path, place.offset)
        else:
            image.flip_bit(path, place.offset + self.rng.randrange(size), self.rng.randrange(8))
        try:
            groups.read_group(image, DIR, "", self._position)
        except WalCorrupt:
            return
        raise Violation(f"damage to synced bytes at {place} goes unnoticed [S-65]")

    def _protect(self) -> list[tuple[Lsn, int]]:
        """Sync everything and put a mark behind it, or the next batch; what is protected by that."""
        self._op_wait()
        places = [(promise.lsn, promise.size) for promise in self._current if promise.lsn is not None]
        if self.rng.random() < 0.5:
            self._tick(30)
        else:
            self._submit([3], durable=False)
            self._settle()
        return places

    def _op_close_reopen(self) -> None:
        self._settle()
        self.shard.flush()
        self.shard.sync()
        self._settle()
        try:
            latched = not self.shard.close() or self.latched
        except TopicsError:
            latched = True
        self._note_lies()
        if not latched and not self._lied:
            for promise in self._current:
                promise.durable = promise.lsn is not None
        self.start(self._fs)

    def _op_kill_reopen(self) -> None:
        self._move_to(self.disk.kill_image(), killed=True)

    def _op_crash_reopen(self) -> None:
        self._boot += "'"
        self._move_to(self.disk.crash_image(self.rng), killed=False)

    def _op_failed_sync(self) -> None:
        self.disk.fail_sync(self.rng.choice(SYNC_MODES), k=self.rng.randrange(1, 3))
        self._op_write_durable()
        self._rest()
        self._op_write_durable()

    def _op_failed_write(self) -> None:
        """A write fails half-way: what it left must not be read as submissions behind the next write [S-79]."""
        self._settle()
        self._writes.inject(Fault("pwrite", 1, "short", path="wal-"))
        self._writes.inject(Fault("pwrite", 2, self.rng.choice(("ENOSPC", "ENOSPC", "EIO")), path="wal-"))
        for _ in range(6):
            self._submit_even()
        self._settle()
        self._writes.clear()
        self._tick(1100)
        # All of one size: what the failed write left would line up with it.
        self._submit_even()

    def _submit_even(self) -> None:
        self._submit([60 - len(str(self._count + 1))], durable=False)

    def _op_full_disk(self) -> None:
        self._settle()
        self._leave_space(self.rng.choice((0, 512, 1024, BOUND - 1024)))
        for op in (self._op_write_chain, self._op_write_large, self._op_write):
            op()
            self._settle()
        was_full, struck = self.shard.state == "full", self._struck()
        self._tick(1100)
        if self.shard.state == "ok" and self._struck() == struck:
            self._check_well(was_full)
        self.disk.capacity = None
        struck = self._struck()
        self._tick(1100)
        if self.shard.state == "full" and self._struck() == struck:
            raise Violation("space is back and the shard still refuses [S-80]")

    def _check_well(self, was_full: bool) -> None:
        """A shard is well only above the bound, and again only when the next file is there [S-80]."""
        if self.disk.free_bytes(DIR) < self.setup.min_free_bytes:
            raise Violation("free space is below the bound and the shard is well [S-80]")
        if was_full and not self.shard.log.has_ready():
            raise Violation("the next file was not made and the shard is well again [S-80]")

    def judge(self, image: SimFs, how: How, rng: random.Random) -> None:
        """Replay a survivor twice and hold it against the promises."""
        image.clear_faults()
        image.capacity = None
        try:
            group = self._recover(image)
        except OSError:
            group = self._recover(image)  # a late error of the killed process
        except TopicsError as error:
            if self._lied:
                return
            raise Violation(f"refused after a mere {how}: {error}") from error
        found = replayed(image, group)
        strict = how == "kill" and not (self._crashed or self.latched or self._lied)
        self._compare(found, strict)
        again = image.kill_image() if rng.random() < 0.5 else image.crash_image(rng)
        second = self._recover(again)
        if replayed(again, second) != found:
            raise Violation("the second recovery finds something else [S-249]")
        # A file that a killed recovery had cut to nothing, without a sync, is prepared space to the next one.
        judged = {file.number for file in group.files}
        if any(file.scan.verdict != "clean" for file in second.files if file.number in judged):
            raise Violation("the second recovery cuts something")

    def _compare(self, found: list[Payload], strict: bool) -> None:
        promises = self._settled + self._current
        expected = [promise.payload for promise in promises]
        if self._lied:
            if [payload for payload in expected if payload in found] != found:
                raise Violation("submissions are made up, doubled or out of order")
            return
        kept = found
        if self._settled:
            head = [promise.payload for promise in self._settled]
            if found[: len(head)] != head:
                raise Violation(f"settled submissions are gone: {len(head)} expected, {len(found)} found")
            kept = found[len(head) :]
        mine = [promise.payload for promise in self._current]
        if kept != mine[: len(kept)]:
            raise Violation("what is replayed is not a prefix of what was submitted, whole [S-241]")
        for promise in self._current[len(kept) :]:
            if promise.durable or (strict and promise.lsn is not None):
                raise Violation(f"submission {promise.payload[0][:12]} at {promise.lsn} is gone")


def replayed(fs: Fs, group: Group) -> list[Payload]:
    """The submissions that a replay of the group applies, in order."""
    found: list[Payload] = []
    for file in group.files:
        view, rows = groups.replay(fs, group, file)
        chain: list[str] = []
        for row in rows:
            if row["type"] != frame.APPEND:
                continue
            data, _ = envelope.split(frame.decode(view, int(row["offset"])).data)
            chain.append(data.decode()[1:-1])
            if not row["flags"] & frame.MORE:
                found.append(tuple(chain))
                chain = []
    return found


class ShardSubject:
    """Makes drivers of the shard WAL."""

    ops = OPS

    def driver(self, seed: int) -> ShardDriver:
        return ShardDriver(setup_for(seed), seed)

    def workload(self, rng: random.Random, length: int) -> list[str]:
        weights = [5 if op.startswith(("write", "tick")) else 2 if op in ("wait", "sync_mark") else 1 for op in OPS]
        return rng.choices(OPS, weights, k=length)

    def fault_workloads(self) -> dict[str, tuple[Callable[[], ShardDriver], tuple[str, ...]]]:
        """Short workloads that together pass through every kind of disk call of a shard."""
        return {name: (partial(ShardDriver, setup, 0), ops) for name, (setup, ops) in _WORKLOADS.items()}


_SMALL = ShardSetup()
_ZEROED = ShardSetup(init_zero=True)
_WORKLOADS: dict[str, tuple[ShardSetup, tuple[str, ...]]] = {
    "durable": (_ZEROED, ("write_durable", "write_chain", "tick_of_both", "wait", "sync_mark", "write")),
    "rotation": (_ZEROED, ("tick_of_many", "write_large", "write_durable", "tick_of_both", "trim", "write_durable")),
    "restart": (_SMALL, ("write_durable", "tick_of_many", "close_reopen", "write", "kill_reopen", "write_durable")),
    "crash": (
        _ZEROED,
        ("write_durable", "tick_of_many", "crash_reopen", "tick_of_both", "write_large", "crash_reopen"),
    ),
    "full": (_ZEROED, ("write", "full_disk", "write_durable", "wait", "failed_write", "write_durable")),
    "stepped": (
        ShardSetup(stepped=True),
        ("write_durable", "tick_of_both", "write_large", "tick_behind", "write_durable", "wait", "tick_of_many"),
    ),
    "slow": (
        ShardSetup(stepped=True, slow=True),
        ("write_durable", "tick_of_both", "tick_of_many", "write_large", "sync_mark", "tick_of_both", "close_reopen"),
    ),
    "pressed": (
        ShardSetup(slow=True, pressure=0.8, min_free_bytes=BOUND),
        ("write_durable", "tick_of_both", "full_disk", "tick_of_both", "write_large", "damage"),
    ),
}
