"""Plain writes of one pass of the loop, topic by topic: staged, logged and published as one [HOTPATH, P-10].

    connection ──take──▶ its topic's writes ──after all sockets were read──▶ one append ──▶ an answer for each

Plain is a write over HTTP/1.1 to a topic that exists, whose head was seen before and whose body is nothing but records
that are plainly right; see `known` and `records.plain`. Where the kernel has the connections it
takes such writes itself (`lines`), and they come as runs. Everything else goes the ordinary way, which is the
specification: what is gathered is answered, logged and counted as if it had gone there. So does what the engine
refuses, one by one: each write is judged by itself.

After a crash each write is there whole or not at all, as if it had been logged by itself. Event loop only.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from topics.engine import append as appending
from topics.engine.append import Write
from topics.engine.core import Core
from topics.engine.records import Joined, Ready, Sole
from topics.errors import LimitReached, RecordTooLarge, TopicFull
from topics.model import AppendResult
from topics.server import records, wire

if TYPE_CHECKING:
    from topics.server import lines
    from topics.server.app import App
    from topics.server.http1 import Http1
    from topics.server.known import Known

log = logging.getLogger("topics.server")

BODY_BYTES_MAX: Final = 64 << 10
"""A larger body is worth a submission of its own."""
RUN_BYTES_MAX: Final = 256 << 10
RUN_WRITES_MAX: Final = 128
RUN_RECORDS_MAX: Final = 1024
"""What is staged at once: some hundred microseconds, about two milliseconds without the kernel."""

Taken = tuple["Http1", "Known", bytes, Sole, int]
"""Who asks, what for, the body and its records, since when."""


class Gathering:
    """Writes that were taken and not staged yet."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._runs: dict[str, list[Taken]] = {}
        self._bytes: dict[str, int] = {}
        self._records: dict[str, int] = {}

    def take(self, carrier: Http1, known: Known, body: bytes, now_ns: int) -> bool:
        """Take a write, if it is plain; it is answered through its carrier."""
        app, size = self._app, len(body)
        engine = app.engine
        if engine is None or app.draining or size > BODY_BYTES_MAX:
            return False
        key = known.key
        if app.is_busy(key) if key is not None else app.keys.keys:
            return False
        core, name = engine.core, known.match.name
        if name not in core.names:
            return False
        assert name is not None
        ready = records.plain(body, core.limits)
        if ready is None or not app.buffered.take(size):
            return False
        if key is not None:
            key.usage.inflight += 1
        if not self._runs:
            core.owner.soon(self._flush)
        run = self._runs.get(name)
        if run is None:
            run = self._runs[name] = []
            self._bytes[name] = self._records[name] = 0
        run.append((carrier, known, body, ready, now_ns))
        self._bytes[name] = size = self._bytes[name] + size
        self._records[name] = count = self._records[name] + ready.records
        if size > RUN_BYTES_MAX or count >= RUN_RECORDS_MAX or len(run) >= RUN_WRITES_MAX:
            del self._runs[name]
            self._stage(name, run)
        return True

    def take_run(self, taken: lines.Taken) -> None:
        """The same for writes that the kernel took from their connections."""
        app, name = self._app, taken.name
        engine, size = app.engine, taken.ready.body_bytes
        is_plain = engine is not None and not app.draining and not app.keys.keys and name in engine.core.names
        if engine is None or not is_plain or not app.buffered.take(size):
            _Lined(app, taken).one_by_one()
        else:
            self._append(engine.core, name, taken.ready, _Lined(app, taken), size)

    def _flush(self) -> None:
        runs, self._runs = self._runs, {}
        for name, run in runs.items():
            try:
                self._stage(name, run)
            except Exception as error:  # noqa: BLE001 - whatever these meet, the others go on
                _Carried(name, run).fail(error)

    def _stage(self, name: str, run: list[Taken]) -> None:
        app = self._app
        size = self._bytes.pop(name)
        del self._records[name]
        engine = app.engine
        if engine is None or name not in engine.core.names:
            app.buffered.give_back(size)
            _Carried(name, run).one_by_one()
            return
        ready = run[0][3] if len(run) == 1 else Joined([taken[3] for taken in run])
        self._append(engine.core, name, ready, _Carried(name, run), size)

    def _append(self, core: Core, name: str, ready: Ready, asked: _Carried | _Lined, size: int) -> None:
        app = self._app
        staging = _Staging(app, core, name, asked, size, app.clock.monotonic_ns())
        try:
            appending.append(core, Write(name, ready, None, None, None, None), staging.decided)
        except Exception as error:  # noqa: BLE001 - whatever these meet, the others go on
            staging.decided(error)
        staging.staged_ns = app.clock.monotonic_ns()
        if not core.admission.waiting:
            # While writes wait for room, a body counts until it is answered [RES-3].
            staging.bodies_done()


