"""Staged writes: stage, commit, abort, and how a writer is (02 §9, 06 §15.6).

    stage     a chunk, checked like a write, goes to its part's file; nobody sees it [TXN-1]
    commit    the parts that are named become records of their topics, all or none, once per version [TXN-5 … TXN-9]
    abort     what is staged for a version goes [TXN-11]

A commit through the WAL [S-287]:

    its turn    one after another of a writer's commits and aborts: a repeat finds the first one done [TXN-7]
    decide      known? complete? topics, room for all of them together: nothing was changed yet [TXN-5]
    create      absent topics, durably
    hold        the staging order of all topics, in ascending id, so that two commits never wait for each other [A-1]
    frame       in slices, chunk by chunk
    submit      group by group, each durable before the next; that of shard 0 last, with the committed version

Whatever fails on the way leaves the staging as it is, and the same call completes it: topics whose pair shows the
version are left out [TXN-6, TXN-10]. Owner only, but for `Stage.prepare` and `Commit.parse`, which are the caller's.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, NamedTuple

import msgspec

from topics.codec import control, frame
from topics.codec import part as codec
from topics.engine import append as appending
from topics.engine import lifecycle, retention
from topics.engine.admission import Turn
from topics.engine.bring import Brought
from topics.engine.core import Core, Outcome, Placing, follows, guarded
from topics.engine.dedupe import Pair, Pending, Verdict
from topics.engine.records import Given, Prepared, prepare
from topics.engine.share import Share
from topics.engine.topic import Lsn, Ticket, Topic
from topics.engine.writers import Newest
from topics.errors import (
    CallerError,
    CommitFailed,
    EngineClosed,
    LimitReached,
    StorageFull,
    TopicNotFound,
    TopicsError,
    TxnCommitted,
    TxnConflict,
    TxnIncomplete,
    WalFull,
    WalIo,
)
from topics.model import (
    AbortResult,
    AppendResult,
    CommitResult,
    CommittedTopic,
    Limits,
    Producer,
    StagedVersion,
    StageResult,
    TopicConfig,
    WriterState,
    check_u32,
    check_u64,
    check_writable,
    not_a_topic,
    utf8_bytes,
    valid_topic_name,
)
from topics.storage import staging
from topics.storage.shard import Frames, Shard, frames_bytes
from topics.storage.staging import Chunk, Located, Part, Rows, Version

log = logging.getLogger("topics.engine")

LANE: Final = "staging"
PARTS_MAX: Final = 100_000
MISSING_MAX: Final = 20
READ_BYTES: Final = 4 << 20
READ_CHUNKS: Final = 1024
"""What is read of staged chunks before it is framed."""
_PART_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}", re.ASCII)

AttachMode = Literal["auto", "never", "always"]
Check = Callable[[Collection[str]], Exception | None]
"""Told the topics of a commit at its turn; what it is refused with, if it is."""


# -- stage ------------------------------------------------------------------------------------------------------------


class Place(NamedTuple):
    """Where a chunk belongs, with its types checked."""

    topic: str
    id: str
    version: int
    part: str
    chunk: int

    @classmethod
    def parse(cls, topic: object, id: object, version: object, part: object, chunk: object, limits: Limits) -> Place:
        """`CallerError` for what is no such place."""
        if isinstance(topic, str):
            check_writable(topic)
        if not isinstance(topic, str) or not valid_topic_name(topic):
            raise not_a_topic(topic)
        place = (writer_id(id, limits), check_u64(version, "version"), part_name(part), check_u32(chunk, "chunk"))
        return cls(topic, *place)


class Stage(NamedTuple):
    """One chunk, checked and encoded."""

    place: Place
    pieces: list[bytes]
    """Of a large one, each of whole frames; they are never put together."""
    size: int
    records: int
    accounted: int
    digest: bytes

    @classmethod
    def prepare(cls, place: Place, records: Iterable[Given], limits: Limits, node: str | None = None) -> Stage:
        """Check records like those of a write; any thread."""
        return cls.of(place, prepare(records, limits, node))

    @classmethod
    def of(cls, place: Place, prepared: Prepared) -> Stage:
        """The same of records that were checked."""
        data = _encoded(prepared)
        return cls(place, [data], len(data), len(prepared.tags), prepared.total, codec.digest(data))

    @classmethod
    def in_steps(cls, place: Place, prepared: Prepared) -> Generator[None, None, Stage]:
        """The same, a few records at a time; they are taken out of `prepared` [P-10]."""
        pieces: list[bytes] = []
        records, digester = len(prepared.tags), codec.digester()
        for run in prepared.runs():
            pieces.append(_encoded(run))
            digester.update(pieces[-1])
            yield
        while prepared.envelopes:
            del prepared.envelopes[-4:]
            yield
        return cls(place, pieces, sum(map(len, pieces)), records, prepared.total, digester.digest())


def _encoded(prepared: Prepared) -> bytes:
    try:
        return codec.encode(prepared.rows())
    except ValueError as error:
        raise CallerError(str(error)) from error


def writer_id(id: object, limits: Limits) -> str:
    """The id of a writer: 1 to 128 bytes."""
    most = limits.max_producer_bytes
    if not isinstance(id, str) or not 1 <= utf8_bytes(id, "id") <= most:
        raise CallerError(f"id must be a string of 1 to {most} bytes")
    return id


def part_name(name: object) -> str:
    """The name of a part."""
    if not isinstance(name, str) or not _PART_NAME.fullmatch(name):
        raise CallerError("part must be 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    return name


def stage(core: Core, staged: Stage, done: Outcome) -> None:
    """Put a chunk where a commit finds it; answers a `StageResult` [TXN-1]."""
    if core.closing:
        done(EngineClosed("the engine is closing"))
    else:
        guarded(lambda: _stage(core, staged, done), done)


def _stage(core: Core, staged: Stage, done: Outcome) -> None:
    place, now = staged.place, core.clock.now_ms()
    committed = core.producers.newest(0, place.id)
    if committed is not None and place.version <= committed.epoch:
        raise TxnCommitted(committed.epoch)
    version = _find(core, place.id, place.version, now)
    part = None if version is None else version.parts.get(place.part)
    if part is not None and part.busy:
        part.line.append(lambda: stage(core, staged, done))
        return
    expected = 0 if part is None else len(part.chunks)
    if place.chunk > expected:
        raise TxnConflict(place.part, expected, f"chunk {place.chunk} skips {expected}")
    if version is not None and part is not None and place.chunk < expected:
        known = part.chunks[place.chunk]
        if (known.topic, known.digest, known.records) != (place.topic, staged.digest, staged.records):
            raise TxnConflict(place.part, expected, f"chunk {place.chunk} was staged with other records")
        version.used_ms = now
        done(StageResult(staged.records, deduped=True))
        return
    core.staging.check(staged.size)
    version = version or core.staging.begin(place.id, place.version, now)
    _write(core, version, core.staging.part(version, place.part), staged, done)


def _find(core: Core, id: str, version: int, now: int) -> Version | None:
    """What is staged for a version; what nobody staged to for too long is dropped [TXN-4]."""
    found = core.staging.find(id, version)
    if found is not None and core.staging.is_over(found, now):
        _drop(core, found)
        return None
    return found


def _write(core: Core, version: Version, part: Part, staged: Stage, done: Outcome) -> None:
    """Put the chunk behind those before it, off the owner, unsynced [S-286]."""
    core.staging.reserve(version, staged.size)
    part.busy = True
    kept = b"".join(staged.pieces) if not version.dir else None
    chunk = Chunk(staged.place.topic, part.size, staged.size, staged.records, staged.accounted, staged.digest, kept)

    def written(error: BaseException | None) -> None:
        part.busy = False
        if error is not None:
            core.staging.give_back(version, chunk.size)
            done(_refusal(error))
        elif version.dropped:
            # It was aborted, committed or forgotten meanwhile: this chunk comes behind that.
            stage(core, staged, done)
        else:
            part.add(chunk)
            version.used_ms = core.clock.now_ms()
            done(StageResult(chunk.records))
        while part.line and not part.busy:
            part.line.popleft()()
        if not version.dropped and not part.busy and not part.chunks:
            _forget(core, version, part)

    if kept is not None:
        written(None)
        return
    least, fs = core.config.min_free_bytes, core.fs
    core.owner.aside(
        LANE,
        lambda: staging.write(fs, part.path, chunk.offset, staged.pieces, staged.size, least),
        follows(written, done),
    )


def _forget(core: Core, version: Version, part: Part) -> None:
    """A part came to nothing: as if nobody had staged it."""
    del version.parts[part.name]
    if not version.parts:
        core.staging.drop(version)
    _remove(core, version, [part.path])


def _refusal(error: BaseException) -> TopicsError:
    """What a failure to write or read staged files is to the caller."""
    if isinstance(error, TopicsError):
        return error
    if isinstance(error, OSError):
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return StorageFull(f"staging: {error}")
        return WalIo(error, "staging")
    return CommitFailed(f"staging: {error!r}")


def _drop(core: Core, version: Version) -> None:
    """Forget what is staged for a version; its files go off the owner, behind what is being written to them."""
    _remove(core, version, core.staging.drop(version))


def _remove(core: Core, version: Version, files: list[str]) -> None:
    if version.dir:
        core.owner.aside(
            LANE,
            lambda: staging.remove(core.fs, version.dir, files),
            core.note_failure(f"removing what was staged in {version.dir}"),
        )


def expire(core: Core) -> None:
    """The sweep: drop versions that nobody staged to for too long [TXN-4]; forget writers that are forgotten [A-19]."""
    for version in list(core.staging.expired(core.clock.now_ms())):
        _drop(core, version)
    core.writers.forget(lambda id: core.producers.newest(0, id) is None)


# -- abort and state --------------------------------------------------------------------------------------------------


def abort(core: Core, id: str, version: int, done: Outcome) -> None:
    """Drop what is staged for a version; a committed one is left alone [TXN-11]. Answers an `AbortResult`."""

    def at_its_turn() -> None:
        committed = core.producers.newest(0, id)
        found = core.staging.find(id, version)
        if found is not None:
            _drop(core, found)
        is_committed = committed is not None and version <= committed.epoch
        _next(core, id)
        done(AbortResult("committed" if is_committed else "aborted"))

    if core.closing:
        done(EngineClosed("the engine is closing"))
    elif id in core.writers.stuck:
        done(core.writers.stuck[id])
    else:
        core.writers.begin(id, at_its_turn)


def _next(core: Core, id: str) -> None:
    """What a writer had under way is over."""
    call = core.writers.end(id)
    if call is not None:
        core.owner.soon(call)


def state(core: Core, id: str) -> WriterState:
    """A writer at this instant [TXN-12]."""
    committed, now = core.producers.newest(0, id), core.clock.now_ms()
    staged = tuple(
        StagedVersion(one.version, len(one.parts), one.size)
        for one in core.staging.of(id)
        if not core.staging.is_over(one, now)
    )
    if committed is None:
        return WriterState(None, (), None, staged)
    return WriterState(committed.epoch, _brought(core, id, committed), committed.ts, staged)


def _brought(core: Core, id: str, committed: Pair) -> tuple[CommittedTopic, ...]:
    """What the newest version brought where, of topics that still exist."""
    newest = core.writers.newest.get(id)
    if newest is None or newest.version != committed.epoch:
        return ()
    return tuple(one for topic_id, one in newest.topics.items() if topic_id in core.topics)


def recovered(core: Core) -> None:
    """Behind a recovery: what the newest version of each writer brought where, from the pairs of the topics.

    Pairs of another index are of a producer of the same name [A-19].
    """
    committed = dict(core.producers.writers())
    for topic_id, id, pair in sorted(core.producers.topics_of(committed), key=lambda row: row[:2]):
        topic = core.topics.get(topic_id)
        if topic is not None and (pair.epoch, pair.index) == (committed[id].epoch, 0):
            newest = core.writers.newest.setdefault(id, Newest(pair.epoch, {}))
            newest.topics[topic_id] = CommittedTopic(topic.name, pair.first_seq, pair.last_seq, pair.count)


# -- commit -----------------------------------------------------------------------------------------------------------


class Named(NamedTuple):
    """A part as a commit names it."""

    part: str
    chunks: int
    records: int


class Commit(NamedTuple):
    """One commit, its types checked."""

    id: str
    version: int
    parts: tuple[Named, ...]
    create: bool | None = None
    config: TopicConfig | Mapping[str, object] | None = None
    attach: AttachMode = "auto"

    @classmethod
    def parse(
        cls, id: object, version: object, parts: object, create: object, config: object, attach: object, limits: Limits
    ) -> Commit:
        """Check everything that needs no state; any thread."""
        if create is not None and not isinstance(create, bool):
            raise CallerError("create must be true or false")
        if attach not in ("auto", "never", "always"):
            raise CallerError("attach must be auto, never or always")
        if config is not None:
            if not isinstance(config, (TopicConfig, Mapping)):
                raise CallerError("config must be an object")
            appending.typed_config(config, "")
        named = _named(parts)
        return cls(writer_id(id, limits), check_u64(version, "version"), named, create, config, attach)

    @property
    def creates(self) -> bool:
        """Whether it may create absent topics (01 §2.1)."""
        if self.create is not None:
            return self.create
        return self.config is None or appending.typed_config(self.config, "")[0].auto_create

    @property
    def producer(self) -> Producer:
        """The pair that every topic of it gets [A-19]."""
        return Producer(self.id, self.version, 0)


def _named(parts: object) -> tuple[Named, ...]:
    if isinstance(parts, (str, bytes, Mapping)) or not isinstance(parts, Sequence):
        raise CallerError("parts must be a list")
    if len(parts) > PARTS_MAX:
        raise CallerError(f"{len(parts)} parts; at most {PARTS_MAX} are accepted")
    named = []
    for at, one in enumerate(parts):
        if isinstance(one, Mapping):
            part, chunks, records = one.get("part"), one.get("chunks"), one.get("records")
        elif isinstance(one, (Named, tuple)) and len(one) == 3:
            part, chunks, records = one
        else:
            raise CallerError(f"parts[{at}] must be an object")
        chunks, records = check_u32(chunks, f"parts[{at}].chunks"), check_u64(records, f"parts[{at}].records")
        named.append(Named(part_name(part), chunks, records))
    if len({one.part for one in named}) != len(named):
        raise CallerError("a part is named twice")
    return tuple(named)


def commit(core: Core, asked: Commit, done: Outcome, check: Check = lambda topics: None) -> None:
    """Publish what is staged under the named parts, all or none; answers a `CommitResult` once it is durable."""
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    if asked.id in core.writers.stuck:
        done(core.writers.stuck[asked.id])
        return
    working = _Committing(core, asked, check, done)
    core.writers.begin(asked.id, working.begin)


class _Committing:
    """One commit under way."""

    def __init__(self, core: Core, asked: Commit, check: Check, done: Outcome) -> None:
        self._core = core
        self._asked = asked
        self._producer = asked.producer
        self._check = check
        self._done = done
        self._version: Version | None = None
        self._rows: dict[str, Rows] = {}
        self._created: set[str] = set()
        self._known: dict[int, CommittedTopic] = {}
        """What is there already, of this version, or is published now; by id of the topic."""
        self._holding: list[Topic] = []
        self._to_hold: list[Topic] = []
        """Highest id first."""
        self._reserved = 0
        """Bytes counted against the quota until they are staged."""
        self._brought: list[Brought] = []
        self._groups: list[tuple[Shard, list[Brought]]] = []
        self._stamped = False
        self._turn: Turn | None = None
        self._pending: Pending | None = None
        self._ts = 0
        """Of the committed version, as it is logged."""
        self._size = 0
        """Of the submission that was last made."""
        self._left = 0
        """Outcomes that are not known yet, of the submission under way and its tickets."""
        self._failed: Exception | None = None
        self._is_over = False

    # -- deciding ----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """At the writer's turn."""
        guarded(self._decide, self._over)

    def _decide(self) -> None:
        core, asked, now = self._core, self._asked, self._core.clock.now_ms()
        version = self._version = _find(core, asked.id, asked.version, now)
        parts = {} if version is None else version.parts
        rows = staging.rows(parts[one.part] for one in asked.parts if one.part in parts)
        refused = self._check(rows)
        if refused is not None:
            self._over(refused)
            return
        known = core.producers.check(0, self._producer, now)
        if known is not Verdict.NEW:
            assert not isinstance(known, Pending), "a writer's commits are carried out one after another"
            topics = _brought(core, asked.id, known) if isinstance(known, Pair) else ()
            self._over(CommitResult(asked.version, True, topics))
            return
        missing = [one.part for one in asked.parts if not _is_complete(parts.get(one.part), one)]
        if missing:
            raise TxnIncomplete(missing[:MISSING_MAX])
        if version is not None:
            version.held = True
        self._rows = rows
        self._resolve()

    def _resolve(self) -> None:
        """Topics as 01 §2.1, and room for all of it together; what is absent is created behind all checks."""
        core = self._core
        if core.closing:
            raise EngineClosed("the engine is closing")
        for name in self._rows:
            if name in core.gates:
                core.gates[name].append(lambda: guarded(self._resolve, self._over))
                return
        absent = [name for name in self._rows if name not in core.names]
        if absent and not self._asked.creates:
            raise TopicNotFound(absent[0])
        configs = {name: TopicConfig.parse(self._asked.config, name) for name in absent}
        self._check_room(configs)
        if absent:
            self._create(configs)
        else:
            self._stamp()

    def _create(self, configs: Mapping[str, TopicConfig]) -> None:
        """All that are absent; their creations share a sync."""
        self._left = len(configs)
        self._failed = None
        for name, config in configs.items():
            made = partial(self._made, name)
            guarded(partial(lifecycle.create, self._core, name, config, made), made)

    def _made(self, name: str, outcome: object) -> None:
        self._left -= 1
        if isinstance(outcome, Exception):
            self._failed = self._failed or outcome
        else:
            self._created.add(name)
        if self._left:
            return
        if self._failed is not None:
            self._over(self._failed)
        else:
            guarded(self._resolve, self._over)

    def _check_room(self, absent: Mapping[str, TopicConfig]) -> None:
        """Caps, quota and bounds of all topics together [TXN-5]."""
        core, now = self._core, self._core.clock.now_ms()
        most = core.config.max_topics
        if most and absent and core.topic_count + len(absent) > most:
            raise LimitReached("max_topics", most)
        for name, config in absent.items():
            appending.check_size(name, config, self._rows[name].records, self._rows[name].accounted)
        self._known = {}
        topics = []
        for name, rows in self._rows.items():
            topic = core.names.get(name)
            if topic is not None and not self._is_there(topic):
                appending.check_caps(core, topic, rows.records, rows.accounted)
                topics.append(topic)
        size = sum(self._rows[name].accounted for name in (*absent, *(topic.name for topic in topics)))
        appending.check_total(core, topics, size)
        core.producers.check_room([0, *(topic.id for topic in topics), *(None for _ in absent)], self._asked.id, now)

    def _is_there(self, topic: Topic) -> bool:
        """Whether an earlier attempt brought the version to a topic already [TXN-6]."""
        pair = self._core.producers.newest(topic.id, self._asked.id)
        if pair is None or pair.epoch < self._asked.version:
            return False
        if pair.epoch > self._asked.version:
            # A later version was begun and never completed, or a producer of the same name writes there: what is below
            # its pair can be neither appended nor passed over.
            raise TxnCommitted(pair.epoch)
        self._known[topic.id] = CommittedTopic(topic.name, pair.first_seq, pair.last_seq, pair.count)
        return True

    # -- holding -----------------------------------------------------------------------------------------------------

    def _stamp(self) -> None:
        """What is to be attached is made into segments before anything is held [S-288]."""
        core = self._core
        rows = self._to_attach()
        if not rows or self._stamped:
            topics = (core.names[name] for name in self._rows)
            self._to_hold = sorted(topics, key=lambda topic: topic.id, reverse=True)
            self._hold()
            return
        self._stamped = True
        assert core.attaching is not None
        assert self._version is not None
        core.attaching.stamp(self._version, rows, lambda: guarded(self._resolve, self._over), self._over)

    def _to_attach(self) -> dict[Topic, Rows]:
        """Topics that get segments: those of a large commit that are no router's destination and are logged [TXN-8]."""
        core, how = self._core, self._asked.attach
        if core.attaching is None or core.wal is None or how == "never":
            return {}
        if how == "auto" and sum(rows.size for rows in self._rows.values()) <= core.config.txn_wal_bytes:
            return {}
        topics = (core.names[name] for name in self._rows)
        return {
            topic: self._rows[topic.name]
            for topic in topics
            if core.is_logged(topic) and topic.id not in core.routers.feeding and topic.id not in self._known
        }

    def _hold(self) -> None:
        """Take the staging order of one topic after another; then everything behind waits [A-1]."""
        while self._to_hold:
            if not self._take(self._to_hold.pop()):
                return
        guarded(self._held, self._over)

    def _take(self, topic: Topic) -> bool:
        """Take one; False: when its turn comes, that goes on by itself."""
        at_once = True

        def take() -> None:
            topic.framing = True
            self._holding.append(topic)
            if not at_once:
                self._hold()

        def lost(error: TopicsError) -> None:
            if not isinstance(error, TopicNotFound):
                self._over(error)
                return
            self._release()
            # It was deleted: whether it is created anew is decided like at the beginning.
            guarded(self._resolve, self._over)

        self._core.in_line(topic, take, lost)
        at_once = False
        return bool(self._holding) and self._holding[-1] is topic

    def _release(self) -> None:
        core = self._core
        holding, self._holding = self._holding, []
        for topic in holding:
            topic.framing = topic.attaching = False
            if topic.line:
                core.owner.soon(partial(core.advance, topic))
        core.staged_bytes -= self._reserved
        self._reserved = 0

    def _is_held(self) -> bool:
        """Whether the topics are those that were held: a deletion does not wait."""
        names, gates = self._core.names, self._core.gates
        return all(names.get(topic.name) is topic and topic.name not in gates for topic in self._holding)

    def _held(self) -> None:
        core = self._core
        if not self._is_held():
            self._release()
            self._resolve()
            return
        for topic in self._holding:
            retention.catch_up(core, topic)
        core.staged_bytes -= self._reserved
        self._reserved = 0
        self._check_room({})
        left = [topic for topic in self._holding if topic.id not in self._known]
        self._reserved = sum(self._rows[topic.name].accounted for topic in left)
        core.staged_bytes += self._reserved
        attached = self._to_attach()
        now = core.clock.now_ms()
        shares = [self._share(topic, now) for topic in left if topic not in attached]
        if not attached:
            self._frame(shares, 0)
            return
        assert core.attaching is not None

        def stamped(brought: list[Brought]) -> None:
            self._brought = brought
            self._frame(shares, 0)

        assert self._version is not None
        answer = partial(self._answered, attached=True)
        core.attaching.hold(self._version, self._producer, attached, answer, stamped, self._over)

    def _share(self, topic: Topic, now: int) -> Share:
        ts = max(now, topic.last_ts)
        answer = partial(self._answered, topic, attached=False)
        created = topic.name in self._created
        return Share(self._core, topic, self._rows[topic.name], self._producer, ts, created=created, done=answer)

    # -- framing -----------------------------------------------------------------------------------------------------

    def _frame(self, shares: list[Share], at: int) -> None:
        """One topic after another, some chunks at a time: read off the owner, framed in slices."""
        if at == len(shares):
            guarded(partial(self._framed, shares), self._over)
            return
        share = shares[at]
        edge = self._core.routers.feeding.get(share.topic.id)
        batches = list(_batches(share.rows.chunks))

        def next_batch() -> None:
            if not batches:
                share.framed()
                self._frame(shares, at + 1)
                return
            self._load(batches.pop(0), take)

        def take(chunks: list[bytes]) -> None:
            steps = share.steps(chunks, keep_envelopes=edge is not None)
            self._core.owner.sliced(steps, partial(self._unless_failed, next_batch))

        next_batch()

    def _load(self, batch: list[Located], then: Callable[[list[bytes]], None]) -> None:
        fs, chunks = self._core.fs, list[bytes]()
        if all(one.chunk.data is not None for one in batch):
            then([one.chunk.data for one in batch if one.chunk.data is not None])
            return
        self._core.owner.aside(
            LANE,
            lambda: chunks.extend(staging.read(fs, one) for one in batch),
            partial(self._unless_failed, lambda: then(chunks)),
        )

    def _unless_failed(self, then: Callable[[], None], error: BaseException | None) -> None:
        if error is None:
            guarded(then, self._over)
        else:
            self._over(_refusal(error))

    def _framed(self, shares: list[Share]) -> None:
        """Everything is ready; if a write in front of it failed meanwhile, its seqs are not what they were."""
        if self._core.closing:
            raise EngineClosed("the engine is closing")
        if not self._is_held() or not all(one.is_current for one in (*self._brought, *shares)):
            self._brought = []
            self._held()
            return
        self._brought += shares
        self._brought.sort(key=lambda one: one.topic.id)
        if self._core.wal is None:
            self._publish_in_memory()
        else:
            self._groups = self._by_group(self._core.wal.shards)
            self._submit()

    # -- submitting --------------------------------------------------------------------------------------------------

    def _by_group(self, shards: Sequence[Shard]) -> list[tuple[Shard, list[Brought]]]:
        """What goes to which shard, shard 0 last; what is in memory only is decided there too."""
        core, zero = self._core, shards[0]
        groups: dict[str, tuple[Shard, list[Brought]]] = {}
        for one in self._brought:
            shard = core.shard(one.topic.id) if core.is_logged(one.topic) else zero
            groups.setdefault(shard.key, (shard, []))[1].append(one)
        last = groups.pop(zero.key, (zero, []))
        return [*(groups[key] for key in sorted(groups)), last]

    def _submit(self) -> None:
        """The next group, or whoever waits for room in its shard first."""
        shard, brought = self._groups[0]
        if self._core.closing:
            raise EngineClosed("the engine is closing")
        if not self._is_held():
            self._brought = []
            self._held()
            return
        waiting = self._core.admission.is_waited_for(shard) and not (self._turn is not None and self._turn.called)
        if waiting:
            self._wait(shard, sum(one.rows.size for one in brought if isinstance(one, Share)), None)
            return
        self._core.fs.point("txn.before_submit")
        try:
            self._submit_to(shard, brought)
        except WalFull as error:
            self._wait(shard, self._size, error)

    def _wait(self, shard: Shard, size: int, why: WalFull | None) -> None:
        """The shard has no room: wait for it, with the lines of all topics behind, or be refused (08 §6)."""
        admission = self._core.admission
        self._turn = self._turn or admission.turn(patient=True)
        if self._turn is None:
            self._over(why or admission.refusal())
        else:
            admission.wait(shard, self._turn, size, lambda: guarded(self._submit, self._over), self._over)

    def _submit_to(self, shard: Shard, brought: list[Brought]) -> None:
        """All topics of a group form one submission; that of shard 0 ends with the committed version [S-287]."""
        core, now = self._core, self._core.clock.now_ms()
        is_last = len(self._groups) == 1
        frames: list[bytes] = []
        places: list[tuple[Topic, Ticket, int | None]] = []
        size = count = 0
        for at, one in enumerate(brought, 1):
            assert isinstance(one, Ticket)
            if not core.is_logged(one.topic):
                # Only the last group has such.
                places.append((one.topic, one, None))
                continue
            places.append((one.topic, one, size))
            chain = one.chain(now, more=is_last or at < len(brought))
            frames += chain
            size += sum(map(len, chain))
            count += one.frame_count
        if is_last:
            named = self._producer
            body = control.Dedupe(first=0, count=0, producer=named.id, epoch=named.epoch, index=named.index)
            frames.append(frame.encode_control(body, 0, now, durable=True))
            count += 1
        self._size = size
        self._stage(shard, brought, places, frames, count, now, is_last=is_last)

    def _stage(
        self,
        shard: Shard,
        brought: list[Brought],
        places: list[tuple[Topic, Ticket, int | None]],
        frames: Frames,
        count: int,
        now: int,
        *,
        is_last: bool,
    ) -> None:
        core = self._core
        self._give_back(brought)
        staged: list[tuple[Brought, int]] = []
        self._left = len(brought) + 1
        self._failed = None
        try:
            for one in brought:
                staged.append((one, one.topic.last_ts))
                one.stage(now)
            if is_last:
                self._pending = core.producers.stage(0, self._producer, now)
            self._ts = now
            core.stage_together(shard, places, frames, count, self._logged, self._place(places, brought))
        except TopicsError:
            for one, last_ts in reversed(staged):
                one.unstage(last_ts)
            if self._pending is not None:
                core.producers.fail(self._pending)
                self._pending = None
            self._take_again(brought)
            raise
        log.debug("committing version %d of %r: %d bytes", self._asked.version, self._asked.id, frames_bytes(frames))

    def _place(self, places: list[tuple[Topic, Ticket, int | None]], brought: list[Brought]) -> Placing | None:
        """What segments that are attached still need behind their mark."""
        attaching = self._core.attaching
        if attaching is None or not any(one.is_attached for one in brought):
            return None
        return partial(attaching.place, [ticket for _, ticket, _ in places], self._late)

    def _late(self, error: TopicsError) -> None:
        """It is durable and cannot be shown yet: whoever waits is told to ask again [TXN-10]."""
        done, self._done = self._done, lambda outcome: None
        self._core.writers.stuck[self._asked.id] = error
        done(error)

    def _give_back(self, brought: list[Brought]) -> None:
        """What is staged counts by itself."""
        size = sum(self._rows[one.topic.name].accounted for one in brought)
        self._core.staged_bytes -= size
        self._reserved -= size

    def _take_again(self, brought: list[Brought]) -> None:
        size = sum(self._rows[one.topic.name].accounted for one in brought)
        self._core.staged_bytes += size
        self._reserved += size

    # -- outcomes ----------------------------------------------------------------------------------------------------

    def _logged(self, outcome: Lsn | TopicsError) -> None:
        """The submission of a group is durable, or failed."""
        core, pending = self._core, self._pending
        if isinstance(outcome, TopicsError):
            self._failed = outcome
            if pending is not None:
                core.producers.fail(pending)
                self._pending = None
        self._one_less()

    def _answered(self, topic: Topic, outcome: AppendResult | Exception, *, attached: bool) -> None:
        """A ticket of the submission under way was published, or failed."""
        if isinstance(outcome, Exception):
            self._failed = self._failed or outcome
        else:
            assert outcome.first_seq is not None
            assert outcome.last_seq is not None
            created = topic.name in self._created
            self._known[topic.id] = CommittedTopic(
                topic.name, outcome.first_seq, outcome.last_seq, outcome.count, created, attached
            )
        self._one_less()

    def _one_less(self) -> None:
        self._left -= 1
        if self._left:
            return
        if self._failed is not None:
            if self._pending is not None:
                self._core.producers.fail(self._pending)
                self._pending = None
            self._over(self._failed)
            return
        self._groups = self._groups[1:]
        if self._groups:
            guarded(self._submit, self._over)
        else:
            guarded(self._finish, self._over)

    def _publish_in_memory(self) -> None:
        """Nothing is logged: topic after topic, in one stretch."""
        core, now = self._core, self._core.clock.now_ms()
        brought, self._groups = self._brought, []
        self._give_back(brought)
        self._pending = core.producers.stage(0, self._producer, now)
        self._ts = now
        self._left = len(brought) + 1
        for one in brought:
            assert isinstance(one, Share)
            one.stage(now)
            core.stage(one.topic, None, 0, one, durable=False)
        self._one_less()

    def _finish(self) -> None:
        """Everything is published: the version counts from now on, and its staging goes."""
        core, asked, pending = self._core, self._asked, self._pending
        assert pending is not None
        logged = core.wal is not None
        core.producers.publish(pending, first_seq=0, count=0, head_seq=0, ts=self._ts, logged=logged)
        core.producers.checkpointed(0, 0)
        self._pending = None
        topics = dict(sorted(self._known.items()))
        told_again = {id: msgspec.structs.replace(one, created=False) for id, one in topics.items()}
        core.writers.newest[asked.id] = Newest(asked.version, told_again)
        for version in core.staging.of(asked.id):
            if version.version <= asked.version:
                _drop(core, version)
        self._over(CommitResult(asked.version, False, tuple(topics.values())))

    def _over(self, outcome: object) -> None:
        """Answer, once; what waits behind it goes on."""
        if self._is_over:
            return
        self._is_over = True
        try:
            self._let_go()
        finally:
            self._done(outcome)

    def _let_go(self) -> None:
        core = self._core
        self._release()
        if self._version is not None:
            if core.attaching is not None:
                core.attaching.release(self._version)
            self._version.held = False
            self._version.used_ms = core.clock.now_ms()
        core.writers.stuck.pop(self._asked.id, None)
        _next(core, self._asked.id)


def _is_complete(part: Part | None, named: Named) -> bool:
    """Whether everything of a part is staged [TXN-5]; of one that has no rows there is nothing to stage."""
    if part is None:
        return not named.chunks and not named.records
    return (len(part.chunks), part.records) == (named.chunks, named.records)


def _batches(chunks: list[Located]) -> Iterable[list[Located]]:
    """Chunks that are read in one go."""
    batch: list[Located] = []
    size = 0
    for one in chunks:
        if batch and (size + one.chunk.size > READ_BYTES or len(batch) >= READ_CHUNKS):
            yield batch
            batch, size = [], 0
        batch.append(one)
        size += one.chunk.size
    if batch:
        yield batch
