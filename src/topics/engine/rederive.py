"""Routers at a start: what the snapshot and the log say of them, then their copies once more (06 §14 steps 9 and 12).

    RouterReplay   definitions in the order of `op`; of each router the newest position: that of the latest run, and
                   within a run the larger
    rederive       edge by edge, sources before destinations, until nothing moves; deletes of a destination are applied
                   to its copies again before they travel on [RRC-7]; caps of sources come last, so that what they
                   took from a source behind its copies is copied again

A cursor above its source's head (what `memory` and `ephemeral` lost) is lowered to it and that is logged, because later
records take those seqs again [RRC-5]. The opener's thread, before the engine is used.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from topics.codec import control, frame
from topics.codec.snapshot import RouterItem, Snapshot
from topics.engine import retention
from topics.engine.core import Core, control_frame
from topics.engine.router import Edge, Position, Router
from topics.engine.topic import Lsn
from topics.errors import TopicsError
from topics.storage.tail import NOWHERE

log = logging.getLogger("topics.engine")

RouterFrame = control.RouterCreate | control.RouterDelete | control.RouterMark


class RouterReplay:
    """What is known of routers, gathered while the log is replayed."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self._next_op = 1 if snapshot is None else snapshot.header.next_router_op
        self._known: dict[str, tuple[control.RouterCreate, Position]] = {}
        self._frames: list[tuple[int, control.RouterCreate | control.RouterDelete, int]] = []
        self._rows: dict[int, Position] = {}
        for item in () if snapshot is None else snapshot.routers:
            position = Position(snapshot.header.run if snapshot else 0, item.position, item.dest_head, item.total)
            self._known[item.name] = (_body(item), position)

    def add(self, body: RouterFrame, run: int) -> None:
        """A frame of the log."""
        if isinstance(body, control.RouterMark):
            for row in body.routers:
                position = Position(run, row.cursor, row.dest_head, row.total)
                self._rows[row.inc] = max(position, self._rows.get(row.inc, position))
        elif body.op >= self._next_op:
            self._frames.append((body.op, body, run))

    def resolve(self, core: Core) -> None:
        """Register every router whose topics are there; two sources for one destination: the later one was answered."""
        op = self._next_op
        for op_of, body, run in sorted(self._frames, key=lambda one: one[0]):
            op = max(op, op_of + 1)
            self._apply(body, run)
        core.routers.next_op = op
        for body, position in sorted(self._known.values(), key=lambda one: -one[0].op):
            source, dest = core.topics.get(body.source_id), core.topics.get(body.dest_id)
            if source is None or dest is None:
                continue
            feeding = core.routers.feeding.get(dest.id)
            if feeding is not None and feeding.source is not source:
                continue
            newest = max(position, self._rows.get(body.inc, position))
            router = Router(body, core.routers.edge(core, source, dest), newest)
            core.routers.add(router)
            core.routers.by_name[body.name] = router

    def _apply(self, body: control.RouterCreate | control.RouterDelete, run: int) -> None:
        if isinstance(body, control.RouterDelete):
            self._known.pop(body.name, None)
            return
        before = self._known.get(body.name)
        if before is not None and before[0].inc == body.inc:
            self._known[body.name] = (body, before[1])
        elif body.new:
            self._known[body.name] = (body, Position(run, body.cursor or 0, body.base or 0, 0))
        else:
            log.error("router %r: what created it is not in the log; it is left out", body.name)


def _body(item: RouterItem) -> control.RouterCreate:
    said = {name: getattr(item, name) for name in control.RouterCreate.__struct_fields__}
    return control.RouterCreate(**said)


Carry = Callable[[Callable[[], object]], None]
"""Does something as the owner, and everything that follows from it."""
Deletes = dict[int, list[tuple[control.Delete, Lsn]]]


def rederive(core: Core, deletes: Deletes, carry_out: Carry) -> None:
    """Forward from every recovered position until nothing is left, chains included [RRC-1]."""
    routers = core.routers
    if not routers.feeding:
        return
    routers.held = True
    core.held = [at for found in deletes.values() for _, at in found]
    order = _in_order(core)
    try:
        _until_nothing_moves(core, order, deletes, carry_out)
        lowered = [_lower(core, edge, carry_out) for edge in order]
        if any(lowered):
            _until_nothing_moves(core, order, deletes, carry_out)
        for edge in order:
            carry_out(partial(_reach_floors, core, edge))
        for id in list(routers.fed):
            # Not before: what caps took from a source after it was forwarded is still in the log.
            carry_out(partial(retention.try_caps, core, core.topics[id]))
    finally:
        routers.held = False
        core.held = []
        for edge in order:
            _owe(core, edge, deletes.get(edge.dest.id, []))


