"""The descriptor cache (W-20)."""

from __future__ import annotations

import gc
from typing import Any, cast

import pytest

from tests.unit.wal import kit
from topics.errors import SegmentNotFound
from topics.fs import File, Fs, Mode
from topics.wal import Position
from topics.wal.descriptors import DescriptorCache, Lease

SOON_S = 15.0
"""Bound of a wait for what would wait for itself."""


class Opened:
    """A descriptor that knows whether it was closed."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.closed = 0

    def close(self) -> None:
        self.closed += 1


class Opener:
    """Counts what was opened."""

    def __init__(self) -> None:
        self.files: list[Opened] = []

    def __call__(self, id: int) -> Opened:
        self.files.append(Opened(id))
        return self.files[-1]

    def open_ids(self) -> list[int]:
        return sorted(file.id for file in self.files if not file.closed)


@pytest.fixture
def opener() -> Opener:
    return Opener()


def test_a_hit_opens_nothing_and_moves_the_entry_to_the_newest_place(opener: Opener) -> None:
    """W-20: exact LRU."""
    cache = DescriptorCache(opener, 3)
    for id in (1, 2, 3, 1):
        cache.acquire(id).release()
    assert cache.ids() == [2, 3, 1]
    assert len(opener.files) == 3


def test_the_least_recently_used_entry_goes_first(opener: Opener) -> None:
    """W-20, against a model."""
    cache = DescriptorCache(opener, 3)
    model: list[int] = []
    for id in [1, 2, 3, 1, 4, 2, 5, 1, 1, 3, 2, 6, 5, 4, 4, 1]:
        cache.acquire(id).release()
        model = [*(other for other in model if other != id), id][-3:]
        assert cache.ids() == model
        assert opener.open_ids() == sorted(model)


def test_a_leased_entry_is_not_evicted(opener: Opener) -> None:
    """W-20: eviction takes the least recently used entry without leases."""
    cache = DescriptorCache(opener, 2)
    held = cache.acquire(1)
    cache.acquire(2).release()
    cache.acquire(3).release()
    assert cache.ids() == [1, 3]
    held.release()


def test_a_cache_full_of_leases_grows_until_one_is_released(opener: Opener) -> None:
    """W-20."""
    cache = DescriptorCache(opener, 1)
    leases = [cache.acquire(id) for id in (1, 2, 3)]
    assert len(cache) == 3
    leases[1].release()
    assert cache.ids() == [1, 3]
    leases[0].release()
    assert cache.ids() == [3]
    leases[2].release()
    assert (cache.ids(), opener.open_ids()) == ([3], [3])


def test_leases_are_counted(opener: Opener) -> None:
    """W-20: two leases of one segment share a descriptor; it is idle after both."""
    cache = DescriptorCache(opener, 1)
    one, two = cache.acquire(1), cache.acquire(1)
    assert one.file is two.file
    one.release()
    cache.acquire(2).release()
    assert opener.files[0].closed == 0
    two.release()
    assert cache.ids() == [1]


def test_releasing_twice_gives_back_one_lease(opener: Opener) -> None:
    """W-20: a counted lease."""
    cache = DescriptorCache(opener, 1)
    one, two = cache.acquire(1), cache.acquire(1)
    one.release()
    one.release()
    cache.drop(1)
    assert opener.files[0].closed == 0
    two.release()
    assert opener.files[0].closed == 1


def test_a_dropped_segment_stays_readable_for_its_leases_and_is_reopened_for_others(opener: Opener) -> None:
    """W-20: deleting drops it from the cache."""
    cache = DescriptorCache(opener, 4)
    held = cache.acquire(1)
    cache.drop(1)
    assert (cache.ids(), opener.files[0].closed) == ([], 0)
    assert cache.acquire(1).file is not held.file
    held.release()
    assert opener.files[0].closed == 1


def test_clearing_closes_what_is_idle_and_leaves_leases_to_finish(opener: Opener) -> None:
    """W-20, W-56."""
    cache = DescriptorCache(opener, 4)
    held = cache.acquire(1)
    cache.acquire(2).release()
    cache.clear()
    assert opener.open_ids() == [1]
    held.release()
    assert opener.open_ids() == []


def test_a_lease_is_a_context_manager(opener: Opener) -> None:
    """W-20."""
    cache = DescriptorCache(opener, 1)
    with cache.acquire(1):
        cache.acquire(2).release()
        assert 1 in cache.ids()
    cache.acquire(3).release()
    assert opener.open_ids() == [3]


def test_a_file_that_cannot_be_opened_leaves_no_entry() -> None:
    """W-20."""

    def fail(id: int) -> Opened:
        raise OSError(5, "no")

    cache = DescriptorCache(fail, 1)
    with pytest.raises(OSError, match="no"):
        cache.acquire(1)
    assert cache.ids() == []


def test_an_abandoned_lease_counts_as_released(opener: Opener) -> None:
    """W-20, W-54: the collector's way to give one back."""
    cache = DescriptorCache(opener, 1)
    one, two = cache.acquire(1), cache.acquire(1)
    one.abandon()
    one.abandon()
    one.release()
    cache.drop(1)
    assert opener.open_ids() == [1]
    two.abandon()
    assert opener.open_ids() == []


