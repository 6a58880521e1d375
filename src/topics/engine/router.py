"""Routers: which topic is copied into which, how far each one is, and what of that is durable (05, 06 S-212).

    Router     one rule `source -> dest`, its cursor and its count
    Edge       all routers of one source and one destination: they advance together, in the order of names [S-212 b]
    Routers    all of them: by name, by source, by destination (which has one source [RTR-16])

A *position* is `(cursor, total, dest_head)`: after it only derived records follow in the destination. The newest one
that is durable decides where a restart goes on: positions of a later run win over those of an earlier one, within a run
the larger wins.

Copies are *derived*: until a checkpoint or a direct write to their topic takes them along they are in memory only, and
a restart derives them again. `Edge.logged_seq` is the highest seq of the destination that the log or its segments have.

State only; what forwards is `forward`, what changes definitions is `route`. Owner only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.codec import control, frame
from topics.engine.scheduler import Item
from topics.engine.topic import Lsn, Topic
from topics.model import RouterConfig, RouterState, Selector
from topics.storage.tail import EntryRun
from topics.storage.tiers.blocks import ColdRead

if TYPE_CHECKING:
    from topics.engine.core import Core

ROWS_MAX = 1000
"""Positions in one mark."""


class Position(NamedTuple):
    """A durable position, comparable: the larger is the newer."""

    run: int
    cursor: int
    dest_head: int
    total: int


class Router:
    """One router. `cursor` is the highest source seq that is handled, `saved` the newest durable position."""

    __slots__ = ("body", "config", "cursor", "edge", "saved", "selector", "total")

    def __init__(self, body: control.RouterCreate, edge: Edge, saved: Position) -> None:
        self.edge = edge
        self.saved = saved
        self.cursor = saved.cursor
        self.total = saved.total
        self.define(body)

    def define(self, body: control.RouterCreate) -> None:
        """Replace everything but name, ends, cursor and count [RTR-8]."""
        self.body = body
        self.selector = None if body.selector is None else Selector(*body.selector)
        self.config = RouterConfig(
            body.source, body.dest, body.preserve_node, body.preserve_tag, body.create_dest, self.selector,
            body.allow_cycle, body.guarantee,
        )  # fmt: skip

    @property
    def name(self) -> str:
        """Its name."""
        return self.body.name

    def row(self, dest_head: int) -> control.RouterRow:
        """Where it is, with the destination at `dest_head`."""
        return control.RouterRow(self.body.inc, self.name, self.cursor, self.total, dest_head)

    def state(self) -> RouterState:
        """What a caller is told of it."""
        lag = max(self.edge.source.head - self.cursor, 0)
        return RouterState(self.name, self.config, self.total, self.cursor, lag)


class Carried(NamedTuple):
    """Copies that a submission of their topic takes along into the log [S-212 c]."""

    first: int
    last: int
    frames: bytes
    frame_count: int
    places: list[tuple[int, int, int]]
    """First and last seq of each frame, and its offset."""

    def located(self, at: int) -> list[tuple[int, int, int]]:
        """The same with the locations that frames written from `at` on have."""
        return [(first, last, at + offset) for first, last, offset in self.places]


class Edge:
    """What one topic gets from another. Invariant: no derived record of `dest` lies above one that is being logged."""

    __slots__ = (
        "blocked", "busy", "cold", "core", "deletes", "dest", "fetching", "item", "known", "logged_seq", "paused",
        "relieving", "routers", "source", "waiting",
    )  # fmt: skip

    def __init__(self, core: Core, source: Topic, dest: Topic) -> None:
        self.core = core
        self.source = source
        self.dest = dest
        self.routers: list[Router] = []
        """Ascending by name; the new ones of a creation that is not yet durable among them."""
        self.logged_seq = dest.next_seq - 1
        self.busy = False
        """A pass is under way: there is one at a time [FWD-12]."""
        self.item = Item(source, self._service, forward=True)
        """Its place in the line of what is to be served [D-1]."""
        self.paused = 0
        """A router or a topic of it is being removed or created: nothing is forwarded meanwhile."""
        self.blocked = False
        """The last pass stopped before the source's head; the tick tries again [BKP-1]."""
        self.relieving = False
        """A checkpoint of the destination was asked for, because much of it is in memory only."""
        self.known: dict[tuple[str, int], int] = {}
        """Of `exactly_once` routers: source seqs whose key a direct write brought into the destination, and where."""
        self.waiting: list[Callable[[], None]] = []
        """Called when a pass or a pause ends."""
        self.cold: ColdRead | None = None
        """What was fetched from the cold tier for the next pass."""
        self.fetching = False
        """Records of the source are fetched from there, or could not be: no pass until that changes."""
        self.deletes: list[tuple[control.Delete, Lsn]] = []
        """Of the destination, to be applied again to copies that a start could not derive [RRC-7]."""

    def serve(self) -> bool:
        """One bounded step; whether it wants another."""
        return self.core.serve(self)

    def _service(self) -> bool:
        """The same by turns: what wants another step goes to the end of the line [FWD-8]."""
        if self.serve():
            self.core.forward_soon(self)
        return False

    def pause(self) -> None:
        """Forward nothing until `resume`; calls add up."""
        self.paused += 1

    def resume(self) -> None:
        """Go on, and let readers go on that waited for it; what the next tick tries again is left to it."""
        self.paused -= 1
        if not self.paused:
            self.pass_ended()
            if self not in self.core.routers.behind:
                self.core.forward_soon(self)

    def pass_ended(self) -> None:
        """Call who waits for copies."""
        woken, self.waiting = self.waiting, []
        for call in woken:
            self.core.owner.soon(call)

    def let_go(self) -> None:
        """No copy is missing any more, or none will come: the log need not keep deletes for them."""
        gone = {at for _, at in self.deletes}
        self.core.held = [at for at in self.core.held if at not in gone]
        self.deletes = []

    @property
    def cursor(self) -> int:
        """The lowest of its routers'."""
        return min((one.cursor for one in self.routers), default=self.source.head)

    @property
    def is_behind(self) -> bool:
        """Whether a router has not handled everything the source has."""
        return self.cursor < self.source.head

    @property
    def pending_from(self) -> int:
        """First seq of the destination that neither log nor segments have, if there is any."""
        return max(self.logged_seq, self.dest.index.ckpt_seq) + 1

    @property
    def has_pending(self) -> bool:
        """Whether copies are in memory that the log does not know of, and should."""
        return self.dest.index.tail.end >= self.pending_from

    def rows(self, dest_head: int) -> tuple[control.RouterRow, ...]:
        """The positions of its routers."""
        return tuple(one.row(dest_head) for one in self.routers)

    def mark(self, dest_head: int, ts: int, *, durable: bool, more: bool = False) -> bytes:
        """The frame that says how far its routers are, for the submission that moves the destination to `dest_head`."""
        return frame.encode_control(control.RouterMark(routers=self.rows(dest_head)), 0, ts, durable=durable, more=more)

    def carry(self, *, durable: bool) -> Carried | None:
        """What a submission of the destination has to take along: all copies that are in memory only."""
        dest, tail = self.dest, self.dest.index.tail
        first = self.pending_from
        if tail.end < first:
            return None
        parts: list[bytes] = []
        places: list[tuple[int, int, int]] = []
        at = 0
        for low, high, raw in _pending(dest, first, tail.end, durable):
            parts.append(raw)
            places.append((low, high, at))
            at += len(raw)
        return Carried(first, tail.end, b"".join(parts), len(parts), places)


