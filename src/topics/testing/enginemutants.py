"""Seeded bugs in the storage engine: proof that the sweeps over it would notice (13 T5).

Each mutant replaces one step of the engine with a plausible mistake, and names the rule it breaks and the cheapest
searches that are known to find it. A search counts only if the engine without the bug passes it. Where the named ones
find nothing, because operations or configurations of a seed have changed since, many lives are tried.
"""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
from msgspec import structs

from topics.codec import control, frame
from topics.codec import segment as codec
from topics.engine import (
    checkpoint,
    cold,
    copies,
    deletes,
    leaselog,
    lifecycle,
    queue,
    reclaim,
    recover,
    rederive,
    relocate,
    retention,
    txn,
)
from topics.engine import delete as deleting
from topics.engine.checkpoint import Checkpointer
from topics.engine.cold import Cold
from topics.engine.core import Core
from topics.engine.dedupe import IdempotencyKeys, Producers
from topics.engine.delete import Removal
from topics.engine.deletes import DeleteJournal
from topics.engine.engine import Engine
from topics.engine.index import Index
from topics.engine.lease import Leases
from topics.engine.recover import Recovery
from topics.engine.rederive import RouterReplay
from topics.engine.relocate import Relocator
from topics.engine.reserve import Reservation
from topics.engine.router import Edge
from topics.engine.settle import ReadyMark
from topics.engine.share import Share
from topics.engine.topic import Topic as EngineTopic
from topics.errors import StoreUnavailable
from topics.fs import File
from topics.storage import attach as attaching
from topics.storage import cycle, staging
from topics.storage import reclaim as rewriting
from topics.storage import stamp as stamping
from topics.storage.cycle import Cycle
from topics.storage.segfile import SegmentFiles
from topics.storage.segments import TopicSegments
from topics.storage.shards import Shards
from topics.storage.snapshot import SnapshotStore
from topics.storage.tiers.folder import LocalFolderStore
from topics.storage.tiers.object import ObjectSegmentStore
from topics.storage.tiers.relocation import Following, Relocation
from topics.testing import enginedamage, sweep, tierfaults
from topics.testing.enginedamage import Damage
from topics.testing.enginemodel import Change, Event, Topic
from topics.testing.enginesubject import COLD, OPS, EngineDriver, EngineSubject, Setup, tiny
from topics.testing.mutants import Make, described, is_misfit
from topics.testing.simbucket import Kind, Request
from topics.testing.simfs import Call
from topics.testing.subject import Violation

EPOCHS = 4


class Busy(EngineDriver):
    """Has an operation more, in which somebody deletes while a checkpoint is under way.

    On one thread nothing comes between; so the disk itself makes the call, in the middle of the checkpoint.
    """

    def _op_busy_delete(self) -> None:
        """A delete while segments are written: its records were captured as live ones."""
        topic = self._there()
        if topic is not None:
            removal = Removal.parse(None, None, [topic.live.head], self._core.limits)

            def begin() -> None:
                event = Change(topic.live, seqs=topic.live.matching(seqs=[topic.live.head]))
                topic.stage(event)
                self.deletes.ask(self.session.engine, "disk", seqs=[topic.live.head])
                deleting.delete(self._core, "disk", removal, False, partial(self._settled, topic, event))

            self._checkpoint_with(begin, lambda call: call[:2] == ("point", "ckpt.after_data_sync"))

    @property
    def _core(self) -> Core:
        return self.session.engine._core

    def _there(self) -> Topic | None:
        """The topic that is written to, with records in its tail."""
        self._write("disk", 2, 30)
        return self.store.topic("disk")

    def _settled(self, topic: Topic, event: Event, outcome: object) -> None:
        if isinstance(outcome, Exception):
            raise Violation(f"{event} failed during a checkpoint, and no fault is to blame: {outcome!r}") from outcome
        topic.ack(event, durable=False)

    def _checkpoint_with(self, begin: Callable[[], None], when: Callable[[Call], bool]) -> None:
        disk, judging = self.disk, self.disk.before
        begun = False

        def before(call: Call) -> None:
            nonlocal begun
            if judging is not None:
                judging(call)
            if not begun and when(call):
                begun = True
                begin()

        disk.before = before
        try:
            self.session.engine.snapshot()
        finally:
            disk.before = judging


class Subject:
    """An engine of a chosen configuration; a seed decides the rest."""

    ops = OPS

    def __init__(self, fields: tuple[tuple[str, Any], ...], regime: str) -> None:
        config = tiny(**dict(fields))
        self._setup = Setup(config, regime, (config.wal_shards,))

    def driver(self, seed: int) -> EngineDriver:
        return Busy(self._setup, seed)

    def workload(self, rng: random.Random, length: int) -> list[str]:
        raise NotImplementedError

    def fault_workloads(self) -> Mapping[str, Any]:
        raise NotImplementedError


class Life(NamedTuple):
    """A seeded life of several crashes; survivors are judged behind every operation, or at every disk call too."""

    seed: int
    every_call: bool = False

    def run(self) -> None:
        sweep.crash_run(EngineSubject(), self.seed, EPOCHS, every_call=self.every_call)


