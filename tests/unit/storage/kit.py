"""Shards and WAL groups on a simulated disk, and files of a group made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from topics import paths
from topics.codec import control, frame
from topics.codec.frame import FrameCodec, OpenContext
from topics.codec.scan import FileInfo
from topics.errors import TopicsError
from topics.fs import ensure_dir
from topics.storage import group as groups
from topics.storage.group import Group
from topics.storage.owner import InlineOwner, Owner
from topics.storage.shard import Lsn, Shard
from topics.testing import Fault, FaultFs, ManualClock, MonitorFs, SimFs
from topics.testing.owner import SteppedOwner as SteppedOwner
from topics.testing.simfs import SyncMode

DIR = "/store/wal"
TS = 1_700_000_000_000
TOPIC = 7
FILE_BYTES = 4096
BACKGROUND_MS = 10
SYNC_MARK_MS = 20
FULL = 1 << 30
"""More than any simulated disk of these tests has."""


class Disk:
    """A simulated disk with its fault injector and its order monitor on top, and a clock."""

    def __init__(self, sim: SimFs | None = None, *, trust: bool = True) -> None:
        self.sim = SimFs(7) if sim is None else sim
        self.faults = FaultFs(self.sim)
        self.fs = MonitorFs(self.faults, trust_existing=trust)
        self.clock = ManualClock()

    def fail(
        self, op: str, error: Any = "EIO", times: Any = "once", path: str = "", index: int = 1, mode: SyncMode = "clean"
    ) -> None:
        """Let the next call of `op` fail."""
        self.faults.inject(Fault(op, index, error, times, path=path, sync_mode=mode))

    def fill(self) -> None:
        """Leave no space on the disk."""
        self.sim.capacity = 0

    def leave(self, n: int) -> None:
        """Leave `n` bytes of space on the disk, in whole sectors."""
        self.sim.capacity = self.sim._used * 512 + n
        assert self.sim.free_bytes("/") == n

    def free(self) -> None:
        self.sim.capacity = None

    def files(self, dir: str = DIR) -> dict[str, bytes]:
        """Every file of a group, by name."""
        prefix = dir.removeprefix("/") + "/"
        found = {path.removeprefix(prefix): data for path, data in self.sim.files().items() if path.startswith(prefix)}
        return {name: data for name, data in found.items() if "/" not in name}

    def file(self, number: int, dir: str = DIR) -> bytes:
        return self.files(dir)[paths.wal_file(number)]

    def current(self, dir: str = DIR) -> int | None:
        """The number that `CURRENT` names."""
        return groups.read_current(self.sim, dir)

    def calls(self, since: int = 0) -> list[tuple[str, str]]:
        """The disk calls from number `since` on: operation and file name."""
        return [(op, path.rpartition("/")[2]) for op, path, _ in self.sim.calls[since:] if op != "point"]

    def power_loss(self) -> Disk:
        """The disk after a machine crash that keeps only what was synced."""
        return Disk(self.sim.crash_image(1, "nothing"))

    def killed(self) -> Disk:
        """The disk after a kill of the process: nothing cached is lost, nothing of it is durable by that."""
        return Disk(self.sim.kill_image(), trust=False)


def name(number: int) -> str:
    return paths.wal_file(number)


def path(number: int, dir: str = DIR) -> str:
    return f"{dir}/{paths.wal_file(number)}"


def open_mark(
    number: int, prev: tuple[int, int] | None = None, *, run: int = 1, shard: int = 0, shards: int = 1
) -> bytes:
    """The first frame of a file."""
    return FrameCodec().preamble(FileInfo(number, prev, OpenContext(run, "boot", shard, shards, TS)))


NEWER_MARKS = {"format": (b"\xa3fmt\x02", b"\xa3fmt\x03"), "body version": (b"\xa1v\x01", b"\xa1v\x02")}


def newer_open_mark(number: int, how: str) -> bytes:
    """An intact open mark as a later version may write it."""
    old, new = NEWER_MARKS[how]
    data = frame.decode(open_mark(number)).data
    assert data.count(old) == 1
    return frame._encode(control.MARK, frame.SYNCED_PREFIX, 0, 0, TS, data.replace(old, new))


def append(seq: int, size: int = 64, *, topic: int = TOPIC, durable: bool = False) -> bytes:
    """A submission of one record in a frame of exactly `size` bytes, of digits so that no byte is zero."""
    data = (b"%d." % seq).ljust(size - frame.FRAME_BYTES_MIN, b"x")
    return frame.encode_appends([(None, None, data)], topic, seq, TS, durable=durable)


def chain(first: int, count: int = 3, size: int = 64, *, topic: int = TOPIC, durable: bool = False) -> bytes:
    """A submission of `count` records, each in a frame of `size` bytes."""
    records = [(None, None, (b"%d." % seq).ljust(size - 46, b"x")) for seq in range(first, first + count)]
    return frame.encode_appends(records, topic, first, TS, durable=durable)


def control_frame(n: int = 1, *, durable: bool = False) -> bytes:
    """A submission of one control frame."""
    return frame.encode_control(control.HeadWatermark(reserved=n), TOPIC, TS, durable=durable)


def flagged(frames: bytes) -> bytes:
    """The same frames, the first one with `synced_prefix`."""
    buffer = bytearray(frames)
    frame.set_synced_prefix(buffer)
    return bytes(buffer)


def mark(body: control.CheckpointMark, *, synced_prefix: bool = False) -> bytes:
    return frame.encode_control(body, 0, TS, synced_prefix=synced_prefix)


def log_file(number: int, *parts: bytes, prev: tuple[int, int] | None = None, shard: int = 0, shards: int = 1) -> bytes:
    """A file with its open mark."""
    return open_mark(number, prev, shard=shard, shards=shards) + b"".join(parts)


def flip(data: bytes, offset: int) -> bytes:
    return data[:offset] + bytes([data[offset] ^ 1]) + data[offset + 1 :]


def layout(files: dict[int, bytes], *, current: int | None = None, dir: str = DIR) -> Disk:
    """A disk that holds these files of one group, all durable."""
    disk = Disk()
    disk.sim.makedirs(dir)
    named = {path(number, dir): data for number, data in files.items()}
    if current is not None:
        named[f"{dir}/CURRENT"] = f"{paths.wal_file(current)}\n".encode()
    disk.sim.load(named)
    return disk


def read(disk: Disk, position: tuple[int, int] = (1, 0), *, key: str = "", dir: str = DIR) -> Group:
    return groups.read_group(disk.fs, dir, key, position)


def recover(disk: Disk, position: tuple[int, int] = (1, 0), *, key: str = "", dir: str = DIR) -> Group:
    """Judge and mend a group, as recovery does."""
    # The engine has made the directories above it durable by then.
    for level in ("/store", DIR, dir):
        ensure_dir(disk.fs, level)
    disk.fs.sync_dir(dir)
    group = groups.read_group(disk.fs, dir, key, position)
    for _ in groups.mend(disk.fs, group):
        pass
    return group


def seqs(disk: Disk, group: Group) -> list[int]:
    """The seqs of the Appends that a replay of the group applies."""
    found: list[int] = []
    for file in group.files:
        _, rows = groups.replay(disk.fs, group, file)
        found += rows["seq"][rows["type"] == frame.APPEND].tolist()
    return found


def rows(data: bytes) -> list[tuple[int, int, int]]:
    """Type, flags and seq of every frame of a file."""
    found = frame.scan_frames(data).rows
    return list(zip(found["type"].tolist(), found["flags"].tolist(), found["seq"].tolist(), strict=True))


def kinds(data: bytes) -> list[str]:
    """What a file holds: the kind of each mark, `append`, or `control`; flagged ones have a star."""
    found = []
    for row in frame.scan_frames(data).rows:
        decoded = frame.decode(data, int(row["offset"]))
        if decoded.type == control.MARK:
            kind = str(getattr(control.decode_body(decoded.type, decoded.data), "k", ""))
        else:
            kind = "append" if decoded.type == frame.APPEND else "control"
        found.append(kind + ("*" if decoded.flags & frame.SYNCED_PREFIX else ""))
    return found


class Ticket:
    """What became of one submission. A durable success is shown to the disk's monitor where it happens."""

    def __init__(self, run: Run, size: int, *, durable: bool, then: Callable[[], None] | None) -> None:
        self.outcomes: list[Lsn | TopicsError] = []
        self._run = run
        self._size = size
        self._durable = durable
        self._then = then

    def done(self, outcome: Lsn | TopicsError) -> None:
        self.outcomes.append(outcome)
        self._run.order.append(self)
        if self._durable and isinstance(outcome, Lsn):
            self._run.disk.fs.acked(path(outcome.file_no, self._run.dir), outcome.offset + self._size)
        if self._then is not None:
            self._then()

    @property
    def finished(self) -> bool:
        return bool(self.outcomes)

    @property
    def lsn(self) -> Lsn:
        """The place of a submission that was finished well, exactly once."""
        (outcome,) = self.outcomes
        assert isinstance(outcome, Lsn), outcome
        return outcome

    @property
    def error(self) -> TopicsError:
        """Why a submission failed, exactly once."""
        (outcome,) = self.outcomes
        assert isinstance(outcome, TopicsError), outcome
        return outcome


