"""Small logs on a simulated disk, the two kinds of log the core serves, and ways to stop a thread in a disk call."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar, cast

from topics.codec import frame
from topics.codec.scan import Codec, FileInfo
from topics.fs import File, Fs, Mode, ensure_dir
from topics.testing import Fault, FaultFs, ManualClock, MonitorFs, SimFs
from topics.wal import FsyncPolicy, Meter, Position, Record, RecoveryInfo, Wal, WalConfig, WalEvent
from topics.wal.core import SegmentedLog, SegmentScan
from topics.wal.log import open_checked
from topics.wal.naming import LibraryNaming, Naming, ServerNaming
from topics.wal.record import RecordCodec
from topics.wal.rounds import Door, Rounds, Sharing

T = TypeVar("T")

DIR = "/log"
WAIT_S = 60.0
"""Bound of every wait for another thread: only a broken product reaches it."""


class Disk:
    """A simulated disk with its fault injector and its order monitor on top, and a clock."""

    def __init__(self, sim: SimFs | None = None, *, capacity: int | None = None, trust: bool = True) -> None:
        self.sim = SimFs(7, capacity=capacity) if sim is None else sim
        self.faults = FaultFs(self.sim)
        self.fs = MonitorFs(self.faults, trust_existing=trust)
        self.clock = ManualClock()

    def fail(self, op: str, error: str = "EIO", times: str = "once", path: str = "", index: int = 1) -> None:
        """Let the next call of `op` fail."""
        self.faults.inject(Fault(op, index, error, times, path=path))

    def mend(self) -> None:
        """Take all faults away."""
        self.faults.clear()

    def files(self) -> dict[str, bytes]:
        """Every file of the log's directory, by name."""
        return {path.removeprefix("log/"): data for path, data in self.sim.files().items()}

    def names(self) -> list[str]:
        return sorted(self.files())

    def calls(self, since: int = 0) -> list[tuple[str, str]]:
        """The disk calls from number `since` on: operation and file name."""
        return [(op, path.rpartition("/")[2]) for op, path, _ in self.sim.calls[since:] if op != "point"]

    def power_loss(self) -> Disk:
        """The disk after a machine crash that keeps only what was synced."""
        return Disk(self.sim.crash_image(1, "nothing"))

    def killed(self) -> Disk:
        """The disk after a kill of the process: nothing cached is lost, nothing of it is durable by that."""
        return Disk(self.sim.kill_image(), trust=False)


class Kind(NamedTuple):
    """What makes a segmented log the library's or the server's (07 §1.2)."""

    name: str
    naming: Naming
    codec: Codec
    context: object
    resumes: bool

    def unit(self, n: int, size: int = 64) -> bytes:
        """The `n`-th unit, one valid record of exactly `size` bytes."""
        if self.name == "server":
            return frame.encode_appends([(None, None, b"x" * (size - frame.FRAME_BYTES_MIN))], 10, n, 1)
        for digits in (6, 7):
            for value in range(max(0, size - 24), size):
                raw = Record.put(b"%0*d" % (digits, n), b"v" * value).encode()
                if len(raw) == size:
                    return raw
        raise AssertionError(f"no record of {size} bytes")

    def preamble(self, id: int, previous: tuple[int, int] | None = None) -> bytes:
        return self.codec.preamble(FileInfo(id, previous, self.context))

    def file(self, id: int) -> str:
        """The name of a segment's file."""
        return self.naming.name(id)

    def ids(self, count: int) -> list[int]:
        """The first `count` segment ids."""
        return [self.naming.first_id + n for n in range(count)]


LIBRARY = Kind("library", LibraryNaming(), RecordCodec(), None, True)
SERVER = Kind(
    "server", ServerNaming(), frame.FrameCodec(), frame.OpenContext(3, "boot", 0, 1, 1_700_000_000_000), False
)


class Seen:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: self.told.append((name, *args))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [told for told in self.told if told[0] in kinds]


def cut_all(scans: Sequence[SegmentScan]) -> list[SegmentScan]:
    """A recovery rule that cuts everything behind the valid part."""
    return [scan for scan in scans if scan.place != "beyond" and scan.size > scan.scan.end]


def new_core(kind: Kind, disk: Disk, *, size: int = 1024, fs: Fs | None = None, **options: Any) -> SegmentedLog:
    """A core that has looked at nothing yet."""
    options.setdefault("observer", Seen())
    ensure_dir(disk.fs, DIR)
    return SegmentedLog(
        disk.fs if fs is None else fs, DIR, kind.naming, kind.codec, max_segment_size=size, clock=disk.clock,
        context=kind.context, **options,
    )  # fmt: skip


def start_core(kind: Kind, disk: Disk, **options: Any) -> SegmentedLog:
    """A core that takes writes."""
    log = new_core(kind, disk, **options)
    log.recover(cut_all)
    log.start(resume=kind.resumes)
    return log


ALWAYS, OS = FsyncPolicy.always(), FsyncPolicy.os()


def open_wal(
    disk: Disk,
    policy: FsyncPolicy = OS,
    *,
    size: int = 1024,
    meter: Meter | None = None,
    fs: Fs | None = None,
    timed: bool = False,
    **fields: Any,
) -> tuple[Wal, RecoveryInfo]:
    """A key-value log with small segments; `timed` gives it the real clock and its threads."""
    config = WalConfig(dir=DIR, max_segment_size=size, fsync_policy=policy, **fields)
    return open_checked(config, meter=meter, clock=None if timed else disk.clock, fs=disk.fs if fs is None else fs)


