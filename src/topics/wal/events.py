"""What a log tells the outside: events, metrics, and the meters that take them (07 §2).

A `Meter` gets both. Handles are made once, when the log opens; a meter must not raise. Any thread
may call a meter: the timer, a reader or whoever appends.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

EventKind = Literal["segment_created", "segment_rotated", "segment_deleted", "fsync", "corruption_truncated"]

BUCKETS_MS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0)


class WalEvent(NamedTuple):
    """One thing that happened to a segment."""

    node: int
    seg: int
    kind: EventKind
    bytes: int | None = None
    """Logical size of a rotated segment; bytes cut by recovery."""
    ms: float | None = None
    """Time of a sync."""


class Counter(Protocol):
    """Only goes up."""

    def inc(self, n: int = 1) -> None: ...


class Gauge(Protocol):
    """Holds the last value."""

    def set(self, v: float) -> None: ...


class Histogram(Protocol):
    """Counts values by bucket."""

    def observe(self, v: float) -> None: ...


class Meter(Protocol):
    """Where metrics and events go."""

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter: ...

    def gauge(self, name: str, labels: Mapping[str, str]) -> Gauge: ...

    def histogram(self, name: str, buckets: Sequence[float], labels: Mapping[str, str]) -> Histogram: ...

    def emit(self, event: WalEvent) -> None: ...


class _Nothing:
    """Counter, gauge and histogram in one that keeps nothing."""

    __slots__ = ()

    def inc(self, n: int = 1) -> None:
        return None

    def set(self, v: float) -> None:
        return None

    def observe(self, v: float) -> None:
        return None


class NoopMeter:
    """The default: keeps nothing."""

    __slots__ = ()

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        return _NOTHING

    def gauge(self, name: str, labels: Mapping[str, str]) -> Gauge:
        return _NOTHING

    def histogram(self, name: str, buckets: Sequence[float], labels: Mapping[str, str]) -> Histogram:
        return _NOTHING

    def emit(self, event: WalEvent) -> None:
        return None


_NOTHING = _Nothing()


class EventStream:
    """A meter whose iterator yields the events in order; metrics go on to `meter`.

    Iterating takes what has happened so far and then ends; iterate again for more. When `capacity`
    events wait, the oldest go and `dropped` counts them.
    """

    def __init__(self, capacity: int = 1024, meter: Meter | None = None) -> None:
        if capacity < 1:
            raise ValueError("capacity must be at least 1")
        self.dropped = 0
        self._capacity = capacity
        self._events: deque[WalEvent] = deque()
        self._lock = threading.Lock()
        self._meter = meter if meter is not None else NoopMeter()

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        return self._meter.counter(name, labels)

    def gauge(self, name: str, labels: Mapping[str, str]) -> Gauge:
        return self._meter.gauge(name, labels)

    def histogram(self, name: str, buckets: Sequence[float], labels: Mapping[str, str]) -> Histogram:
        return self._meter.histogram(name, buckets, labels)

    def emit(self, event: WalEvent) -> None:
        with self._lock:
            if len(self._events) >= self._capacity:
                self._events.popleft()
                self.dropped += 1
            self._events.append(event)
        self._meter.emit(event)

    def __iter__(self) -> Iterator[WalEvent]:
        while True:
            with self._lock:
                if not self._events:
                    return
                event = self._events.popleft()
            yield event


class _Cell:
    """One Prometheus series: a counter, a gauge or a histogram."""

    __slots__ = ("_lock", "bounds", "buckets", "total", "value")

    def __init__(self, bounds: Sequence[float] = ()) -> None:
        self._lock = threading.Lock()
        self.value: float = 0
        self.total: float = 0
        self.bounds = tuple(bounds)
        self.buckets = [0] * (len(bounds) + 1)

    def inc(self, n: int = 1) -> None:
        with self._lock:
            self.value += n

    def set(self, v: float) -> None:
        self.value = v

    def observe(self, v: float) -> None:
        with self._lock:
            self.buckets[bisect_left(self.bounds, v)] += 1
            self.total += v


class PrometheusMeter:
    """Keeps the metrics and renders them in the Prometheus text format; events are not kept."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[str, dict[str, _Cell]]] = {}
        self._lock = threading.Lock()

    def counter(self, name: str, labels: Mapping[str, str]) -> Counter:
        return self._cell("counter", name, labels)

    def gauge(self, name: str, labels: Mapping[str, str]) -> Gauge:
        return self._cell("gauge", name, labels)

    def histogram(self, name: str, buckets: Sequence[float], labels: Mapping[str, str]) -> Histogram:
        return self._cell("histogram", name, labels, buckets)

    def emit(self, event: WalEvent) -> None:
        return None

    def _cell(self, kind: str, name: str, labels: Mapping[str, str], bounds: Sequence[float] = ()) -> _Cell:
        key = ",".join(f'{k}="{_escape(v)}"' for k, v in sorted(labels.items()))
        with self._lock:
            found, cells = self._families.setdefault(name, (kind, {}))
            if found != kind:
                raise ValueError(f"{name} is a {found}, not a {kind}")
            return cells.setdefault(key, _Cell(bounds))

    def render(self) -> str:
        """The text exposition of everything measured so far."""
        with self._lock:
            families = [(name, kind, list(cells.items())) for name, (kind, cells) in sorted(self._families.items())]
        lines: list[str] = []
        for name, kind, cells in families:
            lines.append(f"# TYPE {name} {kind}")
            for labels, cell in cells:
                lines.extend(
                    _histogram(name, labels, cell) if kind == "histogram" else [_line(name, labels, cell.value)]
                )
        return "".join(f"{line}\n" for line in lines)


