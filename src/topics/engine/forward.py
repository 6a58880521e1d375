"""Forwarding: source records become copies in the destination, one bounded pass at a time (05 §3, §4, §7).

    retention of the source first [TRM-3]; then the destination's turn, with nothing undecided in front; then in one
    stretch: walk the source from the lowest cursor, make copies and holes, apply them, move the cursors [S-212 a]

A pass ends after 1024 source records or 2 ms [FWD-8, A-1]. It stops in front of what the destination refuses, and the
tick tries again [BKP-1]. Copies are made at a moment when no write to the destination is undecided, so they are true at
once and no ticket is needed; a writer of the destination waits for the pass as the pass waits for it [A-1, S-109].

`drain` is what readers call: over one hop they see what was acknowledged before [FWD-9]. Owner only.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from topics.codec import control, envelope, frame
from topics.codec.offsets import pack
from topics.codec.segment import DELETED, HAS_NODE, HAS_TAG, HOPS_SHIFT, LOST, ovh
from topics.engine import copies, retention
from topics.engine.alarms import Alarm
from topics.engine.cold import RETRY_NS
from topics.engine.core import Core, Outcome, guarded
from topics.engine.index import Run, Stored
from topics.engine.router import Edge, Router
from topics.engine.topic import Appended, Topic
from topics.errors import TopicsError
from topics.storage.descriptor import Segment
from topics.storage.segread import Absent
from topics.storage.tail import IN_MEMORY, DeadRun
from topics.storage.tiers.blocks import ColdRead, NeedsBlocks

log = logging.getLogger("topics.engine")

RECORDS_MAX = 1024
"""Source records of one pass, more or less; a long run of dead seqs counts as one [FWD-8]."""
SLICE_NS = 1_000_000
"""Of walking; making the copies takes about as long again, and both together may take 2 ms [A-1]."""
FETCH, FETCH_BYTES = 64, 256 << 10
"""Records fetched between two looks at the clock."""
HOPS_MAX = 8
SOURCE_TRIM = 1
DRAIN_NS = 100_000_000
"""How long a reader waits for copies [FWD-9]."""
DERIVED_RECORDS, DERIVED_BYTES = 4096, 8 << 20
"""From here on copies in memory are brought into segments [S-196]."""
DERIVED_BYTES_MAX = 64 << 20
"""From here on nothing is forwarded before they are."""
META_MEMBERS = 64
KNOWN_MAX = 65_536
MEMBER = b'"_topics_router"'

_ENTRY = struct.Struct("<IIQI")
_DATA_FRAME_BYTES = 38
_WAL_FRAME_BYTES = 46
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode


class _Stop(Exception):
    """The destination takes no more now."""


def serve(edge: Edge) -> bool:
    """One pass, unless one is under way; True: there is more to be done at once."""
    core = edge.core
    if edge.busy or edge.paused or edge.fetching or core.closing or not edge.is_behind:
        return False
    edge.busy = True
    outcome: list[bool] = []
    began = True

    def ended(more: bool) -> None:
        edge.busy = False
        edge.pass_ended()
        if began:
            outcome.append(more)
        elif more:
            core.forward_soon(edge)

    def refused(error: object) -> None:
        if edge.dest.removed or edge.source.removed:
            ended(False)
            return
        log.warning("%r -> %r: nothing is forwarded now: %s", edge.source.name, edge.dest.name, error)
        _block(edge)
        ended(False)

    def in_line() -> None:
        if edge.dest.removed or edge.source.removed:
            ended(False)
        else:
            core.in_line(edge.dest, turn, refused, quiet=True)

    def turn() -> None:
        try:
            more = _pass(core, edge)
        except Exception:  # whatever it is: the edge must not be busy for ever
            log.exception("forwarding %r -> %r", edge.source.name, edge.dest.name)
            _block(edge)
            more = False
        ended(more)

    def begin() -> None:
        retention.catch_up(core, edge.source)
        retention.expire(core, edge.source, in_line, refused)

    guarded(begin, refused)
    began = False
    return bool(outcome) and outcome[0]


def _block(edge: Edge) -> None:
    edge.blocked = True
    edge.core.routers.behind.add(edge)
    edge.core.alarms.armed()


def retry(core: Core) -> None:
    """The tick: edges that had to stop are tried again [FWD-8]."""
    behind, core.routers.behind = core.routers.behind, set()
    for edge in behind:
        core.forward_soon(edge)


def _pass(core: Core, edge: Edge) -> bool:
    """At the destination's turn: one bounded step. Whether there is more to be done at once."""
    if edge.paused or core.closing or edge.dest.removed or edge.source.removed or not edge.routers:
        return False
    edge.blocked = False
    cold, edge.cold = edge.cold or core.cold.read(), None
    step = _Step(core, edge, cold)
    try:
        step.run()
    except _Stop:
        _block(edge)
    except NeedsBlocks as needed:
        _fetch(core, edge, cold, needed)
    except OSError as error:
        log.error("%r -> %r: %s", edge.source.name, edge.dest.name, error)
        _block(edge)
    step.apply()
    if edge.deletes:
        rederived(edge)
    if step.decided:
        _log_decided(core, edge)
    _relieve(core, edge)
    return edge.is_behind and not edge.blocked