def test_a_lease_that_is_abandoned_while_the_cache_is_busy_is_given_back_later(opener: Opener) -> None:
    """W-20: the collector comes by at any moment, also while this thread has the cache's lock."""
    held: list[Lease] = []

    def opening(id: int) -> Opened:
        while held:
            held.pop().abandon()
        return opener(id)

    cache = DescriptorCache(opening, 1)
    held.append(cache.acquire(1))
    kit.spawn(lambda: cache.acquire(2).release()).result(SOON_S)
    cache.acquire(3).release()
    assert (cache.ids(), opener.open_ids()) == ([3], [3])
    held.append(cache.acquire(3))
    kit.spawn(lambda: cache.acquire(4).release()).result(SOON_S)
    cache.clear()
    assert opener.open_ids() == []


def test_a_reader_that_is_collected_while_a_segment_is_opened_locks_nobody_out(disk: kit.Disk) -> None:
    """W-20, W-54: a cycle around a reader that nobody closed."""

    class Collecting:
        """A disk whose opening of a file is when garbage is collected."""

        armed = False

        def __getattr__(self, name: str) -> Any:
            return getattr(disk.fs, name)

        def open(self, path: str, mode: Mode) -> File:
            if self.armed:
                gc.collect()
            return disk.fs.open(path, mode)

    fs = Collecting()
    gc.disable()
    try:
        wal, _ = kit.open_wal(disk, fs=cast(Fs, fs), fd_cache_size=1)
        positions = kit.fill(wal, 30)
        unclosed: list[Any] = [wal.read_from(kit.START)]
        assert unclosed[0].next_record() == (kit.put(0, 100), positions[0])
        unclosed.append(unclosed)
        del unclosed
        fs.armed = True
        found = kit.spawn(lambda: kit.numbers(wal, Position(1, 0))).result(SOON_S)
        fs.armed = False
    finally:
        gc.enable()
    assert found == [n for n, position in enumerate(positions) if position.segment_id]
    assert len(wal._log.descriptors) == 1
    wal.close()


def test_the_core_serves_reads_from_the_cache(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-20: pread of a leased descriptor; a second acquire opens nothing."""
    log = kit.start_core(kind, disk)
    id, offset = log.write([kind.unit(1)])
    with log.acquire(id) as lease:
        assert lease.file.pread(64, offset) == kind.unit(1)
    opens = disk.sim.reads["open"]
    log.acquire(id).release()
    assert disk.sim.reads["open"] == opens
    log.close()


def test_the_core_keeps_as_many_descriptors_as_it_was_told(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-20: fd_cache_size."""
    log = kit.start_core(kind, disk, fd_cache_size=2)
    for n in range(5):
        log.write([kind.unit(n)])
        log.rotate()
    for id in kind.ids(5):
        log.acquire(id).release()
    assert log.descriptors.ids() == kind.ids(5)[-2:]
    log.close()


def test_a_lease_survives_the_deletion_of_its_segment(disk: kit.Disk, kind: kit.Kind) -> None:
    """W-20, 07 §1.1 deleted: open readers may finish."""
    log = kit.start_core(kind, disk)
    first, offset = log.write([kind.unit(1)])
    log.rotate()
    lease = log.acquire(first)
    assert log.delete_before(first + 1) == [first]
    assert lease.file.pread(64, offset) == kind.unit(1)
    with pytest.raises(SegmentNotFound) as caught:
        log.acquire(first)
    assert caught.value.segment_id == first
    lease.release()
    log.close()
