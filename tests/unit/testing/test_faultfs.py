"""FaultFs: any operation, at any call, with any error, once, always or until space is freed (13 §2)."""

import errno
from collections.abc import Callable

import pytest

from topics.fs import File, OsFs, pread_all, pwrite_all
from topics.testing import Fault, FaultFs, SimFs
from topics.testing.faultfs import FAULTS, ErrorName


def workload(fs: FaultFs) -> dict[str, Callable[[], object]]:
    """One call of each operation that can fail."""
    fs.inner.makedirs("/d")
    fs.inner.makedirs("/empty")
    for name in ("/d/old", "/d/gone"):
        fs.inner.open(name, "create")
    file = fs.open("/d/f", "create")
    file.pwrite(b"0123456789", 0)
    return {
        "open": lambda: fs.open("/d/f", "rw"),
        "lock": lambda: fs.lock("/d/LOCK"),
        "rename": lambda: fs.rename("/d/old", "/d/new"),
        "remove": lambda: fs.remove("/d/gone"),
        "rmdir": lambda: fs.rmdir("/empty"),
        "listdir": lambda: fs.listdir("/d"),
        "sync_dir": lambda: fs.sync_dir("/d"),
        "makedirs": lambda: fs.makedirs("/d/e"),
        "size": lambda: fs.size("/d/f"),
        "free_bytes": lambda: fs.free_bytes("/d"),
        "map": lambda: fs.map("/d/f"),
        "pread": lambda: file.pread(10, 0),
        "pwrite": lambda: file.pwrite(b"abcdefgh", 0),
        "truncate": lambda: file.truncate(8),
        "allocate": lambda: file.allocate(100),
        "fdatasync": file.fdatasync,
        "fsync": file.fsync,
        "fadvise": lambda: file.fadvise(0, 0, "willneed"),
        "close": lambda: fs.open("/d/f", "r").close(),
    }


def every_fault() -> list[tuple[str, ErrorName]]:
    return [(op, error) for op, errors in FAULTS.items() for error in errors if error not in ("short", "zero")]


@pytest.mark.parametrize(("op", "error"), every_fault())
def test_each_operation_fails_with_each_error_once(op: str, error: ErrorName) -> None:
    fs = FaultFs(SimFs())
    calls = workload(fs)
    fs.inject(Fault(op, 1, error))
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the errno is the point
        calls[op]()
    assert caught.value.errno == getattr(errno, error)
    assert [hit.op for hit in fs.hits] == [op]
    calls[op]()


def test_a_failed_operation_has_no_effect() -> None:
    fs = FaultFs(SimFs(), [Fault("pwrite", 2), Fault("rename", 1), Fault("remove", 1), Fault("truncate", 1)])
    file = fs.open("/f", "create")
    file.pwrite(b"abc", 0)
    calls: list[Callable[[], object]] = [
        lambda: file.pwrite(b"X", 0),
        lambda: fs.rename("/f", "/g"),
        lambda: fs.remove("/f"),
        lambda: file.truncate(0),
    ]
    for call in calls:
        with pytest.raises(OSError, match="Input/output"):
            call()
    assert isinstance(fs.inner, SimFs)
    assert fs.inner.files() == {"f": b"abc"}


def test_once_hits_one_call_and_always_hits_all_from_it_on() -> None:
    outcomes = {}
    for times in ("once", "always"):
        fs = FaultFs(SimFs(), [Fault("size", 2, times=times)])  # type: ignore[arg-type]
        file = fs.open("/f", "create")
        outcomes[times] = [fails(file.size) for _ in range(4)]
    assert outcomes == {"once": [False, True, False, False], "always": [False, True, True, True]}


def fails(call: Callable[[], object]) -> bool:
    try:
        call()
    except OSError:
        return True
    return False