def _fetch(core: Core, edge: Edge, cold: ColdRead, needed: NeedsBlocks) -> None:
    """Records of the source are in the cold tier: the edge rests until they are here, or for a while if that fails."""
    edge.blocked = edge.fetching = True

    def go_on() -> None:
        edge.fetching = False
        core.forward_soon(edge)

    if cold.failed is None:
        edge.cold = cold
        core.cold.fetch(cold, needed.wanted, go_on)
    else:
        log.warning("%r -> %r: nothing is forwarded now: %s", edge.source.name, edge.dest.name, cold.failed)
        core.alarms.at(core.clock.monotonic_ns() + RETRY_NS, go_on)


def rederived(edge: Edge) -> None:
    """Copies that a start could not derive came late: what was deleted of them goes again [RRC-7]."""
    for body, at in edge.deletes:
        if body.seqs is not None or body.match is not None:
            edge.dest.apply(body, at)
    if not edge.is_behind:
        edge.let_go()


def _log_decided(core: Core, edge: Edge) -> None:
    """Log what cannot be derived again for sure, with the copies before it and the positions behind it.

    Whether a seq became a hole because its source had lost it, or no copy because its key was there already, must not
    depend on what source and destination still have at the next start; nor a copy that was seen on a cold tier that may
    be away then.
    """
    try:
        copies.log_copies(core, edge)
    except TopicsError as error:
        log.warning("%r -> %r: what was decided is in memory only: %s", edge.source.name, edge.dest.name, error)


def _relieve(core: Core, edge: Edge) -> None:
    """Copies in memory are bounded: have them written before the regular checkpoint [S-196]."""
    index = edge.dest.index
    pending = index.tail.end - edge.pending_from + 1
    if core.bring_in is None or edge.relieving:
        return
    if pending > DERIVED_RECORDS or index.derived.nbytes > DERIVED_BYTES:
        edge.relieving = True
        core.bring_in(edge.dest.id, partial(_relieved, core, edge))


def _relieved(core: Core, edge: Edge, outcome: object) -> None:
    edge.relieving = False
    core.forward_soon(edge)


class _Copy(NamedTuple):
    node: bytes | None
    tag: bytes | None
    data: bytes
    hops: int
    accounted: int


class _Hole(NamedTuple):
    seqs: int
    hops: int


