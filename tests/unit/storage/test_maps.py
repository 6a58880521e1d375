"""Files in memory: bounded, leased, pinned, private; the same whether the disk maps or reads."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from mmap import mmap
from pathlib import Path

import numpy as np
import pytest

from topics.fs import Fs, OsFs
from topics.storage import maps
from topics.storage.maps import MapCache, WrongSize
from topics.testing import Fault, FaultFs, SimFs

Make = Callable[..., tuple[MapCache, Callable[[str], str], Fs]]


@pytest.fixture(params=["mapped", "read", "simulated"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """A cache over files `f0` … `f9` of 100 bytes, each full of its number."""

    def build(max_maps: int = 4) -> tuple[MapCache, Callable[[str], str], Fs]:
        files = {f"f{n}": bytes([n]) * 100 for n in range(10)}
        if request.param == "simulated":
            disk = SimFs()
            disk.load(files)
            return MapCache(disk, max_maps), str, disk
        for name, data in files.items():
            (tmp_path / name).write_bytes(data)
        return MapCache(OsFs(), max_maps, use_mmap=request.param == "mapped"), lambda n: str(tmp_path / n), OsFs()

    return build


def test_a_lease_shows_the_file_and_only_the_first_is_fresh(make: Make) -> None:
    """S-155."""
    cache, at, _ = make()
    with cache.lease(at("f3"), 100) as lease:
        assert bytes(lease.buffer) == b"\x03" * 100
        assert lease.fresh
    with cache.lease(at("f3"), 100) as lease:
        assert not lease.fresh
    assert cache.statistics().brought_in == 1


def test_what_is_written_to_a_buffer_stays_in_memory(make: Make) -> None:
    """S-150: private copy-on-write; seen by later leases, never by the disk."""
    cache, at, fs = make()
    with cache.lease(at("f1"), 100) as lease:
        np.frombuffer(lease.buffer, np.uint8)[7] = 200
    with cache.lease(at("f1"), 100) as lease:
        assert lease.buffer[7] == 200
    file = fs.open(at("f1"), "r")
    assert file.pread(100, 0) == b"\x01" * 100
    file.close()
    cache.forget(at("f1"))
    with cache.lease(at("f1"), 100) as lease:
        assert lease.buffer[7] == 1


def test_the_least_recently_used_goes_first_and_what_is_leased_or_pinned_stays(make: Make) -> None:
    """S-155, S-150."""
    cache, at, _ = make(2)
    held = cache.lease(at("f0"), 100)
    with cache.lease(at("f1"), 100) as lease:
        lease.pin()
    for n in (2, 3, 4):
        cache.lease(at(f"f{n}"), 100).release()
    found = cache.statistics()
    assert (found.entries, found.leased, found.pinned, found.evicted) == (2, 1, 1, 3)
    assert not cache.lease(at("f1"), 100).fresh
    assert bytes(held.buffer) == b"\0" * 100
    held.release()
    held.release()


def test_a_forgotten_file_is_brought_in_anew_while_old_leases_go_on(make: Make) -> None:
    """A replaced `.idx`: readers of the old pair finish with it (06 §10)."""
    cache, at, fs = make()
    old = cache.lease(at("f5"), 100)
    file = fs.open(at("new"), "create")
    file.pwrite(b"n" * 100, 0)
    file.close()
    fs.rename(at("new"), at("f5"))
    cache.forget(at("f5"))
    with cache.lease(at("f5"), 100) as new:
        assert new.fresh
        assert bytes(new.buffer) == b"n" * 100
        assert bytes(old.buffer) == b"\x05" * 100
    old.release()


def test_a_view_that_outlives_its_lease_never_raises_and_never_dangles(make: Make) -> None:
    """13 §6: closing a mapping with exported buffers fails; its memory must stay until the view is gone."""
    cache, at, _ = make(1)
    with cache.lease(at("f6"), 100) as lease:
        kept = np.frombuffer(lease.buffer, np.uint8)
    cache.lease(at("f7"), 100).release()
    cache.clear()
    assert cache.statistics().entries == 0
    assert (kept == 6).all()


@pytest.mark.parametrize("size", [0, 99, 101])
def test_a_file_of_another_size_is_refused(make: Make, size: int) -> None:
    """S-170: a mapping behind the end of a file kills the process."""
    cache, at, _ = make()
    with pytest.raises(WrongSize):
        cache.lease(at("f2"), size)
    assert cache.statistics().entries == 0


def test_data_is_leased_only_where_it_can_be_mapped(make: Make) -> None:
    """Large files are read by range where there is no mapping."""
    cache, at, fs = make()
    lease = cache.lease_mapped(at("f2"), 50)
    if lease is None:
        assert isinstance(fs, SimFs) or cache.statistics().entries == 0
        return
    assert len(lease.buffer) == 100
    lease.release()
    cache.forget(at("f2"))
    with pytest.raises(WrongSize):
        cache.lease_mapped(at("f2"), 101)


def test_content_put_for_a_damaged_file_stays_until_it_is_forgotten(make: Make) -> None:
    cache, at, _ = make(1)
    cache.put(at("f8"), bytearray(b"p" * 40))
    cache.lease(at("f1"), 100).release()
    with cache.lease(at("f8"), 40) as lease:
        assert not lease.fresh
        assert bytes(lease.buffer) == b"p" * 40
    with pytest.raises(WrongSize):
        cache.lease(at("f8"), 100)
    cache.forget(at("f8"))
    assert cache.lease(at("f8"), 100).fresh


def test_an_attachment_goes_with_its_buffer(make: Make) -> None:
    cache, at, _ = make()
    with cache.lease(at("f4"), 100) as lease:
        lease.attachment = memoryview(lease.buffer)[3:]
    with cache.lease(at("f4"), 100) as lease:
        assert lease.attachment == b"\x04" * 97
    cache.forget(at("f4"))
    with cache.lease(at("f4"), 100) as lease:
        assert lease.attachment is None


def test_copies_on_the_heap_are_bounded_by_bytes(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-5: without mappings the index may not grow on the heap with the number of segments."""
    monkeypatch.setattr(maps, "COPIES_BYTES_MAX", 250)
    cache, at, _ = make(100)
    for n in range(10):
        cache.lease(at(f"f{n}"), 100).release()
    assert cache.statistics().copies_bytes <= 250


