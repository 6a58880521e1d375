"""Opening a store: snapshot, segments, then the log replayed through `Topic.apply` (06 §14 steps 5 to 13).

    register   topics of the snapshot, each with its segments as the newest mark claims them
    routers    definitions and positions that the snapshot and the log have; their copies come later (`rederive`)
    replay     files in order of run, group and number; a topic's frames are in one group per run
    repair     what segments miss is refilled from the log, or becomes damage that readers are told of [S-250]
    settle     reservations, heads, caps; gaps that were decided are logged once, then the `ready` mark [S-245]

Everything up to `settle` may be repeated: it changes nothing that a second recovery would see otherwise [S-249]. One
thread, before the engine is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from topics import paths
from topics.codec import control, frame
from topics.codec.place import topic_mask
from topics.codec.segment import LOST, GapSegment, fillers, reframe
from topics.codec.snapshot import COLD, SEALED, SegmentRow, TopicItem
from topics.engine import lifecycle, retention
from topics.engine.core import Core
from topics.engine.index import Index, Run
from topics.engine.lease import Leases
from topics.engine.rederive import RouterReplay
from topics.engine.router import Edge
from topics.engine.topic import Appended, Attached, Lsn, Topic
from topics.errors import WalCorrupt
from topics.fs import ensure_dir
from topics.model import DELETES, Producer, TopicConfig
from topics.storage import attach
from topics.storage import group as groups
from topics.storage.cycle import Cycle
from topics.storage.descriptor import Claim
from topics.storage.discover import Found, FoundFile
from topics.storage.rebuild import NO_CLAIM, Opened, open_segments
from topics.storage.reindex import Range, live_of
from topics.storage.tail import NOWHERE, Entries, Tail, entries_of_rows
from topics.storage.tiers.relocation import LostParts
from topics.storage.walread import Place

log = logging.getLogger("topics.engine")

DAMAGE, CRASH, SILENT = 2, 3, 0
RUN_ROWS = 16_384
"""Records replayed at once: about a millisecond."""


class Decided(NamedTuple):
    """A gap that this recovery decided and that has to be logged."""

    topic: Topic
    first: int
    last: int
    reason: int


class _Found:
    """What replay learns about one topic besides its state."""

    def __init__(self) -> None:
        self.head = 0
        """Highest seq that anything logged speaks of [S-242]."""
        self.reserved: tuple[int, str | None, int] = (0, None, 0)
        """Run, group and ceiling of the last HeadWatermark."""
        self.missing: list[Range] = []
        self.lost: list[int] = []
        self.refill: dict[int, Place] = {}
        self.deletes: list[tuple[control.Delete, Lsn]] = []
        self.logged = 0
        """Highest seq that segments or frames hold, whatever floors say of it."""


class Recovery:
    """One recovery of one store."""

    def __init__(
        self,
        core: Core,
        found: Found,
        *,
        assume_crash: bool,
        salvage: bool,
        progress: Callable[[float], None],
    ) -> None:
        self.decided: list[Decided] = []
        self.deletes: dict[int, list[tuple[control.Delete, Lsn]]] = {}
        """Of routers' destinations, by topic: to be applied once more to what is derived again [RRC-7]."""
        self.checkpoint = max(
            found.snapshot.header.ckpt if found.snapshot is not None else 0,
            *(mark.checkpoint for mark in found.marks.values()),
            0,
        )
        self.unborn: list[Topic] = []
        """Topics that nobody was told of and whose name another one has: their deletion is to be logged."""
        self.skipped: dict[int, int] = {}
        """Frames of topics whose creation was lost, by topic; only salvage goes on then [S-66]."""
        self.revived = 0
        self._core = core
        self._found = found
        self._assume_crash = assume_crash
        self._salvage = salvage
        self._progress = progress
        self._known: dict[int, _Found] = {}
        self._claims: dict[int, Claim] = {}
        self._deleted: set[int] = set()
        self._below_next = found.snapshot.header.next_topic_id if found.snapshot is not None else 1
        self._done_bytes = 0
        self._last_ready = max(found.ready, default=0)
        self.routers = RouterReplay(found.snapshot)
        self._lost = LostParts(core.cold.root, core.store_id, core.cold.ask)

    # -- steps 5 to 8 ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Bring the engine's state up to what the store holds; `decided` is then to be logged."""
        core = self._core
        snapshot = self._found.snapshot
        if snapshot is not None:
            header = snapshot.header
            core.next_topic_id, core.next_epoch = header.next_topic_id, header.next_epoch
            core.producers.restore(0, [(row.id, row.version, 0, 0, 0, row.ts) for row in header.commits])
            for item in snapshot.topics:
                self._register(item)
            core.deletes.restore(header.pending_deletes)
        for one in self._found.files:
            self._replay(one)
        core.fs.point("recovery.mid_replay")
        self._progress(1.0)
        self.routers.resolve(core)
        for topic in list(core.topics.values()):
            self._repair(topic)
            self._settle(topic)
        for _, topic in sorted(core.topics.items()):
            self._bind(topic)
        self.deletes = {id: known.deletes for id, known in self._known.items() if id in core.routers.feeding}
        core.producers.sweep(core.clock.now_ms())

    def _bind(self, topic: Topic) -> None:
        """Bind a name. A creation that failed may be in the log all the same: the one that succeeded came later."""
        names = self._core.names
        older = names.get(topic.name)
        names[topic.name] = topic
        if older is not None:
            self.unborn.append(older)
            self._delete_topic(older.id)

    def _register(self, item: TopicItem) -> None:
        core = self._core
        config, extra = TopicConfig.from_stored(item.cfg)
        known = self._known[item.id] = _Found()
        known.head = item.head_seq
        header = self._found.snapshot.header if self._found.snapshot is not None else None
        assert header is not None
        known.reserved = (header.run, None, item.reserved)
        floors = (item.cap_floor, item.ttl_floor, item.delete_below)
        index, floors = self._open(item.id, config, item.ckpt_seq, item.segments, floors, item.base)
        topic = Topic(item.id, item.name, item.epoch, config, index, core.totals, base=item.base)
        topic.extra, topic.config_version = extra, item.config_version
        topic.version_staged = item.config_version
        topic.delete_number = topic.delete_number_staged = item.delete_number
        topic.deletes_recorded = item.deletes_recorded
        self._adopt(topic, floors)
        if topic.durability == "ephemeral":
            topic.last_ts = max(topic.last_ts, item.last_write_ms)  # no record is left that could tell [S-104]
        if item.name == DELETES:
            core.deletes.known_through = item.head_seq
        if item.queue is not None:
            topic.leases = Leases.restored(item.queue)
        core.keys.restore(item.id, [(row.key, row.first, row.count, row.ts) for row in item.keys])
        rows = [(row.id, row.epoch, row.index, row.first, row.count, row.ts) for row in item.producers]
        core.producers.restore(item.id, rows)

    def _adopt(self, topic: Topic, floors: tuple[int, int, int]) -> None:
        core = self._core
        topic.recovering = True
        topic.raise_floors(*floors)
        topic.marked = (self._known[topic.id].head, *floors)
        topic.claim = self._claims[topic.id]
        topic.last_ts = topic.index.last_ts()
        topic.next_seq = topic.index.tail.first
        topic.head = topic.next_seq - 1
        core.topics[topic.id] = topic
        core.next_topic_id = max(core.next_topic_id, topic.id + 1)
        core.next_epoch = max(core.next_epoch, topic.epoch + 1)

    def _open(
        self,
        id: int,
        config: TopicConfig,
        ck: int,
        rows: tuple[SegmentRow, ...],
        floors: tuple[int, int, int],
        base: int,
    ) -> tuple[Index, tuple[int, int, int]]:
        """A topic's segments as the newest snapshot or mark claims them (step 5)."""
        core = self._core
        claim = NO_CLAIM
        for row in rows:
            if not row.flags & SEALED:
                claim = Claim(row.first, row.data_len, row.count, row.idx_xxh3)
        mark = self._found.marks.get(id)
        if mark is not None:
            said = mark.row
            known = self._found.snapshot.header.ckpt if self._found.snapshot is not None else 0
            if mark.checkpoint > known or not rows:
                ck = said.ckpt_seq
                claim = Claim(said.active_first, said.active_data_len, said.active_entries, said.active_idx_xxh3)
            floors = (
                max(floors[0], said.cap_floor),
                max(floors[1], said.ttl_floor),
                max(floors[2], said.delete_below),
            )
            self._known[id].head = max(self._known[id].head, said.head_seq)
        attached = self._found.attached.get(id) if id not in self._found.deleted else None
        if attached:
            staging = f"{core.dir}/{paths.STAGING_DIR}"
            attach.finish(core.fs, staging, core.topic_dir(id), attached)
            ck, claim = attach.reached(ck, claim, attached)
            self._known[id].head = max(self._known[id].head, ck)
        self._claims[id] = claim
        self._known[id].logged = ck
        floor = max(*floors, base)
        # Not the prefix delete: holes below it are still told, and the log has them [S-125].
        start = max(ck + 1, *floors[:2], base)
        told = config.durability in ("disk", "fsync")
        dir = core.topic_dir(id)
        assert core.wal is not None
        if id not in self._found.deleted and (ck or core.fs.exists(dir)):
            ensure_dir(core.fs, dir)
            opened = open_segments(
                core.fs, dir, id, core.maps, core.config.segment_limits,
                ckpt_seq=ck, claim=claim, rows=rows, floor=floor, told=told, lost=self._lost,
            )  # fmt: skip
            self._report(id, opened)
            index = Index(id, start, opened.segments, core.wal.reader, core.recent)
        else:
            index = lifecycle.new_index(core, id, told=told)
            index.tail = Tail(start)
        return index, floors

    def _report(self, id: int, opened: Opened) -> None:
        report, known = opened.report, self._known[id]
        known.missing += report.missing
        known.lost += report.lost
        self.revived += report.revived
        self._core.corrupt += len(report.missing) + len(report.lost) + len(report.rebuilt)
        for gone in report.given_up:
            self._forget_names(id, gone.first, gone.last)

    def _forget_names(self, id: int, first: int, last: int) -> None:
        """A recovered key or pair never points at a missing record [S-219]."""
        self._core.keys.drop_range(id, first, last)
        self._core.producers.drop_range(id, first, last)

    # -- replay ------------------------------------------------------------------------------------------------------

    def _replay(self, one: FoundFile) -> None:
        core = self._core
        assert core.wal is not None
        view = self._found.read(one)
        rows = frame.rows_at(view, one.file.offsets)
        reference = core.wal.files.reference(one.group.key, one.file.number)
        core.wal.note_starts(one.group.key, one.file.number, one.starts(rows))
        entries, accounted = entries_of_rows(view, rows)
        order = _by_topic(rows)
        if order is not None:
            rows, entries, accounted = rows[order], entries[order], accounted[order]
        through = 0
        for low, high in _runs(rows):
            kind, id = int(rows["type"][low]), int(rows["topic_id"][low])
            if kind == frame.APPEND:
                self._appends(view, rows[low:high], entries[low:high], accounted[low:high], id, reference)
            elif kind != frame.PAD:
                at = Lsn(one.group.key, one.file.number, int(rows["offset"][low]))
                self._control(view, at, kind, id, one.run, reference, int(rows["ts"][low]))
            through = max(through, int(rows["offset"][high - 1]))
            self._tell(through - one.file.start)
        self._done_bytes += one.file.scan.end - one.file.start

    def _tell(self, here: int) -> None:
        total = self._found.replay_bytes
        self._progress(min((self._done_bytes + here) / total, 1.0) if total else 1.0)

    def _topic(self, id: int, frames: int = 1) -> Topic | None:
        """The topic of a frame; None for one that is gone."""
        topic = self._core.topics.get(id)
        if topic is None and id >= self._below_next and id not in self._deleted | self._found.deleted:
            if not self._salvage:
                raise WalCorrupt(
                    f"frames of topic {id}, which nothing in the log creates; `topics doctor --salvage` is the way on"
                )
            self.skipped[id] = self.skipped.get(id, 0) + frames
            self._core.next_topic_id = max(self._core.next_topic_id, id + 1)  # ids are never reused [S-276]
        return topic

    def _appends(
        self,
        view: memoryview,
        rows: npt.NDArray[np.void],
        entries: Entries,
        accounted: npt.NDArray[np.int64],
        id: int,
        reference: int,
    ) -> None:
        """Consecutive Appends of one topic."""
        topic = self._topic(id, len(rows))
        if topic is None:
            return
        known = self._known[id]
        first, last = int(rows["seq"][0]), int(rows["seq"][-1])
        known.head = max(known.head, last)
        known.logged = max(known.logged, last)
        end = topic.index.tail.end
        if first > end + 1:
            self._skip_to(topic, first)
            end = first - 1
        if first <= end:
            self._refill(known, rows, min(last, end), reference)
            known_already = min(end + 1 - first, len(rows))
            rows, entries, accounted = rows[known_already:], entries[known_already:], accounted[known_already:]
            if not len(rows):
                return
            first = end + 1
        tags = _tags(view, rows)
        locations = rows["offset"] + np.uint64(reference << 40)
        topic.apply(Appended(first, entries.tobytes(), locations, tags, int(accounted.sum()), int(rows["ts"][-1])))

    def _skip_to(self, topic: Topic, seq: int) -> None:
        """Seqs that nothing explains: only damage does that, and only salvage goes on [S-66]."""
        first = topic.index.tail.end + 1
        if not self._salvage:
            raise WalCorrupt(
                f"topic {topic.id} ({topic.name!r}): seq {seq} follows {first - 1} in the log and nothing explains the "
                "gap; `topics doctor --salvage` is the way on"
            )
        self._decide(topic, first, seq - 1, DAMAGE if topic.told else SILENT)

    def _refill(self, known: _Found, rows: npt.NDArray[np.void], last: int, reference: int) -> None:
        """Records that segments miss and the log still has [S-250]."""
        if not known.missing and not known.lost:
            return
        for row in rows[rows["seq"] <= np.uint64(last)]:
            seq = int(row["seq"])
            known.refill[seq] = Place(seq, reference << 40 | int(row["offset"]), int(row["len"]))

    def _control(self, view: memoryview, at: Lsn, kind: int, id: int, run: int, reference: int, ts: int) -> None:
        body = control.decode_body(kind, frame.fields(view, at.offset).data)
        if isinstance(body, control.TopicsMark):
            for row in body.topics:
                topic = self._core.topics.get(row.topic_id)
                if topic is not None:
                    topic.apply(row)
                    self._known[row.topic_id].head = max(self._known[row.topic_id].head, row.head_seq)
            return
        if isinstance(body, (control.RouterCreate, control.RouterDelete, control.RouterMark)):
            self.routers.add(body, run)
            return
        if isinstance(body, control.Dedupe) and not id:
            self._dedupe(0, body, ts)
            return
        if isinstance(body, control.AttachMark):
            self._attached(body)
            return
        if isinstance(body, control.CheckpointMark) or not id:
            return
        if isinstance(body, control.TopicCreate):
            self._create(id, body)
            return
        if isinstance(body, control.TopicDelete):
            gone = self._core.topics.get(id)
            if gone is not None:
                self._core.deletes.replay_drop(gone, body, ts)
            self._delete_topic(id)
            return
        topic = self._topic(id)
        if topic is None:
            return
        if isinstance(body, control.Dedupe):
            self._dedupe(id, body, ts)
        elif isinstance(body, control.Gap):
            self._known[id].logged = max(self._known[id].logged, body.last)
            topic.apply_gap(body, reference << 40 | at.offset)
            if body.reason in (DAMAGE, CRASH):
                self._forget_names(id, body.first, body.last)
        elif isinstance(body, control.Lease):
            self._lease(topic, frame.fields(view, at.offset).seq, body)
        elif isinstance(body, control.HeadWatermark):
            self._known[id].reserved = (run, at.group, body.reserved)
        elif isinstance(body, (control.Delete, control.EvictWatermark, control.ConfigUpdate)):
            self._apply(topic, body, at)
            if isinstance(body, control.Delete):
                self._core.deletes.replay(topic, body, ts)

    def _attached(self, body: control.AttachMark) -> None:
        """Its segments were taken in when the topic was opened; what else it says counts from here on [S-289]."""
        topic = self._topic(body.topic_id)
        if topic is not None:
            topic.apply(Attached(body.first, body.count, body.ts, body.cap_floor))
            pair = Producer(body.producer, body.epoch, 0)
            self._core.producers.replay(body.topic_id, pair, body.first, body.count, body.ts)

    def _apply(
        self, topic: Topic, body: control.Delete | control.EvictWatermark | control.ConfigUpdate, at: Lsn
    ) -> None:
        known = self._known[topic.id]
        if isinstance(body, control.Delete):
            known.deletes.append((body, at))
            if body.bound is not None:
                known.head = max(known.head, body.bound - 1)
        elif isinstance(body, control.ConfigUpdate):
            known.head = max(known.head, body.head_seq)
        topic.apply(body, at)
        # What a floor explains is not expected in the log any more [S-240].
        if topic.evict_floor > topic.index.tail.end + 1:
            topic.index.tail.drop_through(topic.evict_floor - 1)
            topic.next_seq = topic.evict_floor

    def _lease(self, topic: Topic, seq: int, body: control.Lease) -> None:
        """What became of a job, where the queue keeps that [QRC-3]; jobs that are gone by the end are left out then."""
        if topic.keeps_leases:
            if topic.leases is None:
                topic.leases = Leases()
            topic.leases.apply(seq, body)

    def let_go(self) -> None:
        """From now on nobody waits for the cold tier on the owner."""
        for topic in self._core.topics.values():
            if topic.index.segments is not None:
                topic.index.segments.reader.lost_tags = None

    def settle_leases(self) -> None:
        """All jobs are back, copies of routers too: leave out what is known of others [QRC-3]."""
        for topic in self._core.topics.values():
            if topic.leases is not None:
                topic.check_leases()
                topic.leases.restart()

    def _create(self, id: int, body: control.TopicCreate) -> None:
        core = self._core
        if id in core.topics or id < self._below_next or id in self._deleted:
            return
        config, extra = TopicConfig.from_stored(body.cfg)
        self._known[id] = _Found()
        index, floors = self._open(id, config, 0, (), (1, 1, 1), body.base)
        topic = Topic(id, body.name, body.epoch, config, index, core.totals, base=body.base)
        topic.extra, topic.config_version, topic.version_staged = extra, body.config_version, body.config_version
        self._adopt(topic, floors)

    def _delete_topic(self, id: int) -> None:
        """Gone, its directory too: a snapshot may have forgotten the topic before that was renamed [S-275]."""
        core = self._core
        self._deleted.add(id)
        topic = core.topics.pop(id, None)
        if topic is not None:
            topic.forget()
            core.keys.remove(id)
            core.producers.remove(id)

    def _dedupe(self, id: int, body: control.Dedupe, ts: int) -> None:
        core = self._core
        if body.key is not None:
            core.keys.replay(id, body.key, body.first, body.count, ts)
        elif body.producer is not None and body.epoch is not None and body.index is not None:
            core.producers.replay(id, Producer(body.producer, body.epoch, body.index), body.first, body.count, ts)

    # -- repair ------------------------------------------------------------------------------------------------------

    def _repair(self, topic: Topic) -> None:
        """Refill what segments miss from the log, or say that it is damaged [S-250]."""
        known, segments = self._known[topic.id], topic.index.segments
        assert segments is not None
        floor = topic.floor
        missing = [gap for gap in known.missing if gap.last >= floor]
        lost = [one for first in known.lost if (one := segments.find(first)) is not None and one.last >= floor]
        if not missing and not lost:
            return
        for one in lost:
            if not any(seq in known.refill for seq in range(one.first, one.last + 1)):
                segments.give_up(one)
        cycle = segments.begin()
        try:
            cycle.prepare()
            for gap in missing:
                self._insert(topic, cycle, max(gap.first, floor), gap.last)
            for one in lost:
                if not one.given_up:
                    with segments.entries(one) as entries:
                        old = entries.copy()
                    self._insert_again(topic, cycle, one.first, old)
            cycle.sync()
        except OSError:
            segments.abandon(cycle)
            raise
        segments.commit(cycle)
        for body, _ in known.deletes:
            topic.apply(body)
        for first, last in _holes_in(topic, [*missing, *(Range(one.first, one.last) for one in lost)]):
            self._forget_names(topic.id, first, last)
            if topic.told:
                self._core.losses.note_hole(topic, DAMAGE, first, last)

    def _insert(self, topic: Topic, cycle: Cycle, first: int, last: int) -> None:
        """A missing range: runs that the log has become segments, the rest a gap segment."""
        refill = self._known[topic.id].refill
        limits = cycle.input.limits
        seq = first
        while seq <= last:
            run = seq
            if seq in refill:
                while run <= last and run in refill and run - seq < limits.max_events:
                    run += 1
                cycle.insert(seq, *self._framed(topic, [refill[one] for one in range(seq, run)], 0))
            else:
                while run <= last and run not in refill:
                    run += 1
                reason = DAMAGE if topic.told else SILENT
                cycle.insert_gap(seq, GapSegment(run - seq, self._ts_before(topic, seq), reason, 0))
            seq = run

    def _insert_again(self, topic: Topic, cycle: Cycle, first: int, old: npt.NDArray[np.void]) -> None:
        """A segment whose `.data` is gone: what the log has of it, and holes for the rest that lived."""
        refill = self._known[topic.id].refill
        live = live_of(old)
        data, idx = b"", bytearray()
        for at in range(len(old)):
            place = refill.get(first + at)
            if live[at] and place is not None:
                framed, entry = self._framed(topic, [place], len(data))
                data += framed
                idx += entry
            else:
                reason = (DAMAGE if topic.told else SILENT) if live[at] else _reason(old[at])
                idx += fillers(1, int(old["ts"][at]), reason, int(old["flags"][at]) >> 4)
        cycle.insert(first, data, bytes(idx))

    def _framed(self, topic: Topic, places: list[Place], at: int) -> tuple[bytes, bytes]:
        data: list[bytes] = []
        idx: list[bytes] = []
        assert self._core.wal is not None

        def take(frames: bytes, offsets: list[int]) -> None:
            framed, rows = reframe(frames, offsets, topic_mask(topic.id), at + sum(map(len, data)))
            data.append(framed)
            idx.append(rows)

        self._core.wal.reader.raw(places, take)
        return b"".join(data), b"".join(idx)

    def _ts_before(self, topic: Topic, seq: int) -> int:
        segments = topic.index.segments
        assert segments is not None
        before = [one for one in segments.segments if one.last < seq]
        if not before:
            return 0
        last = before[-1]
        return last.gap.ts if last.gap is not None else segments.ts_range(last)[1]

    # -- settling ----------------------------------------------------------------------------------------------------

    def _settle(self, topic: Topic) -> None:
        """Reservation, head, counts and caps (step 10)."""
        core, known = self._core, self._known[topic.id]
        edge = core.routers.feeding.get(topic.id)
        if edge is not None:
            self._cut(topic, known, edge)
        end = topic.index.tail.end
        ceiling = self._open_reservation(known)
        if ceiling > end:
            self._decide(topic, end + 1, ceiling, CRASH)
            end = ceiling
        head = max(known.head, topic.floor - 1, topic.base - 1)
        if edge is not None:
            # What lies above is derived again; floors are looked at behind that [S-242].
            head = max(min(one.saved.dest_head for one in edge.routers), topic.base - 1)
        if head > end:
            reason = {"disk": CRASH, "fsync": DAMAGE}.get(topic.config.durability, SILENT)
            self._decide(topic, end + 1, head, reason)
        topic.recovering = False
        topic.head = topic.index.tail.end
        topic.next_seq = topic.head + 1
        topic.last_ts = max(topic.last_ts, topic.index.last_ts())
        topic.recount()
        lifecycle.note_ttl(core, topic)
        if topic.id not in core.routers.fed:
            retention.enforce_caps(core, topic)
        if topic.marks() != topic.marked:
            core.changed.add(topic.id)
        core.unsealed.add(topic.id)
        if edge is not None:
            edge.logged_seq = topic.head

    def _cut(self, topic: Topic, known: _Found, edge: Edge) -> None:
        """Begin a destination's tail anew behind what the log has: floors alone must not push copies to other seqs."""
        kept = max(known.logged, topic.base - 1, min(one.saved.dest_head for one in edge.routers))
        if topic.index.tail.end > kept:
            topic.index.tail.cut_after(kept)
            topic.next_seq = kept + 1

    def _open_reservation(self, known: _Found) -> int:
        """The ceiling under which acknowledged seqs may have gone with the machine, 0 if none [S-245]."""
        run, group, ceiling = known.reserved
        if not ceiling or run != self._last_ready or run in self._found.closed:
            return 0
        core = self._core
        if self._assume_crash or self._found.runs.get(run) != core.boot:
            return ceiling
        failed = {one.group for one in core.failed_syncs if one.run == run}
        return ceiling if (failed if group is None else group in failed) else 0

    def _decide(self, topic: Topic, first: int, last: int, reason: int) -> None:
        """A gap: true from now on, and to be logged before anything else of this run."""
        self.decided.append(Decided(topic, first, last, reason))
        topic.apply_gap(control.Gap(first=first, last=last, reason=reason), NOWHERE)
        if reason in (DAMAGE, CRASH):
            self._forget_names(topic.id, first, last)

    @property
    def has_cold(self) -> bool:
        """Whether segments are in a cold tier, by the snapshot or by their stubs."""
        snapshot = self._found.snapshot
        rows = () if snapshot is None else (row for item in snapshot.topics for row in item.segments)
        topics = (one.index.segments for one in self._core.topics.values())
        stubs = (one for segments in topics if segments is not None for one in segments.segments)
        return any(row.flags & COLD for row in rows) or any(one.cold for one in stubs)

    @property
    def deleted(self) -> set[int]:
        """Topics whose TopicDelete was replayed: their directories go [S-275]."""
        return self._deleted

    @property
    def must_settle(self) -> bool:
        """Whether the `ready` mark has to be logged at once: something was decided, or the last run did not end."""
        last = max(self._found.ready, default=0)
        return bool(self.decided or self.unborn) or (last > 0 and last not in self._found.closed)


