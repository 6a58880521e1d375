"""A bucket that fails where it is told to: the objects of a cold tier in the sweeps [S-301].

A fault names the request that it begins with, counted from 1 over all of them, and what happens there:

    once      that request fails, and nothing was done
    unheard   that request is carried out, and its answer is lost (a put or a delete)
    away      that one and the dozen behind it fail: the tier is away for a while
    gone      that one and all behind it fail, until the tier is `mend`ed
    denied    from that one on nothing may be deleted, until the tier is mended; everything else is permitted
    locked    the same for the one object that is to be deleted there

An object is there whole or not at all, and durable once it is there: what loses power is the machine that asks. A dry
run tells through `asked` which requests there are to sweep. One thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Literal, NamedTuple, TypeVar

from topics.clock import Clock
from topics.errors import StoreDenied, StoreUnavailable
from topics.storage.tiers.answers import Absent, Beyond, Known

T = TypeVar("T")

Request = Literal["put", "head", "read", "delete", "list"]
Kind = Literal["once", "unheard", "away", "gone", "denied", "locked"]
KINDS: dict[Request, tuple[Kind, ...]] = {
    "put": ("once", "unheard", "away", "gone"),
    "head": ("once", "away", "gone"),
    "read": ("once", "away", "gone"),
    "delete": ("once", "unheard", "away", "gone", "denied", "locked"),
    "list": ("once", "away", "gone"),
}
"""What may begin with a request of each sort."""
AWHILE = 13
"""Requests that fail while the tier is away: more than it takes to be left alone for some seconds [S-323]."""


class TierFault(NamedTuple):
    """One fault."""

    kind: Kind
    at: int


class Object(NamedTuple):
    """What lies under a key."""

    data: bytes
    attributes: dict[str, str]


class SimBucket:
    """Objects in memory. `clock` says when a fault has struck last."""

    name = "memory://sweep"

    def __init__(self, clock: Clock, fault: TierFault | None = None) -> None:
        self.objects: dict[str, Object] = {}
        self.asked: list[Request] = []
        self.struck = 0
        """Requests that failed."""
        self.struck_ns: int | None = None
        """When one failed last that should not have; one that is denied says nothing of the tier."""
        self.locked: str | None = None
        """The key that may not be deleted."""
        self._clock = clock
        self._fault = fault

    def mend(self) -> None:
        """The tier is well from now on."""
        self._fault = self.locked = None

    def inject(self, kind: Kind, later: int) -> None:
        """Have a fault begin so many requests from now, in place of the one there was."""
        self._fault, self.locked = TierFault(kind, len(self.asked) + later), None

    def twin(self) -> SimBucket:
        """A bucket that is well, with the same objects."""
        twin = SimBucket(self._clock)
        twin.objects = dict(self.objects)
        return twin

    @property
    def denies(self) -> bool:
        """Whether it is the permission to delete that is missing, and nothing else."""
        return self._fault is not None and self._fault.kind in ("denied", "locked")

    def put(self, key: str, data: bytes, attributes: Mapping[str, str], *, create: bool = False) -> bool:
        def work() -> bool:
            if create and key in self.objects:
                return False
            self.objects[key] = Object(data, dict(attributes))
            return True

        return self._ask("put", work)

    def put_pieces(self, key: str, pieces: Iterator[bytes], attributes: Mapping[str, str]) -> None:
        self.put(key, b"".join(pieces), attributes)

    def know(self, key: str) -> Known:
        def work() -> Known:
            found = self._found(key)
            return Known(len(found.data), found.attributes)

        return self._ask("head", work)

    def read(self, key: str, offset: int, length: int) -> bytes:
        def work() -> bytes:
            data = self._found(key).data
            if offset >= len(data):
                raise Beyond
            return data[offset : offset + length]

        return self._ask("read", work)

    def delete(self, key: str) -> None:
        if self._fault is not None and self._fault.kind == "locked" and len(self.asked) + 1 == self._fault.at:
            self.locked = key
        self._ask("delete", lambda: self.objects.pop(key, None), key)

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        base = f"{folder}/" if folder else ""
        names = self._ask(
            "list", lambda: sorted(key.removeprefix(base) for key in self.objects if key.startswith(base))
        )
        yield from (name for name in names if "/" not in name and name > after)

    def folders(self, folder: str) -> list[str]:
        found = self._ask("list", lambda: [key for key in self.objects if key.startswith(f"{folder}/")])
        steps = (key.removeprefix(f"{folder}/").split("/") for key in found)
        return sorted({way[0] for way in steps if len(way) > 1})

    def _found(self, key: str) -> Object:
        if key not in self.objects:
            raise Absent
        return self.objects[key]

    def _ask(self, request: Request, work: Callable[[], T], deleted: str | None = None) -> T:
        self.asked.append(request)
        if not self._strikes(request, deleted):
            return work()
        assert self._fault is not None
        self.struck += 1
        if self.denies:
            raise StoreDenied(f"{self.name}: cannot {request}: access is denied")
        self.struck_ns = self._clock.monotonic_ns()
        if self._fault.kind == "unheard":
            work()
        raise StoreUnavailable(f"{self.name}: cannot {request}: {self._fault}")

    def _strikes(self, request: Request, deleted: str | None) -> bool:
        if self._fault is None:
            return False
        kind, at = self._fault
        behind = len(self.asked) - at
        if kind == "locked":
            return deleted is not None and deleted == self.locked
        if kind == "denied":
            return behind >= 0 and request == "delete"
        return behind >= 0 and (kind == "gone" or behind < (AWHILE if kind == "away" else 1))
