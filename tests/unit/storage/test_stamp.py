"""Staged parts become sealed segments: S-288 step 2, S-135, S-190."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.unit.storage import kit, stagekit
from tests.unit.storage.stagekit import TOPIC, TS
from topics import process
from topics.codec import part
from topics.codec import stamp as codec
from topics.codec.frame import NotAFrame
from topics.fs import Fs, OsFs, ensure_dir
from topics.storage import stamp as stamping
from topics.storage.stamp import StagedChunk, Stamped, Stamping, stamp
from topics.storage.stamper import Cancelled, Stamper
from topics.testing import SimFs

OUT, WANTED = "/store/staging/a-1/out/0000000A", "/store/topics/0000000A"


def make(
    fs: Fs, chunks: list[StagedChunk], first: int = 1, max_bytes: int = 1 << 26, topic: int = TOPIC, out: str = OUT
) -> list[Stamped]:
    ensure_dir(fs, out)
    return stamp(fs, Stamping(topic, first, TS, out, max_bytes, tuple(chunks)), lambda more: None)


@pytest.mark.parametrize(("first", "max_bytes"), [(1, 1 << 26), (1, 900), (301, 333), (2**40, 1)])
def test_stamped_segments_are_byte_for_byte_those_of_a_checkpoint(disk: kit.Disk, first: int, max_bytes: int) -> None:
    """S-288, S-121, S-135: data, index and tags alike, wherever segments begin."""
    rows = stagekit.rows(60, size=90)
    parts = [
        stagekit.put(disk.fs, f"/store/staging/a-1/p{at}", stagekit.frames(rows[at : at + 20])) for at in (0, 20, 40)
    ]
    made = make(disk.fs, parts, first, max_bytes)
    stagekit.checkpointed(disk.fs, WANTED, rows, first, TS, [one.count for one in made])
    assert stagekit.listing(disk.fs, OUT) == stagekit.listing(disk.fs, WANTED)
    assert [one.first for one in made] == [first + sum(m.count for m in made[:at]) for at in range(len(made))]
    assert sum(one.accounted for one in made) == sum(len(row.data) + len(row.meta or b"") for row in rows)


def test_a_segment_holds_at_most_its_bytes_and_a_larger_frame_has_one_of_its_own(disk: kit.Disk) -> None:
    """S-288: the limit of bytes holds strictly; a frame that exceeds it alone is alone."""
    rows = [stagekit.Row(b'"%s"' % (b"x" * n)) for n in (10, 500, 10, 20, 30, 400)]
    made = make(disk.fs, [stagekit.put(disk.fs, "/store/staging/a-1/p", stagekit.frames(rows))], max_bytes=200)
    assert [one.count for one in made] == [1, 1, 3, 1]
    for one in made:
        assert one.data_len <= 200 or one.count == 1


def test_everything_is_synced_before_the_answer(disk: kit.Disk) -> None:
    """S-288 step 2: each file and the directory; nothing is left for a power loss."""
    rows = stagekit.rows(40)
    make(disk.fs, [stagekit.put(disk.fs, "/store/staging/a-1/p", stagekit.frames(rows))], max_bytes=700)
    disk.fs.settled(OUT)
    for name, raw in stagekit.listing(disk.fs, OUT).items():
        disk.fs.acked(f"{OUT}/{name}", len(raw))


def test_chunks_of_a_part_are_read_and_nothing_beside_them(disk: kit.Disk) -> None:
    """S-286: a part file may hold other topics' chunks."""
    rows = stagekit.rows(12)
    raw = [stagekit.frames(rows[at : at + 4]) for at in (0, 4, 8)]
    stagekit.put(disk.fs, "/store/staging/a-1/p", b"head" + raw[0] + b"between" + raw[1])
    other = stagekit.put(disk.fs, "/store/staging/a-1/q", raw[2])
    first = StagedChunk("/store/staging/a-1/p", 4, len(raw[0]), part.digest(raw[0]))
    second = StagedChunk("/store/staging/a-1/p", 4 + len(raw[0]) + 7, len(raw[1]), part.digest(raw[1]))
    made = make(disk.fs, [other, second, first])
    assert [(one.first, one.count) for one in made] == [(1, 12)]
    stagekit.checkpointed(disk.fs, WANTED, [*rows[8:], *rows[4:8], *rows[:4]], 1, TS, [12])
    assert stagekit.listing(disk.fs, OUT) == stagekit.listing(disk.fs, WANTED)


