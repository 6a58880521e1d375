"""Rewriting segments on request (02 §10, 06 §15.5): one run per topic, which later calls join [CPT-1].

    look      which segments, named or all, have dead frame bytes; in slices [P-10]
    bring in  marks that are not on disk go there first: one checkpoint of the topic, as often as new ones came
    rewrite   one segment after another, hot or cold, within a rate of bytes per second
    answer    when everything the caller asked for is decided, or when it has waited enough: progress then

A segment that still waits for its turn is told as `busy`. A run outlives its callers. What it did for somebody who was
told only progress is kept for the next call that asks for the same; whatever is dead by then is rewritten anew. Owner
only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Literal, NamedTuple

from topics.engine import reclaim
from topics.engine.core import Core, Outcome, guarded
from topics.engine.read import Waiting
from topics.engine.topic import Topic
from topics.errors import CallerError, TopicNotFound
from topics.model import Limits, check_u32, check_u64
from topics.storage.descriptor import Segment

SEGMENTS_MAX: Final = 1000
"""Named by one call."""
DEAD_RATIO: Final = 0.5
SLICE_NS: Final = 2_000_000
UNTOLD_MS: Final = 600_000
"""How long the outcome of a run is kept for somebody who was told only progress."""

RewriteCold = Callable[[Topic, Segment, Callable[[BaseException | None], None]], None]
"""Fetches a segment, rewrites it here, and leaves moving it again to the next round [S-285]."""
Result = Literal["rewritten", "nothing_to_do", "active", "gone", "busy", "failed"]


class CompactedSegment(NamedTuple):
    """What became of one segment."""

    first_seq: int
    result: Result
    bytes_before: int
    """Of `.data`."""
    bytes_after: int


class CompactResult(NamedTuple):
    """How far a run is with what was asked for."""

    topic: str
    state: Literal["running", "done"]
    segments: list[CompactedSegment]


class Asked(NamedTuple):
    """One call, checked."""

    segments: tuple[int, ...] | None
    """By their first seqs; None: all that are dead enough."""
    min_dead_ratio: float
    bytes_per_sec: int | None
    """None: as configured."""
    wait_ms: int | None
    """None: until it is done."""

    @classmethod
    def parse(
        cls, segments: object, min_dead_ratio: object, bytes_per_sec: object, wait_ms: object, limits: Limits
    ) -> Asked:
        """Check what a caller gave."""
        if segments is not None and min_dead_ratio is not None:
            raise CallerError("segments are named, or chosen by min_dead_ratio, not both")
        rate = None if bytes_per_sec is None else check_u64(bytes_per_sec, "bytes_per_sec")
        wait = None if wait_ms is None else min(check_u32(wait_ms, "wait_ms"), limits.max_wait_ms)
        return cls(_firsts(segments), _ratio(min_dead_ratio), rate or None, wait)


def _firsts(segments: object) -> tuple[int, ...] | None:
    if segments is None:
        return None
    if isinstance(segments, (str, bytes, dict)) or not isinstance(segments, Iterable):
        raise CallerError("segments must be a list of first seqs")
    named = [check_u64(first, "a segment") for first in segments]
    if len(named) > SEGMENTS_MAX:
        raise CallerError(f"segments lists {len(named)}; at most {SEGMENTS_MAX} are accepted")
    return tuple(dict.fromkeys(named))


def _ratio(given: object) -> float:
    if given is None:
        return DEAD_RATIO
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not 0 <= given <= 1:
        raise CallerError("min_dead_ratio must be a number from 0 to 1")
    return float(given)


class _Row:
    """One segment of a run; `result` None: its turn has not come."""

    __slots__ = ("after", "before", "brought", "first", "result", "told")

    def __init__(self, first: int, size: int, result: Result | None) -> None:
        self.first = first
        self.before = self.after = size
        self.result = result
        self.brought = False
        """A checkpoint was asked for its sake."""
        self.told = False


class _Run:
    """What is asked of one topic."""

    def __init__(self, topic: Topic, bytes_per_sec: int) -> None:
        self.topic = topic
        self.bytes_per_sec = bytes_per_sec
        self.rows: dict[int, _Row] = {}
        self.turns: deque[_Row] = deque()
        self.calls: list[_Call] = []


class Compactor:
    """All runs of an engine."""

    def __init__(self, core: Core, rewrite_cold: RewriteCold) -> None:
        self.core = core
        self._rewrite_cold = rewrite_cold
        self.total = 0
        """Segments rewritten."""
        self._runs: dict[int, _Run] = {}
        self._untold: dict[int, tuple[int, dict[int, _Row]]] = {}
        """By topic: since when, and rows by first seq."""

    def ask(self, name: str, asked: Asked, done: Outcome, waiting: Waiting | None = None) -> None:
        """Begin a run or join the one there is; answers a `CompactResult`."""
        self._forget_old()
        self.core.with_topic(name, lambda topic: _Call(self, topic, asked, done, waiting).look(), done)

    # -- what is to be done ------------------------------------------------------------------------------------------

    def row(self, topic: Topic, first: int, ratio: float) -> _Row:
        """What there is to do about the segment at `first`; what is dead by less than `ratio` is nothing."""
        known = self._known(topic).get(first)
        if known is not None and known.result != "rewritten":
            return known
        one = _segment(topic, first)
        if one is None:
            return _Row(first, 0, "gone")
        if not one.sealed:
            return _Row(first, one.data_len, "active")
        if one.lost:
            return _Row(first, 0, "failed")
        if one.unindexed:
            return _Row(first, one.data_len, "busy")  # its index is on its way from the cold tier
        has_frames = reclaim.has_frames(one)
        if not has_frames or not self._is_worth_it(topic, one, ratio):
            return known or _Row(first, one.data_len if has_frames else 0, "nothing_to_do")
        if known is not None:
            known.told = True  # there is more to tell of it now
        return _Row(first, one.data_len, None)

    def firsts(self, topic: Topic) -> list[int]:
        """Segments that a call for all that are dead enough looks at: whatever has dead seqs, and what is not told."""
        segments = topic.index.segments
        listed = [] if segments is None else segments.segments
        return sorted(
            {one.first for one in listed if one.sealed and reclaim.has_frames(one) and one.dead} | {*self._known(topic)}
        )

    def _known(self, topic: Topic) -> dict[int, _Row]:
        """Rows whose turn has not come, and those of whose outcome nobody has heard."""
        run = self._runs.get(topic.id)
        rows = {} if run is None else run.rows
        untold = self._untold.get(topic.id, (0, {}))[1]
        return {first: row for first, row in (untold | rows).items() if not row.told}

    def _is_worth_it(self, topic: Topic, one: Segment, ratio: float) -> bool:
        assert topic.index.segments is not None
        if not one.dead:
            return False
        dead = reclaim.dead_bytes(topic.index.segments, one)
        return dead > 0 and dead >= ratio * one.data_len

    def _forget_old(self) -> None:
        now = self.core.clock.now_ms()
        kept = {id: old for id, old in self._untold.items() if old[1] and 0 <= now - old[0] < UNTOLD_MS}
        self._untold = {id: old for id, old in kept.items() if id in self.core.topics}

    def join(self, call: _Call) -> None:
        """Have what a call found done, and tell it as rows are decided."""
        topic, asked = call.topic, call.asked
        rate = asked.bytes_per_sec or max(self.core.config.reclaim_bytes_per_sec, 1)
        run = self._runs.get(topic.id)
        if run is None:
            run = self._runs[topic.id] = _Run(topic, rate)
            self.core.owner.soon(lambda: self._step(run))
        run.calls.append(call)
        for row in call.rows:
            if row.result is None and run.rows.get(row.first) is not row:
                run.rows[row.first] = row
                run.turns.append(row)

    # -- one run -----------------------------------------------------------------------------------------------------

    def _step(self, run: _Run) -> None:
        """The next segment, if there is one and it is free."""
        topic = run.topic
        if self.core.closing:
            return
        if not run.turns:
            self._end(run)
            return
        row = run.turns[0]
        one = None if self.core.topics.get(topic.id) is not topic else _segment(topic, row.first)
        if one is None:
            self._decide(run, "gone", 0)
        elif not reclaim.has_frames(one):
            # All of it was dead, and a checkpoint dropped it.
            self._decide(run, "failed" if one.lost else "rewritten", 0)
        elif self._is_unsettled(topic, one) and not row.brought and self.core.bring_in is not None:
            row.brought = True
            self.core.bring_in(topic.id, lambda outcome: self._step(run))
        elif one.busy or topic.checkpointing or self._is_held(topic, one):
            self._decide(run, "busy", one.data_len)
        else:
            guarded(lambda: self._begin(run, row, one), lambda error: self._decide(run, "failed", one.data_len))

    def _is_held(self, topic: Topic, one: Segment) -> bool:
        """Whether it must not be rewritten now: a pinned snapshot names it, or its tier is failing [S-285]."""
        return self.core.pins.is_frozen(topic.id, one.first) or (one.cold and self.core.cold.is_failing)

    def _is_unsettled(self, topic: Topic, one: Segment) -> bool:
        """Whether a checkpoint has it, or has something to bring to its files first."""
        assert topic.index.segments is not None
        damaged = one.first in topic.index.segments.reader.damaged
        return one.busy or topic.checkpointing or bool(len(one.pending)) or damaged

    def _begin(self, run: _Run, row: _Row, one: Segment) -> None:
        core, topic = self.core, run.topic
        assert topic.index.segments is not None
        if one.first in topic.index.segments.reader.damaged:
            self._decide(run, "failed", one.data_len)
        elif not one.live and len(one.pending):
            self._decide(run, "busy", one.data_len)
        elif not one.live:
            reclaim.drop_data(core, topic, one)
            self._decide(run, "rewritten", 0)
        elif one.cold and core.cold.root is None:
            self._decide(run, "failed", one.data_len)
        else:
            topic.rewritten_ms = core.clock.now_ms()
            rewrite = self._rewrite_cold if one.cold else partial(reclaim.rewrite, core)
            rewrite(topic, one, lambda error: self._rewritten(run, row, one, error))

    def _rewritten(self, run: _Run, row: _Row, one: Segment, error: BaseException | None) -> None:
        if error is None:
            self.total += 1
            self._decide(run, "rewritten", one.data_len)
        else:
            # A failure behind the rename leaves the new pair in use, but perhaps not for long.
            gone = self.core.topics.get(run.topic.id) is not run.topic
            self._decide(run, "gone" if gone else "failed", 0 if gone else one.data_len)

    def _decide(self, run: _Run, result: Result, size: int) -> None:
        """The first row in turn is over; the next one waits as long as the bytes moved may take."""
        row = run.turns.popleft()
        row.result, row.after = result, size
        pause_ns = 0
        if result == "rewritten" and run.turns:
            pause_ns = (row.before + size) * 1_000_000_000 // run.bytes_per_sec
        for call in list(run.calls):
            call.look_again()
        if pause_ns >= 1_000_000:
            self.core.alarms.at(self.core.clock.monotonic_ns() + pause_ns, lambda: self._step(run))
        else:
            self.core.owner.soon(lambda: self._step(run))

    def leave(self, call: _Call) -> None:
        """Nobody waits for this call any more; the run goes on."""
        run = self._runs.get(call.topic.id)
        if run is not None and call in run.calls:
            run.calls.remove(call)

    def _end(self, run: _Run) -> None:
        topic = run.topic
        del self._runs[topic.id]
        rows = self._known(topic) | run.rows
        rows = {first: row for first, row in rows.items() if not row.told}
        if rows and self.core.topics.get(topic.id) is topic:
            self._untold[topic.id] = (self.core.clock.now_ms(), rows)


class _Call:
    """One call on its way."""

    def __init__(
        self, compactor: Compactor, topic: Topic, asked: Asked, done: Outcome, waiting: Waiting | None
    ) -> None:
        self.topic = topic
        self.asked = asked
        self.rows: list[_Row] = []
        self._compactor = compactor
        self._done = done
        self._waiting = waiting
        self._left = iter(compactor.firsts(topic) if asked.segments is None else asked.segments)
        self._leave: Callable[[], None] = lambda: None

    def look(self) -> None:
        """Look at segments for one slice, then at the others."""
        core = self._compactor.core
        if core.topics.get(self.topic.id) is not self.topic:
            self._done(TopicNotFound(self.topic.name))
            return
        ratio = 0.0 if self.asked.segments is not None else self.asked.min_dead_ratio
        until_ns = core.clock.monotonic_ns() + SLICE_NS
        for first in self._left:
            row = self._compactor.row(self.topic, first, ratio)
            if self.asked.segments is not None or row.result in (None, "rewritten", "failed", "busy"):
                self.rows.append(row)
            if core.clock.monotonic_ns() >= until_ns:
                core.owner.soon(lambda: guarded(self.look, self._done))
                return
        self._wait()

    def _wait(self) -> None:
        """Everything is looked at: answer, or wait for what is left."""
        if self._is_over():
            self._answer()
            return
        self._compactor.join(self)
        if self.asked.wait_ms == 0:
            self._answer()
            return
        core, key = self._compactor.core, object()
        core.polls[key] = self._answer
        alarm = None
        if self.asked.wait_ms is not None:
            alarm = core.alarms.at(core.clock.monotonic_ns() + self.asked.wait_ms * 1_000_000, self._answer)

        def leave() -> None:
            core.polls.pop(key, None)
            if alarm is not None:
                alarm.cancel()
            self._compactor.leave(self)

        self._leave = leave
        if self._waiting is not None:
            self._waiting.leave = leave
            if self._waiting.ended:
                leave()

    def look_again(self) -> None:
        """A row was decided."""
        if self._is_over():
            self._answer()

    def _is_over(self) -> bool:
        return all(row.result is not None for row in self.rows)

    def _answer(self) -> None:
        self._leave()
        over = self._is_over()
        for row in self.rows:
            row.told = row.told or over
        told = [CompactedSegment(row.first, row.result or "busy", row.before, row.after) for row in self.rows]
        self._compactor.leave(self)
        self._done(CompactResult(self.topic.name, "done" if over else "running", told))


def _segment(topic: Topic, first: int) -> Segment | None:
    segments = topic.index.segments
    found = None if segments is None else segments.find(first)
    return found if found is not None and found.first == first else None
