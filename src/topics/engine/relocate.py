"""The relocator: what belongs to the cold tier goes there, one thing after another, on a thread of its own (06 §16.2).

    plan      every 5 s, in slices: what is due in each topic
    claim     the tier, if it could not be asked when the engine opened [S-14]
    drop      objects of segments and topics that are gone; kept in line until the tier takes it [S-274, S-318]
    mend      stubs that were lost are fetched again [S-316]
    follow    deletes reach the cold copies, at most once a minute each [S-315]
    move      sealed segments past hot retention, oldest first (`storage.tiers.relocation`)
    rewrite   mostly dead cold segments come back smaller, at most once a day each, and move again [S-285]
    sweep     objects that no descriptor names, now and then [S-275, S-285]

A failure holds up nothing else, and some in a row end a round: whatever it was, the hot copy or the object stays in
force and the next round tries again [S-312]. Local file work goes where all file work goes, so that closing waits for
it; the tier nobody waits for. Owner only.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from topics.engine import copies, reclaim
from topics.engine.cold import Drop
from topics.engine.core import Core, follows, guarded
from topics.engine.topic import Topic
from topics.errors import EngineClosed, StoreDenied, StoreUnavailable, TopicsError
from topics.storage import reclaim as storage
from topics.storage.descriptor import Segment
from topics.storage.segments import TopicSegments
from topics.storage.tiers.relocation import (
    Following,
    Mending,
    Relocation,
    clear_topic,
    delete_objects,
    fetch_data,
)
from topics.storage.tiers.store import ColdRoot, SegmentId, check_owner

log = logging.getLogger("topics.engine")

SLICE: Final = 256
"""Topics looked at in one stretch."""
MEND_MS: Final = 60_000
SWEEP_MS: Final = 3_600_000

Done = Callable[[BaseException | None], None]
Job = Callable[[Done], None]
"""Begins something, and is told when it is over."""
Key = tuple[str, int, int]
"""Of a job: what, topic, first seq."""
CLAIM: Final = ("claim", 0, 0)
FAILED_MAX: Final = 3
"""So many in a row, and the round is over: it is not one of them that is at fault."""


class Relocator:
    """One per engine."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._busy = False
        self._jobs: deque[tuple[Key, Job]] = deque()
        self._failed: set[Key] = set()
        """Jobs that failed when they were last tried: the others come first."""
        self._failed_in_row = 0
        self._at_ms: dict[Key, int] = {}
        """When something was last done to a segment."""
        self._swept_ms: int | None = None
        self._free_at_ns = 0

    def tick(self) -> None:
        """Begin a round, unless one is under way."""
        core = self._core
        if self._busy or core.cold.root is None or core.closing:
            return
        self._busy = True
        self._jobs.clear()
        self._failed_in_row = 0
        self._plan(list(core.topics))

    # -- what is due -------------------------------------------------------------------------------------------------

    def _plan(self, ids: list[int]) -> None:
        """Look at some topics, then at the next; then do what is due."""
        core = self._core
        for id in ids[:SLICE]:
            topic = core.topics.get(id)
            if topic is not None and topic.index.segments is not None:
                try:
                    self._plan_topic(topic, topic.index.segments)
                except OSError as error:
                    log.error("topic %r is not looked at by the relocator: %s", topic.name, error)
        if ids[SLICE:]:
            core.owner.soon(partial(self._plan, ids[SLICE:]))
            return
        for drop in core.cold.drops.values():
            self._jobs.appendleft((("drop", drop.topic_id, drop.first), partial(self._drop, drop)))
        for topic_id in core.cold.clears:
            self._jobs.appendleft((("clear", topic_id, 0), partial(self._clear, topic_id)))
        now = core.clock.now_ms()
        if self._swept_ms is None or not 0 <= now - self._swept_ms < SWEEP_MS:
            self._jobs.append((("sweep", 0, 0), self._sweep))
        self._failed &= {key for key, _ in self._jobs}
        self._jobs = deque(sorted(self._jobs, key=lambda job: job[0] in self._failed))
        if core.cold.is_unclaimed:
            self._jobs.appendleft((CLAIM, partial(self._apart, core.cold.claim_now)))
        self._next()

    def _plan_topic(self, topic: Topic, segments: TopicSegments) -> None:
        for one in segments.segments:
            if not one.cold or one.stub:
                continue
            if (one.unindexed or one.untagged) and self._is_due("mend", topic, one, MEND_MS):
                self._jobs.append((("mend", topic.id, one.first), partial(self._mend, topic, one)))
            elif one.behind and self._is_due("follow", topic, one, self._core.config.cold_follow_ms):
                self._jobs.append((("follow", topic.id, one.first), partial(self._follow, topic, one)))
            elif self._is_worth_rewriting(topic, one):
                self._jobs.append((("rewrite", topic.id, one.first), partial(self._rewrite, topic, one)))
        for one in self._past_retention(topic, segments):
            self._jobs.append((("move", topic.id, one.first), partial(self._move, topic, one)))

    def _is_due(self, what: str, topic: Topic, one: Segment, every_ms: int) -> bool:
        at = self._at_ms.get((what, topic.id, one.first))
        return at is None or not 0 <= self._core.clock.now_ms() - at < every_ms

    def _note(self, what: str, topic: Topic, one: Segment) -> None:
        self._at_ms[what, topic.id, one.first] = self._core.clock.now_ms()

    def _past_retention(self, topic: Topic, segments: TopicSegments) -> list[Segment]:
        """Hot segments that hot retention does not keep, oldest first [S-310]."""
        config = self._core.config
        sealed = [one for one in segments.segments if one.sealed and one.gap is None and (one.has_data or one.cold)]
        keep, size = 0, 0
        for one in reversed(sealed):
            size += one.data_len
            if keep >= config.hot_retain_segments or 0 < config.hot_retain_bytes < size:
                break
            keep += 1
        return [one for one in sealed[: len(sealed) - keep] if self._may_move(topic, segments, one)]

    def _may_move(self, topic: Topic, segments: TopicSegments, one: Segment) -> bool:
        if not one.has_data or one.busy or not one.live or one.last > topic.index.ckpt_seq or one.last < topic.floor:
            return False
        return one.first not in segments.reader.damaged and not self._core.pins.is_frozen(topic.id, one.first)

    def _is_worth_rewriting(self, topic: Topic, one: Segment) -> bool:
        core = self._core
        if not core.config.reclaim_rewrite or core.cold.is_failing or core.clock.monotonic_ns() < self._free_at_ns:
            return False
        if not self._is_due("rewrite", topic, one, core.config.cold_rewrite_ms) or core.pins.is_frozen(
            topic.id, one.first
        ):
            return False
        assert topic.index.segments is not None
        return reclaim.is_mostly_dead(topic.index.segments, one, core.config.rewrite_min_bytes)

    # -- one after another -------------------------------------------------------------------------------------------

    def _next(self) -> None:
        if not self._jobs or self._failed_in_row >= FAILED_MAX or self._core.closing:
            self._busy = False
            return
        key, job = self._jobs.popleft()
        try:
            job(partial(self._over, key))
        except Exception as failed:
            log.error("the relocator: %s", failed, exc_info=not isinstance(failed, (OSError, TopicsError)))
            self._over(key, failed)

    def _over(self, key: Key, error: BaseException | None) -> None:
        """A job that fails holds up no other; the next round has it behind them."""
        if error is None:
            self._failed.discard(key)
            self._failed_in_row = 0
        else:
            self._failed.add(key)
            self._failed_in_row += FAILED_MAX if key == CLAIM else 1  # before it is ours there is nothing to do
        self._core.owner.soon(self._next)

    def _apart(self, work: Callable[[], object], done: Done) -> None:
        """Work that asks the tier."""

        def told(error: BaseException | None) -> None:
            if error is None or (isinstance(error, StoreUnavailable) and not isinstance(error, StoreDenied)):
                self._core.cold.note(error)
            else:  # the tier is well; what is wrong is our own disk, or what we may do there
                log.error("the relocator: %s", error)
            if error is None and self._core.closing:
                error = EngineClosed("the engine is closing")
            done(error)

        self._core.owner.apart("relocate", work, told)

    def _files(self, work: Callable[[], object], done: Done) -> None:
        """Work in the data directory."""

        def told(error: BaseException | None) -> None:
            if error is not None:
                log.error("the relocator: %s", error)
            done(error)

        self._core.owner.aside("files", work, told)

    def _root(self) -> tuple[ColdRoot, str]:
        assert self._core.cold.root is not None
        return self._core.cold.root, self._core.cold.store_id

    def _move(self, topic: Topic, one: Segment, done: Done) -> None:
        """One relocation."""
        core, segments = self._core, topic.index.segments
        assert segments is not None
        if topic.removed or segments.find(one.first) is not one or not self._may_move(topic, segments, one):
            done(None)
            return
        move = Relocation(segments, one, *self._root())

        def copied(error: BaseException | None) -> None:
            if error is not None:
                done(error)
            elif topic.removed or segments.find(one.first) is not one:
                self._undo(topic, one, move.generation)
                done(None)
            elif not move.is_current() or core.pins.is_frozen(topic.id, one.first):
                done(None)  # somebody else has it now; the copy is recognised next time
            else:
                move.begin_settling()
                self._files(move.settle, settled)

        def settled(error: BaseException | None) -> None:
            if error is not None:
                move.abandon()
                done(error)
            else:
                guarded(lambda: copies.keep_moved(core, topic, one.first, one.last, follows(kept, done)), done)

        def kept(error: object) -> None:
            """Until its copies are on disk the hot segment is what they are derived from [S-212]."""
            if isinstance(error, BaseException):
                log.error("the relocator: copies of %r are in memory only: %s", topic.name, error)
                move.abandon()
                done(error)
                return
            move.commit()
            core.cold.relocated += 1
            core.logged = True  # the next snapshot says where it is
            reclaim.unlink_when_free(core, topic, one.first, move.generation, move.unlink)
            held = [old for old in range(move.generation) if core.pins.holds(topic.id, one.first, old)]
            self._apart(partial(move.delete_others, frozenset(held)), done)

        self._apart(move.copy, copied)

    def _undo(self, topic: Topic, one: Segment, generation: int) -> None:
        """It was dropped while it was copied: the copy goes too."""
        if not topic.removed:
            assert topic.index.segments is not None
            self._core.cold.drop(Drop(topic.id, one.first, generation, topic.index.segments.files))

    def _follow(self, topic: Topic, one: Segment, done: Done) -> None:
        segments = topic.index.segments
        assert segments is not None
        if topic.removed or not one.cold or segments.find(one.first) is not one:
            done(None)
            return
        self._note("follow", topic, one)
        following = Following(segments, one, *self._root())

        def ended(error: BaseException | None) -> None:
            if error is None:
                following.commit()
            done(error)

        self._apart(following.run, ended)

    def _mend(self, topic: Topic, one: Segment, done: Done) -> None:
        segments = topic.index.segments
        assert segments is not None
        self._note("mend", topic, one)
        mending = Mending(segments, one, *self._root())

        def fetched(error: BaseException | None) -> None:
            if error is None and mending.is_found and not topic.removed and segments.find(one.first) is one:
                self._files(mending.write, written)
            else:
                done(error)

        def written(error: BaseException | None) -> None:
            if error is None and not topic.removed and segments.find(one.first) is one:
                guarded(back, done)
            else:
                done(error)

        def back() -> None:
            mending.commit()
            topic.forget_ahead()
            topic.recount()
            log.warning("topic %r: what was lost of segment %d is back", topic.name, one.first)
            done(None)

        self._apart(mending.run, fetched)

    def _rewrite(self, topic: Topic, one: Segment, done: Done) -> None:
        self._note("rewrite", topic, one)
        rate = max(self._core.config.reclaim_bytes_per_sec, 1)
        self._free_at_ns = self._core.clock.monotonic_ns() + one.data_len * 2_000_000_000 // rate
        self.rewrite(topic, one, done)

    def rewrite(self, topic: Topic, one: Segment, done: Done) -> None:
        """Bring a cold segment back without what is deleted of it; the next round moves it again [S-285].

        It is nobody's while it is fetched: only the local steps hold it back from others.
        """
        core, segments, generation = self._core, topic.index.segments, one.generation
        assert segments is not None
        fetched: list[bytes] = []
        id = SegmentId(one.first, generation)

        def fetch() -> None:
            fetched.append(fetch_data(*self._root(), topic.id, id, one.data_len))

        def here(error: BaseException | None) -> None:
            current = not topic.removed and segments.find(one.first) is one and one.cold and not one.busy
            if error is None and (not current or one.generation != generation or one.unindexed):
                error = OSError(f"segment {one.first} of {topic.name!r} has changed meanwhile")
            elif error is None and core.pins.is_frozen(topic.id, one.first):
                error = OSError(f"segment {one.first} of {topic.name!r} is held by a pinned snapshot now")
            if error is not None:
                done(error)
            else:
                guarded(lambda: reclaim.rewrite(core, topic, one, done, fetched.pop()), done)

        self._apart(fetch, here)

    # -- what is gone ------------------------------------------------------------------------------------------------

    def _drop(self, drop: Drop, done: Done) -> None:
        """Objects first, then the local files; a dead stub loses only its mark of being cold [S-274]."""
        core = self._core
        if core.cold.drops.get(drop.key) is not drop:
            done(None)
            return

        def deleted(error: BaseException | None) -> None:
            topic = core.topics.get(drop.topic_id)
            if error is not None or topic is None or topic.removed:
                if error is None:
                    over()
                done(error)
                return
            one = topic.index.segments.find(drop.first) if drop.stub and topic.index.segments is not None else None
            if drop.stub and (one is None or one.busy):
                if one is None:
                    over()
                done(None)
            else:
                finish(one)

        def over() -> None:
            if core.cold.drops.get(drop.key) is drop:  # not one that was asked for meanwhile, and has more to do
                del core.cold.drops[drop.key]

        def finish(one: Segment | None) -> None:
            if one is not None:
                one.busy = True
            xxh3: list[int] = []

            def work() -> None:
                if drop.stub and one is not None:
                    xxh3.append(storage.make_dead_stub(drop.files, one.first, one.n, one.generation))
                else:
                    storage.unlink(drop.files, drop.first)

            def ended(error: BaseException | None) -> None:
                if one is not None:
                    one.busy = False
                if error is None:
                    over()
                    if one is not None:
                        one.cold, one.idx_xxh3 = False, xxh3[0]
                done(error)

            self._files(work, ended)

        work = partial(delete_objects, *self._root(), drop.topic_id, drop.first, drop.generation)
        self._apart(work, deleted)

    def _clear(self, topic_id: int, done: Done) -> None:
        """A deleted topic: its objects, then the directory that was left to remember them by."""
        cold = self._core.cold

        def cleared(error: BaseException | None) -> None:
            dir = cold.clears.get(topic_id)
            if error is not None or dir is None:
                done(error)
            else:
                self._files(partial(_remove_dir, self._core, dir), partial(removed, dir))

        def removed(dir: str, error: BaseException | None) -> None:
            if error is None:
                cold.clears.pop(topic_id, None)
            done(error)

        self._apart(partial(clear_topic, *self._root(), topic_id), cleared)

    def _sweep(self, done: Done) -> None:
        """Objects of topics and segments that are gone, and of generations that no `.idx` names; halves of them too."""
        core = self._core
        root, store_id = self._root()
        found: dict[int, tuple[list[SegmentId], list[SegmentId]]] = {}

        def look() -> None:
            check_owner(root, store_id)
            found.update((id, (root.topic(id).list(), root.topic(id).halves())) for id in root.topics())

        def looked(error: BaseException | None) -> None:
            if error is not None:
                done(error)
                return
            self._swept_ms = core.clock.now_ms()
            gone = [id for id in found if self._is_gone(id)]
            stale = {id: self._stale(id, *ids) for id, ids in found.items() if id in core.topics}
            self._apart(partial(sweep, gone, stale), done)

        def sweep(gone: list[int], stale: dict[int, list[SegmentId]]) -> None:
            check_owner(root, store_id)
            calls: list[Callable[[], None]] = [root.topic(id).clear for id in gone]
            calls += [partial(root.topic(id).delete, one) for id, ids in stale.items() for one in ids]
            denied: StoreDenied | None = None
            for call in calls:
                try:
                    call()
                except StoreDenied as error:  # it may be locked; the others need not be
                    denied = error
            if denied is not None:
                raise denied

        self._apart(look, looked)

    def _is_gone(self, topic_id: int) -> bool:
        """Whether nobody has or will have anything to do with a topic's objects."""
        core = self._core
        is_known = topic_id in core.topics or topic_id in core.creating or topic_id >= core.next_topic_id
        return not is_known and not core.pins.holds(topic_id, None, None)

    def _stale(self, topic_id: int, whole: list[SegmentId], halves: list[SegmentId]) -> list[SegmentId]:
        """What nothing here names. Of a segment that lives a half is left alone: it is being moved, or was damaged."""
        topic, pins = self._core.topics[topic_id], self._core.pins
        if topic.index.segments is None:
            return []
        dead = [id for id in (*whole, *halves) if self._is_dead(topic, id)]
        for id in whole:
            one = topic.index.segments.find(id.first)
            if one is not None and one.first == id.first and id.generation != one.generation and not one.unindexed:
                dead.append(id)
        # What a pin holds a later sweep has.
        return [id for id in dict.fromkeys(dead) if not pins.holds(topic_id, id.first, id.generation)]

    def _is_dead(self, topic: Topic, id: SegmentId) -> bool:
        """Whether nothing is left of a segment here but what says that it is gone; it may have died before it moved."""
        assert topic.index.segments is not None
        one = topic.index.segments.find(id.first)
        if one is None:
            return id.first < topic.floor and (topic.id, id.first) not in self._core.cold.drops
        return one.first == id.first and one.stub and not one.cold


def _remove_dir(core: Core, dir: str) -> None:
    if core.fs.exists(dir):
        core.fs.rmdir(dir)
