"""A real server on a real socket, in a thread of the test; and clients for it."""

from __future__ import annotations

import asyncio
import socket
import ssl
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx
import uvloop

from topics import settings
from topics.clock import Clock
from topics.engine.config import EngineConfig
from topics.fs import Fs
from topics.server import keys
from topics.server.server import Server

T = TypeVar("T")
WAIT_S = 60.0
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For clients that speak no TLS: reading the system's certificates takes longer than most tests."""


class Running:
    """A server that listens. `path` None keeps everything in memory."""

    def __init__(
        self,
        path: Path | str | None,
        env: Mapping[str, str] | None = None,
        *,
        clock: Clock | None = None,
        fs: Fs | None = None,
        config: EngineConfig | None = None,
        loopback: bool = True,
        recover: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        loaded = settings.parse({"TOPICS_PORT": "0", **(env or {})})
        ring = keys.KeyRing(keys.parse(loaded.settings.api_keys or ""))
        self._args = (loaded, ring)
        self._options = {"clock": clock, "fs": fs, "config": config, "loopback": loopback}
        self._path = None if path is None else str(path)
        self._recover = recover
        self._tls = tls
        self._started = threading.Event()
        self._failed: BaseException | None = None
        self.host, self.port = "", 0
        self.server: Server
        self._stopping: asyncio.Event
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(WAIT_S)
        if self._failed is not None:
            raise self._failed

    def _run(self) -> None:
        try:
            uvloop.run(self._serve())
        except BaseException as error:
            self._failed = error
            raise
        finally:
            self._started.set()

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        self.server = Server(*self._args, **self._options)  # type: ignore[arg-type]
        self.host, self.port = await self.server.listen(self._tls)
        if self._recover:
            await self.server.recover(self._path)
        self._started.set()
        await self._stopping.wait()
        await self.server.drain(within_s=WAIT_S)

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://{self.host}:{self.port}"

    def on_loop(self, call: Callable[[], T]) -> T:
        """Run on the server's loop and wait for the result."""

        async def run() -> T:
            return call()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(WAIT_S)

    def stop(self) -> None:
        """Drain and end; again is fine."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stopping.set)
            self._thread.join(WAIT_S)
            assert not self._thread.is_alive()

    def client(self, *, http2: bool = False, key: str | None = None, **more: Any) -> httpx.Client:
        """An HTTP client; `http2` speaks it with prior knowledge."""
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        more.setdefault("verify", PLAIN)
        return httpx.Client(
            base_url=self.url, http1=not http2, http2=http2, headers=headers, timeout=WAIT_S, trust_env=False, **more
        )

    def raw(self, data: bytes) -> bytes:
        """Send bytes as they are, and everything the server answers until it closes the connection."""
        with socket.create_connection((self.host, self.port), timeout=WAIT_S) as sock:
            sock.sendall(data)
            return received(sock)


def received(sock: socket.socket) -> bytes:
    """Everything until the other side ends."""
    parts = []
    while True:
        try:
            part = sock.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts)


@contextmanager
def running(path: Path | str | None = None, env: Mapping[str, str] | None = None, **options: Any) -> Iterator[Running]:
    """A server for a block; without a path its data lies in a directory of its own."""
    with tempfile.TemporaryDirectory() as scratch:
        server = Running(scratch if path is None else path, env, **options)
        try:
            yield server
        finally:
            server.stop()


def records(*values: object, **more: object) -> dict[str, object]:
    """The body of a write."""
    return {"records": [{"data": value} for value in values], **more}
