"""What drivers of logs share: the disk under its wrappers, and how to move on to a survivor of it."""

from __future__ import annotations

from collections.abc import Callable

from topics.fs import Fs
from topics.testing.clock import ManualClock
from topics.testing.faultfs import FaultFs
from topics.testing.monitorfs import MonitorFs
from topics.testing.simfs import SimFs


class DiskDriver:
    """Runs a system on a simulated disk; `on_disk` is told of every disk it moves to, so that a sweep can hook in."""

    def __init__(self) -> None:
        self.on_disk: Callable[[SimFs], None] | None = None
        self.clock = ManualClock()
        self._fs: Fs = SimFs()
        self._lies_known = 0

    @property
    def disk(self) -> SimFs:
        """The simulated disk under any wrappers."""
        fs = self._fs
        while isinstance(fs, (FaultFs, MonitorFs)):
            fs = fs.inner
        assert isinstance(fs, SimFs)
        return fs

    def start(self, fs: Fs, *, killed: bool = False) -> None:
        """Open on `fs`, unless a failing disk prevents it; then the next operation tries again."""
        raise NotImplementedError

    def _adopt(self, fs: Fs) -> None:
        """From here on the system is on this disk."""
        self._fs = fs
        if self.on_disk is not None:
            self.on_disk(self.disk)

    def _move_to(self, survivor: SimFs, *, killed: bool) -> None:
        """Go on with a survivor, behind the same faults."""
        old, fs = self.disk, self._fs
        old.before = None
        if isinstance(fs, FaultFs):
            fs.inner = survivor
        else:
            fs = survivor
        self.start(fs, killed=killed)

    def _struck(self) -> int:
        """How many injected faults have struck."""
        return len(self._fs.hits) if isinstance(self._fs, FaultFs) else 0

    def _disk_lied(self) -> bool:
        """Whether a sync has been reported well that was not, since the system was opened."""
        return len(self.disk.lies) > self._lies_known

    def _leave_space(self, n: int) -> None:
        """Leave so many bytes on the disk."""
        used = sum((len(data) + 511) // 512 * 512 for data in self.disk.files().values())
        self.disk.capacity = used + n
