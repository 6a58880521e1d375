"""A topic's segments run by a model: what was written, deleted, claimed; and the judge of what a start-up finds.

The WAL is the model itself: it has every record and every Delete. A *mark* is durable the moment `mark` is called.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from topics.codec import frame, segment
from topics.codec.envelope import build
from topics.codec.place import topic_mask
from topics.codec.segment import DataFrame
from topics.codec.snapshot import SegmentRow
from topics.fs import Fs
from topics.storage.cycle import Cycle
from topics.storage.descriptor import Claim, Limits, Segment, room
from topics.storage.maps import MapCache
from topics.storage.rebuild import NO_CLAIM, Opened, open_segments
from topics.storage.reclaim import Rewrite, drop, unlink, unlink_data
from topics.storage.segments import Absent, TopicSegments
from topics.testing import SimFs
from topics.testing.simfs import STYLES, Call

DIR = "store/topics/0000000A"
TOPIC = 10
LIMITS = Limits(max_events=6, max_bytes=1500, max_age_ms=0, max_run=8)
TAGS = (None, "job:1", "job:2", "lot:7")


class Marked(NamedTuple):
    """What the newest durable mark, and the newest durable snapshot, say."""

    ckpt_seq: int = 0
    claim: Claim = NO_CLAIM
    floor: int = 1
    rows: tuple[SegmentRow, ...] = ()


def new_disk(seed: int = 0) -> SimFs:
    disk = SimFs(seed)
    disk.makedirs(DIR)
    for level in ("/", "store", "store/topics"):
        disk.sync_dir(level)
    return disk


def payload(seq: int, size: int = 0) -> bytes:
    return build(b'"record %d %s"' % (seq, b"x" * size))


def tag_of(seq: int) -> bytes | None:
    tag = TAGS[seq % 4]
    return None if tag is None else tag.encode()


def frames_of(
    seqs: list[int], at: int, *, size: int = 0, topic: int = TOPIC, ts: int | None = None
) -> tuple[bytes, bytes]:
    """`.data` frames and `.idx` entries of records; by default the ts of a record is 1000 + its seq."""
    raw = b"".join(
        bytes(frame.encode_appends([("n", TAGS[seq % 4], payload(seq, size))], topic, seq, ts or 1000 + seq))
        for seq in seqs
    )
    return segment.reframe(raw, frame.scan_frames(raw).rows["offset"].tolist(), topic_mask(topic), at)


class Life:
    """One topic, from run to run."""

    def __init__(
        self,
        disk: SimFs,
        *,
        limits: Limits = LIMITS,
        told: bool = True,
        size: int = 0,
        fs: Fs | None = None,
        dir: str = DIR,
        maps: MapCache | None = None,
    ) -> None:
        self.disk = disk
        self.dir = dir
        self.unapplied = False
        self.unlinking: list[int] = []
        self.fs: Fs = disk if fs is None else fs
        self.limits = limits
        self.told = told
        self.size = size
        self.head = 0
        self.deleted: set[int] = set()
        self.settled: set[int] = set()
        self.holes: dict[int, int] = {}
        self.marked = Marked()
        self.written: set[int] = set()
        """Seqs that a committed cycle stored as records, not as fillers."""
        self.on_commit: Callable[[Cycle], None] | None = None
        self.opened: Opened = self.open(self.fs, maps)

    @property
    def topic(self) -> TopicSegments:
        return self.opened.segments

    def open(self, fs: Fs, maps: MapCache | None = None) -> Opened:
        ckpt, claim, floor, rows = self.marked
        maps = MapCache(fs, 8) if maps is None else maps
        return open_segments(
            fs, self.dir, TOPIC, maps, self.limits, ckpt_seq=ckpt, claim=claim, rows=rows, floor=floor, told=self.told
        )

    def restart(self, fs: Fs) -> None:
        """Open again, on this or another disk, and replay the Deletes."""
        self.fs = fs
        self.opened = self.open(fs)
        self.topic.mark_deleted(sorted(self.deleted), again=True)

    def write(self, n: int) -> None:
        self.head += n

    def lose(self, n: int, reason: int = 3) -> None:
        """A run of holes at the head."""
        for seq in range(self.head + 1, self.head + 1 + n):
            self.holes[seq] = reason
        self.head += n

    def delete(self, *seqs: int) -> None:
        """The WAL has the Delete, whatever becomes of its marks; the engine repeats marks that failed."""
        self.deleted.update(seq for seq in seqs if seq not in self.holes)
        self._apply([seq for seq in seqs if seq <= self.marked.ckpt_seq])

    def _apply(self, seqs: list[int]) -> None:
        try:
            self.topic.mark_deleted(sorted(seqs))
        except OSError:
            self.unapplied = True
            raise

    def apply_again(self) -> None:
        """Repeat marks and drops that failed."""
        while self.unlinking:
            unlink(self.topic.files, self.unlinking[-1])
            self.unlinking.pop()
        if self.unapplied:
            self.topic.mark_deleted(sorted(self.deleted), again=True)
            self.unapplied = False

    def checkpoint(self, *, seal: bool = False, upper: int | None = None, between: Callable[[], None] = lambda: None):
        """A whole cycle, with its mark."""
        self.apply_again()
        upper = self.head if upper is None else upper
        carried = set(self.deleted)
        cycle = self.topic.begin()
        try:
            cycle.prepare()
            self.fill(cycle, upper)
            between()
            if seal and cycle.entries:
                cycle.seal()
            cycle.sync()
        except OSError:
            self.topic.abandon(cycle)
            raise
        self.mark(cycle, upper, carried)

    def fill(self, cycle: Cycle, upper: int) -> None:
        """Step 2: records and fillers of the tail."""
        seqs = list(range(max(self.marked.ckpt_seq + 1, cycle.next_seq), upper + 1))
        while seqs:
            kind = self._kind(seqs[0])
            run = 1
            while run < len(seqs) and self._kind(seqs[run]) == kind:
                run += 1
            taken, seqs = seqs[:run], seqs[run:]
            if kind is None:
                self._fill_records(cycle, taken)
            else:
                cycle.append_run(taken[0], len(taken), 1000 + taken[0], kind)

    def _kind(self, seq: int) -> int | None:
        """None for a record, else the reason of a filler."""
        return 0 if seq in self.deleted else self.holes.get(seq)

    def _fill_records(self, cycle: Cycle, seqs: list[int]) -> None:
        sizes = np.full(len(seqs), len(frames_of(seqs[:1], 0, size=self.size)[0]))
        while seqs:
            n = room(cycle.entries, cycle.data_len, sizes[: len(seqs)], self.limits)
            if n == 0:
                cycle.seal()
                continue
            cycle.append(seqs[0], *frames_of(seqs[:n], cycle.data_len, size=self.size))
            seqs = seqs[n:]

    def mark(self, cycle: Cycle, upper: int, carried: set[int]) -> None:
        """Steps 5 and 6: the mark is durable, the owner switches."""
        if self.on_commit is not None:
            self.on_commit(cycle)
        self.written.update(seq for seq in range(self.marked.ckpt_seq + 1, upper + 1) if self._stored(seq, carried))
        self.marked = self.marked._replace(ckpt_seq=upper, claim=cycle.claim())
        self.settled |= carried
        self.topic.commit(cycle)
        self._apply([seq for seq in self.deleted - carried if seq <= upper])

    def _stored(self, seq: int, carried: set[int]) -> bool:
        return seq not in self.holes and seq not in carried

    def snapshot(self) -> None:
        self.marked = self.marked._replace(rows=self.topic.rows())

    def raise_floor(self, floor: int) -> None:
        self.marked = self.marked._replace(floor=max(self.marked.floor, floor))

    def drop_first(self, *, stub: bool = False) -> None:
        first = self.topic.segments[0]
        if not stub:
            self.raise_floor(first.last + 1)
        try:
            drop(self.topic, first, stub=stub)
        except OSError:
            self.unlinking.append(first.first)
            raise

    def rewrite(self, target: Segment, late: tuple[int, ...] = (), later: tuple[int, ...] = ()) -> None:
        """A whole rewrite; `late` is deleted while it copies, `later` while it commits."""
        self.apply_again()
        carried = set(self.deleted)
        work = Rewrite(self.topic, target)
        try:
            work.copy()
            self.delete(*late)
            work.hand_over()
            self.delete(*later)
            work.finish()
        except OSError:
            work.abandon()
            raise
        self.settled |= {seq for seq in carried | set(late) if target.first <= seq <= target.last}
        work.commit()
        unlink_data(self.topic.files, target.first, work.generation - 1)
        work.write_tags()

    def judge(self, fs: Fs, *, replay: bool = True) -> Opened:
        """Open a survivor twice and hold what is found against the model. No damage may be told."""
        opened = self.open(fs)
        report = opened.report
        assert not any(report[:-1]), f"damage told after a crash: {report}"
        self.check(opened.segments)
        again = self.open(fs)
        assert not any(again.report), f"a second start-up changes something: {again.report}"
        assert [one.first for one in again.segments.segments] == [one.first for one in opened.segments.segments]
        if replay:
            again.segments.mark_deleted(sorted(self.deleted), again=True)
            self.check(again.segments, deleted=self.deleted)
        return again

    def check(self, found: TopicSegments, *, deleted: set[int] | None = None) -> None:
        """Every claimed seq is what it must be; `deleted` are those that must be gone."""
        must_be_gone = self.settled if deleted is None else deleted
        ckpt, floor = self.marked.ckpt_seq, self.marked.floor
        held: set[int] = set()
        for one in found.segments:
            seqs = range(one.first, one.last + 1)
            held.update(seqs)
            self._check_segment(found, one, list(seqs), must_be_gone, replayed=deleted is not None)
        assert not [seq for seq in held if seq > ckpt], "something unclaimed was taken over"
        lacking = [seq for seq in range(floor, ckpt + 1) if seq not in held]
        assert not lacking, f"claimed seqs are gone: {lacking}"

    def _check_segment(
        self, found: TopicSegments, one: Segment, seqs: list[int], must_be_gone: set[int], replayed: bool
    ) -> None:
        if one.gap is not None:
            assert {self._kind(seq) for seq in seqs} == {one.gap.reason}
            return
        with found.entries(one) as entries:
            flags, reasons = entries["flags"].tolist(), segment.ovh(entries).tolist()
            live = int((entries["len"] != 0)[entries["flags"] & (segment.DELETED | segment.LOST) == 0].sum())
            assert (np.diff(entries["ts"].astype(np.int64)) >= 0).all()
        # A snapshot's row may have counted a mark that was not on disk: the replayed Delete settles that.
        assert one.live == live or (not replayed and one.live < live)
        readable = not one.stub and one.last >= self.marked.floor
        frames = found.read(one, seqs) if readable else [Absent.GONE] * len(seqs)
        for seq, got, flag, reason in zip(seqs, frames, flags, reasons, strict=True):
            if seq in self.holes:
                assert flag & segment.LOST, f"seq {seq} is a hole"
                assert reason == self.holes[seq]
            elif isinstance(got, DataFrame):
                assert seq not in must_be_gone, f"seq {seq} was deleted and is back"
                assert (got.seq, got.ts, got.data) == (seq, 1000 + seq, payload(seq, self.size))
                assert got.tag == tag_of(seq)
            else:
                assert got is Absent.GONE, f"seq {seq} is unreadable"
                below = seq < self.marked.floor
                assert seq in self.deleted or below, f"seq {seq} is gone and nobody deleted it"
        if one.sealed and one.first >= self.marked.floor:
            self._check_tags(
                found, one, seqs, {s for s, got in zip(seqs, frames, strict=True) if got is not Absent.GONE}
            )

    @staticmethod
    def _check_tags(found: TopicSegments, one: Segment, seqs: list[int], live: set[int]) -> None:
        for tag in TAGS[1:]:
            assert tag is not None
            expected = {seq for seq in seqs if TAGS[seq % 4] == tag and seq in live}
            got = set(found.tagged(one, tag).tolist())
            assert expected <= got <= {seq for seq in seqs if TAGS[seq % 4] == tag}
        jobs = set(found.tagged_prefix(one, "job:").tolist())
        assert {seq for seq in live if seq % 4 in (1, 2)} <= jobs


class Forks:
    """Judges a survivor before every disk call of a life."""

    def __init__(self, life: Life, seed: int, *, per_call: int = 1, go_on: float = 0.0) -> None:
        self.life = life
        self.rng = random.Random(f"segments {seed}")
        self.per_call = per_call
        self.go_on = go_on
        self.images = 0
        self._inside = False
        life.disk.before = self._before
        life.on_commit = lambda _: self.fork()

    def _before(self, call: Call) -> None:
        if call[0] != "point":
            self.fork()

    def fork(self) -> None:
        for _ in range(self.per_call):
            self.images += 1
            if self.rng.random() < 0.2:
                image = self.life.disk.kill_image()
            else:
                image = self.life.disk.crash_image(self.rng, self.rng.choice(STYLES))
            again = self.life.judge(image)
            if self.rng.random() < self.go_on:
                second_life(self.life, image, again, self.rng)


def second_life(life: Life, disk: SimFs, opened: Opened, rng: random.Random) -> None:
    """Go on from a survivor: bring everything to disk, cut the power, and look again."""
    twin = Life.__new__(Life)
    twin.__dict__.update(life.__dict__)
    twin.deleted, twin.settled, twin.written = set(life.deleted), set(life.settled), set(life.written)
    twin.on_commit, twin.disk, twin.fs, twin.opened = None, disk, disk, opened
    twin.checkpoint(seal=rng.random() < 0.5)
    twin.judge(disk.crash_image(rng, "nothing"))


OPS = (
    "write", "write", "checkpoint", "checkpoint", "checkpoint_part", "seal", "delete", "delete_many", "holes", "gap",
    "snapshot", "rewrite", "drop", "stub", "restart", "crash", "delete_during", "abandon",
)  # fmt: skip


def step(life: Life, op: str, rng: random.Random) -> None:
    """One operation of a random life."""
    topic, ckpt = life.topic, life.marked.ckpt_seq
    if op == "write":
        life.write(rng.choice((1, 2, 3, 7)))
    elif op == "checkpoint":
        life.checkpoint()
    elif op == "checkpoint_part":
        life.checkpoint(upper=rng.randint(ckpt, life.head))
    elif op == "seal":
        life.checkpoint(seal=True)
    elif op == "delete" and life.head:
        life.delete(rng.randint(1, life.head))
    elif op == "delete_many" and life.head:
        low = rng.randint(1, life.head)
        life.delete(*range(low, min(life.head, low + 5) + 1))
    elif op == "holes":
        life.lose(rng.choice((1, 3)), rng.choice((1, 2, 3)))
    elif op == "gap":
        life.lose(life.limits.max_run + rng.choice((1, 2, 20)))
    elif op == "snapshot":
        life.snapshot()
    elif op == "rewrite":
        targets = [one for one in topic.segments if one.sealed and one.has_data]
        if targets:
            target = rng.choice(targets)
            life.rewrite(target, (rng.randint(target.first, target.last),), (rng.randint(target.first, target.last),))
    elif op == "drop" and topic.segments and topic.segments[0].sealed:
        life.drop_first()
    elif op == "stub":
        for one in topic.segments:
            dead = one.sealed and not one.live and not len(one.pending) and one.gap is None
            if dead and not one.stub:
                drop(topic, one, stub=True)
                return
    elif op == "restart":
        life.restart(life.fs)
    elif op == "crash":
        before, life.disk.before = life.disk.before, None
        life.disk = life.disk.crash_image(rng, rng.choice(STYLES))
        life.disk.before = before
        life.restart(life.disk)
    elif op == "delete_during":
        life.checkpoint(between=lambda: life.head and life.delete(rng.randint(1, life.head)))
    elif op == "abandon":
        cycle = topic.begin()
        cycle.prepare()
        life.fill(cycle, life.head)
        if rng.random() < 0.5 and cycle.entries:
            cycle.seal()
        if rng.random() < 0.7:
            cycle.sync()
        topic.abandon(cycle)


def random_life(seed: int, steps: int, *, per_call: int = 1, go_on: float = 0.1) -> int:
    """A seeded life under forks; how many survivors were judged."""
    rng = random.Random(f"life {seed}")
    life = Life(new_disk(seed), size=rng.choice((0, 100, 480)))
    forks = Forks(life, seed, per_call=per_call, go_on=go_on)
    done = []
    try:
        for _ in range(steps):
            done.append(rng.choice(OPS))
            step(life, done[-1], rng)
            life.check(life.topic, deleted={seq for seq in life.deleted if seq <= life.marked.ckpt_seq})
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, {done}: {error}") from error
    return forks.images
