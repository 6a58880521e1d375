"""The state of an engine and how entries become true: stage, commit, publish (06 §7).

    verbs (append, delete, …)   decide, then `stage` frames and a ticket
    shard                       writes, syncs, and calls back
    publish                     tickets of a topic in turn, each once its commit condition holds [S-107]

Everything waits by callback: a caller on an event loop, a thread behind a latch and a test on one thread use the same
code. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Literal, Protocol, TypeVar

from topics import paths
from topics.clock import Clock
from topics.codec import control, frame
from topics.engine.admission import Admission
from topics.engine.alarms import Alarms
from topics.engine.bring import Attaching
from topics.engine.cold import Cold
from topics.engine.config import EngineConfig
from topics.engine.dedupe import IdempotencyKeys, Producers
from topics.engine.deletes import DeleteJournal
from topics.engine.load import Load
from topics.engine.losses import LossJournal
from topics.engine.pins import Pins
from topics.engine.pump import Pump
from topics.engine.recent import RecentFrames
from topics.engine.router import Edge, Routers
from topics.engine.scheduler import Item
from topics.engine.topic import Lsn, Ticket, Topic, Totals
from topics.engine.traffic import Traffic
from topics.engine.turns import Turns
from topics.engine.writers import Writers
from topics.errors import UNEXPECTED, UNEXPECTED_TOLD, CommitFailed, EngineClosed, TopicNotFound, TopicsError, WalIo
from topics.fs import Fs, maps_permit
from topics.model import SERVER_WRITES, SYSTEM_TOPICS
from topics.storage.lockfile import FailedSync
from topics.storage.maps import MapCache
from topics.storage.owner import Owner
from topics.storage.shard import Done, Frames, Shard
from topics.storage.shard import Lsn as ShardLsn
from topics.storage.shards import Shards
from topics.storage.staging import Staging

log = logging.getLogger("topics.engine")

TAGS_AT_ONCE: Final = 512

T = TypeVar("T")
Outcome = Callable[[Any], None]
"""Called once, on the owner, with a result or an exception."""


Placing = Callable[[Lsn, Callable[[Lsn | TopicsError], None]], None]
"""Does what a durable submission still needs, then says that it is done, or why it is not."""


class Settling(Protocol):
    """Holds submissions back until the run's `ready` mark is synced."""

    def hold(
        self,
        shard: Shard,
        frames: Frames,
        count: int,
        done: Callable[[ShardLsn | TopicsError], None],
        durable: bool,
        control: bool,
    ) -> None:
        """Take a submission, to be handed on later; raises if it is refused."""
        ...


class Serving(Protocol):
    """Forwards: `forward.serve`, which the engine puts here because it stands above this module."""

    def __call__(self, edge: Edge) -> bool:
        """One bounded step of an edge; whether it wants another."""
        ...


class Telling(Protocol):
    """Writes what there is to say, each beside the topic it is about, to a topic of the server [A-14]."""

    def __call__(self, name: str, said: Sequence[tuple[str, dict[str, Any]]], done: Outcome) -> None:
        """Answers an `AppendResult`."""
        ...


