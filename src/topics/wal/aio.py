"""`topics.wal.aio`: the log for asyncio, on one worker thread per log (07 §5).

    wal, found = await Wal.open(WalConfig(dir="orders"))
    async with wal:
        start = await wal.append(Record.put(b"order-1", b"12 bolts"))
        async for record, position in wal.read_from(start):
            ...

Appends that wait together are written one by one and share one sync decision. A cancelled append is
indeterminate: it may be in the log, once. A cancelled read takes no record away. The object belongs to the loop that
opened it.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from topics.clock import Clock
from topics.errors import WalClosed, WalError
from topics.fs import Fs
from topics.wal.core import SegmentInfo
from topics.wal.events import Meter
from topics.wal.log import Wal as SyncWal
from topics.wal.policy import WalConfig
from topics.wal.reader import WalReader
from topics.wal.record import Record
from topics.wal.recovery import Position, RecoveryInfo

T = TypeVar("T")

log = logging.getLogger("topics.wal")

PENDING_MAX = 4096
"""Calls that may wait for the worker, cancelled ones among them; the next caller waits for a place."""
READ_AHEAD = 128
"""Records a reader fetches in one visit to the worker."""


class _Append(NamedTuple):
    records: Sequence[Record]
    future: asyncio.Future[Any]


class _Call(NamedTuple):
    function: Callable[[], object]
    future: asyncio.Future[Any]


_Jobs = queue.SimpleQueue[_Append | _Call | None]


class Wal:
    """The asyncio face of a log."""

    def __init__(self, wal: SyncWal) -> None:
        """Use `await Wal.open`."""
        self.config = wal.config
        self._wal = wal
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._places = asyncio.Semaphore(PENDING_MAX)
        self._jobs: _Jobs = queue.SimpleQueue()
        self._worker = threading.Thread(
            target=_work, args=(wal, self._jobs, self._loop, self._places), name="topics-wal-aio", daemon=True
        )
        self._worker.start()

    @classmethod
    async def open(
        cls,
        config: WalConfig | None = None,
        *,
        meter: Meter | None = None,
        clock: Clock | None = None,
        fs: Fs | None = None,
    ) -> tuple[Wal, RecoveryInfo]:
        """Like `topics.wal.Wal.open`; recovery runs off the loop."""
        wal, info = await asyncio.to_thread(SyncWal.open, config, meter=meter, clock=clock, fs=fs)
        return cls(wal), info

    async def append(self, record: Record) -> Position:
        """Append one record."""
        return (await self.append_batch((record,)))[0]

    async def append_batch(self, records: Sequence[Record]) -> list[Position]:
        """Append all records back to back, all or nothing."""
        future: asyncio.Future[list[Position]] = self._loop.create_future()
        await self._put(_Append(records, future))
        return await future

    async def flush(self) -> None:
        """Raise if the log takes no more writes."""
        await self._call(self._wal.flush)

    async def sync(self) -> None:
        """Return when everything appended before the call is durable."""
        await self._call(self._wal.sync)

    async def tick(self) -> None:
        """Do the timer's work, for injected clocks."""
        await self._call(self._wal.tick)

    async def current_position(self) -> Position:
        """Where the next record goes."""
        return await self._call(self._wal.current_position)

    async def segments(self) -> list[SegmentInfo]:
        """The segments with their sizes, oldest first."""
        return await self._call(self._wal.segments)

    async def delete_segments_before(self, position: Position) -> int:
        """Remove whole segments before the one of `position`; how many went."""
        return await self._call(lambda: self._wal.delete_segments_before(position))

    def read_from(self, position: Position, *, follow: bool = False) -> AsyncWalReader:
        """An asynchronous iterator of `(Record, Position)`; `follow` waits for more until the log is closed."""
        return AsyncWalReader(self, self._wal.read_from(position, follow=follow), follow=follow)

    async def close(self) -> None:
        """Finish what was accepted, sync, finalize, release the lock; idempotent."""
        if self._closed:
            return
        try:
            await self._call(self._wal.close)
        finally:
            self._closed = True
            self._jobs.put(None)
            await asyncio.to_thread(self._worker.join)

    async def _call(self, function: Callable[[], T]) -> T:
        future: asyncio.Future[T] = self._loop.create_future()
        await self._put(_Call(function, future))
        return await future

    async def _put(self, job: _Append | _Call) -> None:
        """Leave it to the worker; its place is free again when the worker is done with it, whoever waits or not."""
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError("this log belongs to the event loop that opened it")
        await self._places.acquire()
        if self._closed:
            self._places.release()
            raise WalClosed(f"the log in {self.config.dir} is closed")
        self._jobs.put(job)

    async def __aenter__(self) -> Wal:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    def __del__(self) -> None:
        jobs = getattr(self, "_jobs", None)
        if jobs is not None:
            jobs.put(None)


