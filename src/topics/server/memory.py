"""What the C library has of memory that was used once: kept while there is work, given back when there is none [P-10].

A large answer is allocated and freed several times on its way; if the C library gave its memory back to the system each
time, it would fault in again page by page. What piled up while many records came in at once is another matter: it is in
pieces, so that most of it would stay for good. Giving it back takes the allocator for about 60 µs per MiB; whoever asks
it for memory meanwhile waits, so it is done when nobody should.

Only where the C library has words for it (glibc).
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

log = logging.getLogger("topics.server")

KEPT_BYTES: Final = {-3: 16 << 20, -1: 32 << 20}
"""Options of glibc's `mallopt`: blocks of less than `M_MMAP_THRESHOLD` are no mappings of their own, and at most
`M_TRIM_THRESHOLD` of what is free at the end of an arena is kept. The largest answer is half of the first."""
LOOK_S: Final = 1.0
QUIET_SHARE: Final = 0.05
"""A process that took no more of a processor than this since the last look has nothing to do."""
WORTH_BYTES: Final = 16 << 20
"""By so much it has grown since memory was given back last, or it is left alone."""

_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def keep_memory() -> None:
    """Keep what large answers need for the next ones."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in KEPT_BYTES.items():
            mallopt(option, value)


def own_bytes() -> int:
    """What is resident of this process, less mapped files (Linux)."""
    resident, shared = Path("/proc/self/statm").read_text(encoding="ascii").split()[1:3]
    return (int(resident) - int(shared)) * _PAGE


def give_back() -> None:
    """Everything that is free, wherever it lies; without the interpreter."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class Memory:
    """Looks once a second, and has a thread of its own give back what is worth it. Event loop only."""

    def __init__(
        self,
        cpu_s: Callable[[], float] = time.process_time,
        own: Callable[[], int] = own_bytes,
        give_back: Callable[[], None] = give_back,
    ) -> None:
        self._cpu_s = cpu_s
        self._own = own
        self._give_back = give_back
        self._looked_s = cpu_s()
        self._left: int | None = None
        """What there was at the first look, or at the first behind giving memory back; the least since."""
        self._giving: threading.Thread | None = None
        self._handle: asyncio.TimerHandle | None = None

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look until `stop`."""
        self._again(loop)

    def stop(self) -> None:
        """Look no more."""
        if self._handle is not None:
            self._handle.cancel()

    def _again(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            self.look()
        except FileNotFoundError:
            log.info("how much memory the process has is not known here")
            return
        except OSError as error:
            log.info("how much memory the process has was not to be had: %s", error)
        self._handle = loop.call_later(LOOK_S, self._again, loop)

    def look(self) -> None:
        """Give memory back if the process has nothing to do and has grown; once a second."""
        before_s, self._looked_s = self._looked_s, self._cpu_s()
        if self._left is None:
            self._left = self._own()
        if self._looked_s - before_s > QUIET_SHARE * LOOK_S or self.is_giving:
            return
        own = self._own()
        self._left = min(self._left, own)
        if own >= self._left + WORTH_BYTES:
            giving = threading.Thread(target=self._give, name="topics-memory", daemon=True)
            try:
                giving.start()
            except RuntimeError as error:
                self._left = own
                log.warning("no thread to give memory back: %s", error)
            else:
                self._giving = giving

    @property
    def is_giving(self) -> bool:
        """Whether memory is being given back."""
        return self._giving is not None and self._giving.is_alive()

    def _give(self) -> None:
        self._give_back()
        self._left = None
