"""Rounds: how concurrent callers share one write and one sync [W-52].

While a round is served, callers gather for the next. One caller leads a round: it serves everybody's work and opens the
round's door, where the others wait. They let each other through, so that each is woken once and the leader wakes one.
The kernel has the same without the interpreter (native/src/rounds.rs); there they wake beside each other and have the
interpreter in turn.

    share → as many here as wanted, and nobody leads? → lead: serve, end
                                                   no → wait at the door → over

Waking a thread takes a good part of a fast sync, so it pays to wait for those just answered: they are about to come
back, and syncing without them would halve every round. A round therefore begins when as many have come as the last one
served or left waiting, led by the last of them. If they stay away, one caller, the starter, has waited in vain; it
leads those who are there, and for some rounds nobody is waited for: for one, and twice as many each time it was in
vain again. A lone caller waits for nobody.

A leader may be interrupted anywhere, by a signal for instance. Its round is over all the same; who finds its work not
done shares it again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Generic, Protocol, TypeVar

from topics.codec import kernel

T = TypeVar("T")

LOOK_AGAIN_S = 1.0
HAND_OVER_S = 50e-6
"""How long one caller takes to come back, with room to spare; several come back one after the other."""
WAIT_FOR_NOBODY = 16
"""So many rounds at most after one that waited in vain."""


class Sharing(Protocol[T]):
    """`Rounds`, the kernel's or those of this file."""

    def share(self, work: T, serve: Callable[[Sequence[T]], object], /) -> None:
        """Return when a round with this work is over. `serve` runs in one of its callers, for the work of all.

        The leader hears what `serve` raises; the others have to look at their work.
        """
        ...

    def gathered(self) -> int:
        """How many wait for the next round."""
        ...


def rounds() -> Sharing[Any]:
    """The kernel's where it can."""
    shared = kernel.rounds(HAND_OVER_S, LOOK_AGAIN_S)
    return Rounds() if shared is None else shared


class Gate:
    """Shut, until it lets one in or is opened for good; whoever comes through an open gate lets in the next."""

    __slots__ = ("_is_open", "_lock")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._is_open = False

    def wait(self, seconds: float) -> bool:
        """Whether the caller came through in time."""
        through = self._lock.acquire(timeout=seconds)
        if self._is_open:
            self.let_in()
        return through

    def let_in(self) -> None:
        """Let one caller through; the gate may be open already."""
        try:
            self._lock.release()
        except RuntimeError:
            return

    def open(self) -> None:
        """Let everybody through, one after the other."""
        self._is_open = True
        self.let_in()


class Door:
    """Where the callers of one round wait, shut until the round is over."""

    __slots__ = ("gate", "over", "starter")

    def __init__(self) -> None:
        self.gate = Gate()
        self.over = False
        self.starter: int | None = None


class Rounds(Generic[T]):
    """Any thread may call `share`; one at a time leads. Threads are told apart by their ids."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: list[T] = []
        self._door: Door | None = None
        """For those who wait with the gathered work; made when somebody has to wait."""
        self._leader: int | None = None
        self._led: list[T] = []
        self._led_door: Door | None = None
        self._wanted = 1
        self._in_vain = False
        self._hurry = 0
        self._grudge = 1
        """How many rounds wait for nobody when one has waited in vain."""

    def share(self, work: T, serve: Callable[[Sequence[T]], object], /) -> None:
        """See `Sharing`."""
        me = threading.get_ident()
        door: Door | None = None
        try:
            door = self._join(work, me)
            while door is not None and not door.over and self._leader != me:
                self._wait(door, me)
            if self._leader == me:
                serve(self._led)
        except BaseException:
            if door is not None and door.starter == me:
                # Struck while it waited: somebody else has to begin the round.
                door.starter = None
                door.gate.let_in()
            raise
        finally:
            if self._leader == me:
                try:
                    self._end()
                finally:
                    # A signal may strike there too.
                    if self._leader == me:
                        self._end()

    def gathered(self) -> int:
        """How many wait for the next round."""
        return len(self._gathered)

    def _join(self, work: T, me: int) -> Door | None:
        """Add the work to the next round; a door says where to wait for it, none that the caller leads it."""
        with self._lock:
            self._gathered.append(work)
            if self._leader is None and len(self._gathered) >= self._wanted:
                self._lead(me, in_vain=False)
                return None
            if self._door is None:
                self._door = Door()
                if self._leader is None:
                    self._door.starter = me
            return self._door

    def _lead(self, me: int, *, in_vain: bool) -> None:
        # No call in here: a signal strikes before all of it or behind all of it.
        self._leader = me
        self._led = self._gathered
        self._led_door = self._door
        self._gathered = []
        self._door = None
        self._in_vain = in_vain

    def _wait(self, door: Door, me: int) -> None:
        """Wait at the door; as the starter only as long as those who are wanted may take to come."""
        starter = door.starter == me
        let_in = door.gate.wait(self._wanted * HAND_OVER_S if starter else LOOK_AGAIN_S)
        if door.over:
            return
        with self._lock:
            if self._leader is not None or self._door is not door:
                if starter:
                    # Its round was begun by another, who opens the door.
                    door.starter = None
                return
            enough = len(self._gathered) >= self._wanted
            if enough or not let_in:
                self._lead(me, in_vain=not enough)
            else:
                door.starter = me

    def _end(self) -> None:
        with self._lock:
            waiting, door = self._door, self._led_door
            if self._in_vain:
                self._hurry = self._grudge
                self._grudge = min(2 * self._grudge, WAIT_FOR_NOBODY)
            elif self._hurry:
                self._hurry -= 1
            elif len(self._led) > 1:
                self._grudge = 1
            self._wanted = 1 if self._hurry else len(self._led) + len(self._gathered)
            if door is not None:
                door.over = True
            self._leader = None
        # The next round first: its sync may begin while those of this one wake up.
        if waiting is not None:
            waiting.gate.let_in()
        if door is not None:
            door.gate.open()
