"""The shard WAL under the sweeps: group commit, rotation, failure states and the verdicts of a restart (06 §5, §6).

Submissions are chains of Append frames with payloads that tell them apart. What a restart replays must be, run by run,
whole submissions in log order: everything synced, after a mere kill everything finished, nothing made up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from topics.codec import envelope, frame
from topics.errors import TopicsError, WalCorrupt
from topics.fs import Fs, ensure_dir
from topics.storage import group as groups
from topics.storage.group import Group
from topics.storage.owner import InlineOwner
from topics.storage.shard import Lsn, Shard
from topics.testing.clock import ManualClock
from topics.testing.faultfs import FaultFs
from topics.testing.monitorfs import MonitorFs
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
    "wait",
    "sync_mark",
    "trim",
    "close_reopen",
    "kill_reopen",
    "crash_reopen",
    "failed_sync",
    "full_disk",
)
Payload = tuple[str, ...]
"""The data of a submission's records: its identity."""


class Promise:
    """What is promised about one submission."""

    __slots__ = ("durable", "finished", "lsn", "payload")

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self.lsn: Lsn | None = None
        self.finished = False
        self.durable = False


class ShardDriver:
    """Runs one shard on one group and keeps the promises in step."""

    def __init__(self, file_bytes: int, init_zero: bool, seed: int) -> None:
        self.on_disk: Callable[[SimFs], None] | None = None
        self.clock = ManualClock()
        self.rng = random.Random(f"shard {seed}")
        self._file_bytes = file_bytes
        self._init_zero = init_zero
        self._fs: Fs = SimFs()
        self._owner = InlineOwner()
        self._shard: Shard | None = None
        self._run = 0
        self._boot = "boot-1"
        self._settled: list[Promise] = []
        """Of earlier runs: recovered once, so durable."""
        self._current: list[Promise] = []
        """Of this run, in log order."""
        self._position = (1, 0)
        self._count = 0
        self._crashed = False
        self._lied = False
        self._was_latched = False
        self._lies_known = 0

    @property
    def shard(self) -> Shard:
        assert self._shard is not None
        return self._shard

    @property
    def disk(self) -> SimFs:
        fs = self._fs
        while isinstance(fs, (FaultFs, MonitorFs)):
            fs = fs.inner
        assert isinstance(fs, SimFs)
        return fs

    @property
    def latched(self) -> bool:
        """Whether a failure latched this run: then even the page cache may have gone back to what the medium holds."""
        self._was_latched = self._was_latched or (self._shard is not None and self._shard.state == "read_only")
        return self._was_latched

    def open(self, fs: Fs, *, killed: bool = False) -> None:
        """Judge the group, mend it, start a new run behind it."""
        strict = killed and not self.latched and not self._lied
        self._crashed = not killed
        self.end()
        self._fs = fs
        if self.on_disk is not None:
            self.on_disk(self.disk)
        try:
            group = self._recover(fs)
        except WalCorrupt as error:
            if not self._lied:
                raise Violation(f"refused after a mere restart: {error}") from error
            # A disk that lied about a sync is refused loudly, which is right; the run goes on with an empty one.
            self._settled, self._current, self._position, self._lied = [], [], (1, 0), False
            self.open(SimFs(self.rng.getrandbits(32)))
            return
        found = replayed(fs, group)
        self._compare(found, strict)
        self._settled = [self._known(payload) for payload in found]
        self._current = []
        self._run += 1
        self._shard = Shard(
            fs,
            group,
            owner=self._owner,
            clock=self.clock,
            run=self._run,
            boot=self._boot,
            shard=0,
            shards=1,
            file_bytes=self._file_bytes,
            init_zero=self._init_zero,
        )
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

    def _struck(self) -> int:
        return len(self._fs.hits) if isinstance(self._fs, FaultFs) else 0

    def must_work(self) -> None:
        self.disk.clear_faults()
        for _ in range(3):
            self.do("close_reopen")
            if self._shard is not None:
                break
        else:
            raise Violation("the disk is healthy and the group cannot be opened")
        self.do("write_durable")
        if self.latched:
            self.do("close_reopen")
            self.do("write_durable")
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
        self._owner.run()
        self._note_lies()
        for promise in self._current:
            if self._shard is not None and not promise.finished and self._shard.state == "ok" and not self._lied:
                raise Violation(f"{promise.payload} was accepted and never finished [S-73]")

    def _note_lies(self) -> None:
        if len(self.disk.lies) > self._lies_known:
            self._lied = True

    def _submit(self, sizes: list[int], *, durable: bool) -> None:
        payload = []
        for size in sizes:
            self._count += 1
            payload.append(f"{self._count}." + "x" * size)
        promise = Promise(tuple(payload))
        records = [(None, None, envelope.build(b'"%b"' % text.encode())) for text in payload]
        frames = frame.encode_appends(records, 7, self._count, self.clock.now_ms(), durable=durable)
        refused = self.shard.state == "read_only"
        try:
            self.shard.submit(frames, len(sizes), partial(self._finished, promise, durable), durable=durable)
        except TopicsError as error:
            if self.shard.state == "ok":
                raise Violation(f"refused although the shard is well: {error!r}") from error
            return
        if refused:
            raise Violation("a latched shard took a submission [S-78]")
        self._current.append(promise)

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
        if durable and not self._lied:
            at = self._current.index(promise)
            for earlier in self._current[: at + 1]:
                earlier.durable = earlier.lsn is not None

    def _op_write(self) -> None:
        self._submit([self.rng.choice((0, 3, 200, 466, 900))], durable=False)

    def _op_write_durable(self) -> None:
        self._submit([self.rng.choice((0, 3, 200, 466, 900))], durable=True)

    def _op_write_large(self) -> None:
        """Larger than a whole file: it gets one of its own size [S-87]."""
        self._submit([self._file_bytes + 10], durable=self.rng.random() < 0.5)

    def _op_write_chain(self) -> None:
        self._submit([self.rng.randrange(150) for _ in range(6)], durable=self.rng.random() < 0.5)

    def _op_tick_of_many(self) -> None:
        for _ in range(5):
            self._submit([self.rng.randrange(120)], durable=False)

    def _op_tick_of_both(self) -> None:
        for n in range(5):
            self._submit([self.rng.randrange(120)], durable=n % 2 == 1)

    def _op_wait(self) -> None:
        """Background sync: what was written is durable soon without another call [S-76]."""
        self.clock.advance(1000)
        self.shard.tick()
        self._owner.run()
        self._note_lies()
        if self.shard.state == "ok" and not self._lied:
            for promise in self._current:
                promise.durable = promise.lsn is not None

    def _op_sync_mark(self) -> None:
        self._op_wait()
        self.clock.advance(30)
        self.shard.tick()

    def _op_trim(self) -> None:
        """Everything durable so far is in segments: replay begins behind it, and older files go."""
        if self.latched or self._lied or not self._current or not all(p.durable for p in self._current):
            return
        self._position = self.shard.log.position()
        self._settled, self._current = [], []
        self.shard.log.delete_before(self._position[0])

    def _op_close_reopen(self) -> None:
        self.shard.flush()
        self.shard.sync()
        self._owner.run()
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

    def _move_to(self, survivor: SimFs, *, killed: bool) -> None:
        old, fs = self.disk, self._fs
        old.before = None
        if isinstance(fs, FaultFs):
            fs.inner = survivor
        else:
            fs = survivor
        self.start(fs, killed=killed)

    def _op_failed_sync(self) -> None:
        self.disk.fail_sync(self.rng.choice(SYNC_MODES), k=self.rng.randrange(1, 3))
        self._op_write_durable()
        self._owner.run()
        self._op_write_durable()

    def _op_full_disk(self) -> None:
        disk = self.disk
        used = sum((len(data) + 511) // 512 * 512 for data in disk.files().values())
        disk.capacity = used + self.rng.choice((0, 512, 1024))
        for op in (self._op_write_chain, self._op_write_large, self._op_write):
            op()
            self._owner.run()
        disk.capacity = None
        struck = self._struck()
        self.clock.advance(1100)
        self.shard.tick()
        self._owner.run()
        if self.shard.state == "full" and self._struck() == struck:
            raise Violation("space is back and the shard still refuses [S-80]")

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
        rng = random.Random(f"setup {seed}")
        return ShardDriver(rng.choice((1500, 4096, 9000)), rng.random() < 0.5, seed)

    def workload(self, rng: random.Random, length: int) -> list[str]:
        weights = [5 if op.startswith(("write", "tick")) else 2 if op in ("wait", "sync_mark") else 1 for op in OPS]
        return rng.choices(OPS, weights, k=length)

    def fault_workloads(self) -> dict[str, tuple[Callable[[], ShardDriver], tuple[str, ...]]]:
        """Short workloads that together pass through every kind of disk call of a shard."""
        return {name: (partial(ShardDriver, **fields, seed=0), ops) for name, (fields, ops) in _WORKLOADS.items()}


_SMALL: dict[str, Any] = {"file_bytes": 1500, "init_zero": False}
_ZEROED: dict[str, Any] = {"file_bytes": 1500, "init_zero": True}
_WORKLOADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "durable": (_SMALL, ("write_durable", "write_chain", "tick_of_both", "wait", "sync_mark", "write")),
    "rotation": (_ZEROED, ("tick_of_many", "write_large", "write_durable", "tick_of_both", "trim", "write_durable")),
    "restart": (_SMALL, ("write_durable", "tick_of_many", "close_reopen", "write", "kill_reopen", "write_durable")),
    "crash": (
        _ZEROED,
        ("write_durable", "tick_of_many", "crash_reopen", "tick_of_both", "write_large", "crash_reopen"),
    ),
    "full": (_SMALL, ("write", "full_disk", "write_durable", "wait")),
}
