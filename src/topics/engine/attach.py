"""Large commits as sealed segments: stamp, hold, mark, move in, publish (06 §15.6, S-288 … S-290).

    stamp     the topics are checkpointed and sealed, the staged parts stamped into segments; nothing is held
    hold      the commit holds the topics: what is outstanding there is awaited; where seqs moved on, both are repeated
    chain     one durable `attach` mark per topic, in the group's one submission: the commit point
    place     behind it the segments are renamed into their topics; that is tried again until it works [S-290]
    publish   descriptors, counts, head, caps, wake-ups: as any ticket, those of a group together

Before the mark a failure costs nothing but files in `staging/`. Behind it nothing is given up: the mark is needed
(S-192) until the topics show the segments, and a start finishes what is left to do [S-289]. Where nobody knows whether
the mark is on disk, because a sync failed, the segments stay for the next start to judge.

Owner only; stamping and renames are done aside.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import msgspec

from topics import paths
from topics.codec import control, frame
from topics.engine.alarms import Alarm
from topics.engine.append import Staged, Write
from topics.engine.bring import Brought
from topics.engine.core import Core
from topics.engine.records import NOTHING
from topics.engine.topic import Attached, Change, Lsn, Ticket, Topic
from topics.errors import CommitFailed, EngineClosed, ShardReadOnly, StorageFull, TopicsError, WalIo
from topics.model import AppendResult, Producer
from topics.storage import attach as storage
from topics.storage.staging import Rows, Version
from topics.storage.stamp import StagedChunk, Stamped, Stamping
from topics.storage.stamper import Stamper

log = logging.getLogger("topics.engine")

LANE: Final = "stamp"
FILES_LANE: Final = "staging"
ATTEMPTS: Final = 3
"""To move segments in, before whoever waits for it is told."""
RETRY_NS: Final = 1_000_000_000
"""Between two attempts from then on."""

Then = Callable[[], None]
Refuse = Callable[[Any], None]


class Sealing(Protocol):
    """Runs checkpoints: `Checkpointer.seal`."""

    def __call__(self, topic_ids: Sequence[int], done: Callable[[Any], None]) -> None:
        """All that the topics have now lies in sealed segments when it is done, if it can."""
        ...


class _Made(NamedTuple):
    """The segments of one topic, as they were stamped."""

    first: int
    ts: int
    dir: str
    """Where they are until `arrange`, then nothing."""
    segments: list[Stamped]


class _Work:
    """What is under way for one version of a writer."""

    __slots__ = ("made", "stamper")

    def __init__(self) -> None:
        self.made: dict[Topic, _Made] = {}
        self.stamper: Stamper | None = None


class Attacher:
    """Brings rows to topics as sealed segments."""

    def __init__(self, core: Core, seal: Sealing) -> None:
        self.core = core
        self._seal = seal
        self._works: dict[Version, _Work] = {}
        self.kept: set[str] = set()
        """Directories of versions with segments that a mark may speak of: not ours to remove."""
        self.is_over = False
        """The engine closes."""
        self._dirs = 0
        self._placing: set[_Placing] = set()

    # -- stamping ----------------------------------------------------------------------------------------------------

    def stamp(self, version: Version, rows: Mapping[Topic, Rows], then: Then, done: Refuse) -> None:
        """Make segments of the rows, while nothing is held; `done` is told why that is not possible."""
        self._works[version] = _Work()
        # Whether all of it could be sealed shows once the topics are held.
        self._seal([topic.id for topic in rows], lambda outcome: self._stamp(version, rows, then, done))

    def _stamp(self, version: Version, rows: Mapping[Topic, Rows], then: Then, done: Refuse) -> None:
        core, work = self.core, self._works[version]
        if self.is_over:
            done(EngineClosed("the engine is closing"))
            return
        now = core.clock.now_ms()
        topics = [topic for topic in rows if not topic.removed]
        places = [self._place_of(version, topic, now) for topic in topics]
        stamper = work.stamper = Stamper(core.fs)
        made: list[list[Stamped]] = []

        def run() -> None:
            stampings = [_with_chunks(place, rows[topic]) for topic, place in zip(topics, places, strict=True)]
            self._require_room(version.dir, sum(rows[topic].size for topic in topics))
            for one in stampings:
                storage.begin(core.fs, one.dir)
            made.extend(stamper.run(stampings))

        def stamped(error: BaseException | None) -> None:
            work.stamper = None
            if error is not None:
                done(EngineClosed("the engine is closing") if self.is_over else refusal(error, "stamping segments"))
                return
            for topic, given, segments in zip(topics, places, made, strict=True):
                work.made[topic] = _Made(given.first_seq, given.ts, given.dir, segments)
            then()

        core.owner.aside(LANE, run, stamped)

    def _place_of(self, version: Version, topic: Topic, now: int) -> Stamping:
        """Where a topic's segments would go, without what they are made of."""
        core = self.core
        self._dirs += 1
        dir = f"{version.dir}/{paths.stamp_dir(core.run, self._dirs)}"
        ts = max(now, topic.last_ts)
        return Stamping(topic.id, topic.next_seq, ts, dir, core.config.segment_max_bytes, ())

    def _require_room(self, dir: str, size: int) -> None:
        """The log's share of the volume is not for segments that nobody has committed [S-80]; aside."""
        least = self.core.config.min_free_bytes
        if least and self.core.fs.free_bytes(self.core.dir) < least + size:
            raise OSError(errno.ENOSPC, "segments have no room on this volume", dir)

    # -- holding -----------------------------------------------------------------------------------------------------

    def hold(
        self,
        version: Version,
        producer: Producer,
        rows: Mapping[Topic, Rows],
        answer: Callable[[Topic, AppendResult | Exception], None],
        then: Callable[[list[Brought]], None],
        done: Refuse,
    ) -> None:
        """The topics are held: wait for what is outstanding there, and see that the segments still fit."""
        self._works.setdefault(version, _Work())
        left = len(rows)

        def quiet() -> None:
            nonlocal left
            left -= 1
            if not left:
                self._settle(version, rows, arrange, lost, done, again=True)

        def arrange() -> None:
            made = self._works[version].made
            dirs = [(topic.id, made[topic].dir) for topic in rows if made[topic].dir]
            self.core.owner.aside(LANE, lambda: storage.arrange(self.core.fs, version.dir, dirs), arranged)

        def arranged(error: BaseException | None) -> None:
            if error is not None:
                done(refusal(error, "segments of a commit"))
                return
            work = self._works[version]
            for topic in rows:
                work.made[topic] = work.made[topic]._replace(dir="")
            self.core.fs.point("attach.after_out")
            made = [(topic, work.made[topic]) for topic in rows]
            then([_Attachment(self, topic, one, rows[topic], producer, version.dir, answer) for topic, one in made])

        def lost() -> None:
            then([])  # whoever holds them looks whether they are still there

        for topic in rows:
            topic.attaching = True
            self._when_quiet(topic, quiet)

    def _when_quiet(self, topic: Topic, then: Then) -> None:
        """Behind all tickets that are outstanding, whatever becomes of them."""
        if not topic.tickets:
            self.core.owner.soon(then)
            return
        ticket = Change(lambda lsn: then(), lambda error: then(), topic.next_seq)
        self.core.stage(topic, None, 0, ticket, durable=False)

    def _settle(
        self, version: Version, rows: Mapping[Topic, Rows], then: Then, lost: Then, done: Refuse, *, again: bool
    ) -> None:
        """Seal and stamp once more what moved on before it was held; now it cannot [S-288]."""
        core = self.core
        if self.is_over:
            done(EngineClosed("the engine is closing"))
            return
        if any(core.names.get(topic.name) is not topic or topic.name in core.gates for topic in rows):
            lost()
            return
        latched = [shard for shard in (core.shard(topic.id) for topic in rows) if shard.state == "read_only"]
        if latched:
            # A mark that failed there may speak of segments in `out/`: they are left alone until the next start.
            done(ShardReadOnly(f"shard {latched[0].key!r}: {latched[0].reason}"))
            return
        unsealed = [topic for topic in rows if not is_sealed(topic)]
        if unsealed and not again:
            done(WalIo(OSError(f"topic {unsealed[0].name!r} cannot be brought into segments now")))
            return
        if unsealed:
            ids = [topic.id for topic in unsealed]
            self._seal(ids, lambda outcome: self._settle(version, rows, then, lost, done, again=False))
            return
        made = self._works[version].made
        stale = {topic: rows[topic] for topic in rows if topic not in made or made[topic].first != topic.next_seq}
        if stale:
            self._stamp(version, stale, then, done)
        else:
            then()

    # -- behind the mark ---------------------------------------------------------------------------------------------

    def place(
        self,
        tickets: Sequence[Ticket],
        late: Callable[[TopicsError], None],
        lsn: Lsn,
        then: Callable[[Lsn | TopicsError], None],
    ) -> None:
        """The marks of a group are durable: move its segments in, then let its tickets be published.

        `late` is told that this takes longer than anybody should wait for.
        """
        self.core.held.append(lsn)
        self.core.fs.point("attach.after_mark")
        placing = _Placing(self, [one for one in tickets if isinstance(one, _Attachment)], lsn, late, then)
        self._placing.add(placing)
        placing.over = lambda: self._placing.discard(placing)
        placing.go()

    def release(self, version: Version) -> None:
        """The commit is over, whatever came of it: what stamping has left goes."""
        work = self._works.pop(version, None)
        if work is None:
            return
        core, keep_out = self.core, version.dir in self.kept
        core.owner.aside(
            FILES_LANE,
            lambda: storage.clear(core.fs, version.dir, keep_out=keep_out),
            core.note_failure(f"removing segments from {version.dir}"),
        )

    def end(self) -> None:
        """The engine closes: nobody waits for segments any more."""
        self.is_over = True
        for work in self._works.values():
            if work.stamper is not None:
                work.stamper.cancel()
        for placing in list(self._placing):
            placing.end()