@pytest.mark.parametrize("batch_bytes", [1, 100, 1000])
def test_batches_of_any_size_give_the_same_files(
    disk: kit.Disk, monkeypatch: pytest.MonkeyPatch, batch_bytes: int
) -> None:
    """Reading is bounded, records are not cut, and where a batch ends shows nowhere."""
    monkeypatch.setattr(stamping, "BATCH_BYTES", batch_bytes)
    monkeypatch.setattr(stamping, "SYNC_BYTES", 300)
    rows = [*stagekit.rows(30, size=200), stagekit.Row(b'"%s"' % (b"y" * 3000)), *stagekit.rows(5)]
    raw = [stagekit.frames(rows[at : at + 3]) for at in range(0, 36, 3)]
    parts = [stagekit.put(disk.fs, f"/store/staging/a-1/p{at}", one) for at, one in enumerate(raw)]
    made = make(disk.fs, parts, max_bytes=2000)
    stagekit.checkpointed(disk.fs, WANTED, rows, 1, TS, [one.count for one in made])
    assert stagekit.listing(disk.fs, OUT) == stagekit.listing(disk.fs, WANTED)


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_damaged_part_is_an_error_and_never_becomes_valid(disk: kit.Disk, at: int) -> None:
    """13 R-5: one flipped bit anywhere in a staged frame."""
    raw = bytearray(stagekit.frames(stagekit.rows(2)))
    whole = part.digest(raw)
    raw[at % len(raw)] ^= 0x10
    chunk = stagekit.put(disk.fs, "/store/staging/a-1/p", bytes(raw))
    with pytest.raises(OSError, match="not what was staged"):
        make(disk.fs, [StagedChunk(chunk.path, 0, chunk.size, whole)])


@pytest.mark.parametrize("raw", [b"\xff" * 60, stagekit.frames(stagekit.rows(2))[:-1], b"\x22" + bytes(80)])
def test_a_chunk_that_is_no_frames_is_an_error(disk: kit.Disk, raw: bytes) -> None:
    """Whatever its digest says."""
    with pytest.raises(OSError, match="no frame"):
        make(disk.fs, [stagekit.put(disk.fs, "/store/staging/a-1/p", raw)])


def test_a_frame_that_has_a_place_already_is_refused() -> None:
    """Only staged frames are stamped: seq 0, ts 0, no checksum, not deleted."""
    raw = bytearray(stagekit.frames(stagekit.rows(1)))
    codec.stamp(raw, [0], 7, TS, 0)
    with pytest.raises(NotAFrame):
        codec.stamp(raw, [0], 8, TS, 0)
    deleted = bytearray(stagekit.frames(stagekit.rows(1)))
    deleted[-1] = 0xD5
    with pytest.raises(NotAFrame):
        codec.stamp(deleted, [0], 7, TS, 0)


@pytest.mark.parametrize("op", ["open", "pwrite", "pread", "fsync", "rename", "sync_dir"])
def test_an_error_of_the_disk_comes_through_and_leaves_no_file_open(disk: kit.Disk, op: str) -> None:
    """S-290: the commit fails; what is left in out/ counts for nothing."""
    chunk = stagekit.put(disk.fs, "/store/staging/a-1/p", stagekit.frames(stagekit.rows(9)))
    ensure_dir(disk.fs, OUT)
    disk.fail(op, "EIO", path="a-1")
    with pytest.raises(OSError, match=r"Input/output|staged"):
        stamp(disk.fs, Stamping(TOPIC, 1, TS, OUT, 1 << 20, (chunk,)), lambda more: None)
    gc.collect()