class Run:
    """A shard on a recovered group, its owner, and the submissions made so far."""

    def __init__(
        self,
        disk: Disk,
        owner: Owner | None = None,
        *,
        group: Group | None = None,
        key: str = "",
        shard: int = 0,
        shards: int = 1,
        run: int = 1,
        file_bytes: int = FILE_BYTES,
        **options: Any,
    ) -> None:
        self.disk = disk
        self.dir = f"{DIR}/{key}" if key else DIR
        self.owner: Any = InlineOwner() if owner is None else owner
        self.group = recover(disk, key=key, dir=self.dir) if group is None else group
        self.order: list[Ticket] = []
        self.seq = 0
        self.shard = Shard(
            disk.fs, self.group, owner=self.owner, clock=disk.clock, run=run, boot="boot", shard=shard, shards=shards,
            file_bytes=file_bytes, **options,
        )  # fmt: skip

    @property
    def state(self) -> str:
        return self.shard.state

    def send(
        self,
        frames: bytes,
        count: int = 1,
        *,
        durable: bool = False,
        control: bool = False,
        mark: bool = False,
        then: Callable[[], None] | None = None,
    ) -> Ticket:
        """Hand over a submission; nothing is run."""
        ticket = Ticket(self, len(frames), durable=durable, then=then)
        self.shard.submit(frames, count, ticket.done, durable=durable, control=control, mark=mark)
        return ticket

    def submit(
        self, size: int = 64, *, durable: bool = False, count: int = 1, then: Callable[[], None] | None = None
    ) -> Ticket:
        """Hand over records with the next seqs, in frames of `size` bytes each; nothing is run."""
        frames = chain(self.seq + 1, count, size, durable=durable)
        ticket = self.send(frames, count, durable=durable, then=then)
        self.seq += count
        return ticket

    def put(self, size: int = 64, *, durable: bool = False, count: int = 1) -> Ticket:
        """A submission in a tick of its own, and everything it starts."""
        ticket = self.submit(size, durable=durable, count=count)
        self.settle()
        return ticket

    def write(self, size: int = 64, *, durable: bool = False) -> Ticket:
        """A submission written now; nothing else is run."""
        ticket = self.submit(size, durable=durable)
        self.shard.flush()
        return ticket

    def settle(self) -> None:
        self.owner.settle() if isinstance(self.owner, SteppedOwner) else self.owner.run()

    def tick(self, ms: int = 0) -> None:
        """Let time pass, then do what is due."""
        self.disk.clock.advance(ms)
        self.shard.tick()
        self.settle()

    def close(self) -> bool:
        self.shard.flush()
        self.settle()
        self.shard.sync()
        self.settle()
        return self.shard.close()

    def bytes_of(self, number: int) -> bytes:
        """What is logged in a file, read the way readers do."""
        end = self.shard.log.end_of(number)
        assert end is not None
        with self.shard.log.acquire(number) as lease:
            return lease.file.pread(end, 0)


def all_finished_once(tickets: Iterable[Ticket]) -> bool:
    return all(len(ticket.outcomes) == 1 for ticket in tickets)
