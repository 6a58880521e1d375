"""What a run logs before anything else: gaps that recovery decided, then its `ready` mark [S-245].

A gap is logged once and never inferred again; no submission of the run is accepted before the mark is synced. Where
nothing was decided and the last run ended cleanly, all of it waits for the run's first submission: an engine that
writes nothing changes nothing. On a full disk reads work, and the next tick tries again. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from topics.codec import control, frame
from topics.engine.core import Core
from topics.engine.recover import Decided
from topics.engine.topic import Lsn, Topic
from topics.errors import TopicsError, WalFull
from topics.storage.lockfile import StoreLock
from topics.storage.shard import Frames, Shard, frames_bytes
from topics.storage.shard import Lsn as ShardLsn

log = logging.getLogger("topics.engine")

Held = tuple[Shard, Frames, int, Callable[[ShardLsn | TopicsError], None], bool, bool]


class ReadyMark:
    """The beginning of a run. Invariant: either it is under way, or nothing is held."""

    def __init__(self, core: Core, lock: StoreLock, decided: list[Decided], unborn: list[Topic]) -> None:
        self.failed: TopicsError | None = None
        """Why the last attempt failed."""
        self._core = core
        self._lock = lock
        self._decided = list(decided)
        self._unborn = list(unborn)
        self._running = False
        self._left = 0
        self._held: list[Held] = []
        self._held_bytes = 0

    def hold(
        self,
        shard: Shard,
        frames: Frames,
        count: int,
        done: Callable[[ShardLsn | TopicsError], None],
        durable: bool,
        control: bool,
    ) -> None:
        """Keep a submission until the mark is synced; begin with the first."""
        config, size = self._core.config, frames_bytes(frames)
        crowded = len(self._held) >= config.queue_submissions or self._held_bytes + size > config.queue_bytes
        if self._held and crowded:
            raise WalFull(f"{len(self._held)} submissions wait for the run to begin")
        if not self._running and any(one.state != "ok" for one in self._shards()):
            # Refused by the shard itself, in its own words; `probe` of a full one brings it back.
            for one in self._shards():
                one.check(size)
        self._held.append((shard, frames, count, done, durable, control))
        self._held_bytes += size
        self.begin()

    def _shards(self) -> list[Shard]:
        assert self._core.wal is not None
        topics = [*(one.topic for one in self._decided), *self._unborn]
        return [self._core.wal.shards[0], *(self._core.wal.of(topic.id) for topic in topics)]

    def begin(self) -> None:
        """Log what is left to be logged, unless it is under way."""
        if self._running:
            return
        self._running = True
        self.failed = None
        self._left = 1
        for one in list(self._decided):
            self._left += 1
            self._log_gap(one)
        for topic in list(self._unborn):
            self._left += 1
            self._log_deletion(topic)
        self._one_done(None)

    def _log_deletion(self, topic: Topic) -> None:
        core = self._core
        shard = core.shard(topic.id)

        def logged(outcome: ShardLsn | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                self._one_done(outcome)
                return
            self._unborn.remove(topic)
            core.unmarked.add(shard.key)
            core.logged = True
            self._one_done(None)

        # Without a number: nobody knew of it, so nobody deleted it.
        body = control.TopicDelete(name=topic.name, epoch=topic.epoch)
        raw = frame.encode_control(body, topic.id, core.clock.now_ms(), durable=True)
        try:
            shard.submit(raw, 1, logged, durable=True, control=True)
        except TopicsError as error:
            self._one_done(error)

    def _log_gap(self, one: Decided) -> None:
        core, topic = self._core, one.topic
        assert core.wal is not None
        body = control.Gap(first=one.first, last=one.last, reason=one.reason)
        shard = core.wal.of(topic.id)
        edge = core.routers.feeding.get(topic.id)

        def logged(outcome: ShardLsn | TopicsError) -> None:
            if isinstance(outcome, TopicsError):
                self._one_done(outcome)
                return
            self._decided.remove(one)
            topic.needed.append(Lsn(shard.key, *outcome))
            core.touch(topic)
            core.unmarked.add(shard.key)
            core.logged = True
            self._one_done(None)

        now = core.clock.now_ms()
        raw = frame.encode_control(body, topic.id, now, durable=True, more=edge is not None)
        if edge is not None:
            # Copies are derived behind the gap: nothing may be derived into it again [S-245].
            raw += edge.mark(one.last, now, durable=True)
        try:
            shard.submit(raw, 1 + (edge is not None), logged, durable=True, control=True)
        except TopicsError as error:
            self._one_done(error)

    def _one_done(self, error: TopicsError | None) -> None:
        self.failed = self.failed or error
        self._left -= 1
        if self._left:
            return
        if self.failed is not None:
            self._give_up(self.failed)
            return
        core = self._core
        assert core.wal is not None
        raw = frame.encode_control(control.ReadyMark(run=core.run), 0, core.clock.now_ms(), durable=True)
        try:
            core.wal.shards[0].submit(raw, 1, self._ready, durable=True, control=True)
        except TopicsError as refused:
            self._give_up(refused)

    def _ready(self, outcome: ShardLsn | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            self._give_up(outcome)
            return
        core = self._core
        core.settling = None
        try:
            self._lock.settle(core.run)
        except OSError as error:
            log.warning("the lock file keeps settled lines: %s", error)
        refused: dict[str, TopicsError] = {}
        for shard, frames, count, done, durable, is_control in self._take_held():
            # What stands behind a refused one may count on its seqs: the log must not have it without the other.
            if shard.key not in refused:
                try:
                    shard.submit(frames, count, done, durable=durable, control=is_control)
                except TopicsError as refusal:
                    refused[shard.key] = refusal
                else:
                    continue
            done(refused[shard.key])

    def _give_up(self, error: TopicsError) -> None:
        """What was held fails; the next submission or tick tries again."""
        self._running = False
        self.failed = error
        log.error("the run could not begin: %s", error)
        for _, _, _, done, _, _ in self._take_held():
            done(error)

    def _take_held(self) -> list[Held]:
        held, self._held, self._held_bytes = self._held, [], 0
        return held

    @property
    def is_full(self) -> bool:
        """Whether no space is what keeps the run from beginning."""
        return self.failed is not None and any(one.state == "full" for one in self._shards())

    def tick(self) -> None:
        """Try again what failed, once the probe has found space [S-245]."""
        if self.failed is not None and all(one.state == "ok" for one in self._shards()):
            self.begin()
