"""Pins: for a while, files that somebody outside was told of are not taken away [A-8, A-15].

    a plan's pin        holds the files its answer names: the data of one topic's segments, each in one generation
    a snapshot's pin    holds everything the snapshot names; meanwhile none of it is rewritten or relocated either

What is to be unlinked asks first:

    core.pins.when_free(topic_id, first, generation, unlink)    unlink at once, or when no pin holds it any more
    core.pins.is_frozen(topic_id, first)                        do not begin to rewrite or relocate this one now

A pin holds files, never records: what is deleted stays deleted for every reader. Pins end by themselves and with the
process; what a crash leaves behind is found by the next start, as if the unlink itself had been cut short [S-274,
S-283]. Owner only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from topics.clock import Clock
from topics.engine.alarms import Alarm, Alarms
from topics.errors import LimitReached, PinNotFound
from topics.fs import random_id

PINS_MAX: Final = 64
PIN_MS_MAX: Final = 3_600_000
NS_PER_MS: Final = 1_000_000

Call = Callable[[], None]


class Files(NamedTuple):
    """Data files of one topic: what a plan names."""

    topic_id: int
    named: frozenset[tuple[int, int]]
    """First seq and generation of each."""

    def hold(self, topic_id: int, first: int | None, generation: int | None) -> bool:
        """Whether a file is among them; None stands for any."""
        if topic_id != self.topic_id:
            return False
        if first is not None and generation is not None:
            return (first, generation) in self.named
        return any(first in (None, one) for one, _ in self.named)


class Everything:
    """All files of the store, then those that a snapshot names: nothing goes while it is being written."""

    def __init__(self) -> None:
        self.ckpt_seqs: Mapping[int, int] | None = None
        """How far each topic's segments reach in the snapshot, by id; None until it is known."""
        self.snapshot: int | None = None

    def hold(self, topic_id: int, first: int | None, generation: int | None) -> bool:
        """Whether a file is among them: every generation, because the `.idx` says which one counts."""
        if self.ckpt_seqs is None:
            return True
        through = self.ckpt_seqs.get(topic_id)
        return through is not None and (first is None or first <= through)


class Pin:
    """One pin. `expires_ms` is 0 until it was started."""

    __slots__ = ("alarm", "expires_ms", "files", "id", "told")

    def __init__(self, files: Files | Everything, told: object = None) -> None:
        self.id = random_id()
        self.files = files
        self.told = told
        """What further pages are cut from."""
        self.expires_ms = 0
        self.alarm: Alarm | None = None


class Pins:
    """All pins of an engine, and what waits for them."""

    def __init__(self, clock: Clock, alarms: Alarms) -> None:
        self._clock = clock
        self._alarms = alarms
        self._pins: dict[str, Pin] = {}
        self._waiting: list[tuple[int, int | None, int | None, Call]] = []

    def __len__(self) -> int:
        return len(self._pins)

    def make(self, files: Files | Everything, told: object = None) -> Pin:
        """A pin that holds from now on; it ends when it is released, or by itself once it was started."""
        if len(self._pins) >= PINS_MAX:
            raise LimitReached("pins", PINS_MAX)
        pin = Pin(files, told)
        self._pins[pin.id] = pin
        return pin

    def start(self, pin: Pin, ms: int) -> None:
        """Let it end by itself, so many milliseconds from now."""
        assert 0 < ms <= PIN_MS_MAX
        pin.expires_ms = self._clock.now_ms() + ms
        pin.alarm = self._alarms.at(self._clock.monotonic_ns() + ms * NS_PER_MS, lambda: self._end(pin))

    def find(self, id: str) -> Pin:
        """A pin that was started and has not ended; `PinNotFound` for any other id."""
        pin = self._pins.get(id)
        if pin is None or not pin.expires_ms:
            raise PinNotFound(id)
        return pin

    def release(self, id: str) -> None:
        """End a pin before its time; `PinNotFound` for an unknown id."""
        self._end(self.find(id))

    def give_up(self, pin: Pin) -> None:
        """End a pin whose answer never came; again is fine."""
        self._end(pin)

    def end(self) -> None:
        """End all of them: the engine closes."""
        for pin in list(self._pins.values()):
            self._end(pin)

    def _end(self, pin: Pin) -> None:
        if self._pins.pop(pin.id, None) is None:
            return
        if pin.alarm is not None:
            pin.alarm.cancel()
        waiting, self._waiting = self._waiting, []
        for topic_id, first, generation, call in waiting:
            self.when_free(topic_id, first, generation, call)

    def when_free(self, topic_id: int, first: int | None, generation: int | None, call: Call) -> None:
        """Take away a segment's data of one generation (None: its files of any) as soon as no pin holds it.

        `first` None is a topic's whole directory.
        """
        if self.holds(topic_id, first, generation):
            self._waiting.append((topic_id, first, generation, call))
        else:
            call()

    def holds(self, topic_id: int, first: int | None, generation: int | None) -> bool:
        """Whether a pin holds a file; None stands for any."""
        return any(pin.files.hold(topic_id, first, generation) for pin in self._pins.values())

    def snapshots(self) -> frozenset[int]:
        """Numbers of the snapshots that are pinned themselves."""
        kept = (pin.files.snapshot for pin in self._pins.values() if isinstance(pin.files, Everything))
        return frozenset(number for number in kept if number is not None)

    def is_frozen(self, topic_id: int, first: int) -> bool:
        """Whether a segment may neither be rewritten nor relocated: a pinned snapshot names it [A-15]."""
        pins = self._pins.values()
        return any(isinstance(pin.files, Everything) and pin.files.hold(topic_id, first, None) for pin in pins)
