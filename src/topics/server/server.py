"""One server: a listener, its connections, an engine that comes after recovery and goes with the drain [API-5, API-6].

    start    bind, accept, recover aside; until then 503 `not_ready`
    drain    stop accepting, answer what waits, let running requests finish for 10 s, checkpoint, let go

Event loop only, but for recovery and closing, which run on a thread of their own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import ssl
from collections.abc import Callable
from typing import Final

from topics.clock import Clock, SystemClock
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import Fs
from topics.server.app import App
from topics.server.browser import Policy
from topics.server.connections import Connections
from topics.server.keys import KeyRing
from topics.settings import Loaded
from topics.storage.owner import LoopOwner

log = logging.getLogger("topics.server")

DRAIN_S: Final = 10.0
BACKLOG: Final = 4096


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
        self._listener: asyncio.Server | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def listen(self, tls: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Bind and accept; the address that was bound."""
        self._loop = asyncio.get_running_loop()
        host, port = self.app.settings.bind
        self._listener = await self._loop.create_server(
            self.connections.protocol, host.strip("[]"), port, backlog=BACKLOG, ssl=tls
        )
        self.connections.start(self._loop)
        name = self._listener.sockets[0].getsockname()
        return name[0], name[1]

    async def recover(self, path: str | None, tell: Callable[[float], None] | None = None) -> Engine:
        """Open the store aside, then take its engine over."""
        assert self._loop is not None
        app = self.app

        def progress(share: float) -> None:
            app.progress = share
            if tell is not None:
                tell(share)

        def opened() -> Engine:
            return Engine.open(path, self._config, clock=self._clock, fs=self._fs, progress=progress, owner=LoopOwner())

        engine = await self._loop.run_in_executor(None, opened)
        engine.lend_to(self._loop)
        app.progress = 1.0
        app.engine = engine
        return engine

    async def drain(self, within_s: float = DRAIN_S) -> None:
        """Stop: nothing that was accepted is lost [API-5]."""
        app = self.app
        app.draining = True
        if self._listener is not None:
            self._listener.close()
        if app.engine is not None:
            app.engine.end_waits()
        await self.connections.drain(within_s)
        self.connections.stop()
        engine, app.engine = app.engine, None
        if engine is not None:
            engine.take_back()
            await asyncio.get_running_loop().run_in_executor(None, engine.close)