class AsyncWalReader:
    """Reads ahead a little on the worker and hands the records out one by one."""

    def __init__(self, wal: Wal, reader: WalReader, *, follow: bool) -> None:
        self._wal = wal
        self._reader = reader
        self._follow = follow
        self._ahead: deque[tuple[Record, Position]] = deque()
        self._taking = threading.Lock()

    async def next_record(self) -> tuple[Record, Position] | None:
        """The next record, or `None` at the end seen now; a bad record raises and the reader stays at it."""
        if not self._ahead:
            await self._fetch()
        return self._ahead.popleft() if self._ahead else None

    async def _fetch(self) -> None:
        try:
            await self._wal._call(self._take)
        except WalClosed:
            # The worker is gone; what was appended before the close is still there for a follower.
            if not self._follow:
                raise
            await asyncio.to_thread(self._take)

    def _take(self) -> None:
        """Off the loop: read ahead. What was read stays, also when nobody waits for it any more."""
        with self._taking:
            if self._ahead:
                return
            found: list[tuple[Record, Position]] = []
            try:
                while len(found) < READ_AHEAD:
                    item = self._reader.next_record()
                    if item is None:
                        break
                    found.append(item)
            except Exception:
                # What was read before the bad record goes out first; the reader stays at it and raises again.
                if not found:
                    raise
            self._ahead.extend(found)

    def __aiter__(self) -> AsyncWalReader:
        return self

    async def __anext__(self) -> tuple[Record, Position]:
        if not self._follow:
            item = await self.next_record()
        else:
            item = await self._follow_next()
        if item is None:
            self.close()
            raise StopAsyncIteration
        return item

    async def _follow_next(self) -> tuple[Record, Position] | None:
        more = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wake() -> None:
            loop.call_soon_threadsafe(more.set)

        source = self._wal._wal
        if not self._ahead:
            source.watch(wake)
        try:
            while True:
                item = await self.next_record()
                if item is not None:
                    return item
                await more.wait()
                more.clear()
        except WalClosed:
            return None
        finally:
            source.unwatch(wake)

    def close(self) -> None:
        """Release the descriptor."""
        with self._taking:
            self._reader.close()


def _work(wal: SyncWal, jobs: _Jobs, loop: asyncio.AbstractEventLoop, places: asyncio.Semaphore) -> None:
    """The worker: runs calls in order, and appends that wait together as one group. Holds no `aio.Wal`."""
    done: list[tuple[asyncio.Future[Any], object]] = []
    while True:
        group: list[_Append] = []
        job = jobs.get()
        while isinstance(job, _Append):
            group.append(job)
            try:
                job = jobs.get_nowait()
            except queue.Empty:
                break
        if group:
            outcomes = _append_units(wal, group)
            done.extend(zip([append.future for append in group], outcomes, strict=True))
        if isinstance(job, _Call):
            done.append((job.future, _outcome(job.function)))
        _answer(loop, done, places)
        done = []
        if job is None:
            _close_forgotten(wal)
            return


def _append_units(wal: SyncWal, group: Sequence[_Append]) -> Sequence[object]:
    try:
        return wal.append_units([append.records for append in group])
    except Exception as error:  # noqa: BLE001 - a meter that raises: everybody who waits must hear something
        return [error] * len(group)


def _close_forgotten(wal: SyncWal) -> None:
    """Close a log that nobody closed; there is no caller left to hear of an error."""
    try:
        wal.close()
    except WalError as error:
        log.error("closing a forgotten log failed: %s", error)


def _outcome(function: Callable[[], object]) -> object:
    try:
        return function()
    except Exception as error:  # noqa: BLE001 - the caller's to hear, on its own loop
        return error


def _answer(
    loop: asyncio.AbstractEventLoop, done: list[tuple[asyncio.Future[Any], object]], places: asyncio.Semaphore
) -> None:
    """One wake-up of the loop for everything that is done; a loop that ended has nobody left to tell."""
    if done and not loop.is_closed():
        try:
            loop.call_soon_threadsafe(_resolve, done, places)
        except RuntimeError:
            return


def _resolve(done: list[tuple[asyncio.Future[Any], object]], places: asyncio.Semaphore) -> None:
    for future, outcome in done:
        places.release()
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