class Ops(NamedTuple):
    """A sequence of operations; survivors are judged at every disk call of the last one."""

    seed: int
    ops: tuple[str, ...]
    fields: tuple[tuple[str, Any], ...] = ()
    regime: str = "tiny"

    def run(self) -> None:
        sweep.exhaust(Subject(self.fields, self.regime), self.seed, self.ops)


class Tier(NamedTuple):
    """A workload whose cold tier fails at one of its requests of a sort, the first unless told otherwise."""

    workload: str
    kind: Kind
    request: Request
    number: int = 0

    def run(self) -> None:
        tierfaults.run_case(tierfaults.cases_at(self.workload, self.kind, self.request)[self.number])


class AtRest(NamedTuple):
    """A store with damage in one of its files."""

    sample: str
    damage: Damage

    def run(self) -> None:
        enginedamage.check(enginedamage.sample(self.sample), self.damage)


Search = Life | Ops | Tier | AtRest


class EngineMutant(NamedTuple):
    """One bug: what it gets wrong, the function that gets it wrong, and how it is found."""

    name: str
    target: object
    attribute: str
    make: Make
    """Takes the right function and returns the wrong one."""
    searches: tuple[Search, ...]


def _nothing(right: Any) -> Any:
    return lambda *args, **kwargs: None


# -- committing ------------------------------------------------------------------------------------------------------


def _append_unsynced(right: Any) -> Any:
    def wrong(self: Core, *args: Any, durable: bool, control: bool = False) -> None:
        right(self, *args, durable=durable and control, control=control)

    return wrong


def _control_unsynced(right: Any) -> Any:
    def wrong(self: Core, *args: Any, durable: bool, control: bool = False) -> None:
        right(self, *args, durable=durable and not control, control=control)

    return wrong


def _published_when_written(right: Any) -> Any:
    """Who waits is told first, and the sync is made behind that."""

    def wrong(self: Core, topic: EngineTopic, frames: bytes | None, count: int, ticket: Any, **how: Any) -> None:
        if frames is not None and how["durable"] and not how.get("control"):
            with mock.patch.object(self, "_hand_over", functools.partial(_handed_over_early, self)):
                right(self, topic, frames, count, ticket, **how)
        else:
            right(self, topic, frames, count, ticket, **how)

    return wrong


def _handed_over_early(
    core: Core, shard: Any, frames: Any, count: int, done: Any, durable: bool, control: bool
) -> None:
    def written(outcome: Any) -> None:
        done(outcome)
        if not isinstance(outcome, Exception):
            shard.sync()

    Core._hand_over(core, shard, frames, count, written, False, control)


def _with_unsynced_submit(right: Any) -> Any:
    """What the function logs is not synced before it counts."""

    def wrong(core: Core, *args: Any, **kwargs: Any) -> None:
        def submit(topic_id: int, frames: bytes, count: int, done: Any, durable: bool, control: bool = True) -> None:
            Core.submit(core, topic_id, frames, count, done, False, control)

        with mock.patch.object(core, "submit", submit):
            right(core, *args, **kwargs)

    return wrong


def _floor_unsynced(right: Any) -> Any:
    def wrong(core: Core, topic: EngineTopic, then: Any, done: Any) -> None:
        def submit(topic_id: int, frames: bytes, count: int, done: Any, durable: bool, control: bool = True) -> None:
            Core.submit(core, topic_id, frames, count, done, False, control)

        with contextlib.ExitStack() as stack:

            def go_on() -> None:
                stack.close()
                then()

            stack.enter_context(mock.patch.object(core, "submit", submit))
            right(core, topic, go_on, done)

    return wrong


def _memory_unlogged(right: Any) -> Any:
    return lambda self, topic: right(self, topic) and topic.durability != "memory"


def _dedupe_unlinked(right: Any) -> Any:
    return lambda *args, durable, more=False: right(*args, durable=durable)


# -- checkpoints -----------------------------------------------------------------------------------------------------


def _mark_unsynced(right: Any) -> Any:
    def wrong(self: Checkpointer, *args: Any) -> None:
        core = self._core

        def submit_mark(shard: Any, frames: bytes, count: int, done: Any) -> None:
            core.submit_to(shard, frames, count, done, durable=False)

        with mock.patch.object(core, "submit_mark", submit_mark):
            right(self, *args)

    return wrong


def _floor_not_yet_durable(right: Any) -> Any:
    return lambda self, topic: topic.floor


def _dropped_before_the_mark(right: Any) -> Any:
    def wrong(self: Checkpointer, *args: Any) -> None:
        for topic in self._core.topics.values():
            topic.marked = topic.marks()
        reclaim.drop_dead(self._core)
        right(self, *args)

    return wrong


def _stub_dropped_whole(right: Any) -> Any:
    return lambda core, topic, one, *, stub: right(core, topic, one, stub=False)


def _marks_forgotten(right: Any) -> Any:
    def wrong(self: Cycle, one: Any) -> None:
        right(self, one._replace(marks=one.marks[:0]))

    return wrong


def _none_since(right: Any) -> Any:
    return lambda self: np.empty(0, np.uint64)


def _tail_dropped_too_far(right: Any) -> Any:
    return lambda self, upper: right(self, upper + 1)


