"""Real files with something beside them: syncs that take longer, a folder that answers late, writes that are counted.

A wait is one of the kernel, without the interpreter, as that for a medium is. Any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from topics.fs import File, Mode, OsFile, OsFs


class SlowSyncFile(OsFile):
    """A real file; syncing its data takes `wait_s` longer."""

    __slots__ = ("_wait_s",)

    def __init__(self, fd: int, wait_s: float) -> None:
        super().__init__(fd)
        self._wait_s = wait_s

    def fdatasync(self) -> None:
        super().fdatasync()
        if self._wait_s:
            time.sleep(self._wait_s)


class SlowSyncFs(OsFs):
    """The real disk, with `wait_s` added to every sync of data."""

    __slots__ = ("_wait_s",)

    def __init__(self, wait_s: float) -> None:
        super().__init__()
        self._wait_s = wait_s

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        assert isinstance(file, OsFile)
        return SlowSyncFile(file.fd, self._wait_s)


class LateFile(OsFile):
    """A real file; reading it takes `wait_s` longer."""

    __slots__ = ("_wait_s",)

    def __init__(self, fd: int, wait_s: float) -> None:
        super().__init__(fd)
        self._wait_s = wait_s

    def pread(self, n: int, offset: int) -> bytes:
        time.sleep(self._wait_s)
        return super().pread(n, offset)


class LateFs(OsFs):
    """The real disk, but for data files below one folder: they answer `wait_s` later."""

    __slots__ = ("_folder", "_wait_s")

    def __init__(self, folder: str, wait_s: float) -> None:
        super().__init__()
        self._folder = folder
        self._wait_s = wait_s

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        assert isinstance(file, OsFile)
        is_late = mode == "r" and path.startswith(self._folder) and path.endswith(".data")
        return LateFile(file.fd, self._wait_s) if is_late else file


class CountedFile(OsFile):
    """A real file; whoever asked is told of every write."""

    __slots__ = ("_note",)

    def __init__(self, fd: int, note: Callable[[], None]) -> None:
        super().__init__(fd)
        self._note = note

    def pwrite(self, data: bytes | bytearray | memoryview, offset: int) -> int:
        self._note()
        return super().pwrite(data, offset)


class CountedFs(OsFs):
    """The real disk; writes to files of the log are counted for each tick of a loop.

    A write arms a count that the loop's next pass clears: what it finds is how many writes one pass made. Zeros that
    are written ahead, by another thread, are no writes of a tick.
    """

    __slots__ = ("_call_soon", "_dir", "_most", "_owner", "_pass", "_writes")

    def __init__(self, call_soon: Callable[[Callable[[], None]], object], dir: str) -> None:
        super().__init__()
        self._call_soon = call_soon
        self._dir = f"{dir}/wal"
        self._owner = threading.get_ident()
        self._pass = self._most = self._writes = 0

    def open(self, path: str, mode: Mode) -> File:
        file = super().open(path, mode)
        if not path.startswith(self._dir) or mode == "r":
            return file
        assert isinstance(file, OsFile)
        return CountedFile(file.fd, self._note)

    def _note(self) -> None:
        if threading.get_ident() != self._owner:
            return
        if not self._pass:
            self._call_soon(self._clear)
        self._pass += 1
        self._writes += 1
        self._most = max(self._most, self._pass)

    def _clear(self) -> None:
        self._pass = 0

    def begin(self) -> None:
        """Count from here: what opening wrote is no matter of ticks."""
        self._pass = self._most = self._writes = 0

    def told(self) -> dict[str, int]:
        """How many writes there were, and the most of one pass."""
        return {"writes": self._writes, "most_per_tick": self._most}