class _Step:
    """One pass: what it makes, and how far each router is behind it. Nothing is changed before `apply`."""

    def __init__(self, core: Core, edge: Edge, cold: ColdRead) -> None:
        self._core = core
        self._edge = edge
        self._cold = cold
        self._routers = list(edge.routers)
        self._cursors = {one.name: one.cursor for one in self._routers}
        self._totals = {one.name: one.total for one in self._routers}
        self._made: list[_Copy | _Hole] = []
        self._room = _Room(core, edge.dest)
        self._began = core.clock.monotonic_ns()
        self.decided = False
        """Whether it made holes for what the source lost, found keys in the destination, or copied cold records."""

    def run(self) -> None:
        """Walk the source until its head, the bounds, or something that the destination refuses."""
        source = self._edge.source
        if self._edge.dest.index.derived.nbytes > DERIVED_BYTES_MAX:
            raise _Stop
        self._room.check_log()
        self._trim(source.evict_floor - 1)
        start = min(self._cursors.values())
        left = RECORDS_MAX
        for piece in source.index.walk(start + 1, source.head, RECORDS_MAX):
            if isinstance(piece, DeadRun):
                self._dead(piece.first, piece.last, piece.reason, piece.hops)
                left -= 1
            elif self._entries(piece):
                left -= len(piece.entries)
            else:
                return
            if left <= 0:
                return
        self._advance(source.head)

    def _trim(self, through: int) -> None:
        """What the source gave up by itself before it was forwarded: one hole for each seq [TRM-1]."""
        for router in self._routers:
            lost = through - self._cursors[router.name]
            if lost > 0:
                self.decided = True
                self._made.append(_Hole(lost, 0))
                self._handled(router, through, lost)

    def _handled(self, router: Router, seq: int, forwarded: int) -> None:
        self._cursors[router.name] = seq
        self._totals[router.name] += forwarded

    def _advance(self, seq: int) -> None:
        """Everything up to `seq` is handled by every router."""
        for name, cursor in self._cursors.items():
            self._cursors[name] = max(cursor, seq)

    def _dead(self, first: int, last: int, reason: int, hops: int) -> None:
        """Deleted seqs are passed, holes travel on whatever their reason, unless they have come too far [FWD-6]."""
        if reason and hops < HOPS_MAX:
            for router in self._routers:
                lost = last - max(first - 1, self._cursors[router.name])
                if lost > 0:
                    self._made.append(_Hole(lost, hops + 1))
                    self._handled(router, last, lost)
        self._advance(last)

    def _entries(self, run: Run) -> bool:
        """Entries of the source; False: the time is over."""
        flags, words, sizes = (run.entries[name].tolist() for name in ("flags", "flags_ovh", "len"))
        floor, at, n = self._edge.source.floor, 0, len(flags)
        now = self._core.clock.monotonic_ns
        while at < n:
            seq = run.first + at
            if flags[at] & (DELETED | LOST) or seq < floor:
                reason = words[at] >> 8 if flags[at] & LOST else 0
                behind = at + 1
                while behind < n and words[behind] == words[at] and flags[at] & (DELETED | LOST):
                    behind += 1
                self._dead(seq, run.first + behind - 1, reason, flags[at] >> HOPS_SHIFT)
                at = behind
                continue
            chosen: list[int] = []
            size = 0
            while at < n and len(chosen) < FETCH and size < FETCH_BYTES and not flags[at] & (DELETED | LOST):
                chosen.append(at)
                size += sizes[at]
                at += 1
            self._live(run, chosen, flags)
            if now() - self._began > SLICE_NS:
                return False
        return True

    def _live(self, run: Run, positions: list[int], flags: list[int]) -> None:
        """Records that are there: fetch those that somebody wants, and copy them."""
        source = self._edge.source.index
        wanted = [at for at in positions if self._is_wanted(run.first + at, flags[at])]
        fetched = dict(zip(wanted, source.fetch(run, wanted, self._cold), strict=True)) if wanted else {}
        self.decided |= bool(wanted) and isinstance(run.source, Segment) and run.source.cold
        sizes = run.entries["len"].astype(np.int64) - ovh(run.entries)
        for at in positions:
            seq, stored = run.first + at, fetched.get(at)
            if isinstance(stored, Absent):
                lost = stored is Absent.UNREADABLE and self._edge.source.told
                self._dead(seq, seq, SOURCE_TRIM if lost else 0, 0)
            elif stored is not None:
                self._copy(seq, stored, flags[at] >> HOPS_SHIFT, int(sizes[at]))
            self._advance(seq)

    def _is_wanted(self, seq: int, flags: int) -> bool:
        if flags >> HOPS_SHIFT >= HOPS_MAX:
            return False
        return bool(flags & HAS_TAG) or any(one.selector is None for one in self._routers)

    def _copy(self, seq: int, stored: Stored, hops: int, accounted: int) -> None:
        """One record, for each router in the order of names [S-212 b]."""
        tag = None if stored.tag is None else stored.tag.decode()
        for router in self._routers:
            if self._cursors[router.name] >= seq or not _picks(router, tag):
                continue
            if router.config.guarantee == "exactly_once":
                if self._is_known(router, seq):
                    self.decided = True
                    self._handled(router, seq, 1)
                    continue
                data = stamped(stored.data, router, self._edge.source, seq)
                size = envelope.accounted_bytes(data)
            else:
                data, size = stored.data, accounted
            self._room.take(size)
            node = stored.node if router.config.preserve_node else None
            kept = stored.tag if router.config.preserve_tag else None
            self._made.append(_Copy(node, kept, data, hops + 1, size))
            self._handled(router, seq, 1)

    def _is_known(self, router: Router, seq: int) -> bool:
        """Whether a live record of the destination carries this copy's key [GUA-2, GUA-5]."""
        edge = self._edge
        at = edge.known.pop((router.name, seq), None) if edge.known else None
        return at is not None and edge.dest.index.live(max(at, edge.dest.floor), at).records == 1

    def apply(self) -> None:
        """Make it true: copies, holes and cursors in one stretch; then who waits for the destination is woken."""
        core, edge = self._core, self._edge
        made, at = self._made, 0
        while at < len(made):
            one = made[at]
            behind = at + 1
            if isinstance(one, _Hole):
                while behind < len(made) and isinstance(made[behind], _Hole) and made[behind].hops == one.hops:
                    behind += 1
                holes = [hole for hole in made[at:behind] if isinstance(hole, _Hole)]
                _make_holes(core, edge.dest, sum(hole.seqs for hole in holes), one.hops)
            else:
                while behind < len(made) and isinstance(made[behind], _Copy) and made[behind].hops == one.hops:
                    behind += 1
                _make_copies(core, edge.dest, [copy for copy in made[at:behind] if isinstance(copy, _Copy)])
            at = behind
        for router in self._routers:
            if router.cursor != self._cursors[router.name]:
                router.cursor, router.total = self._cursors[router.name], self._totals[router.name]
                core.routers.moved.add(edge)
        if made:
            edge.dest.last_write_ms = core.clock.now_ms()
            core.touch(edge.dest)
            retention.try_caps(core, edge.dest)
            core.wake(edge.dest)