class _Placing:
    """The segments of a group on their way into their topics [S-290]."""

    __slots__ = ("_alarm", "_attacher", "_attachments", "_attempts", "_core", "_late", "_lsn", "_then", "over")

    def __init__(
        self,
        attacher: Attacher,
        attachments: list[_Attachment],
        lsn: Lsn,
        late: Callable[[TopicsError], None],
        then: Callable[[Lsn | TopicsError], None],
    ) -> None:
        self._attacher = attacher
        self._core = attacher.core
        self._attachments = attachments
        self._lsn = lsn
        self._late = late
        self._then = then
        self._attempts = 0
        self._alarm: Alarm | None = None
        """Rings for the next attempt."""
        self.over: Then = lambda: None

    def go(self) -> None:
        """Try."""
        self._alarm = None
        self._attempts += 1
        self._core.owner.aside("files", self._move, self._moved)

    def _move(self) -> None:
        for one in self._attachments:
            one.move_in()

    def _moved(self, error: BaseException | None) -> None:
        core = self._core
        if error is None:
            self.over()
            for one in self._attachments:
                one.topic.stuck = None
            self._then(self._lsn)
            core.publish_ready()
            assert all(one.settled for one in self._attachments), "nothing stands in front of them"
            core.held.remove(self._lsn)
            return
        level = logging.ERROR if self._attempts <= ATTEMPTS else logging.DEBUG
        log.log(level, "segments of a commit stay in staging for now: %s", error)
        if self._attacher.is_over:
            self._give_up()
        elif self._attempts < ATTEMPTS:
            self.go()
        else:
            if self._attempts == ATTEMPTS:
                self._stick(refusal(error, "segments of a commit cannot be moved in now"))
            self._alarm = core.alarms.at(core.clock.monotonic_ns() + RETRY_NS, self.go)

    def _stick(self, error: TopicsError) -> None:
        """Nobody waits for a disk that fails: what would follow the segments is refused until they are in."""
        for one in self._attachments:
            one.topic.stuck = error
            self._core.refuse_line(one.topic, error)
        self._late(error)

    def end(self) -> None:
        """The engine closes: the attempt that is under way, if there is one, is the last."""
        if self._alarm is not None:
            self._alarm.cancel()
            self._give_up()

    def _give_up(self) -> None:
        """The mark stays needed: the next start does what could not be done here."""
        self.over()
        for one in self._attachments:
            one.keep()
        self._then(CommitFailed("the engine closes; its next start completes this commit"))


