"""Snapshots: what the engine knows about its topics, never their records; then the WAL behind them goes (06 §13).

The header comes first: replay positions as of that moment. Each topic is captured in one stretch; what happens to it
later is behind its group's position and replayed [S-214]. Encoding and writing are done aside. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from topics.codec.snapshot import CommitRow, Encoder, Header, KeyRow, ProducerRow, RouterItem, TopicItem, WalRow
from topics.engine.core import Core
from topics.engine.pins import NS_PER_MS, Everything
from topics.engine.router import Router
from topics.engine.topic import Topic
from topics.errors import TopicsError, WalIo
from topics.storage.snapshot import SnapshotStore

log = logging.getLogger("topics.engine")

SLICE = 256
"""Topics captured in one stretch [S-214]."""
SPACE_GAP_MS = 1_000
"""The least time between two that are taken so that a full shard gets space."""

Done = Callable[[int | TopicsError | None], None]
Rows = Mapping[str, WalRow]


class Snapshots:
    """Takes snapshots, one at a time."""

    def __init__(self, core: Core, store: SnapshotStore, retained: list[Rows], newest: int | None) -> None:
        self.total = 0
        self.failed = 0
        self.newest = newest
        """Number of the newest snapshot that is in force."""
        self._core = core
        self._store = store
        self._retained = retained
        """Replay positions of the snapshots that are kept, newest first."""
        self._at_ms = core.clock.now_ms()
        self._at_bytes = 0
        self._space_ns = core.clock.monotonic_ns()
        """From when on one may be taken for space."""
        self._taking = False
        self._pins: Sequence[Everything] = ()
        self._attached = 0
        """How often segments of a commit had been taken in when the header was captured."""
        self._named: dict[int, int] = {}
        """How far each topic's segments reach, for pins."""

    def due(self) -> bool:
        """Whether enough was written, or enough time has passed, since the last one [S-210, S-219]."""
        core = self._core
        assert core.wal is not None
        if self.due_for_space():
            return True
        if not core.logged and not core.wal.orphans:
            return False
        elapsed = core.clock.now_ms() - self._at_ms
        if 0 <= elapsed < core.config.snapshot_gap_ms:
            return False
        return elapsed < 0 or elapsed >= core.config.snapshot_ms or self._written() >= core.config.snapshot_bytes

    def due_for_space(self) -> bool:
        """Whether one may let files of a full shard go: writes return soon after records were deleted [S-80, T11]."""
        return self._core.clock.monotonic_ns() >= self._space_ns and self._frees_space()

    def _frees_space(self) -> bool:
        """Something was logged, or only the newer one of two lies behind it: files go by both [S-89]."""
        core = self._core
        assert core.wal is not None
        full = [shard.key for shard in core.wal.shards if shard.state == "full"]
        if not full or core.logged:
            return bool(full)
        at = [[rows[key].file_no if key in rows else 0 for key in full] for rows in self._retained]
        return len(at) > 1 and at[0] != at[1]

    def _written(self) -> int:
        assert self._core.wal is not None
        return sum(shard.counters.bytes_written for shard in self._core.wal.shards) - self._at_bytes

    def take(self, ckpt: int, *, force: bool, clean: bool, done: Done, pins: Sequence[Everything] = ()) -> None:
        """Write a snapshot, then trim; answers its number, None where there was nothing to say.

        `pins` are to hold what it names. They get a new one in any case: what was dropped since the newest may be told
        by marks alone. Where segments are attached while it is captured they get none: whoever asked asks again.
        """
        core = self._core
        assert core.wal is not None
        unchanged = not core.logged and self.newest is not None and not core.wal.orphans and not self._frees_space()
        if unchanged and not clean and not pins:
            done(self.newest if force else None)
            return
        assert not self._taking
        self._taking = True
        self._not_for_space(SPACE_GAP_MS)
        core.logged = False
        self._pins = pins
        self._attached = core.totals.attached
        self._named = {}
        try:
            number = self._store.next_number()
        except OSError as error:
            self._over(done, error)
            return
        header = Header(
            id=number, ts=core.clock.now_ms(), store=core.store_id, run=core.run, boot=core.boot, clean=clean,
            next_topic_id=min(core.creating, default=core.next_topic_id), next_epoch=core.next_epoch,
            next_router_op=core.routers.next_op, ckpt=ckpt, cold=core.cold.name,
            commits=tuple(CommitRow(id, pair.epoch, pair.ts) for id, pair in core.producers.writers()),
            wal=tuple(core.wal.rows(core.needed())),
        )  # fmt: skip
        ids = sorted(core.topics)
        routers = [one for _, one in sorted(core.routers.by_name.items())]
        self._slice(Encoder(header), header, ids, routers, 0, done)

    def _slice(
        self, encoder: Encoder, header: Header, ids: list[int], routers: list[Router], at: int, done: Done
    ) -> None:
        """Capture some topics here, encode them aside, and go on; routers that the header counts come last [S-218]."""
        core = self._core
        if at >= len(ids) and at:
            known = core.routers.by_name
            encoder.add_routers([_router(one) for one in routers if known.get(one.name) is one])
            # Last of all: a topic that went meanwhile is in no item, so its deletes have to be here, or recorded.
            encoder.add_pending_deletes(core.deletes.pending())
            write = partial(self._write, encoder, header, core.pins.snapshots())
            core.owner.aside("files", write, partial(self._written_out, header, done))
            return
        if self._attached != core.totals.attached:
            # Segments that a commit has brought meanwhile would be here without its version, and without what it has
            # brought to topics before: it is a snapshot, but not one state of the store.
            self._pins = ()
        chosen = [core.topics[id] for id in ids[at : at + SLICE] if id in core.topics]
        items = [self._item(topic, clean=header.clean) for topic in chosen]
        if self._pins:
            self._named.update((topic.id, topic.index.ckpt_seq) for topic in chosen)

        def encoded(error: BaseException | None) -> None:
            if error is not None:
                self._over(done, error)
            else:
                self._slice(encoder, header, ids, routers, at + SLICE, done)

        core.owner.aside("files", lambda: encoder.add_topics(items), encoded)

    def _item(self, topic: Topic, *, clean: bool) -> TopicItem:
        core, ck = self._core, topic.index.ckpt_seq
        segments = topic.index.segments
        assert segments is not None
        return TopicItem(
            id=topic.id, name=topic.name, epoch=topic.epoch, cfg=topic.config.stored(topic.extra),
            config_version=topic.config_version, base=topic.base, head_seq=self._head(topic), ckpt_seq=ck,
            reserved=0 if clean else topic.reservation.asked, cap_floor=topic.cap_floor, ttl_floor=topic.ttl_floor,
            delete_below=topic.delete_below, delete_number=topic.delete_number,
            deletes_recorded=topic.deletes_recorded,
            last_write_ms=max(topic.last_write_ms or 0, topic.last_ts), segments=segments.rows(),
            keys=tuple(KeyRow(*row) for row in core.keys.rows(topic.id, ck)),
            producers=tuple(ProducerRow(*row) for row in core.producers.rows(topic.id, ck)),
            queue=topic.leases.saved() if topic.leases is not None and topic.keeps_leases else None,
        )  # fmt: skip

    def _head(self, topic: Topic) -> int:
        """Of a router's destination, what the log or segments have: the rest is derived again [S-212 d]."""
        edge = self._core.routers.feeding.get(topic.id)
        if edge is None or not self._core.is_logged(topic):
            return topic.head
        return min(topic.head, edge.pending_from - 1)

    def _write(self, encoder: Encoder, header: Header, spare: frozenset[int]) -> None:
        self._store.write(header.id, encoder.finish(), spare)

    def _written_out(self, header: Header, done: Done, error: BaseException | None) -> None:
        core = self._core
        assert core.wal is not None
        if error is not None:
            self._over(done, error)
            return
        self.total += 1
        self.newest = header.id
        for pin in self._pins:
            pin.ckpt_seqs, pin.snapshot = self._named, header.id
        self._pins, self._named = (), {}
        self._at_ms = core.clock.now_ms()
        self._at_bytes += self._written()
        self._retained = [{row.group: row for row in header.wal}, *self._retained[:1]]
        wal = core.wal
        gone: list[tuple[str, int]] = []

        def trim() -> None:
            wal.trim(self._retained, gone)

        def close(references: list[int]) -> None:
            for one in references:
                wal.reader.forget(one)

        def trimmed(error: BaseException | None) -> None:
            references = wal.forget(gone)
            core.owner.aside("wal-helper", lambda: close(references), core.note_failure("closing files of the log"))
            if error is not None:
                log.error("the WAL could not be trimmed: %s", error)
            self._taking = False
            done(header.id)

        core.owner.aside("wal-helper", trim, trimmed)

    def _not_for_space(self, ms: int) -> None:
        self._space_ns = self._core.clock.monotonic_ns() + ms * NS_PER_MS

    def _over(self, done: Done, error: BaseException) -> None:
        """An attempt failed: the previous one stays in force and the next check tries again [S-217]."""
        self._taking = False
        self._core.logged = True
        self._not_for_space(self._core.config.snapshot_check_ms)
        self.failed += 1
        log.error("no snapshot: %s", error)
        done(error if isinstance(error, TopicsError) else WalIo(_as_os_error(error), "writing a snapshot"))


def _router(router: Router) -> RouterItem:
    """A router with its newest durable position."""
    saved = router.saved
    said = msgspec.structs.asdict(router.body)
    return RouterItem(**said, position=saved.cursor, total=saved.total, dest_head=saved.dest_head)


def _as_os_error(error: BaseException) -> OSError:
    return error if isinstance(error, OSError) else OSError(str(error))