def _pending(dest: Topic, first: int, last: int, durable: bool) -> Iterator[tuple[int, int, bytes]]:
    """Copies and holes as frames: an Append for what lives, a Gap for what does not."""
    index = dest.index
    for run in index.tail.runs(first, last):
        if not isinstance(run, EntryRun):
            end = run.first + run.seqs - 1
            yield run.first, end, _gap(dest, run.first, end, run.reason, run.hops, run.ts, durable)
            continue
        flags, words, times = (
            run.entries["flags"].tolist(),
            run.entries["flags_ovh"].tolist(),
            run.entries["ts"].tolist(),
        )
        at, n = 0, len(flags)
        while at < n:
            if not flags[at] & _DEAD:
                yield run.first + at, run.first + at, index.derived_frame(int(run.locations[at]))
                at += 1
                continue
            behind = at + 1
            while behind < n and flags[behind] == flags[at] and words[behind] >> 8 == words[at] >> 8:
                behind += 1
            reason = words[at] >> 8 if flags[at] & _LOST else 0
            low, high = run.first + at, run.first + behind - 1
            yield low, high, _gap(dest, low, high, reason, flags[at] >> 4, times[at], durable)
            at = behind


_LOST = 0x08
_DEAD = 0x0C


def _gap(dest: Topic, first: int, last: int, reason: int, hops: int, ts: int, durable: bool) -> bytes:
    body = control.Gap(first=first, last=last, reason=reason, hops=hops)
    return frame.encode_control(body, dest.id, ts, durable=durable, more=True)


