"""A connection that takes frames, without a socket: what it got is kept, and it can be full."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import msgspec

from tests.unit.engine.kit import TOPIC, Store
from topics.codec.project import Projection
from topics.engine.core import Core
from topics.engine.engine import Engine
from topics.engine.pump import Pump
from topics.engine.watch import Batch, Feed, Follower, Framing, Instance, View
from topics.model import Gap
from topics.storage.owner import InlineOwner, LockedOwner

_encode = msgspec.json.Encoder().encode


class Plain:
    """Frames as JSON."""

    def __init__(self, *, names_first_gap: bool = False) -> None:
        self.names_first_gap = names_first_gap

    def record(self, batch: Batch) -> bytes:
        head = _encode([batch.name, batch.from_seq, batch.to_seq, batch.head])
        return b'{"kind":"record","said":%b,"records":[%b]}' % (head, b",".join(batch.records))

    def caught_up(self, name: str, head: int) -> bytes:
        return _encode({"kind": "caught-up", "said": [name, head]})

    def tombstone(self, name: str, gap: Gap, reason: str) -> bytes:
        said = [name, reason, gap.gap_from, gap.gap_to, gap.earliest_seq, gap.head_seq]
        return _encode({"kind": "tombstone", "said": said})

    def deleted(self, name: str) -> bytes:
        return _encode({"kind": "deleted", "said": [name]})


class Got(NamedTuple):
    """One frame, and the cursors behind it."""

    kind: str
    name: str
    said: tuple[Any, ...]
    """What the frame says besides."""
    records: tuple[dict[str, Any], ...]
    cursors: dict[str, int]

    @property
    def seqs(self) -> list[int]:
        return [record["$seq"] for record in self.records]


class Tap:
    """One connection. `fills`: it is full behind every frame, until `drink`. `kind` None: it shares nothing."""

    def __init__(
        self, engine: Engine, *, fills: bool = False, names_first_gap: bool = False, kind: object = "plain"
    ) -> None:
        self.framing: Framing = Plain(names_first_gap=names_first_gap)
        self.kind = kind
        self.is_full = False
        self.fills = fills
        self.rendered = 0
        """How many batches were rendered here."""
        self.sent: list[bytes] = []
        """Shared bytes, as they were sent."""
        self.got: list[Got] = []
        self.is_over = False
        self.error: Exception | None = None
        self._owner = owner_of(engine)
        self.feed = Feed(core_of(engine), self)

    # -- what a feed calls -------------------------------------------------------------------------------------------

    def put(self, frame: bytes) -> None:
        self._keep(frame, self.feed.cursors())

    def _keep(self, frame: bytes, cursors: dict[str, int]) -> None:
        told = msgspec.json.decode(frame)
        name, *said = told["said"]
        records = tuple(told.get("records", ()))
        self.got.append(Got(told["kind"], name, tuple(said), records, cursors))
        self.is_full = self.is_full or self.fills

    def render(self, batch: Batch) -> bytes:
        self.rendered += 1
        frames = [self.framing.record(batch)]
        if batch.is_last:
            frames.append(self.framing.caught_up(batch.name, batch.head))
        return b"\n".join([_encode(self.feed.cursors()), *frames])

    def send(self, rendered: bytes, now_ns: int) -> None:
        self.sent.append(rendered)
        cursors, *frames = rendered.split(b"\n")
        for frame in frames:
            self._keep(frame, msgspec.json.decode(cursors))

    @staticmethod
    def send_all(sinks: Sequence[Tap], rendered: bytes, now_ns: int) -> bool:
        return False

    def over(self) -> None:
        self.is_over = True

    def broken(self, error: Exception) -> None:
        self.error = error

    # -- what a test calls -------------------------------------------------------------------------------------------

    def follow(
        self, name: str = TOPIC, cursor: int = 0, instance: Instance | None = None, *, run: bool = True, **wants: Any
    ) -> Follower:
        """Follow a topic, and let what that starts happen."""
        with self._owner if run else nothing():
            return self.feed.follow(name, cursor, view(**wants), instance)

    def stall(self) -> None:
        """The client reads no more."""
        self.is_full = True

    def drink(self) -> None:
        """It reads everything there is."""
        with self._owner:
            self.is_full = False
            self.feed.room()

    def leave(self, *names: str) -> None:
        with self._owner:
            self.feed.leave(names)

    def close(self) -> None:
        with self._owner:
            self.feed.close()

    def take(self) -> list[tuple[Any, ...]]:
        """What came since the last time, in short."""
        got, self.got = self.got, []
        return [short(one) for one in got]

    def seqs(self) -> list[int]:
        """Of all records that came since the last `take`."""
        return [seq for one in self.got for seq in one.seqs]


def short(got: Got) -> tuple[Any, ...]:
    """`record` with its seqs, everything else with what it says; the name only where it is not `TOPIC`."""
    named = () if got.name == TOPIC else (got.name,)
    said = tuple(got.seqs) if got.kind == "record" else got.said
    return (got.kind, *named, *said)


def view(**wants: Any) -> View:
    """What is wanted, as the defaults of a watch are."""
    nodes = frozenset(one.encode() for one in wants.pop("nodes", ()))
    return View(wants.pop("wanted", Projection()), nodes=nodes, **wants)


def core_of(engine: Engine) -> Core:
    return engine.core


def owner_of(engine: Engine) -> InlineOwner:
    """Whoever enters it is the owner; in an engine with threads, whoever holds the lock."""
    owner = engine.core.owner
    assert isinstance(owner, (InlineOwner, LockedOwner))
    return cast(InlineOwner, owner)


@contextmanager
def nothing() -> Iterator[None]:
    yield


class Held:
    """Delivery waits for `step`; whatever else the engine puts off is done as always."""

    def __init__(self, engine: Engine) -> None:
        self._owner = owner_of(engine)
        self.later: deque[Callable[[], None]] = deque()

    def __enter__(self) -> Held:
        self._owner.soon = self._soon  # type: ignore[method-assign]
        return self

    def __exit__(self, *exception: object) -> None:
        del self._owner.soon  # type: ignore[method-assign]
        if exception[0] is None:
            self.run()

    def _soon(self, call: Callable[[], None]) -> None:
        if isinstance(getattr(call, "__self__", None), (Feed, Pump)):
            self.later.append(call)
        else:
            self._owner._soon.append(call)

    def step(self) -> None:
        """The next part of the delivery."""
        with self._owner:
            self.later.popleft()()

    def run(self) -> None:
        """All of it."""
        while self.later:
            self.step()
        self._owner.run()


def step(engine: Engine, count: int = 1) -> None:
    """Do the next things that were put off, whatever they are."""
    owner = owner_of(engine)
    for _ in range(count):
        if owner._soon:
            owner._soon.popleft()()


def instance_of(store: Store, name: str = TOPIC) -> Instance:
    topic = store.engine.core.names[name]
    return Instance(topic.id, topic.epoch)
