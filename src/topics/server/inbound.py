"""Bodies as they come in: UTF-8 checked piece by piece, gzip inflated in steps (02 API-11, API-16).

    Utf8        is everything that was fed valid UTF-8? ASCII costs next to nothing
    AnyBytes    the same where the body is no text
    Unpacking   gzip members, one after another, as one stream; `step` makes a bounded number of bytes

Neither knows requests. `Unpacking.step` may run on any thread, one call at a time.
"""

from __future__ import annotations

import codecs
import zlib
from collections.abc import Sequence
from typing import Final

from topics.server import failure
from topics.server.failure import Failure

PIECE_BYTES: Final = 16 << 10
MEMBERS_MAX: Final = 65_536
"""Empty members cost time and make no bytes; nobody sends that many."""
_WITH_GZIP_HEADER: Final = 31


class Utf8:
    """Validity of a text that comes in pieces."""

    __slots__ = ("_decoder", "_is_bad")

    def __init__(self) -> None:
        self._decoder: codecs.IncrementalDecoder | None = None
        self._is_bad = False

    def feed(self, data: bytes) -> None:
        """The next piece."""
        if (self._decoder is None and data.isascii()) or self._is_bad:
            return
        if self._decoder is None:
            self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._decode(data, final=False)

    @property
    def is_broken(self) -> bool:
        """Whether it cannot become valid any more."""
        return self._is_bad

    def is_valid(self) -> bool:
        """Whether it was, now that it is complete."""
        if self._decoder is not None and not self._is_bad:
            self._decode(b"", final=True)
        return not self._is_bad

    def _decode(self, data: bytes, *, final: bool) -> None:
        assert self._decoder is not None
        try:
            self._decoder.decode(data, final)
        except UnicodeDecodeError:
            self._is_bad = True


class AnyBytes(Utf8):
    """A body that is no text."""

    __slots__ = ()

    def feed(self, data: bytes) -> None:
        """Whatever it is."""


class Unpacking:
    """A gzipped body on its way out [API-16]."""

    def __init__(self, packed: Sequence[bytes], utf8: Utf8, most: int) -> None:
        self.parts: list[bytes] = []
        self.size = 0
        """Of `parts`."""
        self.counted = 0
        """How much of it the owner has counted as buffered."""
        self.is_complete = False
        self._packed = list(reversed(packed))
        self._at = 0
        """How much of the last of them was taken."""
        self._utf8 = utf8
        self._most = most
        self._rest = b""
        self._member = zlib.decompressobj(_WITH_GZIP_HEADER)
        self._members = 0
        self._is_between = True
        """Between two members."""

    def step(self, room: int) -> Failure | None:
        """Make up to `room` bytes more; why not, when it is no gzip or too large."""
        while room > 0:
            self._rest = self._rest or self._next_piece()
            if not self._rest and self._is_between:
                self.is_complete = True
                return None
            try:
                part = self._inflate(room)
            except zlib.error as error:
                return _not_gzip(str(error))
            if part:
                room -= len(part)
                self.size += len(part)
                if self.size > self._most:
                    return failure.TOO_LARGE
                self.parts.append(part)
                self._utf8.feed(part)
            elif not self._rest and not self._packed and not self._is_between:
                return _not_gzip("it ends early")
            if self._members > MEMBERS_MAX:
                return _not_gzip("it has too many members")
        return None

    def _next_piece(self) -> bytes:
        """A little at a time: zlib hands back a copy of what it did not need."""
        if not self._packed:
            return b""
        whole, at = self._packed[-1], self._at
        self._at = at + PIECE_BYTES
        if self._at >= len(whole):
            self._packed.pop()
            self._at = 0
        return whole[at : at + PIECE_BYTES]

    def _inflate(self, room: int) -> bytes:
        if self._is_between:
            self._member = zlib.decompressobj(_WITH_GZIP_HEADER)
            self._members += 1
            self._is_between = False
        member = self._member
        part = member.decompress(self._rest, room)
        self._rest = member.unconsumed_tail
        if member.eof:
            self._rest = member.unused_data
            self._is_between = True
        return part


def _not_gzip(why: str) -> Failure:
    return Failure(400, "invalid_request", f"the body is not gzip: {why}")
