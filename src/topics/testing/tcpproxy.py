"""A bad line: a TCP proxy in front of a real server, whose connections are slow, stuck, cut or refused on demand.

    stall, resume     bytes wait in both directions, connections stay; `held` counts what waits
    stall_after       it stalls by itself once so many bytes of requests were passed on
    refuse, accept    connections are reset and new ones refused, as if nobody listened
    reset_next        the next connections are reset as soon as they have asked for something
    cut_after         the next connection that has sent so many bytes of answers is reset
    delay_s           each request waits that long before it is passed on

It runs an event loop on a thread of its own. Its methods may be called by any other, one at a time, and have taken
effect when they return.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Self

from topics.testing.ports import free_port

log = logging.getLogger("topics.testing.tcpproxy")

READ_BYTES = 64 << 10
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER: close with a reset instead of an orderly end."""


class TcpProxy:
    """A proxy to one address. `port` is where it listens, on 127.0.0.1, for as long as it lives."""

    def __init__(self, host: str, port: int) -> None:
        self.delay_s = 0.0
        self.connections = 0
        """Made since it started, those that were reset included."""
        self.held = 0
        """Pieces that wait while it is stalled."""
        self._target = (host, port)
        self._resets = 0
        self._stall_after: int | None = None
        self._cut: int | None = None
        self._lines: set[asyncio.Task[None]] = set()
        self._pumps: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = free_port()
        self._loop = asyncio.new_event_loop()
        self._flow = asyncio.Event()
        self._flow.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="tcpproxy", daemon=True)
        self._thread.start()
        self.accept()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def stall(self) -> None:
        self._do(self._flow.clear)

    def resume(self) -> None:
        self._do(self._flow.set)

    def stall_after(self, count: int) -> None:
        self._stall_after = count

    def reset_next(self, count: int) -> None:
        self._resets = count

    def cut_after(self, count: int) -> None:
        self._cut = count

    def refuse(self) -> None:
        self._run(self._end())

    def accept(self) -> None:
        self._run(self._listen())

    def close(self) -> None:
        """End everything; nothing may be called afterwards."""
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, change: Callable[[], None]) -> None:
        async def run() -> None:
            change()

        self._run(run())

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", self.port)

    async def _end(self) -> None:
        own = {asyncio.current_task()}
        while accepting := asyncio.all_tasks() - self._lines - self._pumps - own:
            await asyncio.wait(accepting)  # a connection that is half accepted when a server closes stays open for good
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in self._lines:
            task.cancel()
        await asyncio.gather(*self._lines, return_exceptions=True)
        for _ in range(3):  # until all of them are closed
            await asyncio.sleep(0)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None:  # just before it was told to refuse
            _reset(writer)
            return
        self.connections += 1
        task = self._loop.create_task(self._serve(reader, writer))
        self._lines.add(task)

        def over(task: asyncio.Task[None]) -> None:
            # Also of one that was cancelled before it began.
            _reset(writer)
            self._lines.discard(task)

        task.add_done_callback(over)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            if self._resets:
                self._resets -= 1
                await reader.read(READ_BYTES)
            else:
                await self._connect(reader, writer)
        except (OSError, asyncio.CancelledError) as error:
            log.debug("cut off: %r", error)  # the other side sees a reset

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes both ways until one side ends."""
        there, back = await asyncio.open_connection(*self._target)
        cut, self._cut = self._cut, None
        pumps = [
            self._loop.create_task(self._pump(reader, back, requests=True)),
            self._loop.create_task(self._pump(there, writer, cut)),
        ]
        self._pumps.update(pumps)
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._pumps.difference_update(pumps)
            back.transport.abort()  # first: whoever ends the line may do so while it is waited for here
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        left: int | None = None,
        *,
        requests: bool = False,
    ) -> None:
        while data := await reader.read(READ_BYTES):
            self.held += 1
            try:
                await self._flow.wait()
            finally:
                self.held -= 1
            if requests:
                await self._slow_down(len(data))
            writer.write(data if left is None else data[:left])
            await writer.drain()
            if left is not None:
                left -= len(data)
                if left < 0:
                    break

    async def _slow_down(self, size: int) -> None:
        """What happens to a piece of a request before it is passed on."""
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        if self._stall_after is not None:
            self._stall_after -= size
            if self._stall_after < 0:
                self._stall_after = None
                self._flow.clear()


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    writer.transport.abort()