def put(n: int, size: int = 20) -> Record:
    """The `n`-th record; its number is its key."""
    return Record.put(b"%06d" % n, b"%06d" % n + b"." * (size - 6))


START = Position(0, 0)


def records(wal: Wal, start: Position = START) -> list[Record]:
    return [record for record, _ in wal.read_from(start)]


def numbers(wal: Wal, start: Position = START) -> list[int]:
    """The numbers of the records that a reader sees."""
    return [int(record.key) for record in records(wal, start)]


def fill(wal: Wal, count: int, first: int = 0, size: int = 100) -> list[Position]:
    return [wal.append(put(n, size)) for n in range(first, first + count)]


class Kept:
    """A meter that keeps the value of every series and every event."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self.kinds: dict[str, str] = {}
        self.handles = 0
        self.events: list[WalEvent] = []
        self.changed = threading.Condition()

    def _series(self, kind: str, name: str, labels: Any, apply: Callable[[float, float], float]) -> Any:
        key = (name, tuple(sorted(labels.items())))
        self.values.setdefault(key, 0)
        self.kinds[name] = kind
        self.handles += 1
        kept = self

        class Series:
            def change(self, v: float = 1) -> None:
                with kept.changed:
                    kept.values[key] = apply(kept.values[key], v)
                    kept.changed.notify_all()

            inc = set = observe = change

        return Series()

    def counter(self, name: str, labels: Any) -> Any:
        return self._series("counter", name, labels, lambda old, n: old + n)

    def gauge(self, name: str, labels: Any) -> Any:
        return self._series("gauge", name, labels, lambda old, v: v)

    def histogram(self, name: str, buckets: Sequence[float], labels: Any) -> Any:
        """Counts observations."""
        return self._series("histogram", name, labels, lambda old, v: old + 1)

    def emit(self, event: WalEvent) -> None:
        with self.changed:
            self.events.append(event)
            self.changed.notify_all()

    def value(self, name: str, node: str | None = "0") -> float:
        return self.values[name, () if node is None else (("node", node),)]

    def count(self, kind: str) -> int:
        return sum(event.kind == kind for event in self.events)

    def wait(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, WAIT_S)


class HookFs:
    """A disk that calls `hook(op, path)` ahead of each operation on an open file and behind it, outside every lock."""

    def __init__(self, inner: Fs, hook: Callable[[str, str], None]) -> None:
        self.inner = inner
        self.hook = hook

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, path: str, mode: Mode) -> File:
        return cast(File, HookFile(self.inner.open(path, mode), path, self))

    def point(self, name: str) -> None:
        self.inner.point(name)
        self.hook("point", name)


class HookFile:
    """An open file of a `HookFs`."""

    def __init__(self, inner: File, path: str, fs: HookFs) -> None:
        self._inner = inner
        self._path = path
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self._inner, name)

        def hooked(*args: Any) -> Any:
            self._fs.hook(name, self._path)
            result = operation(*args)
            self._fs.hook(f"after {name}", self._path)
            return result

        return hooked


class Gate:
    """A place where threads stop until the test lets them on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def stop(self) -> None:
        """Called by the thread to be stopped."""
        self.reached.set()
        assert self._open.wait(WAIT_S), "nobody opened the gate"

    def wait_reached(self) -> None:
        assert self.reached.wait(WAIT_S), "nobody came to the gate"

    def open(self) -> None:
        self._open.set()


class TellingLock:
    """A lock, or the one that is given, that tells when somebody has come who has to wait."""

    def __init__(self, came: threading.Event, lock: Any = None) -> None:
        self._lock = lock or threading.Lock()
        self._came = came

    def acquire(self, blocking: bool = True) -> bool:
        if self._lock.acquire(blocking=False):
            return True
        if blocking:
            self._came.set()
        return blocking and bool(self._lock.acquire())

    def release(self) -> None:
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *exception: object) -> None:
        self.release()


def hooked(disk: Disk, hook: Callable[[str, str], None]) -> Fs:
    return cast(Fs, HookFs(disk.fs, hook))


def arrivals(rounds: Rounds[Any]) -> threading.Semaphore:
    """Released by everyone who has joined a round."""
    here, join = threading.Semaphore(0), rounds._join

    def join_and_tell(work: Any, me: int) -> Door | None:
        door = join(work, me)
        here.release()
        return door

    rounds._join = join_and_tell  # type: ignore[method-assign]
    return here


def wait_gathered(rounds: Sharing[Any] | None, count: int) -> None:
    """Until so many have joined the next round."""
    assert rounds is not None
    end = time.monotonic() + WAIT_S
    while rounds.gathered() < count:
        assert time.monotonic() < end, "somebody did not come"
        os.sched_yield()


def wait_for(here: threading.Semaphore, count: int) -> None:
    for _ in range(count):
        assert here.acquire(timeout=WAIT_S), "somebody did not come"


def watched(wal: Wal) -> threading.Event:
    """Set when a follower has begun to wait for more."""
    begun, watch = threading.Event(), wal.watch

    def note(wake: Callable[[], None]) -> None:
        watch(wake)
        begun.set()

    wal.watch = note  # type: ignore[method-assign]
    return begun


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
