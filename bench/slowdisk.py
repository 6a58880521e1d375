"""A disk whose syncs take longer than those of the one at hand, or a folder that answers late: real files, and a wait.

The wait is one of the kernel, without the interpreter, as that for a medium is. Any thread.
"""

from __future__ import annotations

import time

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
