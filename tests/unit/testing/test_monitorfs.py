"""MonitorFs: sync before ack, sync before rename, directory sync after rename, sealed files stay (13 §2)."""

import random
from collections.abc import Callable

import pytest

from topics.fs import File
from topics.testing import Fault, FaultFs, MonitorFs, OrderViolation, SimFs
from topics.testing.monitorfs import Spans


def durable(fs: MonitorFs, path: str = "/f", data: bytes = b"x" * 1000) -> File:
    file = fs.open(path, "create")
    file.pwrite(data, 0)
    file.fsync()
    fs.sync_dir("/")
    return file


def test_an_ack_needs_the_bytes_written_synced_and_named() -> None:
    fs = MonitorFs(SimFs())
    file = fs.open("/f", "create")
    file.pwrite(b"x" * 100, 0)
    with pytest.raises(OrderViolation, match="not synced"):
        fs.acked("/f", 100)
    file.fdatasync()
    with pytest.raises(OrderViolation, match="name f in / is not durable"):
        fs.acked("/f", 100)
    fs.sync_dir("/")
    fs.acked("/f", 100)
    with pytest.raises(OrderViolation, match="not all of it was written"):
        fs.acked("/f", 101)
    file.pwrite(b"y", 100)
    fs.acked("/f", 100)
    with pytest.raises(OrderViolation, match="bytes 100 to 101"):
        fs.acked("/f", 101)
    assert len(fs.violations) == 4


def test_reserved_zeros_are_not_written_bytes() -> None:
    fs = MonitorFs(SimFs())
    file = fs.open("/f", "create")
    file.allocate(4096)
    file.fsync()
    fs.sync_dir("/")
    with pytest.raises(OrderViolation, match="written"):
        fs.acked("/f", 1)


def test_an_ack_needs_every_directory_above_durable() -> None:
    fs = MonitorFs(SimFs())
    fs.makedirs("/a/b")
    file = fs.open("/a/b/f", "create")
    file.pwrite(b"x", 0)
    file.fsync()
    for directory in ("/a/b", "/a", "/"):
        with pytest.raises(OrderViolation, match="durable"):
            fs.acked("/a/b/f", 1)
        fs.sync_dir(directory)
    fs.acked("/a/b/f", 1)


def test_a_retry_after_a_failed_sync_acknowledges_nothing() -> None:
    """[W-17]"""
    fs = MonitorFs(FaultFs(SimFs(), [Fault("fdatasync", 1)]))
    file = durable(fs)
    file.pwrite(b"y" * 10, 1000)
    with pytest.raises(OSError, match="Input/output"):
        file.fdatasync()
    file.fdatasync()
    fs.acked("/f", 1000)
    with pytest.raises(OrderViolation, match="its sync failed"):
        fs.acked("/f", 1010)
    file.pwrite(b"y" * 10, 1000)
    file.fdatasync()
    fs.acked("/f", 1010)


def test_a_sync_covers_only_what_was_written_before_it_began() -> None:
    sim = SimFs()
    fs = MonitorFs(sim)
    file = durable(fs)
    file.pwrite(b"early", 1000)

    def write_meanwhile(call: tuple[str, str, tuple[int | str, ...]]) -> None:
        sim.before = None
        with pytest.raises(OrderViolation, match="not complete"):
            fs.acked("/f", 1005)
        file.pwrite(b"late", 1005)

    sim.before = write_meanwhile
    file.fdatasync()
    fs.acked("/f", 1005)
    with pytest.raises(OrderViolation, match="bytes 1005 to 1009: not synced"):
        fs.acked("/f", 1009)


@pytest.mark.parametrize("change", ["write", "truncate", "allocate"])
def test_a_file_with_unsynced_bytes_is_not_renamed(change: str) -> None:
    fs = MonitorFs(SimFs())
    file = durable(fs)
    {
        "write": lambda: void(file.pwrite(b"z", 5)),
        "truncate": lambda: file.truncate(10),
        "allocate": lambda: file.allocate(2000),
    }[change]()
    with pytest.raises(OrderViolation, match="unsynced"):
        fs.rename("/f", "/g")
    file.fsync()
    fs.rename("/f", "/g")
    with pytest.raises(OrderViolation, match="durable"):
        fs.acked("/g", 10)
    fs.sync_dir("/")
    fs.acked("/g", 10)


def void(_: object) -> None:
    return None


def test_a_tag_sidecar_may_be_renamed_unsynced() -> None:
    """S-187: it is derived; but it counts as unsynced, and its name waits."""
    fs = MonitorFs(SimFs())
    name = "seg-0000000000000001.tag"
    file = fs.open(f"/{name}.tmp", "create")
    file.pwrite(b"x", 0)
    fs.rename(f"/{name}.tmp", f"/{name}")
    with pytest.raises(OrderViolation, match="not synced"):
        fs.acked(f"/{name}", 1)
    with pytest.raises(OrderViolation, match="no sync_dir"):
        fs.settled()


@pytest.mark.parametrize("name", ["seg-0000000000000001.idx", "seg-0000000000000001.data", "x.tag", "CURRENT"])
def test_nothing_else_may_be_renamed_unsynced(name: str) -> None:
    """S-187 is about the sidecar alone."""
    fs = MonitorFs(SimFs())
    fs.open(f"/{name}.tmp", "create").pwrite(b"x", 0)
    with pytest.raises(OrderViolation, match="unsynced"):
        fs.rename(f"/{name}.tmp", f"/{name}")


