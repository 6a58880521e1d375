"""One file of the simulated disk: its cached bytes and everything a crash could make of them.

state      kept as                         a crash shows
clean      sectors[s]                      that
dirty      versions[s] = [(seq, bytes)…]   any of them: lost, torn between sectors, reordered
forgotten  forgotten[s] = durable bytes    the durable one (a failed sync marked the page clean)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.testing.simcrash import Choice

SECTOR_BYTES = 512
ZERO = bytes(SECTOR_BYTES)


def sectors_of(size: int) -> int:
    return (size + SECTOR_BYTES - 1) // SECTOR_BYTES


def masked(data: bytes, sector: int, size: int) -> bytes:
    """`data` of `sector` with zeros for everything at or behind `size`."""
    keep = size - sector * SECTOR_BYTES
    if keep >= SECTOR_BYTES:
        return data
    return data[:keep] + bytes(SECTOR_BYTES - keep) if keep > 0 else ZERO


class Inode:
    """One file: its cached bytes and everything a crash could make of them. The disk's lock guards it.

    Invariant: `sectors` has no key at or behind the size, and cached bytes behind the size are zero.
    """

    __slots__ = ("forgotten", "forgotten_size", "late_error", "linked", "locked", "opens", "reserved", "sectors",
                 "shared", "size", "sizes", "used", "versions")  # fmt: skip

    def __init__(self) -> None:
        self.size = 0
        self.sectors: dict[int, bytes] = {}
        self.shared = False  # `sectors` belongs to other inodes too: copy before the first change
        self.versions: dict[int, list[tuple[int, bytes]]] = {}
        self.sizes: list[tuple[int, int]] = []
        self.forgotten: dict[int, bytes] = {}
        self.forgotten_size: int | None = None
        self.late_error = False
        self.reserved = 0  # sectors from 0 that `allocate` took
        self.used = 0  # sectors that count against the capacity
        self.linked = True
        self.opens = 0
        self.locked = False

    def copy(self) -> Inode:
        """The same file in a survivor: bytes shared until one side writes; no versions, no handles."""
        twin = Inode()
        self.shared = twin.shared = True
        twin.size, twin.sectors = self.size, self.sectors
        twin.reserved, twin.used = self.reserved, self.used
        return twin

    def clone(self) -> Inode:
        """The same file under the same running kernel: dirty stays dirty, forgotten stays forgotten."""
        twin = self.copy()
        twin.versions = {sector: list(versions) for sector, versions in self.versions.items()}
        twin.sizes = list(self.sizes)
        twin.forgotten, twin.forgotten_size = dict(self.forgotten), self.forgotten_size
        twin.late_error, twin.linked = self.late_error, self.linked
        return twin

    def own(self) -> dict[int, bytes]:
        """The sectors, made private to this inode."""
        if self.shared:
            self.sectors = dict(self.sectors)
            self.shared = False
        return self.sectors

    def read(self, n: int, offset: int) -> bytes:
        end = min(offset + n, self.size)
        if end <= offset:
            return b""
        first, start = divmod(offset, SECTOR_BYTES)
        last = (end - 1) // SECTOR_BYTES
        sectors = self.sectors
        if first == last:
            return sectors.get(first, ZERO)[start : start + end - offset]
        if last - first > 64 + 4 * len(sectors):
            return self._read_sparse(first, last)[start : start + end - offset]
        whole = b"".join(map(sectors.get, range(first, last + 1), repeat(ZERO)))
        return whole[start : start + end - offset]

    def _read_sparse(self, first: int, last: int) -> bytes:
        whole = bytearray((last - first + 1) * SECTOR_BYTES)
        for sector, data in self.sectors.items():
            if first <= sector <= last:
                at = (sector - first) * SECTOR_BYTES
                whole[at : at + SECTOR_BYTES] = data
        return bytes(whole)

    def _keep_durable(self, sector: int) -> list[tuple[int, bytes]]:
        """The version list of a sector about to change, begun with its durable bytes."""
        versions = self.versions.get(sector)
        if versions is None:
            durable = self.forgotten.pop(sector, None) if self.forgotten else None
            if durable is None:
                durable = self.sectors.get(sector, ZERO)
            versions = self.versions[sector] = [(0, durable)]
        return versions

    def _resize(self, seq: int, size: int) -> None:
        if not self.sizes:
            durable = self.size if self.forgotten_size is None else self.forgotten_size
            self.sizes.append((0, durable))
            self.forgotten_size = None
        self.sizes.append((seq, size))
        self.size = size

    def write(self, data: bytes, offset: int, seq: int) -> int:
        """Write into the cache, one version per sector, numbered from `seq + 1`; returns the last number."""
        sectors = self.own()
        all_versions, forgotten, reserved = self.versions, self.forgotten, self.reserved
        sector, start = divmod(offset, SECTOR_BYTES)
        done, n = 0, len(data)
        while done < n:
            take = min(SECTOR_BYTES - start, n - done)
            old = sectors.get(sector)
            if take == SECTOR_BYTES:
                new = data[done : done + SECTOR_BYTES]
            else:
                base = ZERO if old is None else old
                new = base[:start] + data[done : done + take] + base[start + take :]
            seq += 1
            done += take
            versions = all_versions.get(sector)
            if old is None and sector < reserved and versions is None and not forgotten and new == ZERO:
                pass  # zeros onto reserved zeros: every version is the same
            else:
                if versions is None:
                    versions = self._keep_durable(sector)
                versions.append((seq, new))
                sectors[sector] = new
                if old is None and sector >= reserved:
                    self.used += 1
            reach = offset + done
            if reach > self.size:
                self._resize(seq, reach)
            sector += 1
            start = 0
        if self.forgotten_size is not None and offset + n > self.forgotten_size:
            self._resize(seq, self.size)
        return seq

    def truncate(self, size: int, seq: int) -> None:
        if size < self.size:
            self._cut(size)
        if size != self.size or self.forgotten_size is not None:
            self._resize(seq, size)

    def _cut(self, size: int) -> None:
        sectors = self.own()
        first, rest = divmod(size, SECTOR_BYTES)
        for sector in [s for s in sectors if s >= first]:
            self._keep_durable(sector)
            if sector == first and rest:
                sectors[sector] = masked(sectors[sector], sector, size)
            else:
                del sectors[sector]
        self.reserved = min(self.reserved, sectors_of(size))
        self._count_used()

    def _count_used(self) -> None:
        reserved = self.reserved
        self.used = reserved + sum(1 for sector in self.sectors if sector >= reserved)

    def new_sectors(self, first: int, last: int) -> Iterator[int]:
        """The sectors from `first` up to and including `last` that would have to be taken from the disk."""
        return (s for s in range(max(first, self.reserved), last + 1) if s not in self.sectors)

    def reserve(self, sectors: int, limit: int) -> bool:
        """Take `sectors` sectors from 0 on, at most `limit` new ones; false if that was not enough."""
        lacking = sectors - self.reserved - sum(1 for s in self.sectors if self.reserved <= s < sectors)
        if lacking <= limit:
            self.reserved = max(self.reserved, sectors)
            self._count_used()
            return True
        got = self.reserved
        while got < sectors:
            if got not in self.sectors:
                if limit == 0:
                    break
                if not self.sectors:  # the usual case, an empty file: no need to walk
                    got += limit
                    break
                limit -= 1
            got += 1
        self.reserved = got
        self._count_used()
        return False

    def sync(self) -> None:
        """Everything dirty becomes durable; what was forgotten stays so."""
        if self.sizes:
            self.sizes = []
            if self.forgotten:
                end = sectors_of(self.size)
                for sector in [s for s in self.forgotten if s >= end]:
                    del self.forgotten[sector]
        self.versions = {}

    def forget(self, durable: Callable[[], bool] | None = None) -> None:
        """Mark everything clean without writing it, except what `durable` says did get written."""
        for sector, versions in self.versions.items():
            if durable is None or not durable():
                self.forgotten[sector] = versions[0][1]
        self.versions = {}
        if self.sizes:
            if durable is None or not durable():
                self.forgotten_size = self.sizes[0][1]
            self.sizes = []

    def land(self, coin: Callable[[], bool]) -> None:
        """A random part of the dirty sectors reaches the medium, the rest stays dirty."""
        self.versions = {sector: versions for sector, versions in self.versions.items() if not coin()}

    def revert(self, size_too: bool) -> None:
        """Read forgotten pages again from the medium: the cache shows the durable bytes."""
        size = self.size
        if size_too and self.forgotten_size is not None:
            size, self.forgotten_size = self.forgotten_size, None
        if self.forgotten or size != self.size:
            self._settle(size, {**self.sectors, **self.forgotten})
            self.forgotten = {}

    def _settle(self, size: int, sectors: dict[int, bytes]) -> None:
        """Replace the cached content by `sectors` as far as `size` shows them."""
        end, rest = sectors_of(size), size % SECTOR_BYTES
        for sector in [s for s in sectors if s >= end]:
            del sectors[sector]
        if rest and end - 1 in sectors:
            sectors[end - 1] = masked(sectors[end - 1], end - 1, size)
        self.sectors, self.shared, self.size = sectors, False, size
        self.reserved = min(self.reserved, end)
        self._count_used()

    def survivor(self, choice: Choice) -> Inode:
        """What `choice` leaves of this file."""
        if not (self.versions or self.sizes or self.forgotten or self.forgotten_size is not None):
            return self.copy()
        size, cuts = self.size, []
        if self.sizes:
            picked = choice.size(self.sizes)
            size = self.sizes[picked][1]
            cuts = [self.sizes[i] for i in range(1, picked + 1) if self.sizes[i][1] < self.sizes[i - 1][1]]
        elif self.forgotten_size is not None:
            size = self.forgotten_size
        sectors = dict(self.sectors)
        sectors.update(self.forgotten)
        for sector, (seq, data) in choice.sectors(self.versions):
            for cut_seq, cut in cuts:
                if cut_seq > seq:
                    data = masked(data, sector, cut)
            if data is ZERO:
                sectors.pop(sector, None)
            else:
                sectors[sector] = data
        twin = Inode()
        twin.reserved = self.reserved
        twin._settle(size, sectors)
        return twin