def mend(core: Core, found: Found) -> None:
    """Cut what is torn and write the tails again, once all verdicts are in [S-60, S-88]."""
    core.fs.point("recovery.before_cut")
    for group in found.groups.values():
        for number in groups.mend(core.fs, group):
            log.info("WAL group %r, %s was cut to its valid part", group.key, paths.wal_file(number))


def _by_topic(rows: npt.NDArray[np.void]) -> npt.NDArray[np.int64] | None:
    """An order in which Appends that nothing else stands between follow each other topic by topic; None: as it is.

    Appends of different topics know nothing of each other, and a long run costs little more than a short one.
    """
    is_append = rows["type"] == frame.APPEND
    ids = np.where(is_append, rows["topic_id"], np.uint64(0))
    stretches = np.cumsum(~is_append)
    if bool(((ids[1:] >= ids[:-1]) | (stretches[1:] != stretches[:-1])).all()):
        return None
    return np.lexsort((ids, stretches))


def _runs(rows: npt.NDArray[np.void]) -> Iterator[tuple[int, int]]:
    """Consecutive Appends of one topic, not too many, everything else one by one."""
    if not len(rows):
        return
    kinds, ids, seqs = rows["type"], rows["topic_id"], rows["seq"]
    same = (kinds[1:] == frame.APPEND) & (kinds[:-1] == frame.APPEND) & (ids[1:] == ids[:-1])
    same &= seqs[1:] == seqs[:-1] + np.uint64(1)
    starts = np.concatenate(([0], np.flatnonzero(~same) + 1)).tolist()
    for low, high in zip(starts, [*starts[1:], len(rows)], strict=True):
        for at in range(low, high, RUN_ROWS):
            yield at, min(at + RUN_ROWS, high)


def _tags(view: memoryview, rows: npt.NDArray[np.void]) -> list[bytes | None]:
    """The tag of each frame."""
    tags: list[bytes | None] = [None] * len(rows)
    tagged = np.flatnonzero(rows["flags"] & np.uint8(frame.HAS_TAG))
    for at, offset in zip(tagged.tolist(), rows["offset"][tagged].tolist(), strict=True):
        tags[at] = frame.fields(view, offset).tag
    return tags


def _reason(entry: np.void) -> int:
    return int(entry["flags_ovh"]) >> 8 if int(entry["flags"]) & LOST else 0


def _holes_in(topic: Topic, ranges: list[Range]) -> Iterator[tuple[int, int]]:
    """Runs of damage in ranges that were repaired."""
    for gone in ranges:
        for piece in topic.index.walk(gone.first, gone.last):
            if isinstance(piece, Run):
                lost = piece.entries["flags"] & np.uint8(LOST) != 0
                for at in np.flatnonzero(lost).tolist():
                    yield piece.first + at, piece.first + at
            elif piece.reason:
                yield piece.first, piece.last