def _picks(router: Router, tag: str | None) -> bool:
    return router.selector is None or router.selector.matches(tag)


class _Room:
    """What the destination still takes; asked before each copy [BKP-1]."""

    def __init__(self, core: Core, dest: Topic) -> None:
        self._core = core
        self._dest = dest
        config = dest.config
        self._records = self._bytes = self._total = -1
        if config.discard == "reject" and (config.cap_records or config.cap_bytes):
            records, nbytes = retention.unexpired(core, dest)
            self._records = max(config.cap_records - records, 0) if config.cap_records else -1
            self._bytes = max(config.cap_bytes - nbytes, 0) if config.cap_bytes else -1
        most = core.config.max_total_bytes
        if most:
            self._total = max(most - core.quota_bytes(), 0)

    def check_log(self) -> None:
        """A destination whose log takes nothing takes no copies either: memory is no place to wait in.

        At a start there is no choice: readers have seen the copies that are derived again.
        """
        if self._core.routers.held:
            return
        if self._core.is_logged(self._dest) and self._core.shard(self._dest.id).state != "ok":
            raise _Stop

    def take(self, size: int) -> None:
        """Room for one copy, or none."""
        if self._records == 0 or 0 <= self._bytes < size or 0 <= self._total < size:
            raise _Stop
        if self._records > 0:
            self._records -= 1
        if self._bytes >= 0:
            self._bytes -= size
        if self._total >= 0:
            self._total -= size


def _make_holes(core: Core, dest: Topic, count: int, hops: int) -> None:
    gap = control.Gap(first=dest.next_seq, last=dest.next_seq + count - 1, reason=SOURCE_TRIM, hops=hops)
    if core.is_logged(dest):
        dest.apply_gap(gap, IN_MEMORY)
    else:
        dest.apply_gap_in_memory(gap)
    core.holes[SOURCE_TRIM] += count
    core.losses.note_hole(dest, SOURCE_TRIM, gap.first, gap.last)


def _make_copies(core: Core, dest: Topic, copies: list[_Copy]) -> None:
    """Append copies of one hop count; their frames are those that a log would have."""
    first, ts = dest.next_seq, max(core.clock.now_ms(), dest.last_ts)
    hops = copies[0].hops
    rows = [
        (
            None if one.node is None else one.node.decode(),
            None if one.tag is None else one.tag.decode(),
            one.data,
        )
        for one in copies
    ]
    frames = frame.encode_appends(rows, dest.id, first, ts, hops=hops, more=True)
    entries: list[bytes] = []
    offsets: list[int] = []
    at = 0
    for one in copies:
        flags = hops << HOPS_SHIFT
        size = _DATA_FRAME_BYTES + len(one.data)
        if one.tag is not None:
            flags |= HAS_TAG
            size += len(one.tag)
        if one.node is not None:
            flags |= HAS_NODE
            size += len(one.node)
        entries.append(_ENTRY.pack(0, size, ts, flags | size - one.accounted << 8))
        offsets.append(at)
        at += size + _WAL_FRAME_BYTES - _DATA_FRAME_BYTES
    tags = [one.tag for one in copies]
    total = sum(one.accounted for one in copies)
    logged = core.is_logged(dest)
    dest.apply(Appended(first, b"".join(entries), offsets, tags, total, ts, frames, derived=logged))
    if logged:
        core.recent.add(dest.id, first, frames, pack(offsets))