class Core:
    """Everything an engine knows."""

    def __init__(self, config: EngineConfig, fs: Fs, clock: Clock, owner: Owner, dir: str) -> None:
        self.config = config
        self.limits = config.limits
        self.fs = fs
        self.clock = clock
        self.owner = owner
        self.dir = dir
        """The data directory; empty for an engine in memory."""
        self.wal: Shards | None = None
        self.maps = MapCache(fs, maps_permit(config.max_maps), config.segment_mmap)
        self.recent = RecentFrames(config.recent_cache_bytes)
        self.alarms = Alarms()
        self.turns = Turns(owner, clock, self.alarms)
        self.cold = Cold(owner, clock, self.turns, config.cold_cache_bytes)
        self.deletes = DeleteJournal(self)
        self.losses = LossJournal(self)
        self.tell: Telling = lambda name, said, done: None
        """Writes to a topic of the server: `system.write`, which the engine puts here."""
        self.keys = IdempotencyKeys(config.idempotency_max_entries, config.idempotency_max_bytes)
        self.producers = Producers(config.max_producers, config.producer_ttl_ms)
        self.writers = Writers()
        self.staging = Staging(
            f"{dir}/{paths.STAGING_DIR}" if dir else None, config.max_staged_bytes, config.stage_ttl_ms
        )
        self.topics: dict[int, Topic] = {}
        self.names: dict[str, Topic] = {}
        self.gates: dict[str, list[Callable[[], None]]] = {}
        """Names that are being created or deleted, and what waits for that [A-1]."""
        self.next_topic_id = 1
        self.creating: set[int] = set()
        """Ids of creations in flight [S-218]."""
        self.next_epoch = 1
        self.routers = Routers()
        self.serve: Serving = lambda edge: False
        self.bring_in: Callable[[int, Outcome], None] | None = None
        """Runs a checkpoint that takes a topic; None where nothing is ever written to segments."""
        self.attaching: Attaching | None = None
        """Brings large commits to their topics as segments; None: all go through the log."""
        self.held: list[Lsn] = []
        """Frames that recovery still needs, whatever checkpoints say."""
        self.run = 0
        self.boot = ""
        self.store_id = ""
        self.totals = Totals()
        self.traffic = Traffic()
        self.ready: dict[int, Topic] = {}
        """Topics whose first ticket is committed, within one report of a shard."""
        self.frames_aside_bytes: int | None = None
        """Writes from this size on are framed off the owner; None: none are, because nobody waits for it."""
        self.staged_bytes = 0
        """Accounted bytes that were admitted and are not yet published; for the quota [RES-3]."""
        self.closing = False
        self.logged = False
        """Whether anything but marks was logged since the last snapshot [S-214]."""
        self.unmarked: set[str] = set()
        """Groups with frames behind their last mark."""
        self.unrotated: set[str] = set()
        """Groups whose active file holds more than marks."""
        self.changed: set[int] = set()
        """Topics whose head or floors differ from their newest mark row."""
        self.unsealed: set[int] = set()
        """Topics with a tail, an active segment or marks that are not on disk."""
        self.reserved: set[int] = set()
        """Topics that hold a reservation."""
        self.expiring: set[int] = set()
        """Topics with a TTL."""
        self.removing: dict[int, Lsn] = {}
        """Deleted topics whose rename is not yet durable [S-192]."""
        self.unremoved: set[int] = set()
        """Deleted topics whose directory could not be renamed; tried again with every tick."""
        self.settling: Settling | None = None
        """What has to be logged before anything else of this run; None once it is."""
        self.failed_syncs: set[FailedSync] = set()
        """Runs and groups whose page cache cannot be believed."""
        self.corrupt = 0
        self.holes = {1: 0, 2: 0, 3: 0}
        """Seqs that became holes since the start, by stored reason."""
        self.orphan_dirs = 0
        self.dropped_segments = 0
        self.pins = Pins(clock, self.alarms)
        self.pump = Pump(owner, clock)
        self.service: Callable[[Topic], Callable[[], bool]] = lambda topic: lambda: False
        """How a topic's followers are served; given by the engine."""
        self.admission = Admission(clock, self.alarms, owner)
        self.load = Load(clock, self.alarms, self.pump.scheduler, self.admission)
        self.pump.woken = self.load.wake
        self.polls: dict[object, Callable[[], None]] = {}
        """Long polls and claims that wait for their window: what answers each of them with what there is."""
        self.deliveries = 0
        """Of jobs of all queues, in this run [LSE-4]."""

    # -- finding topics ----------------------------------------------------------------------------------------------

    @property
    def topic_count(self) -> int:
        """Topics of clients, those that are being created among them; the server's own do not count [A-14]."""
        own = sum(name in self.names or name in self.gates for name in SYSTEM_TOPICS)
        return len(self.topics) + len(self.creating) - own

    def quota_bytes(self) -> int:
        """What counts towards the quota: bytes live and on their way, but those of the server's own records [RES-5]."""
        own = [topic for topic in map(self.names.get, SERVER_WRITES) if topic is not None]
        return self.totals.bytes + self.staged_bytes - sum(topic.bytes + topic.staged_bytes for topic in own)

    def with_topic(self, name: str, then: Callable[[Topic], None], done: Outcome) -> None:
        """Go on with the topic of a name, once no creation or deletion of it is under way."""
        if self.closing:
            done(EngineClosed("the engine is closing"))
            return
        gate = self.gates.get(name)
        if gate is not None:
            gate.append(lambda: self.with_topic(name, then, done))
            return
        topic = self.names.get(name)
        if topic is None:
            done(TopicNotFound(name))
            return
        guarded(lambda: then(topic), done)

    def open_gate(self, name: str) -> None:
        """The creation or deletion of a name is decided: who waited goes on, in order."""
        for retry in self.gates.pop(name, ()):
            self.owner.soon(retry)

    def is_logged(self, topic: Topic) -> bool:
        """Whether what happens to a topic's records now is logged."""
        return self.wal is not None and topic.durability != "ephemeral"

    def shard(self, topic_id: int) -> Shard:
        """The shard of a topic; not of an engine in memory."""
        assert self.wal is not None
        return self.wal.of(topic_id)

    # -- staging and publishing --------------------------------------------------------------------------------------

    def stage(
        self, topic: Topic, frames: Frames | None, count: int, ticket: Ticket, *, durable: bool, control: bool = False
    ) -> None:
        """Put a ticket in the topic's line and its frames in the log; raises, with nothing done, if that is refused.

        `frames` None: nothing is logged, the ticket is committed as it stands.
        """
        topic.tickets.append(ticket)
        if frames is None:
            ticket.lsn = True
            self.publish(topic)
            return
        shard = self.shard(topic.id)
        try:
            self._hand_over(shard, frames, count, partial(self._logged, shard.key, topic, ticket), durable, control)
        except Exception:  # a ticket that nothing decides would keep the topic waiting for ever
            topic.tickets.remove(ticket)
            raise
        self._noted(shard)

    def stage_together(
        self,
        shard: Shard,
        staged: Sequence[tuple[Topic, Ticket, int | None]],
        frames: Frames,
        count: int,
        done: Callable[[Lsn | TopicsError], None],
        place: Placing | None = None,
    ) -> None:
        """Put tickets in their topics' lines and the frames of all in the log, as one durable submission [S-287].

        With each ticket comes how far behind the beginning its frames are; None: it has none. `done` is told the
        outcome before tickets are published. `place` is what has to be done between the sync and that. Raises, with
        nothing done, if that is refused.
        """
        for topic, ticket, _ in staged:
            topic.tickets.append(ticket)

        def committed(outcome: Lsn | TopicsError) -> None:
            if place is not None and isinstance(outcome, Lsn):
                place(outcome, settled)
            else:
                settled(outcome)

        def settled(outcome: Lsn | TopicsError) -> None:
            for topic, ticket, behind in staged:
                placed: Lsn | TopicsError | Literal[True] = outcome
                if isinstance(outcome, Lsn):
                    placed = True if behind is None else outcome._replace(offset=outcome.offset + behind)
                self._committed(topic, ticket, placed)
            done(outcome)

        try:
            unrecorded = all(behind is None for *_, behind in staged)
            self.submit_to(shard, frames, count, committed, durable=True, control=unrecorded)
        except Exception:
            for topic, ticket, _ in staged:
                topic.tickets.remove(ticket)
            raise
        self._noted(shard)

    def submit(
        self,
        topic_id: int,
        frames: Frames,
        count: int,
        done: Callable[[Lsn | TopicsError], None],
        durable: bool,
        control: bool = True,
    ) -> None:
        """Log frames that publish nothing by themselves, or those of a ticket."""
        shard = self.shard(topic_id)
        self.submit_to(shard, frames, count, done, durable, control)
        self._noted(shard)

    def _noted(self, shard: Shard) -> None:
        """A shard has more than marks."""
        self.unmarked.add(shard.key)
        self.unrotated.add(shard.key)
        self.logged = True

    def submit_to(
        self,
        shard: Shard,
        frames: Frames,
        count: int,
        done: Callable[[Lsn | TopicsError], None],
        durable: bool,
        control: bool = True,
    ) -> None:
        """Hand frames to a shard, behind the run's `ready` mark [S-245]."""
        self._hand_over(shard, frames, count, partial(_placed, shard.key, done), durable, control)

    def submit_mark(self, shard: Shard, frames: bytes, count: int, done: Callable[[Lsn | TopicsError], None]) -> None:
        """The same with marks of a checkpoint, which there is room for on a full disk [S-80]."""
        if self.settling is None:
            shard.submit(frames, count, partial(_placed, shard.key, done), durable=True, control=True, mark=True)
        else:
            self.submit_to(shard, frames, count, done, durable=True)

    def _hand_over(self, shard: Shard, frames: Frames, count: int, place: Done, durable: bool, control: bool) -> None:
        if self.settling is None:
            shard.submit(frames, count, place, durable=durable, control=control)
        else:
            self.settling.hold(shard, frames, count, place, durable, control)

    def _logged(self, group: str, topic: Topic, ticket: Ticket, outcome: ShardLsn | TopicsError) -> None:
        """The shard is done with the frames of a ticket."""
        self._committed(topic, ticket, outcome if isinstance(outcome, TopicsError) else Lsn(group, *outcome))

    def _committed(self, topic: Topic, ticket: Ticket, outcome: Lsn | Literal[True] | TopicsError) -> None:
        if ticket.settled:
            return
        if isinstance(outcome, TopicsError):
            self._fail_from(topic, ticket, outcome)
        else:
            ticket.lsn = outcome
            if topic.tickets[0].lsn:
                self.ready[topic.id] = topic

    def is_writing(self) -> bool:
        """Whether anything that was accepted is not finished yet; the shard that finishes the last of it says so."""
        return self.wal is not None and any(shard.depth for shard in self.wal.shards)

    def finished(self, shard: Shard) -> None:
        """A shard has finished submissions: publish them, then let go on who waited for room."""
        self.publish_ready()
        if self.admission.waiting:
            self.admission.room(shard)
        self.turns.stir()

    def publish_ready(self) -> None:
        """Publish what one write or one sync has committed."""
        while self.ready:
            ready, self.ready = self.ready, {}
            for topic in ready.values():
                self.publish(topic)

    def publish(self, topic: Topic) -> None:
        """Publish tickets in turn, as far as they are committed [S-107]; appends in a row together."""
        tickets = topic.tickets
        while tickets and tickets[0].lsn:
            run = tickets[: tickets[0].joined(tickets)]
            del tickets[: len(run)]
            for ticket in run:
                ticket.settled = True
            try:
                self.touch(topic)
                run[0].publish(run)
            except OSError as error:
                _fail_all(topic, run, WalIo(error, f"topic {topic.name!r}"))
            except Exception as error:  # those behind it must not pay for it, and nobody may wait for ever
                log.exception("publishing in topic %r", topic.name)
                _fail_all(topic, run, CommitFailed(f"topic {topic.name!r}: {error!r}"))
        if topic.line:
            self.owner.soon(lambda: self.advance(topic))

    def in_line(self, topic: Topic, call: Callable[[], None], done: Outcome, *, quiet: bool = False) -> None:
        """Stage something in the topic's order [A-1]; `quiet` waits until nothing staged in front is undecided.

        What comes later waits behind it: nobody is overtaken, nobody starves.
        """
        if topic.stuck is not None:
            done(topic.stuck)
        elif topic.line or topic.framing or (quiet and topic.tickets):
            topic.line.append((quiet, lambda: guarded(call, done), done))
        else:
            call()

    def refuse_line(self, topic: Topic, error: TopicsError) -> None:
        """What waits in a topic's line cannot be staged any time soon."""
        line, topic.line = topic.line, []
        for _, _, done in line:
            _tell(topic, done, error)

    def advance(self, topic: Topic) -> None:
        """Let what waits in a topic's line go on, as far as it may."""
        while topic.line and not topic.framing and not (topic.line[0][0] and topic.tickets):
            _, call, done = topic.line.pop(0)
            try:
                if topic.removed:
                    done(TopicNotFound(topic.name))
                else:
                    call()
            except Exception:  # those behind it are not to wait for it
                log.exception("going on in topic %r", topic.name)

    def _fail_from(self, topic: Topic, ticket: Ticket, error: TopicsError) -> None:
        """A ticket failed: it and all behind it publish nothing, and their seqs are free again [S-110]."""
        at = topic.tickets.index(ticket)
        failed = topic.tickets[at:]
        del topic.tickets[at:]
        topic.next_seq = ticket.seq_before
        for one in failed:
            one.settled = True
        _fail_all(topic, failed[:1], error)
        _fail_all(topic, failed[1:], CommitFailed(f"a write in front of it failed: {error}"))
        if topic.line:
            self.owner.soon(lambda: self.advance(topic))

    def touch(self, topic: Topic) -> None:
        """A topic changes: the next checkpoint looks at it."""
        self.changed.add(topic.id)
        self.unsealed.add(topic.id)

    def topic_dir(self, topic_id: int) -> str:
        """Where a topic's segments are."""
        return f"{self.dir}/{paths.TOPICS_DIR}/{paths.topic_dir(topic_id)}"

    def note_failure(self, what: str) -> Callable[[BaseException | None], None]:
        """For work aside whose failure costs nothing but a line in the log."""

        def done(error: BaseException | None) -> None:
            if error is not None:
                log.warning("%s: %s", what, error)

        return done

    def forward_soon(self, edge: Edge) -> None:
        """Have an edge served, after what is under way now [FWD-2]."""
        if not self.routers.held:
            self.pump.mark(edge.item)

    def wake(self, topic: Topic) -> None:
        """Somebody may wait for what was published: it is delivered after what is under way now [D-33]."""
        if self.routers.fed:
            for edge in self.routers.fed.get(topic.id, ()):
                self.forward_soon(edge)
        if topic.waiters or topic.followers:
            if topic.item is None:
                topic.item = Item(topic, self.service(topic))
            self.pump.mark(topic.item)
        if topic.claims is not None:
            topic.claims.stir()

    def tag_soon(self, topic: Topic) -> None:
        """Bring the index by tag up to date, a little in each pass: until then a question takes longer, no more."""

        def step() -> None:
            if not topic.removed and topic.index.tag_some(TAGS_AT_ONCE):
                self.owner.soon(step)

        self.owner.soon(step)

    # -- sums --------------------------------------------------------------------------------------------------------

    def needed(self) -> Iterator[tuple[str, int, int]]:
        """What of the WAL is still needed, apart from what is in flight [S-192]."""
        assert self.wal is not None
        place = self.wal.place
        for topic in self.topics.values():
            if topic.index.tail.records:
                yield from map(place, topic.index.tail.oldest_locations().values())
            yield from topic.needed
        yield from self.removing.values()
        yield from self.held