def order(tmp_path: Path, n: int = 500, max_bytes: int = 5000) -> tuple[list[Stamping], list[stagekit.Row]]:
    fs = OsFs()
    rows = stagekit.rows(n)
    chunk = stagekit.put(fs, str(tmp_path / "p"), stagekit.frames(rows))
    ensure_dir(fs, str(tmp_path / "out"))
    return [Stamping(TOPIC, 5, TS, str(tmp_path / "out"), max_bytes, (chunk,))], rows


def test_a_helper_process_makes_the_same_files_and_tells_how_far_it_is(tmp_path: Path) -> None:
    """S-288: spawned on the real disk, in-process on any other; the bytes are the same."""
    stampings, rows = order(tmp_path)
    stamper = Stamper(OsFs())
    made = stamper.run(stampings)
    assert stamper.done_bytes == stamper.total_bytes == sum(chunk.size for chunk in stampings[0].chunks)
    sim = SimFs(1)
    chunk = stagekit.put(sim, "/in/p", stagekit.frames(rows))
    ensure_dir(sim, "/out")
    assert Stamper(sim).run([Stamping(TOPIC, 5, TS, "/out", 5000, (chunk,))]) == made
    assert stagekit.listing(sim, "/out") == stagekit.listing(OsFs(), str(tmp_path / "out"))


def test_a_relative_path_means_what_it_meant_to_the_process_that_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later chdir moves nothing, also not for the helper."""
    monkeypatch.chdir(tmp_path)
    fs = OsFs()
    chunk = stagekit.put(fs, "./p", stagekit.frames(stagekit.rows(3)))
    ensure_dir(fs, "out")
    monkeypatch.chdir("/")
    assert [one.count for one in Stamper(fs).run([Stamping(TOPIC, 1, TS, "out", 5000, (chunk,))])[0]] == [3]


def test_an_error_in_the_helper_is_an_error_here(tmp_path: Path) -> None:
    """S-290: with its errno; the process is gone."""
    stampings, _ = order(tmp_path)
    os.remove(tmp_path / "p")
    with pytest.raises(FileNotFoundError):
        Stamper(OsFs()).run(stampings)


def test_a_helper_that_dies_is_an_error_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """S-288: a crash of the helper fails the commit and nothing else."""
    stampings, _ = order(tmp_path)
    send = process.Helper.send

    def killed(self: process.Helper, message: bytes) -> None:
        self.kill()
        send(self, message)

    monkeypatch.setattr(process.Helper, "send", killed)
    with pytest.raises(process.HelperDied):
        Stamper(OsFs()).run(stampings)


def test_a_cancelled_run_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever closes the engine does not wait for segments that nobody wants."""
    stampings, _ = order(tmp_path)
    stamper = Stamper(OsFs())
    send = process.Helper.send

    def cancelled(self: process.Helper, message: bytes) -> None:
        stamper.cancel()
        send(self, message)

    monkeypatch.setattr(process.Helper, "send", cancelled)
    with pytest.raises((Cancelled, process.HelperDied)):
        stamper.run(stampings)
    with pytest.raises(Cancelled):
        stamper.run(stampings)
    sim = SimFs(1)
    chunk = stagekit.put(sim, "/in/p", stagekit.frames(stagekit.rows(3)))
    ensure_dir(sim, "/out")
    inline = Stamper(sim)
    inline.cancel()
    with pytest.raises(Cancelled):
        inline.run([Stamping(TOPIC, 1, TS, "/out", 5000, (chunk,))])


def test_a_helper_does_not_outlive_whoever_started_it(tmp_path: Path) -> None:
    """Its input ends with the process that wrote to it: it must not go on writing beside a new one."""
    helper = process.Helper("topics.storage.stamper")
    assert helper.close() in (0, 1)


def test_the_settings_of_this_process_are_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """13 §5: keys never reach the environment of another process."""
    monkeypatch.setenv("TOPICS_API_KEYS", "k-secret:admin")
    helper = process.Helper("topics.storage.stamper")
    try:
        assert b"k-secret" not in Path(f"/proc/{helper.pid}/environ").read_bytes()
    finally:
        helper.close()