def test_settled_needs_a_directory_sync_after_each_change() -> None:
    fs = MonitorFs(SimFs())
    fs.settled()
    fs.makedirs("/a")
    fs.makedirs("/b")
    with pytest.raises(OrderViolation, match="a, b"):
        fs.settled()
    fs.sync_dir("/")
    fs.settled()
    fs.open("/a/f", "create")
    fs.settled(under="/b")
    with pytest.raises(OrderViolation, match="/a"):
        fs.settled()
    fs.sync_dir("/a")
    fs.rename("/a/f", "/b/f")
    fs.sync_dir("/b")
    with pytest.raises(OrderViolation, match="/a"):
        fs.settled()
    fs.sync_dir("/a")
    fs.settled()
    fs.remove("/b/f")
    with pytest.raises(OrderViolation, match="/b"):
        fs.settled()
    fs.sync_dir("/b")
    fs.rmdir("/b")
    with pytest.raises(OrderViolation, match="b changed"):
        fs.settled()
    fs.sync_dir("/")
    fs.settled()


def test_a_directory_sync_that_fails_settles_nothing() -> None:
    fs = MonitorFs(FaultFs(SimFs(), [Fault("sync_dir", 1)]))
    fs.open("/f", "create")
    with pytest.raises(OSError, match="Input/output"):
        fs.sync_dir("/")
    with pytest.raises(OrderViolation, match="no sync_dir"):
        fs.settled()


def test_a_file_made_and_removed_again_leaves_nothing_waiting() -> None:
    fs = MonitorFs(SimFs())
    fs.open("/tmp", "create").close()
    fs.remove("/tmp")
    fs.settled()


def test_a_sealed_file_takes_only_its_flag_bytes() -> None:
    fs = MonitorFs(SimFs())
    file = durable(fs)
    fs.sealed("/f", flag_bytes={7, 99})
    file.pwrite(b"\x01", 7)
    again = fs.open("/f", "rw")
    again.pwrite(b"\x01", 99)
    attempts: list[Callable[[], object]] = [
        lambda: file.pwrite(b"\x01", 8),
        lambda: again.pwrite(b"\x01\x01", 7),
        lambda: file.truncate(10),
        lambda: file.allocate(5000),
    ]
    for attempt in attempts:
        with pytest.raises(OrderViolation, match="sealed"):
            attempt()
    file.fsync()
    fs.rename("/f", "/g")
    with pytest.raises(OrderViolation, match="sealed"):
        fs.open("/g", "rw").pwrite(b"xx", 0)
    fs.remove("/g")
    fs.open("/g", "create").pwrite(b"a new file of the same name", 0)


def test_a_predicate_may_say_which_bytes_are_flags() -> None:
    fs = MonitorFs(SimFs())
    file = durable(fs)
    fs.sealed("/f", flag_bytes=lambda offset: offset % 10 == 3)
    file.pwrite(b"1", 23)
    with pytest.raises(OrderViolation, match="sealed"):
        file.pwrite(b"1", 24)


def test_what_was_there_before_counts_as_durable_only_if_trusted() -> None:
    sim = SimFs()
    sim.load({"/d/f": b"12345"})
    MonitorFs(sim).acked("/d/f", 5)
    strict = MonitorFs(sim.kill_image(), trust_existing=False)
    with pytest.raises(OrderViolation, match="not synced"):
        strict.acked("/d/f", 5)
    strict.open("/d/f", "r").fsync()
    for directory in ("/d", "/"):
        with pytest.raises(OrderViolation, match="durable"):
            strict.acked("/d/f", 5)
        strict.sync_dir(directory)
    strict.acked("/d/f", 5)


def test_moving_a_directory_takes_what_is_known_of_its_files_along() -> None:
    fs = MonitorFs(SimFs())
    fs.makedirs("/a")
    fs.sync_dir("/")
    file = fs.open("/a/f", "create")
    file.pwrite(b"x", 0)
    fs.rename("/a", "/b")
    with pytest.raises(OrderViolation, match="not synced"):
        fs.acked("/b/f", 1)
    file.fsync()
    fs.sync_dir("/b")
    with pytest.raises(OrderViolation, match="name b"):
        fs.acked("/b/f", 1)
    fs.sync_dir("/")
    fs.acked("/b/f", 1)


def test_the_monitors_own_questions_do_not_use_up_faults() -> None:
    faults = FaultFs(SimFs(), [Fault("size", 1, times="always"), Fault("listdir", 1, times="always")])
    fs = MonitorFs(faults)
    durable(fs)
    fs.rename("/f", "/g")
    fs.sync_dir("/")
    fs.acked("/g", 1000)
    assert faults.counts["size"] == faults.counts["listdir"] == faults.counts["exists"] == 0


def test_spans_agree_with_a_plain_set() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        spans, plain = Spans(), set[int]()
        for _ in range(40):
            start = rng.randrange(40)
            end = start + rng.randrange(8)
            if rng.random() < 0.6:
                spans.add(start, end)
                plain |= set(range(start, end))
            else:
                spans.discard(start, end)
                plain -= set(range(start, end))
            assert {i for a, b in zip(spans.starts, spans.ends, strict=True) for i in range(a, b)} == plain, seed
            assert all(a < b for a, b in zip(spans.ends, spans.starts[1:], strict=False)), seed