# -- keys --------------------------------------------------------------------------------------------------------------


def stamped(data: bytes, router: Router, source: Topic, seq: int) -> bytes:
    """The envelope of an `exactly_once` copy: `meta` says where it comes from [GUA-3, GUA-4]."""
    payload, meta = envelope.parts(data)
    member = _encode(
        {
            "idempotency_key": f"router:{router.name}:{source.id}:{source.epoch}:{seq}",
            "router": router.name,
            "source_topic": source.name,
            "source_topic_id": source.id,
            "source_epoch": source.epoch,
            "source_seq": seq,
        }
    )
    if meta is None or meta == b"{}":
        return envelope.build(payload, b'{"_topics_router":%b}' % member)
    members = _MEMBERS.decode(meta)
    if "_topics_router" in members:
        members["_topics_router"] = msgspec.Raw(member)
        return envelope.build(payload, _encode(members))
    if len(members) >= META_MEMBERS:
        return envelope.build(payload, b'{"_topics_router":%b,"_topics_original_meta":%b}' % (member, meta))
    return envelope.build(payload, b'%b,"_topics_router":%b}' % (meta[:-1], member))


def keyed(edge: Edge, first: int, envelopes: Iterable[bytes]) -> list[tuple[int, bytes]]:
    """Records of a direct write to the destination that say to be copies, by seq."""
    if all(one.config.guarantee != "exactly_once" for one in edge.routers):
        return []
    return [(seq, data) for seq, data in enumerate(envelopes, first) if MEMBER in data]


def note_keys(edge: Edge, records: list[tuple[int, bytes]]) -> None:
    """They are there now: copies that are still to be made and have such a key are not made again [GUA-2]."""
    names = {one.name: one for one in edge.routers if one.config.guarantee == "exactly_once"}
    for seq, data in records:
        if len(edge.known) < KNOWN_MAX:
            found = _key(data, names, edge.source)
            if found is not None:
                edge.known[found] = seq


def _key(data: bytes, names: dict[str, Router], source: Topic) -> tuple[str, int] | None:
    """Which copy an envelope says to be, if one of these routers is still to make it."""
    try:
        meta = envelope.parts(data)[1]
        member: Any = msgspec.json.decode(_MEMBERS.decode(meta or b"{}")["_topics_router"])
        name, topic_id, epoch, seq = member["idempotency_key"].removeprefix("router:").rsplit(":", 3)
        router = names.get(name)
        if router is not None and (int(topic_id), int(epoch)) == (source.id, source.epoch) and int(seq) > router.cursor:
            return name, int(seq)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None  # somebody else's member of that name
    return None


# -- readers -----------------------------------------------------------------------------------------------------------


def drain(core: Core, topic: Topic, then: Callable[[], None], done: Outcome) -> None:
    """Bring the edge that feeds a topic up to its source's head as of now, then go on [FWD-9]."""
    edge = core.routers.feeding.get(topic.id) if core.routers.feeding else None
    if edge is None or not edge.is_behind:
        then()
        return
    _Drain(core, edge, partial(guarded, then, done)).go_on()


class _Drain:
    """A reader that waits for copies: until they are there, cannot come now, or it took too long."""

    def __init__(self, core: Core, edge: Edge, then: Callable[[], None]) -> None:
        self._core = core
        self._edge = edge
        self._then = then
        self._target = edge.source.head
        self._due = core.clock.monotonic_ns() + DRAIN_NS
        self._alarm: Alarm | None = None
        self._is_over = False

    def go_on(self) -> None:
        """A step, then other work, then the next."""
        core, edge = self._core, self._edge
        if self._is_over:
            return
        if not edge.busy and not edge.paused:
            more = edge.serve()
            if not edge.busy and (not more or edge.cursor >= self._target):
                self._end()
                return
        if core.clock.monotonic_ns() >= self._due or core.closing or not edge.routers:
            self._end()
        elif edge.busy or edge.paused:
            edge.waiting.append(self.go_on)
            if self._alarm is None:
                self._alarm = core.alarms.at(self._due, self._end)
        else:
            core.owner.soon(self.go_on)

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            if self._alarm is not None:
                self._alarm.cancel()
            if self.go_on in self._edge.waiting:
                self._edge.waiting.remove(self.go_on)
            if self._edge.is_behind and not self._edge.blocked:
                self._core.forward_soon(self._edge)
            self._then()