def _with_chunks(place: Stamping, rows: Rows) -> Stamping:
    chunks = tuple(StagedChunk(one.path, one.chunk.offset, one.chunk.size, one.chunk.digest) for one in rows.chunks)
    return msgspec.structs.replace(place, chunks=chunks)


def is_sealed(topic: Topic) -> bool:
    """Whether all that a topic has is in sealed segments, with no checkpoint of it under way."""
    index = topic.index
    assert index.segments is not None
    at_end = not index.tail.records and index.ckpt_seq == topic.next_seq - 1
    return at_end and index.segments.is_sealed and not topic.checkpointing and not topic.tickets


class _Attachment(Staged):
    """The ticket of one topic's segments."""

    __slots__ = ("_attacher", "_dir", "_made", "frame_count", "is_attached", "rows")

    def __init__(
        self,
        attacher: Attacher,
        topic: Topic,
        made: _Made,
        rows: Rows,
        producer: Producer,
        dir: str,
        answer: Callable[[Topic, AppendResult | Exception], None],
    ) -> None:
        write = Write(topic.name, NOTHING, None, producer, None, None)
        super().__init__(attacher.core, topic, write, partial(answer, topic), False, made.first, made.ts)
        self.rows = rows
        self.count = rows.records
        self.total = rows.accounted
        self.is_attached = True
        self.frame_count = 1
        self._made = made
        self._attacher = attacher
        self._dir = dir
        assert sum(one.count for one in made.segments) == self.count, "what was staged is what is committed"
        assert sum(one.accounted for one in made.segments) == self.total, "what was staged is what is committed"

    @property
    def is_current(self) -> bool:
        """Whether the segments still fit behind the topic's last record."""
        return self.topic.next_seq == self.seq_before and is_sealed(self.topic)

    def chain(self, now: int, *, more: bool) -> list[bytes]:
        """The mark that makes the segments count."""
        named = self.write.producer
        assert named is not None
        rows = [control.AttachRow(one.first, one.count, one.data_len, one.idx_xxh3) for one in self._made.segments]
        mark = control.AttachMark(
            topic_id=self.topic.id, dir=self._dir.rpartition("/")[2], producer=named.id, epoch=named.epoch,
            first=self.seq_before, count=self.count, ts=self.ts, cap_floor=self.topic.cap_floor, segments=tuple(rows),
        )  # fmt: skip
        return [frame.encode_control(mark, 0, now, durable=True, more=more)]

    def stage(self, now: int) -> None:
        """Take the seqs."""
        topic = self.topic
        assert self.write.producer is not None
        self.pending = self._core.producers.stage(topic.id, self.write.producer, now)
        topic.next_seq, topic.last_ts = self.seq_before + self.count, self.ts
        self.count_staged()

    def unstage(self, last_ts: int) -> None:
        """The log refused the mark: nothing of it was staged."""
        self.topic.next_seq, self.topic.last_ts = self.seq_before, last_ts
        self._withdraw()

    def move_in(self) -> None:
        """Rename the segments into the topic; aside."""
        core, topic = self._core, self.topic
        out = storage.out_dir(self._dir, topic.id)
        storage.move_in(core.fs, out, core.topic_dir(topic.id), [one.first for one in self._made.segments])

    def joined(self, line: Sequence[Ticket]) -> int:
        return 1

    def _apply(self, staged: Sequence[Staged]) -> None:
        topic, made = self.topic, self._made
        segments = [storage.described(one, made.ts) for one in made.segments]
        topic.apply(Attached(made.first, self.count, made.ts, topic.cap_floor, self.total, segments))
        topic.attaching = False

    def keep(self) -> None:
        """Leave its segments in `out/`."""
        self._attacher.kept.add(self._dir)

    def fail(self, error: TopicsError) -> None:
        if self._core.shard(self.topic.id).state == "read_only":
            # Whether the mark is on disk is known at the next start, which needs the segments then.
            self.keep()
        self.topic.attaching = False
        super().fail(error)


def refusal(error: BaseException, what: str) -> TopicsError:
    """What a failure before the mark is to whoever commits."""
    if isinstance(error, TopicsError):
        return error
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"{what}: {error}")
        return WalIo(error, what)
    return CommitFailed(f"{what}: {error!r}")