def _fail_all(topic: Topic, tickets: Sequence[Ticket], error: TopicsError) -> None:
    """What one of them does with it is no other's trouble."""
    for ticket in tickets:
        _tell(topic, ticket.fail, error)


def _tell(topic: Topic, done: Callable[[TopicsError], None], error: TopicsError) -> None:
    try:
        done(error)
    except Exception:
        log.exception("telling of a failure in topic %r", topic.name)


def _placed(group: str, done: Callable[[Lsn | TopicsError], None], outcome: ShardLsn | TopicsError) -> None:
    done(outcome if isinstance(outcome, TopicsError) else Lsn(group, *outcome))


def control_frame(body: control.Body, topic: Topic, ts: int, *, durable: bool, more: bool = False) -> bytes:
    """One control frame of a topic."""
    return frame.encode_control(body, topic.id, ts, durable=durable, more=more)


def guarded(work: Callable[[], None], done: Outcome) -> None:
    """Run work that refuses by raising; a bug in it is told as well, since somebody waits [ERR-6]."""
    try:
        work()
    except TopicsError as error:
        done(error)
    except OSError as error:
        done(WalIo(error))
    except Exception as error:
        log.exception(UNEXPECTED)
        done(unexpected(error))


def unexpected(error: Exception) -> TopicsError:
    """How a bug is told; what was done is not said."""
    told = TopicsError(UNEXPECTED_TOLD)
    told.__cause__ = error
    return told


def follows(then: Callable[[T], None], done: Outcome) -> Callable[[T], None]:
    """What the log, a disk or the clock calls to go on: guarded like the beginning was."""
    return lambda outcome: guarded(partial(then, outcome), done)


def once(done: Outcome) -> Outcome:
    """Only the first outcome counts: what is met behind an answer gives no other, and undoes nothing twice."""
    is_told = False

    def told(outcome: Any) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            done(outcome)

    return told