# -- snapshots and trimming ------------------------------------------------------------------------------------------


def _nothing_needed(right: Any) -> Any:
    return lambda self: iter(())


def _one_file_too_many(right: Any) -> Any:
    def wrong(self: Shards, retained: Any, gone: Any) -> None:
        later = [{key: structs.replace(row, file_no=row.file_no + 1) for key, row in rows.items()} for rows in retained]
        right(self, later, gone)

    return wrong


class _WithoutDirSync:
    """A disk whose caller forgot to sync directories."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return (lambda path: None) if name == "sync_dir" else getattr(self._inner, name)


# -- the cold tier ---------------------------------------------------------------------------------------------------


def _put_unsynced(right: Any) -> Any:
    def wrong(self: LocalFolderStore, *args: Any) -> None:
        self._fs = _WithoutDirSync(self._fs)
        right(self, *args)

    return wrong


def _stub_unsynced(right: Any) -> Any:
    def wrong(self: Relocation) -> None:
        files = self.files
        self.files = SegmentFiles(_WithoutDirSync(files.fs), files.dir, files.topic_id)
        right(self)
        self.files = files

    return wrong


def _cold_marks_forgotten(right: Any) -> Any:
    def wrong(self: Cycle, one: Any) -> None:
        right(self, one._replace(entries=None, marks=one.marks[:0]) if one.cold else one)

    return wrong


def _object_deleted_early(right: Any) -> Any:
    def wrong(root: Any, store_id: str, topic_id: int, id: Any, data_len: int) -> bytes:
        data: bytes = right(root, store_id, topic_id, id, data_len)
        root.topic(topic_id).delete(id)
        return data

    return wrong


def _unheeded(right: Any) -> Any:
    """What the tier does not take counts as taken."""

    def wrong(self: Any) -> None:
        with contextlib.suppress(StoreUnavailable):
            right(self)

    return wrong


def _stopped_by_a_failure(right: Any) -> Any:
    def wrong(self: Relocator, key: Any, error: BaseException | None) -> None:
        if error is None:
            right(self, key, error)

    return wrong


def _drop_forgotten(right: Any) -> Any:
    def wrong(self: Relocator, drop: Any, done: Any) -> None:
        def over(error: BaseException | None) -> None:
            self._core.cold.drops.pop(drop.key, None)
            done(error)

        right(self, drop, over)

    return wrong


def _clear_forgotten(right: Any) -> Any:
    def wrong(self: Relocator, topic_id: int, done: Any) -> None:
        def over(error: BaseException | None) -> None:
            self._core.cold.clears.pop(topic_id, None)
            done(error)

        right(self, topic_id, over)

    return wrong


def _unanswered_is_absent(right: Any) -> Any:
    def wrong(self: Any) -> None:
        try:
            right(self)
        except StoreUnavailable:
            self.absent = True

    return wrong


def _claimed_once(right: Any) -> Any:
    def wrong(self: Cold) -> None:
        self.is_unclaimed = False
        right(self)

    return wrong


def _claimed_anyway(right: Any) -> Any:
    return lambda self, *, has_cold: right(self, has_cold=False)


def _unread_left_out(right: Any) -> Any:
    def wrong(data: bytes, rows: Any, old: Any, first: int) -> Any:
        old, place = old.copy(), np.full(len(old), -1, np.int64)
        place[(rows["seq"] - np.uint64(first)).astype(np.int64)] = rows["offset"]
        old["flags"][(old["len"] != 0) & (place != old["offset"])] |= np.uint8(codec.DELETED)
        return right(data, rows, old, first)

    return wrong


class _Unheard(Exception):
    """No tier raises it."""


def _snapshot_name_unsynced(right: Any) -> Any:
    def wrong(self: SnapshotStore, number: int, raw: bytes) -> None:
        fs, self._fs = self._fs, _WithoutDirSync(self._fs)
        try:
            right(self, number, raw)
        finally:
            self._fs = fs

    return wrong


# -- recovery --------------------------------------------------------------------------------------------------------


def _bound_ignored(right: Any) -> Any:
    def wrong(self: Recovery, topic: EngineTopic, body: Any, at: Any) -> None:
        right(self, topic, structs.replace(body, bound=2**64 - 1) if isinstance(body, control.Delete) else body, at)

    return wrong


def _believed(right: Any) -> Any:
    def wrong(self: TopicSegments, segment: Any) -> Any:
        row = right(self, segment)
        return structs.replace(row, idx_xxh3=segment.idx_xxh3) if segment.sealed else row

    return wrong


def _place_forgotten(right: Any) -> Any:
    return lambda self, entry, at: right(self, entry, None)


def _unpinned(right: Any) -> Any:
    def wrong(self: EngineTopic, entry: Any, *at: Any) -> Any:
        return right(self, structs.replace(entry, cap_floor=1, ttl_floor=1), *at)

    return wrong


def _always_crashed(right: Any) -> Any:
    def wrong(self: Recovery, known: Any) -> Any:
        with mock.patch.object(self, "_assume_crash", True):
            return right(self, known)

    return wrong


def _gap_unlogged(right: Any) -> Any:
    def wrong(self: ReadyMark, one: Any) -> None:
        self._decided.remove(one)
        self._one_done(None)

    return wrong


def _ready_unlogged(right: Any) -> Any:
    def wrong(self: ReadyMark, error: Any) -> None:
        assert self._core.wal is not None
        shard = self._core.wal.shards[0]

        def submit(raw: bytes, count: int, done: Any, **how: Any) -> None:
            self._core.owner.soon(lambda: done(shard.done_pos()))

        with mock.patch.object(shard, "submit", submit):
            right(self, error)

    return wrong


def _ids_reused(right: Any) -> Any:
    def wrong(self: Recovery) -> None:
        right(self)
        self._core.next_topic_id = max(self._core.topics, default=0) + 1

    return wrong


def _run_reused(right: Any) -> Any:
    def wrong(self: Engine, found: Any) -> Shards:
        self._core.run = max(self._core.run - 1, 1)
        shards: Shards = right(self, found)
        return shards

    return wrong


def _caps_not_enforced(right: Any) -> Any:
    def wrong(self: Recovery, topic: EngineTopic) -> None:
        with mock.patch.object(retention, "enforce_caps"):
            right(self, topic)

    return wrong


def _clock_forgotten(right: Any) -> Any:
    def wrong(self: Recovery, topic: EngineTopic) -> None:
        right(self, topic)
        topic.last_ts = 0

    return wrong


def _volatile_untouched(right: Any) -> Any:
    return lambda self, topic: None if topic.durability == "ephemeral" else right(self, topic)


# -- topics and segments ---------------------------------------------------------------------------------------------


def _files_first(right: Any) -> Any:
    def wrong(core: Core, name: str, done: Any) -> None:
        topic = core.names.get(name)
        if topic is not None and name not in core.gates:
            lifecycle.remove_files(core, topic.id)
        right(core, name, done)

    return wrong


def _live_record_dropped(right: Any) -> Any:
    def wrong(data: bytes, rows: Any, old: Any, first: int) -> Any:
        old = old.copy()
        live = np.flatnonzero((old["len"] != 0) & (old["flags"] & codec.DELETED == 0))
        old["flags"][live[-1:]] |= np.uint8(codec.DELETED)
        return right(data, rows, old, first)

    return wrong


def _old_data_first(right: Any) -> Any:
    def wrong(self: rewriting.Rewrite) -> None:
        self.files.remove(self.files.path(self.segment.first, "data", self.segment.generation))
        right(self)

    return wrong


def _never_durable(right: Any) -> Any:
    return lambda self, path, raw, durable: right(self, path, raw, False)


def _never(right: Any) -> Any:
    return lambda *args: False


def _lease_unsynced(right: Any) -> Any:
    def commit(self: leaselog.Events, then: Callable[[], None]) -> None:
        with mock.patch.object(self._core, "submit", partial(_unsynced, self._core.submit)):
            right(self, then)

    return commit


def _unsynced(submit: Any, topic_id: int, frames: bytes, count: int, done: Any, durable: bool) -> None:
    submit(topic_id, frames, count, done, durable=False)


def _leases_forgotten(right: Any) -> Any:
    return lambda state: Leases()


def _not_removed(right: Any) -> Any:
    return lambda core, topic, seqs, kind, then, fail: then()


def _held_too(right: Any) -> Any:
    def choose(self: Leases, count: int, look: Any) -> list[int]:
        return right(self, count, look) or sorted(self.held)[:count]

    return choose


# -- routers ---------------------------------------------------------------------------------------------------------


def _no_positions(right: Any) -> Any:
    return lambda self, jobs: {}


def _not_selected(right: Any) -> Any:
    """Copies in memory are no reason to write a topic."""
    return property(lambda self: False)


def _marks_not_replayed(right: Any) -> Any:
    def wrong(self: RouterReplay, body: Any, run: int) -> None:
        if not isinstance(body, control.RouterMark):
            right(self, body, run)

    return wrong


def _from_the_beginning(right: Any) -> Any:
    def wrong(self: RouterReplay, body: Any, run: int) -> None:
        if isinstance(body, control.RouterCreate) and body.new:
            body = structs.replace(body, cursor=0)
        right(self, body, run)

    return wrong


def _defined_at_once(right: Any) -> Any:
    return lambda core, edge, done: done(None)


# -- the journal of deletes --------------------------------------------------------------------------------------------


def _nothing_pending(right: Any) -> Any:
    return lambda self: ()


def _told_at_once(right: Any) -> Any:
    def wrong(self: DeleteJournal, row: Any, at: Any) -> None:
        right(self, row, None)
        self._core.owner.soon(self.flush)

    return wrong


def _recorded_too_far(right: Any) -> Any:
    return lambda self, topic_id, number: right(self, topic_id, number + 1)


def _acks_numbered(right: Any) -> Any:
    def wrong(core: Core, topic: EngineTopic, body: control.Delete, then: Any, done: Any) -> None:
        if body.delete_number is None:
            topic.delete_number_staged = topic.next_delete_number
            body = structs.replace(body, delete_number=topic.delete_number_staged)
        right(core, topic, body, then, done)

    return wrong


def _bound_untold(right: Any) -> Any:
    return lambda row: {**right(row), "bound": (row.bound or 0) + 1} if not row.drop else right(row)


# -- attaching -------------------------------------------------------------------------------------------------------


def _stamped_unsynced(right: Any) -> Any:
    def wrong(self: stamping._Segment) -> Any:
        with mock.patch.object(self, "_file", _Unsynced(self._file)):
            return right(self)

    return wrong


class _Unsynced:
    """A file whose sync does nothing."""

    def __init__(self, file: File) -> None:
        self._file = file

    def fsync(self) -> None:
        return None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def _names_unsure(right: Any) -> Any:
    return lambda fs, staged_dir, stamped: right(_WithoutDirSync(fs), staged_dir, stamped)


def _not_reached(right: Any) -> Any:
    return lambda ckpt_seq, claim, marks: (ckpt_seq, claim)


# -- staged commits ----------------------------------------------------------------------------------------------------


def _unchained(right: Any) -> Any:
    return lambda self, now, *, more: right(self, now, more=False)


def _version_not_replayed(right: Any) -> Any:
    return lambda self, id, body, ts: right(self, id, body, ts) if id else None


def _no_versions(right: Any) -> Any:
    return lambda self: iter(())


def _zero_first(right: Any) -> Any:
    def wrong(self: txn._Committing, shards: Any) -> Any:
        *others, zero = right(self, shards)
        return [zero, *others] if zero[1] else [*others, zero]

    return wrong


def _never_there(right: Any) -> Any:
    return lambda self, topic: False


def _parts_by_name(right: Any) -> Any:
    return lambda parts: right(sorted(parts, key=lambda part: part.name))


def _pairs_not_replayed(right: Any) -> Any:
    return lambda self, id, body, ts: right(self, id, body, ts) if not id else None


def _ops(ops: str, seed: int, regime: str = "tiny", **fields: Any) -> Ops:
    return Ops(seed, tuple(ops.split()), tuple(sorted(fields.items())), regime)


def _bug(name: str, target: object, attribute: str, make: Make, *searches: Search) -> EngineMutant:
    return EngineMutant(f"engine: {name}", target, attribute, make, searches)


_COMMITS = tuple(_ops("commit commit", seed, wal_shards=3) for seed in (6, 2, 7, 8, 9))
"""Which topics a seed chooses, and how they are spread, differs."""
_DROPS = _ops("append_capped snapshot append_capped snapshot", 7, segment_max_events=1, checkpoint_records=1)

_COLD: dict[str, Any] = {"cold_dir": COLD, "hot_retain_segments": 0, "segment_max_events": 3}

# fmt: off
MUTANTS: tuple[EngineMutant, ...] = (
    _bug("hot data goes before its copy is in the cold tier [S-311]",
         Relocation, "copy", _nothing, _ops("relocate", 0, **_COLD)),
    _bug("names in the cold tier are not synced [S-300]",
         LocalFolderStore, "put", _put_unsynced, _ops("relocate", 0, **_COLD)),
    _bug("hot data goes although the stub is not on disk [S-316]",
         Relocation, "settle", _stub_unsynced, _ops("append_many snapshot append_fsync snapshot tick", 0, **_COLD)),
    _bug("a stub is replaced without its marks [S-315]",
         Cycle, "_replace_sealed", _cold_marks_forgotten,
         _ops("relocate relocate", 0, **_COLD), _ops("relocate relocate", 1, **_COLD)),
    _bug("an object is deleted before the one that takes its place is there [S-285]",
         relocate, "fetch_data", _object_deleted_early,
         _ops("move", 0, **_COLD)),
    _bug("the relocator stops for good at a job that failed [S-312]",
         Relocator, "_over", _stopped_by_a_failure, Tier("moves", "once", "put", 12)),
    _bug("hot data goes although its upload was not confirmed [S-311]",
         Relocation, "copy", _unheeded, Tier("moves", "once", "put", 1)),
    _bug("objects that the tier did not delete are forgotten [S-318]",
         Relocator, "_drop", _drop_forgotten, Tier("caps", "once", "delete")),
    _bug("a deleted topic whose objects the tier did not delete is forgotten [S-276]",
         Relocator, "_clear", _clear_forgotten, Tier("ends", "once", "delete")),
    _bug("deletes that did not reach the tier count as there [S-315]",
         Following, "run", _unheeded, Tier("deletes", "once", "put", -1)),
    _bug("what the tier does not answer is told as lost [S-317]",
         cold._Fetch, "run", _unanswered_is_absent, *(Tier("retained", "once", "read", n) for n in (7, 16))),
    _bug("a tier that was away is never asked again [S-323]",
         cold, "SKIP_NS", lambda right: 1 << 62, Tier("retained", "away", "read", -1)),
    _bug("a tier that denies deletes is taken for one that fails [S-318]",
         relocate, "StoreDenied", lambda right: _Unheard, Tier("caps", "denied", "delete")),
    _bug("a tier that could not be claimed is not claimed later [S-14]",
         Cold, "claim_now", _claimed_once, Tier("retained", "once", "put")),
    _bug("a tier that has lost its store id is claimed again [S-14]",
         Cold, "claim", _claimed_anyway, AtRest("tiered", Damage("cold/.topics-store", "missing"))),
    _bug("a rewrite leaves out what it cannot read in the tier [S-281]",
         rewriting, "_without_deleted", _unread_left_out,
         AtRest("tiered", Damage("cold/topics/00000001/seg-0000000000000004.data", "flip", 120))),
    _bug("halves of uploads are not swept [S-275]",
         ObjectSegmentStore, "halves", lambda right: lambda self: [], Tier("prefixes", "once", "put", 2)),
    _bug("copies of segments that died before they had moved are not swept [S-275]",
         Relocator, "_is_dead", lambda right: lambda self, topic, id: False, Tier("rewrites", "unheard", "put", 6)),
    _bug("an fsync append does not wait for its sync [DUR-3]",
         Core, "stage", _append_unsynced, _ops("append_fsync", 2)),
    _bug("an append is answered before its sync [S-107]",
         Core, "stage", _published_when_written, _ops("append_fsync failed_sync", 2)),
    _bug("a delete, a configuration and the end of a topic do not wait for their sync [DUR-9]",
         Core, "stage", _control_unsynced, _ops("append_fsync delete_all", 1)),
    _bug("a creation does not wait for its sync [NAME-8]",
         lifecycle, "create", _with_unsynced_submit, _ops("append_memory", 0)),
    _bug("a TTL floor does not wait for its sync [DUR-12]",
         retention, "expire", _floor_unsynced, _ops("append_ttl expire", 3)),
    _bug("a write to a memory topic is not logged [S-102]",
         Core, "is_logged", _memory_unlogged, _ops("append_memory kill_reopen", 0)),
    _bug("the Dedupe frame is not linked to its records [A-3]",
         frame, "encode_appends", _dedupe_unlinked, _ops("append_many append_keyed", 49, "sector")),
    _bug("a mark is not synced [S-190]",
         Checkpointer, "_mark", _mark_unsynced, _DROPS),
    _bug("data is not synced before the mark [S-190]",
         Cycle, "_sync_active", _nothing, _ops("append_batch checkpoint", 0)),
    _bug("names of segment files are not synced before the mark [S-190]",
         SegmentFiles, "sync_dir", _nothing, _ops("append_batch checkpoint", 0)),
    _bug("leading entries are skipped by floors that no mark has [S-133]",
         Checkpointer, "_durable_floor", _floor_not_yet_durable,
         _ops("append_disk crash_reopen append_disk delete_all snapshot", 1)),
    _bug("a segment is dropped before the mark explains it [S-277]",
         Checkpointer, "_mark", _dropped_before_the_mark, _DROPS),
    _bug("a dead segment in mid-log loses its .idx too [S-274]",
         reclaim, "_unlink", _stub_dropped_whole, _ops("rewrite tick", 5)),
    _bug("delete bytes are not written [S-120]",
         cycle, "_write_delete_bytes", _nothing, _ops("append_batch checkpoint delete_tag checkpoint", 0)),
    _bug("a sealed .idx is replaced without its marks [S-158]",
         Cycle, "_replace_sealed", _marks_forgotten,
         _ops("append_batch checkpoint delete_seqs checkpoint append_fsync", 1, segment_max_events=3)),
    _bug("a delete during a checkpoint is forgotten [S-158]",
         checkpoint._Job, "_deleted_since", _none_since, _ops("append_disk busy_delete kill_reopen", 0)),
    _bug("the tail is dropped one seq too far [S-192]",
         Index, "checkpointed", _tail_dropped_too_far, _ops("append_disk checkpoint append_disk", 0)),
    _bug("what tails need does not hold the replay position back [S-192]",
         Core, "needed", _nothing_needed, _ops("append_disk snapshot append_disk", 0)),
    _bug("trimming takes one file too many [S-89]",
         Shards, "trim", _one_file_too_many,
         _ops("append_disk snapshot append_huge append_huge snapshot append_fsync", 0, wal_retain_files=9)),
    _bug("the name of a snapshot is not synced [S-213]",
         SnapshotStore, "write", _snapshot_name_unsynced, _ops("append_fsync checkpoint", 3)),
    _bug("Dedupe frames are not replayed [S-219]",
         Recovery, "_dedupe", _nothing, _ops("append_keyed", 2)),
    _bug("keys of a snapshot are not taken back [S-219]",
         IdempotencyKeys, "restore", _nothing, _ops("append_keyed checkpoint append_fsync", 0)),
    _bug("producers of a snapshot are not taken back [S-219]",
         Producers, "restore", _nothing, _ops("append_producer checkpoint append_fsync", 1)),
    _bug("a Delete is replayed without its bound [DEL-5]",
         Recovery, "_apply", _bound_ignored, _ops("append_fsync delete_all append_fsync", 0)),
    _bug("a snapshot's counts are believed where they have deletes that are not on disk [S-158]",
         TopicSegments, "_row", _believed, _ops("append_disk checkpoint delete_seqs failed_sync", 0,
                                                segment_max_events=1)),
    _bug("the place of a Delete is not needed any more [S-192]",
         EngineTopic, "_delete", _place_forgotten, _ops("append_disk checkpoint delete_seqs snapshot append_fsync", 0)),
    _bug("a configuration does not pin the floors [INV-8]",
         EngineTopic, "_configure", _unpinned, _ops("append_capped append_capped configure", 7)),
    _bug("a Delete does not pin the floors [INV-8]",
         EngineTopic, "_delete", _unpinned, _ops("append_capped append_capped delete_seqs", 7)),
    _bug("a seq is acknowledged above the ceiling [A-2]",
         Reservation, "covers", lambda right: lambda self, last: True, _ops("append_fsync failed_sync", 6)),
    _bug("an open reservation is ignored after a crash [S-245]",
         Recovery, "_open_reservation", lambda right: lambda self, known: 0,
         _ops("append_disk append_disk crash_reopen", 3)),
    _bug("a reservation is counted after a mere kill [A-16]",
         Recovery, "_open_reservation", _always_crashed, _ops("append_disk kill_reopen", 1)),
    _bug("an idle topic keeps its reservation [A-2]",
         lifecycle, "give_back", _nothing, _ops("append_disk idle", 1)),
    _bug("a decided gap is not logged [S-245]",
         ReadyMark, "_log_gap", _gap_unlogged, _ops("append_disk", 1)),
    _bug("the ready mark is not logged [S-245]",
         ReadyMark, "_one_done", _ready_unlogged, _ops("append_disk append_disk crash_reopen", 3)),
    _bug("a failed sync is not noted in the lock file [S-78]",
         Engine, "_note_latched", _nothing, _ops("append_disk append_disk failed_sync kill_reopen", 2)),
    _bug("the tail of the log is not mended [S-88]",
         recover, "mend", _nothing, _ops("append_disk append_disk append_disk", 4, "sector")),
    _bug("caps are not enforced after replay [S-260]",
         Recovery, "_settle", _caps_not_enforced, _ops("append_capped append_capped", 2)),
    _bug("a cap floor that records in memory have raised is not logged [DUR-12]",
         retention, "_must_log_caps", _never, _ops("append_ephemeral configure append_disk", 13)),
    _bug("the last ts is not known after a restart [REC-10]",
         Recovery, "_settle", _clock_forgotten, _ops("append_disk jump_back kill_reopen append_disk", 0)),
    _bug("the head of an ephemeral topic is not marked [DUR-7]",
         Core, "touch", _volatile_untouched,
         _ops("append_ephemeral close_reopen close_reopen append_ephemeral close_reopen append_fsync", 0)),
    _bug("topic ids are used again after a restart [S-276]",
         Recovery, "run", _ids_reused, _ops("churn churn kill_reopen churn append_fsync", 0)),
    _bug("a run number is used again [S-245]",
         Engine, "_shards", _run_reused, _ops("append_disk close_reopen append_disk append_disk crash_reopen", 0)),
    _bug("a TopicDelete is not replayed [NAME-9]",
         Recovery, "_delete_topic", _nothing, _ops("churn churn", 0)),
    _bug("the directory goes before the TopicDelete is synced [S-276]",
         lifecycle, "delete", _files_first, _ops("churn checkpoint churn", 3)),
    _bug("holes below a prefix delete are dropped with their segment [S-125]",
         reclaim, "_has_holes", _never,
         _ops("append_disk crash_reopen append_disk checkpoint delete_all tick", 0, segment_max_events=1)),
    _bug("lease events are not replayed [QRC-3]",
         Recovery, "_lease", _nothing, _ops("claim", 0), _ops("claim claim claim ack", 0)),
    _bug("lease events are not synced [QRC-3]",
         leaselog.Events, "commit", _lease_unsynced, _ops("claim", 0), _ops("claim claim claim ack", 0)),
    _bug("a snapshot forgets leases [QRC-3]",
         Leases, "restored", _leases_forgotten, _ops("claim snapshot", 0), _ops("claim claim snapshot", 1)),
    _bug("an ack leaves the record where it is [ACK-2]",
         queue, "remove_jobs", _not_removed, _ops("ack", 0), _ops("claim ack ack", 1)),
    _bug("a job is handed out to a second worker [LSE-5]",
         Leases, "choose", _held_too, _ops("claim claim", 0), _ops("claim claim claim", 1)),
    _bug("a rewrite drops a live record [S-281]",
         rewriting, "_without_deleted", _live_record_dropped, _ops("rewrite append_fsync", 0)),
    _bug("a rewrite unlinks the old data before the .idx is switched [S-281]",
         rewriting.Rewrite, "finish", _old_data_first, _ops("rewrite", 0)),
    _bug("a checkpoint keeps copies and not the positions behind them [RRC-2]",
         Checkpointer, "_rows_of", _no_positions, _ops("route append_source checkpoint append_source", 0)),
    _bug("copies in memory are not selected by a checkpoint [S-212]",
         Edge, "has_pending", _not_selected, _ops("route append_source tick append_source", 0)),
    _bug("positions in the log are not replayed [S-212]",
         RouterReplay, "add", _marks_not_replayed, _ops("route append_source append_mixed append_source", 0)),
    _bug("a direct write leaves the copies before it behind [S-212]",
         Edge, "carry", _nothing, _ops("route append_source append_mixed append_source", 0)),
    _bug("a router begins anew with its source after a restart [RRC-4]",
         RouterReplay, "_apply", _from_the_beginning, _ops("append_source route", 0)),
    _bug("another definition overtakes the copies of the one before it [RTR-8]",
         copies, "log_durably", _defined_at_once,
         *(_ops("route append_source append_source reroute append_source", seed) for seed in range(4))),
    _bug("deleted copies are derived again [RRC-7]",
         rederive, "_delete_again", _nothing,
         *(_ops("route append_source append_source fade append_source delete_copies", seed) for seed in (7, 11, 37))),
    _bug("a restart derives no copies [RRC-1]",
         rederive, "_until_nothing_moves", _nothing,
         *(_ops("route append_source append_source delete_copies", seed) for seed in (0, 1))),
    _bug("a snapshot forgets deletes that are not told [A-20]",
         DeleteJournal, "pending", _nothing_pending, _ops("append_batch delete_before checkpoint append_fsync", 0)),
    _bug("deletes of a snapshot are not told after a restart [A-20]",
         DeleteJournal, "restore", _nothing, _ops("append_batch delete_before checkpoint append_fsync", 0)),
    _bug("deletes of the log are not told after a restart [A-20]",
         DeleteJournal, "replay", _nothing, _ops("append_batch delete_before append_fsync", 0)),
    _bug("the end of a topic is not told after a restart [A-20]",
         DeleteJournal, "replay_drop", _nothing, _ops("churn churn append_fsync", 0)),
    _bug("a delete is told before it is synced [A-20]",
         DeleteJournal, "_note", _told_at_once,
         _ops("append_disk checkpoint delete_all append_fsync", 0, wal_shards=3)),
    _bug("a topic takes one delete more for told than there was [A-20]",
         DeleteJournal, "_recorded", _recorded_too_far, _ops("append_batch delete_seqs tick snapshot delete_all", 2)),
    _bug("acks are told as deletes [A-20]",
         deleting, "_log", _acks_numbered, _ops("append_jobs claim ack tick append_fsync", 0)),
    _bug("a delete is told with another bound [A-20]",
         deletes, "_said", _bound_untold, _ops("append_batch delete_before append_fsync", 0)),
    _bug("the topics of a commit are submissions of their own [S-287]",
         Share, "chain", _unchained, _ops("commit", 1), _ops("commit", 2)),
    _bug("committed versions of the log are forgotten by a restart [A-19]",
         Recovery, "_dedupe", _version_not_replayed, _ops("commit", 0), _ops("commit", 1)),
    _bug("a snapshot forgets committed versions [S-287]",
         Producers, "writers", _no_versions,
         *(_ops("commit checkpoint append_fsync checkpoint append_fsync", seed) for seed in (1, 2))),
    _bug("the group of shard 0 goes first [TXN-6]",
         txn._Committing, "_by_group", _zero_first, *_COMMITS),
    _bug("a commit that was cut between groups is repeated in all of them [TXN-6]",
         txn._Committing, "_is_there", _never_there, *_COMMITS),
    _bug("pairs of topics are forgotten by a restart [A-19]",
         Recovery, "_dedupe", _pairs_not_replayed, *_COMMITS),
    _bug("parts are committed in another order than they are named [TXN-6]",
         staging, "rows", _parts_by_name, *(_ops("commit", seed) for seed in (1, 2, 3))),
    _bug("a rewritten file is renamed before it is synced [S-281]",
         SegmentFiles, "_replace", _never_durable, _ops("append_batch checkpoint", 0)),
    _bug("an attach mark does not wait for the records of its segments to be synced [S-288]",
         stamping._Segment, "seal", _stamped_unsynced, _ops("attach", 0), _ops("attach", 1)),
    _bug("an attach mark does not wait for the names of its segments to be durable [S-288]",
         attaching, "arrange", _names_unsure, _ops("attach", 0), _ops("attach", 1)),
    _bug("a start leaves the segments of an attach mark in staging [S-289]",
         attaching, "finish", _nothing, _ops("attach", 0), _ops("attach", 1)),
    _bug("an attach mark does not move the end of its topic [S-240]",
         attaching, "reached", _not_reached, _ops("attach", 0), _ops("attach append_fsync", 1)),
    _bug("the pair of an attach mark is not replayed [A-19]",
         Recovery, "_attached", _nothing, *(_ops("attach", seed, wal_shards=3) for seed in range(4))),
)
# fmt: on


@functools.cache
def sound(search: Search) -> bool:
    """Whether the engine without a bug passes."""
    try:
        search.run()
    except Violation:
        return False
    return True


def hunt(mutant: EngineMutant, seeds: Sequence[int]) -> str | None:
    """What the searches find with the bug in place, or `None` if it survives them."""
    for search in (*mutant.searches, *map(Life, seeds)):
        found = _found(mutant, search)
        if found is not None and sound(search):
            return f"{search}: {found}"
    return None


def _found(mutant: EngineMutant, search: Search) -> str | None:
    try:
        with mock.patch.object(mutant.target, mutant.attribute, mutant.make(getattr(mutant.target, mutant.attribute))):
            search.run()
    except Exception as error:  # noqa: BLE001 - a bug may surface as any error; that is being caught too
        return None if is_misfit(error) else described(error)
    return None
