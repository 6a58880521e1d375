"""What a tier of segments asks of a bucket, and what it is answered; without the library that asks [S-301]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple, Protocol

PIECE_BYTES: Final = 8 << 20
"""One part of an upload in parts: two travel at once, each within the read timeout on 1 MiB/s."""


class Known(NamedTuple):
    """What a store tells about an object without sending it."""

    size: int
    attributes: Mapping[str, str]
    """By lower-case name."""


class Absent(Exception):
    """The store was asked and has no such object."""


class Beyond(Exception):
    """The object ends before the range begins."""


class Objects(Protocol):
    """Objects by key. Every call may raise `StoreUnavailable`; what it did then nobody knows."""

    @property
    def name(self) -> str:
        """Where they are, without credentials."""
        ...

    def put(self, key: str, data: bytes, attributes: Mapping[str, str], *, create: bool = False) -> bool:
        """Store an object in one request; False if `create` found one there already."""
        ...

    def put_pieces(self, key: str, pieces: Iterator[bytes], attributes: Mapping[str, str]) -> None:
        """Store an object in parts as `pieces` yields them; what that raises goes through, and nothing is stored."""
        ...

    def know(self, key: str) -> Known:
        """Size and attributes; `Absent` if there is none."""
        ...

    def read(self, key: str, offset: int, length: int) -> bytes:
        """This range, shorter if the object ends in it; `Beyond` if it ends before, `Absent` if there is none."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; absent is success."""
        ...

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        """Keys right below a folder, in their order, from behind `folder/after` on; page by page."""
        ...

    def folders(self, folder: str) -> list[str]:
        """Names of what lies below a folder and has objects below it."""
        ...