@pytest.mark.parametrize("freed_by", ["free_space", "remove", "truncate"])
def test_a_full_disk_stays_full_until_space_is_freed(freed_by: str) -> None:
    fs = FaultFs(SimFs(), [Fault("pwrite", 2, "ENOSPC", "until_freed")])
    file, other = fs.open("/f", "create"), fs.open("/other", "create")
    file.pwrite(b"abc", 0)
    assert all(fails(lambda: file.pwrite(b"d", 3)) for _ in range(3))
    other.truncate(100)  # growing frees nothing
    assert fails(lambda: file.pwrite(b"d", 3))
    if freed_by == "free_space":
        fs.free_space()
    elif freed_by == "remove":
        fs.remove("/other")
    else:
        other.truncate(0)
    assert file.pwrite(b"d", 3) == 1


def test_space_freed_before_the_disk_is_full_does_not_help() -> None:
    fs = FaultFs(SimFs(), [Fault("pwrite", 2, "ENOSPC", "until_freed")])
    file = fs.open("/f", "create")
    fs.free_space()
    file.pwrite(b"abc", 0)
    assert fails(lambda: file.pwrite(b"d", 3))


def test_short_counts_move_part_and_zero_moves_nothing() -> None:
    fs = FaultFs(SimFs(), [Fault("pwrite", 1, "short"), Fault("pread", 1, "short")])
    file = fs.open("/f", "create")
    assert file.pwrite(memoryview(b"0123456789"), 0) == 5
    assert file.size() == 5
    assert file.pread(4, 0) == b"01"
    fs.inject(Fault("pwrite", 1, "zero"))
    fs.inject(Fault("pread", 1, "zero"))
    assert file.pwrite(b"x", 0) == 0
    assert file.pread(5, 0) == b""
    assert file.pread(5, 0) == b"01234"


def test_the_loops_of_the_seam_get_through_short_counts() -> None:
    fs = FaultFs(SimFs(), [Fault("pwrite", 1, "short", "always"), Fault("pread", 1, "short", "always")])
    file: File = fs.open("/f", "create")
    pwrite_all(file, b"0123456789", 0)
    assert pread_all(file, 10, 0) == b"0123456789"


def test_counts_of_a_dry_run_name_every_call_to_sweep() -> None:
    fs = FaultFs(SimFs())
    for call in workload(fs).values():
        call()
    fs.exists("/")
    fs.point("p")
    assert {op: n for op, n in fs.counts.items() if n != 1} == {"open": 3, "pwrite": 2}
    assert set(fs.counts) == {*FAULTS, "exists", "point"}


def test_a_path_narrows_a_fault() -> None:
    fs = FaultFs(SimFs(), [Fault("fsync", 2, path="wal", times="always")])
    wal, other = fs.open("/wal", "create"), fs.open("/other", "create")
    assert [fails(file.fsync) for file in (other, other, wal, other, wal, other)] == [False] * 4 + [True, False]


def test_a_failed_sync_happens_in_the_simulated_disks_own_way() -> None:
    sim = SimFs()
    fs = FaultFs(sim)
    file = fs.open("/f", "create")
    file.fsync()
    fs.sync_dir("/")
    seen = []
    for mode in ("clean", "reverted", "late"):
        file.pwrite(b"new", 0)
        fs.inject(Fault("fsync", 1, "EIO", sync_mode=mode))  # type: ignore[arg-type]
        seen.append((fails(file.fsync), file.pread(3, 0), sim.crash_image(0, "everything").files()["f"]))
    assert seen == [(True, b"new", b""), (True, b"", b""), (False, b"new", b"")]
    assert [lie.path for lie in sim.lies] == ["/f"]


def test_faults_work_over_the_real_disk(tmp_path: object) -> None:
    fs = FaultFs(OsFs(), [Fault("fsync", 1), Fault("sync_dir", 1)])
    file = fs.open(f"{tmp_path}/f", "create")
    assert fails(file.fsync)
    assert fails(lambda: fs.sync_dir(str(tmp_path)))
    file.fsync()
    file.close()


def test_a_fault_that_makes_no_sense_is_refused() -> None:
    for op, index, error in [("fsync", 1, "short"), ("pwrite", 0, "EIO"), ("exists", 1, "EIO")]:
        with pytest.raises(ValueError, match=r"short counts|from 1|can fail"):
            Fault(op, index, error)  # type: ignore[arg-type]