def _histogram(name: str, labels: str, cell: _Cell) -> Iterator[str]:
    count = 0
    for bound, n in zip((*cell.bounds, "+Inf"), list(cell.buckets), strict=True):
        count += n
        yield _line(f"{name}_bucket", f'{labels},le="{bound}"' if labels else f'le="{bound}"', count)
    yield _line(f"{name}_sum", labels, cell.total)
    yield _line(f"{name}_count", labels, count)


def _line(name: str, labels: str, value: float) -> str:
    number = f"{int(value)}" if value == int(value) else repr(value)
    return f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Observer(Protocol):
    """What the segmented log reports; the library and the server name it each in their own way [W-25]."""

    def created(self, id: int) -> None: ...

    def rotated(self, id: int, size: int) -> None: ...

    def synced(self, id: int, ms: float) -> None: ...

    def truncated(self, id: int, size: int) -> None: ...

    def deleted(self, id: int) -> None: ...

    def segments(self, count: int) -> None: ...

    def latched(self) -> None: ...


class MeterObserver:
    """Turns what the core reports into the events and metrics of 07 §2."""

    def __init__(self, meter: Meter, node: int) -> None:
        labels = {"node": str(node)}
        self._meter = meter
        self._node = node
        self._heard = type(meter) is not NoopMeter
        """Syncs are frequent: an event that nobody gets is not made."""
        self._fsync_ms = meter.histogram("wal_fsync_ms", BUCKETS_MS, labels)
        self._rolls = meter.counter("wal_segment_rolls_total", labels)
        self._count = meter.gauge("wal_segment_count", labels)
        self._deleted = meter.counter("wal_segments_deleted_total", labels)
        self._truncated = meter.counter("wal_corruption_truncated_total", labels)
        self._read_only = meter.gauge("wal_read_only", labels)
        self._read_only.set(0)

    def created(self, id: int) -> None:
        self._meter.emit(WalEvent(self._node, id, "segment_created"))

    def rotated(self, id: int, size: int) -> None:
        self._rolls.inc()
        self._meter.emit(WalEvent(self._node, id, "segment_rotated", bytes=size))

    def synced(self, id: int, ms: float) -> None:
        self._fsync_ms.observe(ms)
        if self._heard:
            self._meter.emit(WalEvent(self._node, id, "fsync", ms=ms))

    def truncated(self, id: int, size: int) -> None:
        self._truncated.inc()
        self._meter.emit(WalEvent(self._node, id, "corruption_truncated", bytes=size))

    def deleted(self, id: int) -> None:
        self._deleted.inc()
        self._meter.emit(WalEvent(self._node, id, "segment_deleted"))

    def segments(self, count: int) -> None:
        self._count.set(count)

    def latched(self) -> None:
        self._read_only.set(1)