class _Staging:
    """A run of writes on its way."""

    __slots__ = ("_app", "_asked", "_core", "_is_decided", "_name", "_size", "began_ns", "staged_ns")

    def __init__(self, app: App, core: Core, name: str, asked: _Carried | _Lined, size: int, began_ns: int) -> None:
        self._app = app
        self._core = core
        self._name = name
        self._asked = asked
        self._size = size
        """Of their bodies, as long as they count as buffered."""
        self.began_ns = began_ns
        self.staged_ns = 0
        self._is_decided = False

    def bodies_done(self) -> None:
        """Their bodies count no more; again is fine."""
        self._app.buffered.give_back(self._size)
        self._size = 0

    def decided(self, outcome: AppendResult | Exception) -> None:
        """All of them are visible, or none is; told once: their connections go on with something else then."""
        if self._is_decided:
            log.error("topic %r: writes that were answered were decided again: %r", self._name, outcome)
            return
        self.bodies_done()
        asked = self._asked
        if isinstance(outcome, AppendResult):
            core, now_ns = self._core, self._app.clock.monotonic_ns()
            durability = records.durability_of(core, self._name)
            staged_ns = self.staged_ns or now_ns
            timing = records.log_timing(durability, outcome.throttle_wait_ms, self.began_ns, staged_ns, now_ns)
            if durability is not None:
                core.traffic.acked(durability, outcome.count, (now_ns - self.began_ns) / 1e6, asked.writes)
            self._is_decided = True  # not before: whoever calls tells what is met up to here instead
            asked.answer(outcome, now_ns, timing)
            return
        self._is_decided = True
        if isinstance(outcome, (LimitReached, RecordTooLarge, TopicFull)) and asked.writes > 1:
            # Nothing was done, and for some of them there may be room.
            asked.one_by_one()
        else:
            asked.fail(outcome)


class _Carried:
    """Writes whose connections brought them here."""

    __slots__ = ("_name", "_run")

    def __init__(self, name: str, run: list[Taken]) -> None:
        self._name = name
        self._run = run

    @property
    def writes(self) -> int:
        return len(self._run)

    def answer(self, result: AppendResult, now_ns: int, timing: bytes) -> None:
        """Each with its own seqs."""
        first, created = result.first_seq, result.created
        assert first is not None
        for carrier, known, _, ready, since_ns in self._run:
            count = ready.records
            try:
                told = wire.performance((now_ns - since_ns) / 1e6, timing)
                one = AppendResult(first, first + count - 1, result.head_seq, count, created)
                _answer(self._name, carrier, known, since_ns, one, told)
            except Exception as error:  # noqa: BLE001 - it is decided: one connection is no other's trouble
                _give_up(self._name, carrier, error)
            _release(known)
            first += count
            created = False  # the topic was gone by their turn: the first of them made it anew [WR-2]

    def fail(self, error: Exception) -> None:
        """None of them was done."""
        for carrier, known, _, _, since_ns in self._run:
            _fail(self._name, carrier, known, since_ns, error)
            _release(known)

    def one_by_one(self) -> None:
        """The ordinary way."""
        for carrier, known, body, _, since_ns in self._run:
            _release(known)
            _execute(self._name, carrier, known, body, since_ns)


class _Lined:
    """Writes that the kernel took from their connections."""

    __slots__ = ("_app", "_taken", "writes")

    def __init__(self, app: App, taken: lines.Taken) -> None:
        self._app = app
        self._taken = taken
        self.writes = taken.ready.writes

    def answer(self, result: AppendResult, now_ns: int, timing: bytes) -> None:
        """By the kernel, unless there is more to say than the usual."""
        taken, first = self._taken, result.first_seq
        assert first is not None
        try:
            told = wire.performance((now_ns - taken.since_ns) / 1e6, timing)
            if not (result.created or self._app.draining):
                taken.answer(first, result.head_seq, told)
                return
        except Exception:  # it is decided, and nobody knows who of them was told
            log.exception("answering writes to topic %r", taken.name)
            taken.abort()
            return
        created = result.created
        for carrier, known, _, count in taken.given_up():
            if carrier is not None:
                one = AppendResult(first, first + count - 1, result.head_seq, count, created)
                _answer(taken.name, carrier, known, taken.since_ns, one, told)
            first += count
            created = False

    def fail(self, error: Exception) -> None:
        """None of them was done."""
        for carrier, known, _, _ in self._taken.given_up():
            if carrier is not None:
                _fail(self._taken.name, carrier, known, self._taken.since_ns, error)

    def one_by_one(self) -> None:
        """The ordinary way."""
        for carrier, known, body, _ in self._taken.given_up():
            if carrier is not None:
                _execute(self._taken.name, carrier, known, body, self._taken.since_ns)


def _answer(name: str, carrier: Http1, known: Known, since_ns: int, one: AppendResult, told: bytes) -> None:
    status = 201 if one.created else 200
    try:
        carrier.answer_known(known, since_ns, status, records.answer(name, one, told, seqs=True))
    except Exception as error:  # noqa: BLE001 - it is decided: one connection is no other's trouble
        _give_up(name, carrier, error)


def _fail(name: str, carrier: Http1, known: Known, since_ns: int, why: Exception) -> None:
    try:
        carrier.fail_known(known, since_ns, why)
    except Exception as error:  # noqa: BLE001 - it is decided: one connection is no other's trouble
        _give_up(name, carrier, error)


def _execute(name: str, carrier: Http1, known: Known, body: bytes, since_ns: int) -> None:
    try:
        carrier.execute_known(known, body, since_ns)
    except Exception as error:  # noqa: BLE001 - one connection is no other's trouble
        _give_up(name, carrier, error)


def _give_up(name: str, carrier: Http1, error: Exception) -> None:
    """It cannot be told what was decided."""
    log.error("answering a write to topic %r", name, exc_info=error)
    carrier.abort()


def _release(known: Known) -> None:
    """The slot of its key is free again [RES-7]."""
    if known.key is not None:
        known.key.usage.inflight -= 1
