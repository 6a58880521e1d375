"""Connections that stay: how many there may be, and what ends them all (09 §5, [KEY-4]).

A slot is taken when a stream opens and is free again when it ends for any reason [RES-6]. Event loop only.
"""

from __future__ import annotations

from typing import Protocol

from topics.server import failure
from topics.server.failure import Failure
from topics.server.keys import Key, KeyRing, Usage
from topics.settings import Settings


class Stream(Protocol):
    """A watch, a WebSocket, a work stream."""

    def key_removed(self) -> None:
        """The key it was opened with is gone: say so, and end."""
        ...


class Streams:
    """All that are open."""

    def __init__(self, settings: Settings) -> None:
        self.closed_slow = 0
        """How many were closed because their client took nothing for 30 s."""
        self._most = settings.max_sse_connections
        self._most_per_key = settings.max_sse_connections_per_key
        self._open: dict[Stream, tuple[bytes, Usage] | None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, stream: Stream, key: Key | None) -> Failure | None:
        """Take a slot, of the server and of the key; why not, if there is none [RES-2]."""
        if self._most and len(self._open) >= self._most:
            return failure.limit("max_sse_connections", self._most)
        if key is not None:
            if self._most_per_key and key.usage.streams >= self._most_per_key:
                return failure.limit("max_sse_connections_per_key", self._most_per_key)
            key.usage.streams += 1
        self._open[stream] = None if key is None else (key.digest, key.usage)
        return None

    def leave(self, stream: Stream) -> None:
        """The slots are free again; again is fine."""
        held = self._open.pop(stream, None)
        if held is not None:
            held[1].streams -= 1

    def use_keys(self, keys: KeyRing) -> None:
        """Streams of keys that are gone end [KEY-4]; so do those without a key, now that one is needed."""
        known = {key.digest for key in keys.keys}
        gone = [stream for stream, held in self._open.items() if known and (held is None or held[0] not in known)]
        for stream in gone:
            stream.key_removed()
