"""Reading a log from a position on, across its segments, during appends and deletion [W-54].

A reader belongs to one thread. It takes no lock of the log: it holds a leased descriptor, and what it
may read ends where the log says. Prepared zero space is never read.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from topics.errors import Incomplete, SegmentNotFound, WalClosed, WalIo
from topics.fs import pread_all
from topics.interrupts import Flag
from topics.wal.descriptors import Lease
from topics.wal.record import HEAD_MAX, Record, decode, decode_plain, parse_head
from topics.wal.recovery import Position

FIRST_READ = 4096
"""A reader starts small and doubles: one that wants a single record should not copy 64 KiB for it."""


class Source(Protocol):
    """What a reader asks of its log."""

    def readable_end(self, id: int) -> int | None:
        """Where the readable part of a segment ends; `None` when it does not exist."""
        ...

    def next_segment(self, id: int) -> int | None: ...

    def acquire(self, id: int) -> Lease: ...

    def closed(self) -> bool: ...

    def watch(self, wake: Callable[[], None]) -> None:
        """Call `wake` after every append and at close, until `unwatch`."""
        ...

    def unwatch(self, wake: Callable[[], None]) -> None: ...


class WalReader:
    """Iterator of `(Record, Position)`.

    With `follow` it waits at the end for more, and ends when the log was closed and everything appended was read.
    """

    def __init__(self, source: Source, position: Position, *, follow: bool, read_buffer: int) -> None:
        if source.readable_end(position.segment_id) is None:
            raise SegmentNotFound(position.segment_id)
        if position.offset < 0:
            raise ValueError(f"a position of {position.offset} lies before the segment")
        self._source = source
        self._segment = position.segment_id
        self._offset = position.offset
        self._follow = follow
        self._read_max = read_buffer
        self._read_next = min(FIRST_READ, read_buffer)
        self._lease: Lease | None = None
        self._buffer = b""
        self._buffer_at = 0

    def position(self) -> Position:
        """Where the next record is expected."""
        return Position(self._segment, self._offset)

    def next_record(self) -> tuple[Record, Position] | None:
        """The next record, or `None` at the end seen now; a bad record raises and the reader stays at it."""
        source = self._source
        while True:
            closed = source.closed()
            if closed and not self._follow:
                raise WalClosed("the log is closed")
            end = source.readable_end(self._segment)
            if end is None and self._lease is None:
                raise SegmentNotFound(self._segment)
            if end is None:
                # Deleted under us: the descriptor stays readable, and a deleted segment has its final size.
                end = self._file_end()
            if self._offset < end:
                return self._read(end)
            following = source.next_segment(self._segment)
            if following is None:
                if closed:
                    raise WalClosed("the log is closed, and everything in it was read")
                return None
            # It may have grown between the two looks, before it was rotated away.
            grown = source.readable_end(self._segment)
            if grown is not None and self._offset < grown:
                continue
            self._move_to(following)

    def _file_end(self) -> int:
        assert self._lease is not None
        try:
            return self._lease.file.size()
        except OSError as error:
            raise WalIo(error, f"reading segment {self._segment}") from error

    def _move_to(self, segment: int) -> None:
        self.close()
        self._segment = segment
        self._offset = 0

    def _read(self, end: int) -> tuple[Record, Position]:
        at = self._offset - self._buffer_at
        if 0 <= at < len(self._buffer):
            usual = decode_plain(self._buffer, at, min(len(self._buffer), end - self._buffer_at))
            if usual is not None:
                position = Position(self._segment, self._offset)
                self._offset += usual[1]
                return usual[0], position
        return self._read_any(end)

    def _read_any(self, end: int) -> tuple[Record, Position]:
        self._fill(min(end, self._offset + HEAD_MAX), end)
        at = self._offset - self._buffer_at
        stop = min(len(self._buffer), end - self._buffer_at)
        key_at, klen, vlen, _, _ = parse_head(self._buffer, at, stop)
        need = self._buffer_at + key_at + klen + vlen + 4
        if need > end:
            raise Incomplete(
                f"the record at {self._offset} needs {need - self._offset} bytes, {end - self._offset} are there"
            )
        if need > self._buffer_at + stop:
            self._fill(need, end)
            at = self._offset - self._buffer_at
        record, size = decode(self._buffer, at, min(len(self._buffer), end - self._buffer_at))
        position = Position(self._segment, self._offset)
        self._offset += size
        return record, position

    def _fill(self, stop: int, end: int) -> None:
        """Have the bytes from the current offset to `stop` in the buffer, and more if it pays."""
        if self._buffer_at <= self._offset and stop <= self._buffer_at + len(self._buffer):
            return
        n = min(max(stop - self._offset, self._read_next), end - self._offset)
        self._read_next = min(2 * self._read_next, self._read_max)
        if self._lease is None:
            self._lease = self._source.acquire(self._segment)
        try:
            self._buffer = pread_all(self._lease.file, n, self._offset)
        except OSError as error:
            raise WalIo(error, f"reading segment {self._segment}") from error
        self._buffer_at = self._offset

    def __iter__(self) -> WalReader:
        return self

    def __next__(self) -> tuple[Record, Position]:
        try:
            item = self.next_record()
            if item is None and self._follow:
                item = self._wait()
        except WalClosed:
            if not self._follow:
                raise
            item = None
        if item is None:
            self.close()
            raise StopIteration
        return item

    def _wait(self) -> tuple[Record, Position] | None:
        more = Flag()
        self._source.watch(more.set)
        try:
            while True:
                item = self.next_record()
                if item is not None:
                    return item
                more.wait()
                more.clear()
        finally:
            self._source.unwatch(more.set)

    def close(self) -> None:
        """Release the descriptor; reading on takes a new one."""
        lease, self._lease = self._lease, None
        self._buffer = b""
        if lease is not None:
            lease.release()

    def __enter__(self) -> WalReader:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __del__(self) -> None:
        lease = getattr(self, "_lease", None)
        if lease is not None:
            lease.abandon()
