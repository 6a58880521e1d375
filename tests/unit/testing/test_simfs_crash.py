"""What a crash may and may not do to the bytes of a file on the simulated disk (13 §2)."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from topics.testing import PowerLoss, SimFs
from topics.testing.simfs import STYLES, SimFile

A, B, C = (bytes([letter]) * 512 for letter in b"ABC")


def durable_file(fs: SimFs, data: bytes = b"", path: str = "/f") -> SimFile:
    """A file whose name and first content are on the medium."""
    file = fs.open(path, "create")
    if data:
        file.pwrite(data, 0)
    file.fsync()
    fs.sync_dir("/")
    return file


def images(fs: SimFs, n: int = 400) -> set[bytes]:
    """The contents of /f over a bounded sample of crashes."""
    return {fs.crash_image(seed).files()["f"] for seed in range(n)}


def test_an_unsynced_write_can_be_lost_torn_and_reordered_between_sectors() -> None:
    fs = SimFs()
    file = durable_file(fs, A * 3)
    file.pwrite(B * 3, 0)
    assert images(fs) == {x + y + z for x in (A, B) for y in (A, B) for z in (A, B)}


def test_any_version_since_the_last_sync_can_survive_in_each_sector() -> None:
    fs = SimFs()
    file = durable_file(fs, A * 2)
    file.pwrite(B * 2, 0)
    file.pwrite(C * 2, 0)
    assert images(fs) == {x + y for x in (A, B, C) for y in (A, B, C)}


@pytest.mark.parametrize("sync", [SimFile.fsync, SimFile.fdatasync])
def test_a_synced_write_is_in_every_image(sync: Callable[[SimFile], None]) -> None:
    fs = SimFs()
    file = durable_file(fs, A)
    file.pwrite(B + C, 100)
    sync(file)
    expected = A[:100] + B + C
    assert images(fs) == {expected}
    assert {fs.crash_image(seed, style).files()["f"] for seed in range(50) for style in STYLES} == {expected}


def test_the_size_lands_before_or_after_the_data() -> None:
    fs = SimFs()
    file = durable_file(fs)
    file.pwrite(B, 0)
    assert images(fs) == {b"", bytes(512), B}


def test_an_append_over_several_sectors_can_stop_at_each_of_them() -> None:
    fs = SimFs()
    file = durable_file(fs)
    file.pwrite(B * 3, 0)
    assert {len(data) for data in images(fs)} == {0, 512, 1024, 1536}


def test_a_cut_that_landed_never_shows_old_bytes_behind_it_again() -> None:
    fs = SimFs()
    file = durable_file(fs, A * 3)
    file.truncate(100)
    file.truncate(1536)
    assert images(fs) == {A * 3, A[:100], A[:100] + bytes(1436)}


def test_writing_after_a_cut_never_brings_back_what_was_cut_off() -> None:
    fs = SimFs()
    file = durable_file(fs, A * 2)
    file.truncate(0)
    file.pwrite(B * 2, 0)
    seen = {data for data in images(fs) if len(data) == 1024}
    zeros = bytes(512)
    assert zeros + zeros in seen
    # A mixture of A with the new length is allowed only where the cut itself was lost.
    assert seen <= {x + y for x in (A, B, zeros) for y in (A, B, zeros)}
    assert A + zeros not in seen


def test_prefix_images_are_moments_of_the_history_over_all_files() -> None:
    fs = SimFs()
    one, two = durable_file(fs, path="/f"), durable_file(fs, path="/g")
    one.pwrite(A, 0)
    two.pwrite(B, 0)
    one.pwrite(C, 512)
    seen = {tuple(fs.crash_image(seed, "prefix").files().values()) for seed in range(200)}
    assert seen == {(b"", b""), (A, b""), (A, B), (A + C, B)}


def test_the_extremes_keep_nothing_and_everything() -> None:
    fs = SimFs()
    file = durable_file(fs, A)
    file.pwrite(B + C, 0)
    fs.open("/new", "create")
    assert fs.crash_image(0, "nothing").files() == {"f": A}
    assert fs.crash_image(0, "everything").files() == {"f": B + C, "new": b""}


def test_taking_images_does_not_disturb_the_run() -> None:
    """[R-10]"""
    fs = SimFs(7)
    file = durable_file(fs, A)
    file.pwrite(B, 0)
    image = fs.crash_image(1, "everything")
    changed = image.open("/f", "rw")
    changed.pwrite(C, 0)
    assert file.pread(512, 0) == B
    file.pwrite(A, 512)
    assert changed.pread(2000, 0) == C
    assert fs.disk_calls == 6
    assert image.disk_calls == 1


@pytest.mark.parametrize("take", [lambda fs: fs.crash_image(1), lambda fs: fs.kill_image()])
def test_a_clean_file_is_shared_with_its_images_until_one_side_writes(take: Callable[[SimFs], SimFs]) -> None:
    fs = SimFs()
    file = durable_file(fs, A * 2)
    image, other = take(fs), take(fs)
    image.open("/f", "rw").pwrite(B, 0)
    file.pwrite(C, 512)
    assert [disk.files()["f"] for disk in (fs, image, other)] == [A + C, B + A, A + A]
    assert take(image).crash_image(0, "nothing").files()["f"] in (A + A, B + A)
    assert other.crash_image(0, "nothing").files()["f"] == A + A


def test_bytes_that_landed_behind_a_lost_size_do_not_come_back_when_the_file_grows() -> None:
    fs = SimFs()
    file = durable_file(fs, A[:100])
    file.pwrite(B[:300], 100)
    for seed in range(200):
        image = fs.crash_image(seed)
        if image.size("/f") == 100:
            image.open("/f", "rw").truncate(400)
            assert image.files()["f"] == A[:100] + bytes(300)


def history(seed: int) -> SimFs:
    fs = SimFs(seed)
    rng = random.Random(seed)
    fs.makedirs("/d")
    fs.sync_dir("/")
    for i in range(40):
        file = fs.open(f"/d/{rng.randrange(5)}", "create")
        file.pwrite(rng.randbytes(rng.randrange(2000)), rng.randrange(1000))
        if rng.random() < 0.3:
            file.fsync()
        if rng.random() < 0.2:
            fs.sync_dir("/d")
        if rng.random() < 0.3 and i > 3:
            fs.rename(f"/d/{rng.choice(fs.listdir('/d'))}", f"/d/{rng.randrange(5)}")
        if rng.random() < 0.1:
            fs.fail_sync("partial")
            with pytest.raises(OSError, match="Input/output"):
                file.fsync()
    return fs


@pytest.mark.parametrize("style", STYLES)
def test_the_same_seed_and_calls_give_the_same_images(style: str) -> None:
    """[R-12]"""
    for seed in range(20):
        one, other = history(seed), history(seed)
        assert one.calls == other.calls
        first = [one.crash_image(k, style).files() for k in range(5)]  # type: ignore[arg-type]
        assert first == [other.crash_image(k, style).files() for k in range(5)]  # type: ignore[arg-type]


def test_after_the_crash_point_every_call_raises_power_loss() -> None:
    fs = SimFs()
    file = durable_file(fs, A)
    fs.crash_at(fs.disk_calls + 2)
    file.pwrite(B, 0)
    with pytest.raises(PowerLoss):
        file.fsync()
    later: list[Callable[[], object]] = [
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"", 0),
        lambda: file.truncate(0),
        lambda: file.allocate(1),
        file.fdatasync,
        file.fsync,
        lambda: file.fadvise(0, 0, "random"),
        file.size,
        file.close,
        lambda: fs.open("/f", "r"),
        lambda: fs.rename("/f", "/g"),
        lambda: fs.remove("/f"),
        lambda: fs.rmdir("/d"),
        lambda: fs.listdir("/"),
        lambda: fs.sync_dir("/"),
        lambda: fs.makedirs("/x"),
        lambda: fs.exists("/f"),
        lambda: fs.size("/f"),
        lambda: fs.lock("/l"),
        lambda: fs.free_bytes("/"),
        lambda: fs.map("/f"),
        lambda: fs.point("x"),
    ]
    for call in later:
        with pytest.raises(PowerLoss):
            call()
    assert fs.dead
    assert images(fs) == {A, B}


def test_a_power_loss_is_no_exception_that_a_handler_would_catch() -> None:
    assert not issubclass(PowerLoss, Exception)


def overwrite(file: SimFile) -> None:
    file.pwrite(B * 2, 0)
    file.fsync()


def test_the_three_moments_of_a_crash() -> None:
    seen: dict[str, set[bytes]] = {}
    for mode in ("before", "middle", "after"):
        for op in ("pwrite", "fsync"):
            seen[mode + op] = set()
            for seed in range(60):
                fs = SimFs(seed)
                file = durable_file(fs, A * 2)
                fs.crash_at(fs.disk_calls + (1 if op == "pwrite" else 2), mode)  # type: ignore[arg-type]
                with pytest.raises(PowerLoss):
                    overwrite(file)
                seen[mode + op].add(fs.crash_image(seed).files()["f"])
    anything = {A + A, A + B, B + A, B + B}
    assert seen["beforepwrite"] == {A + A}
    assert seen["middlepwrite"] == seen["afterpwrite"] == anything
    assert seen["beforefsync"] == seen["middlefsync"] == anything
    assert seen["afterfsync"] == {B + B}


def test_named_points_are_recorded_and_can_be_crash_points() -> None:
    """[S-361]"""
    fs = SimFs()
    fs.point("wal.after_write")
    fs.crash_at_point("wal.after_write", nth=2)
    fs.point("wal.after_sync")
    fs.point("wal.after_write")
    with pytest.raises(PowerLoss):
        fs.point("wal.after_write")
    assert fs.points == ["wal.after_write", "wal.after_sync", "wal.after_write", "wal.after_write"]
    assert ("point", "wal.after_sync", ()) in fs.calls


def test_the_hook_sees_each_disk_call_before_its_effect() -> None:
    fs = SimFs()
    seen: list[tuple[str, bytes]] = []
    file = durable_file(fs, A)
    fs.before = lambda call: seen.append((call[0], fs.crash_image(0, "everything").files()["f"]))
    file.pwrite(B, 0)
    file.fsync()
    file.pread(1, 0)
    assert seen == [("pwrite", A), ("fsync", B)]
    assert fs.reads["pread"] == 1


def test_a_killed_process_leaves_its_bytes_readable_but_not_durable() -> None:
    fs = SimFs()
    lock = fs.lock("/LOCK")
    file = durable_file(fs, A)
    file.pwrite(B, 0)
    fs.rename("/f", "/g")
    after = fs.kill_image()
    assert after.files() == {"LOCK": b"", "g": B}
    assert {tuple(after.crash_image(k).files().items())[-1] for k in range(200)} == {
        (name, data) for name in "fg" for data in (A, B)
    }
    after.open("/g", "r").fsync()
    after.sync_dir("/")
    assert {tuple(after.crash_image(k).files().items())[-1] for k in range(50)} == {("g", B)}
    # The run that was killed is a disk of its own.
    assert fs.crash_image(0, "nothing").files()["f"] == A
    after.lock("/LOCK").close()
    lock.close()


def test_a_lock_excludes_a_second_one_until_closed() -> None:
    fs = SimFs()
    first = fs.lock("/LOCK")
    with pytest.raises(BlockingIOError):
        fs.lock("/LOCK")
    fs.open("/LOCK", "create").close()
    with pytest.raises(BlockingIOError):
        fs.lock("/LOCK")
    fs.crash_image(0, "everything").lock("/LOCK")
    first.close()
    fs.lock("/LOCK").close()


def test_a_gibibyte_of_zeros_costs_nothing_to_hold_copy_or_crash() -> None:
    fs = SimFs()
    file = durable_file(fs)
    file.allocate(1 << 30)
    file.fsync()
    file.pwrite(A, 1 << 29)
    file.fsync()
    for seed in range(2000):
        image = fs.crash_image(seed)
        assert image.size("/f") == 1 << 30
        assert image.open("/f", "rw").pread(1024, (1 << 29) - 512) == bytes(512) + A
    assert sum(len(inode.sectors) for inode in fs._inodes()) == 1


def test_threads_may_share_a_disk_while_images_are_taken() -> None:
    fs = SimFs()
    files = [durable_file(fs, path=f"/{i}") for i in range(4)]
    fs.before = lambda call: void(fs.crash_image(len(fs.calls)))

    def write(i: int) -> None:
        for k in range(100):
            files[i].pwrite(bytes([i]) * 700, k * 700)
            files[i].fdatasync()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    assert fs.crash_image(0).files() == {str(i): bytes([i]) * 70_000 for i in range(4)}


def void(_: object) -> None:
    return None


def test_damage_at_rest() -> None:
    fs = SimFs()
    fs.load({"/d/a": A + B, "d/b": C, "c": b""})
    fs.flip_bit("/d/a", 600, 3)
    fs.set_byte("/d/a", 0, 0xFF)
    assert fs.files()["d/a"] == b"\xff" + A[1:] + B[:88] + bytes([B[0] ^ 8]) + B[89:]
    fs.zero_sector("/d/a", 1)
    assert fs.files()["d/a"] == b"\xff" + A[1:] + bytes(512)
    fs.truncate_at_rest("/d/a", 5)
    fs.swap_files("/d/a", "/d/b")
    fs.lose_file("/c")
    expected = {"d/a": C, "d/b": b"\xffAAAA"}
    assert fs.files() == expected
    assert fs.crash_image(0, "nothing").files() == expected
    with pytest.raises(ValueError, match="no byte"):
        fs.set_byte("/d/b", 5, 0)
    with pytest.raises(ValueError, match="no sector"):
        fs.zero_sector("/d/b", 1)


writes = st.lists(
    st.one_of(
        st.tuples(st.just("pwrite"), st.integers(0, 3000), st.integers(1, 1500)),
        st.tuples(st.just("allocate"), st.integers(1, 4000), st.just(0)),
        st.tuples(st.just("fsync"), st.just(0), st.just(0)),
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(ops=writes, seed=st.integers(0, 2**32))
def test_every_sector_of_an_image_is_one_the_process_saw_since_its_last_sync(
    ops: list[tuple[str, int, int]], seed: int
) -> None:
    fs = SimFs(seed)
    file = durable_file(fs)
    seen = [b""]
    for i, (op, offset, n) in enumerate(ops):
        if op == "pwrite":
            file.pwrite(bytes([i + 1]) * n, offset)
        elif op == "allocate":
            file.allocate(offset)
        else:
            file.fsync()
            seen.clear()
        seen.append(file.pread(10_000, 0))
    for k in range(20):
        data = fs.crash_image(seed + k).files()["f"]
        assert len(seen[0]) <= len(data) <= len(seen[-1])
        for start in range(0, len(data), 512):
            here = data[start : start + 512]
            assert here in [view[start : start + len(here)].ljust(len(here), b"\0") for view in seen]
