"""One server: a listener, its connections, an engine that comes after recovery and goes with the drain [API-5, API-6].

    start    bind, accept, recover aside; until then 503 `not_ready`
    drain    stop accepting, answer what waits, let running requests finish for 10 s, checkpoint, let go

Event loop only, but for recovery and closing, which run on a thread of their own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from topics.clock import Clock, SystemClock
from topics.codec import kernel
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import Fs
from topics.server import bind, sse
from topics.server.app import App
from topics.server.browser import Policy
from topics.server.connections import Connections
from topics.server.keys import KeyRing
from topics.server.lines import Lines, Listener
from topics.settings import Loaded
from topics.storage.owner import LoopOwner

DRAIN_S: Final = 10.0
TLS_HANDSHAKE_S: Final = 30.0
"""As long as a request's head may take from accept [API-25]."""
TLS_SHUTDOWN_S: Final = 1.0


class Server:
    """Everything of one process that listens."""

    def __init__(
        self,
        loaded: Loaded,
        keys: KeyRing,
        *,
        loopback: bool = True,
        clock: Clock | None = None,
        fs: Fs | None = None,
        config: EngineConfig | None = None,
        most_connections: int | None = None,
    ) -> None:
        # The ring has the digests; nothing keeps the secrets [KEY-5].
        settings = dataclasses.replace(loaded.settings, api_keys=None)
        loaded = loaded._replace(settings=settings)
        self._clock = clock
        self._fs = fs
        self._config = dataclasses.replace(config or EngineConfig.of(settings), api_keys=None)
        policy = Policy.of(settings.cors_origins, settings.allowed_hosts, settings.bind[0], loopback=loopback)
        self.app = App(loaded, keys, clock or SystemClock(), policy)
        self.connections = Connections(
            self.app, settings.max_connections if most_connections is None else most_connections
        )
        self._listeners: list[asyncio.Server | Listener] = []
        self._loop: asyncio.AbstractEventLoop | None = None

    def use_keys(self, keys: KeyRing) -> None:
        """For requests from now on; streams of keys that are gone end [KEY-4]."""
        self.app.keys = keys
        self.app.heads.forget(has_keys=bool(keys.keys))
        self.app.sessions.use_keys(keys)
        self.app.streams.use_keys(keys)

    async def listen(
        self, tls: ssl.SSLContext | None = None, sockets: Sequence[socket.socket] | None = None
    ) -> tuple[str, int]:
        """Accept on sockets that are bound already, or bind; the address of the first."""
        loop = self._loop = asyncio.get_running_loop()
        if sockets is None:
            sockets = bind.listening(bind.resolve(*self.app.settings.bind))
        name = sockets[0].getsockname()
        if tls is None and kernel.has_lines():
            lines = self.connections.lines = Lines(self.app, loop, self.connections.ok_prefix)
            self._listeners += [Listener(lines, sock, self.connections.protocol) for sock in sockets]
            sockets = ()
        for sock in sockets:
            made = loop.create_server(
                self.connections.protocol, sock=sock, backlog=bind.BACKLOG, ssl=tls,
                ssl_handshake_timeout=TLS_HANDSHAKE_S if tls else None,
                ssl_shutdown_timeout=TLS_SHUTDOWN_S if tls else None,
            )  # fmt: skip
            self._listeners.append(await made)
        self.connections.start(loop)
        return name[0], name[1]

    def stop_listening(self) -> None:
        """Accept nothing any more; open connections are told that the server stops. Again is fine."""
        self.app.draining = True
        for one in self._listeners:
            one.close()
        self._listeners.clear()

    async def recover(self, path: str | None, tell: Callable[[float], None] | None = None) -> Engine:
        """Open the store aside, then take its engine over. What `tell` raises ends it: nothing is harmed."""
        assert self._loop is not None
        app = self.app

        def progress(share: float) -> None:
            app.progress = share
            if tell is not None:
                tell(share)

        owner = LoopOwner(self._clock)

        def opened() -> Engine:
            return Engine.open(path, self._config, clock=self._clock, fs=self._fs, progress=progress, owner=owner)

        engine = await self._loop.run_in_executor(None, opened)
        engine.lend_to(self._loop)
        engine.core.pump.scheduler.on_suspended = partial(sse.tell_suspended, engine.core)
        if self.connections.lines is not None:
            self.connections.lines.limit(engine.core.limits)
        app.progress = 1.0
        app.engine = engine
        return engine

    async def drain(self, within_s: float = DRAIN_S) -> None:
        """Stop: nothing that was accepted is lost [API-5]."""
        app = self.app
        self.stop_listening()
        if app.engine is not None:
            app.engine.end_waits()
        await self.connections.drain(within_s)
        self.connections.stop()
        engine, app.engine = app.engine, None
        if engine is not None:
            engine.take_back()
            await asyncio.get_running_loop().run_in_executor(None, engine.close)