def test_no_more_files_are_mapped_than_there_may_be_even_if_all_of_them_are_pinned(tmp_path: Path) -> None:
    """S-155: what is pinned beyond that is read; a mapping may hold a descriptor, and others need some."""
    mapped: list[str] = []

    class Counting(OsFs):
        def map(self, path: str) -> mmap | None:
            mapped.append(path)
            return super().map(path)

    cache = MapCache(Counting(), 3)
    paths = [str(tmp_path / f"f{n}") for n in range(10)]
    for n, path in enumerate(paths):
        Path(path).write_bytes(bytes([n]) * 100)
        with cache.lease(path, 100) as lease:
            lease.pin()
            lease.pin()
            lease.buffer[7] = 200
    assert mapped == paths[:3]
    assert cache.lease_mapped(paths[4], 100) is not None, "it is in memory as it is"
    for n, path in enumerate(paths):
        with cache.lease(path, 100) as lease:
            assert (lease.fresh, lease.buffer[7], lease.buffer[8]) == (False, 200, n)
    for path in paths:
        cache.forget(path)
    with cache.lease(paths[9], 100) as lease:
        assert (lease.fresh, lease.buffer[7], mapped[3:]) == (True, 9, paths[9:])


def test_an_error_of_the_disk_comes_through_and_leaves_nothing_behind() -> None:
    disk = SimFs()
    disk.load({"f": b"x" * 100})
    for op in ("open", "pread", "size", "map"):
        fs = FaultFs(disk, [Fault(op, 1)])
        cache = MapCache(fs, 4)
        with pytest.raises(OSError, match="Input/output error"):
            cache.lease("f", 100)
        assert cache.statistics().entries == 0
        assert cache.lease("f", 100).fresh


def test_threads_lease_evict_and_forget_at_the_same_time(make: Make) -> None:
    cache, at, _ = make(3)
    failures: list[Exception] = []

    def run(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(300):
                n = rng.randrange(10)
                with cache.lease(at(f"f{n}"), 100) as lease:
                    assert bytes(lease.buffer) == bytes([n]) * 100
                if rng.random() < 0.1:
                    cache.forget(at(f"f{n}"))
        except Exception as error:  # noqa: BLE001 - reported by the main thread
            failures.append(error)

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert cache.statistics().leased == 0


def test_a_mapping_that_finds_no_descriptor_takes_those_that_nobody_uses(tmp_path: Path) -> None:
    """S-155: connections may have taken what mappings had left to others."""
    limit = [100]
    alive: list[mmap] = []

    class Scarce(OsFs):
        def map(self, path: str) -> mmap | None:
            if sum(not one.closed for one in alive) >= limit[0]:
                raise OSError(errno.EMFILE, "too many open files")
            made = super().map(path)
            assert made is not None
            alive.append(made)
            return made

    cache = MapCache(Scarce(), 100)
    paths = [str(tmp_path / f"f{n}") for n in range(6)]
    for path in paths:
        Path(path).write_bytes(path.encode())
    for path in paths[:5]:
        cache.lease(path, len(path)).release()
    limit[0] = 5
    with cache.lease(paths[0], len(paths[0])) as used, cache.lease(paths[5], len(paths[5])) as lease:
        assert (bytes(lease.buffer), bytes(used.buffer)) == (paths[5].encode(), paths[0].encode())
        assert sum(not one.closed for one in alive) == 2, "what is in use stays"
