"""Workers on an event loop: `worker` with `await` [U-24].

A module of its own, because whoever blocks needs no event loop, and loading one takes longer than asking a server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from topics import telemetry
from topics.errors import Unreachable
from topics.model import Job
from topics.surface.worker import BACKOFF_MS, POLL_MS, Hands, Outage, Settled, backoff_ms, beat_s

if TYPE_CHECKING:
    from topics.surface.base import AsyncSurface

log = logging.getLogger("topics.worker")


class AsyncWorker:
    """See `Worker`; use it with `async with` and `async for`."""

    def __init__(
        self,
        surface: AsyncSurface,
        name: str,
        node: str,
        max: int = 1,
        *,
        lease_ms: int | None = None,
        backoff_ms: int = BACKOFF_MS,
        wait: bool = True,
    ) -> None:
        self._surface = surface
        self._name = name
        self._node = node
        self._lease_ms = lease_ms
        self._backoff_ms = backoff_ms
        self._wait = wait
        self._hands = Hands(max)
        self._asking = asyncio.Lock()
        self._stopped = asyncio.Event()
        self._heart: asyncio.Task[None] | None = None
        self._head = 0
        self._current: Job | None = None

    @property
    def settled(self) -> Settled:
        """See `Worker.settled`."""
        return self._hands.settled

    def stop(self) -> None:
        """See `Worker.stop`; on the loop."""
        self._stopped.set()

    async def __aenter__(self) -> Self:
        state = await self._surface.state(self._name)
        self._head = state.head_seq
        self._lease_ms = state.config.lease_ms if self._lease_ms is None else self._lease_ms
        self._heart = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if self._heart is not None:
            self._heart.cancel()
            await asyncio.wait([self._heart])
        job = self._current
        if job is not None and self._hands.is_doing(job):
            if kind is None:
                await self.ack(job)
            else:
                fails = issubclass(kind, Exception)
                await self.nack(job, delay_ms=backoff_ms(job, self._backoff_ms) if fails else 0)
        rest = self._hands.give_back()
        if rest:
            await self._surface.nack(self._name, self._node, [one.seq for one in rest], [one.lease_id for one in rest])

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Job:
        if self._current is not None and self._hands.is_doing(self._current):
            await self.ack(self._current)
        self._current = None
        job = await self._next()
        if job is None:
            raise StopAsyncIteration
        self._current = job
        return job

    async def _next(self) -> Job | None:
        async with self._asking:  # one task at a time, so that no two ask for jobs in the same room
            while not self._stopped.is_set():
                job = self._hands.begin()
                if job is not None:
                    return job
                if not await self._claim():
                    if not self._wait:
                        return None
                    await self._await_jobs()
        return None

    async def run(self, handle: Callable[[Job], Awaitable[object]]) -> Settled:
        """See `Worker.run`; up to `max` jobs are done at the same time."""

        async def do_jobs() -> None:
            while (job := await self._next()) is not None:
                try:
                    with telemetry.handling(self._name, job):
                        await handle(job)
                except Exception as error:
                    log.warning("job %d failed: %s", job.seq, error, exc_info=True)
                    await self.nack(job, delay_ms=backoff_ms(job, self._backoff_ms))
                else:
                    await self.ack(job)

        async with asyncio.TaskGroup() as group:
            for _ in range(self._hands.most):
                group.create_task(do_jobs())
        return self.settled

    async def ack(self, job: Job) -> None:
        """See `Worker.ack`."""
        result = await self._surface.ack(self._name, self._node, [job.seq], [job.lease_id])
        self._hands.done(job, "acked", result.acked)

    async def nack(self, job: Job, *, delay_ms: int = 0) -> None:
        """See `Worker.nack`."""
        result = await self._surface.nack(self._name, self._node, [job.seq], [job.lease_id], delay_ms=delay_ms)
        self._hands.done(job, "nacked", result.nacked)

    async def _claim(self) -> bool:
        outage = Outage()
        while not self._stopped.is_set():
            room = self._hands.room
            if room < 1:
                return False
            try:
                jobs = (await self._surface.claim(self._name, self._node, room, self._lease_ms)).jobs
            except Unreachable as error:
                await asyncio.sleep(outage.pause_s(error))
                continue
            self._hands.take(jobs)
            return bool(jobs)
        return False

    async def _await_jobs(self) -> None:
        page = await self._surface.page(self._name, self._head, limit=1, wait_ms=POLL_MS)
        self._head = page.head_seq

    async def _beat(self) -> None:
        assert self._lease_ms is not None
        while True:
            await asyncio.sleep(beat_s(self._lease_ms))
            held = self._hands.held()
            if held:
                await self._extend(held, self._lease_ms)

    async def _extend(self, held: list[Job], lease_ms: int) -> None:
        seqs, ids = [job.seq for job in held], [job.lease_id for job in held]
        try:
            result = await self._surface.extend(self._name, self._node, seqs, ids, lease_ms=lease_ms)
        except Exception as error:  # noqa: BLE001 - whatever it is: the next beat tries again, and acks tell the rest
            log.warning("leases of %r are not extended now: %s", self._name, error)
            return
        self._hands.lost(held, result.skipped)