class Routers:
    """All routers of an engine."""

    def __init__(self) -> None:
        self.by_name: dict[str, Router] = {}
        self.feeding: dict[int, Edge] = {}
        """By the id of the destination."""
        self.fed: dict[int, list[Edge]] = {}
        """By the id of the source."""
        self.moved: set[Edge] = set()
        """Edges with a position that is not durable."""
        self.behind: set[Edge] = set()
        """Edges to be tried again with the next tick."""
        self.next_op = 1
        """Of the next operation; one that is in flight is not counted [S-218]."""
        self.held = False
        """Recovery drives the edges itself, one after another."""
        self._line: deque[Callable[[], None]] = deque()
        self._busy = False
        self._is_beginning = False

    def edge(self, core: Core, source: Topic, dest: Topic) -> Edge:
        """The edge between two topics, made if there is none."""
        found = self.feeding.get(dest.id)
        if found is None:
            found = self.feeding[dest.id] = Edge(core, source, dest)
            self.fed.setdefault(source.id, []).append(found)
        assert found.source is source
        return found

    def add(self, router: Router) -> None:
        """Take a router in; it is known by name only once it is durable."""
        edge = router.edge
        edge.routers.append(router)
        edge.routers.sort(key=lambda one: one.name)

    def remove(self, router: Router) -> None:
        """Forget a router, and its edge with the last one."""
        edge = router.edge
        if self.by_name.get(router.name) is router:
            del self.by_name[router.name]
        edge.routers.remove(router)
        if not edge.routers:
            del self.feeding[edge.dest.id]
            edges = self.fed[edge.source.id]
            edges.remove(edge)
            if not edges:
                del self.fed[edge.source.id]
            self.moved.discard(edge)
            self.behind.discard(edge)
            edge.let_go()
            edge.core.pump.forget(edge.item)
            edge.pass_ended()

    def edges_of(self, topic: Topic) -> list[Edge]:
        """Every edge that a topic is an end of."""
        into = self.feeding.get(topic.id)
        return [*([into] if into is not None else []), *self.fed.get(topic.id, ())]

    def names_of(self, topic: Topic) -> list[str]:
        """The routers that a topic's deletion takes along, ascending [TOP-13]."""
        return sorted(one.name for edge in self.edges_of(topic) for one in edge.routers if one.name in self.by_name)

    def path(self, source: Topic, dest: Topic, without: Router | None) -> list[str] | None:
        """The shortest way from `dest` back to `source`, as names; the edge of `without` alone is none [CYC-1]."""
        came: dict[int, Edge | None] = {dest.id: None}
        line = deque([dest])
        while line:
            topic = line.popleft()
            if topic is source:
                names: list[str] = []
                edge = came[topic.id]
                while edge is not None:
                    names.append(edge.dest.name)
                    edge = came[edge.source.id]
                return [dest.name, *reversed(names)]
            for edge in sorted(self.fed.get(topic.id, ()), key=lambda one: one.dest.name):
                if edge.routers != [without] and edge.dest.id not in came:
                    came[edge.dest.id] = edge
                    line.append(edge.dest)
        return None

    def in_turn(self, call: Callable[[Callable[[Any], None]], None], done: Callable[[Any], None]) -> None:
        """Carry out operations on routers one after another: their order is that of the log [S-43]."""

        is_over = False

        def ended(outcome: Any) -> None:
            nonlocal is_over
            if is_over:
                return
            is_over, self._busy = True, False
            try:
                done(outcome)
            finally:
                self._begin_next()

        def begin() -> None:
            self._busy = True
            try:
                call(ended)
            except Exception as error:  # noqa: BLE001 - whatever it is: those behind it must not wait for ever
                ended(error)

        self._line.append(begin)
        self._begin_next()

    def _begin_next(self) -> None:
        """One after another, as long as none has to wait; who ends at once comes here, too, and finds the loop."""
        if self._is_beginning:
            return
        self._is_beginning = True
        try:
            while self._line and not self._busy:
                self._line.popleft()()
        finally:
            self._is_beginning = False