def _owe(core: Core, edge: Edge, deletes: list[tuple[control.Delete, Lsn]]) -> None:
    """Records of the source are in a cold tier that cannot be reached: the copies come when it is back [S-318].

    Deletes are held for them only if they may be about one of them: the tier may be away for long, and so may the log
    behind a frame that is held.
    """
    if edge.fetching:
        log.error("%r -> %r: copies are missing until the cold tier is back", edge.source.name, edge.dest.name)
        edge.deletes = [(body, at) for body, at in deletes if _reach(body) > edge.dest.head]
        core.held += [at for _, at in edge.deletes]


def _reach(body: control.Delete) -> int:
    """The highest seq that a delete may be about."""
    return body.bound - 1 if body.bound is not None else max(body.seqs or (0,))


def _in_order(core: Core) -> list[Edge]:
    """Sources before destinations, where there is such an order: every topic has one source at most."""
    order: list[Edge] = []
    seen: set[int] = set()
    for start in sorted(core.routers.feeding):
        chain: list[Edge] = []
        edge = core.routers.feeding.get(start)
        while edge is not None and edge.dest.id not in seen:
            seen.add(edge.dest.id)
            chain.append(edge)
            edge = core.routers.feeding.get(edge.source.id)
        order += reversed(chain)
    return order


def _until_nothing_moves(core: Core, order: list[Edge], deletes: Deletes, carry_out: Carry) -> None:
    moved = True
    while moved:
        moved = False
        for edge in order:
            if _drain(core, edge, carry_out):
                moved = True
                carry_out(partial(_delete_again, edge, deletes.get(edge.dest.id, [])))


def _drain(core: Core, edge: Edge, carry_out: Carry) -> bool:
    """Serve an edge until its source has no more or its destination takes no more; whether it moved."""
    moved = False
    while edge.is_behind:
        before = _where(edge)
        carry_out(edge.serve)
        if _where(edge) != before:
            moved = True
        elif edge.cold is None or edge.fetching:
            break
    return moved


def _where(edge: Edge) -> tuple[object, ...]:
    """What changes with every step that gets anywhere: copies, cursors, or memory that a checkpoint freed."""
    return edge.dest.head, tuple(one.cursor for one in edge.routers), edge.dest.index.ckpt_seq


def _delete_again(edge: Edge, deletes: list[tuple[control.Delete, Lsn]]) -> None:
    """What was deleted stays deleted; the frames are needed until that is on disk [S-270]."""
    for body, at in deletes:
        if body.seqs is not None or body.match is not None:
            edge.dest.apply(body, at)


def _lower(core: Core, edge: Edge, carry_out: Carry) -> bool:
    """Cursors above what is left of their source go down to it, durably [RRC-5]."""
    lowered = [one for one in edge.routers if one.cursor > edge.source.head]
    for one in lowered:
        one.cursor = edge.source.head
    if lowered:
        core.routers.moved.add(edge)
        mark = control.RouterMark(routers=tuple(one.row(one.saved.dest_head) for one in lowered))
        raw = frame.encode_control(mark, 0, core.clock.now_ms(), durable=True)
        carry_out(partial(_log, core, edge, raw, 1))
    return bool(lowered)


def _reach_floors(core: Core, edge: Edge) -> None:
    """A destination that ends below its floors is raised to them by a silent gap [S-242]."""
    dest = edge.dest
    if dest.head >= dest.floor - 1:
        return
    gap = control.Gap(first=dest.head + 1, last=dest.floor - 1, reason=0)
    if not core.is_logged(dest):
        dest.apply_gap_in_memory(gap)
        return
    now = core.clock.now_ms()
    carried = edge.carry(durable=True)
    dest.apply_gap(gap, NOWHERE)
    frames = [control_frame(gap, dest, now, durable=True, more=True), edge.mark(dest.head, now, durable=True)]
    if carried is not None:
        frames.insert(0, carried.frames)
    edge.logged_seq = dest.head
    _log(core, edge, b"".join(frames), 2 + (0 if carried is None else carried.frame_count))


def _log(core: Core, edge: Edge, frames: bytes, count: int) -> None:
    """Log what was decided of a destination; without it the next start decides the same again."""
    dest = edge.dest

    def logged(outcome: Lsn | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            log.error("what was decided of %r is not logged: %s", dest.name, outcome)
        else:
            dest.needed.append(outcome)
            core.touch(dest)

    if core.wal is None:
        return
    try:
        core.submit(dest.id, frames, count, logged, durable=True)
    except TopicsError as error:
        logged(error)
