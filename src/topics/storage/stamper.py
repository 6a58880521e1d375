"""Who does the stamping: a helper process on the real disk, this one on any other [S-288].

A helper is started for each run and told what to make; it says how far it is and in the end what it made, or why not.
It knows nothing but the files it is given: should it die, nothing has happened. `Stamper.run` blocks and belongs aside,
on one thread; `cancel` and `done_bytes` are for any.
"""

from __future__ import annotations

import threading
from typing import Final

import msgspec

from topics import process
from topics.fs import Fs, OsFs
from topics.storage.stamp import Stamped, Stamping, stamp

MODULE: Final = "topics.storage.stamper"


class Cancelled(OSError):
    """Nobody wants the segments any more."""


class _Order(msgspec.Struct, frozen=True, array_like=True):
    root: str
    """What relative paths count from."""
    stampings: list[Stamping]


class _Answer(msgspec.Struct, frozen=True, array_like=True):
    done_bytes: int = 0
    made: list[list[Stamped]] | None = None
    errno: int | None = None
    error: str | None = None


_ORDER: Final = msgspec.msgpack.Decoder(_Order)
_ANSWER: Final = msgspec.msgpack.Decoder(_Answer)


class Stamper:
    """One run of stamping, for all topics of a commit."""

    def __init__(self, fs: Fs) -> None:
        self.done_bytes = self.total_bytes = 0
        self._fs = fs
        self._cancelled = False
        self._helper: process.Helper | None = None
        self._lock = threading.Lock()

    def run(self, stampings: list[Stamping]) -> list[list[Stamped]]:
        """The segments of each topic; an `OSError` leaves files behind that count for nothing."""
        self.total_bytes = sum(chunk.size for one in stampings for chunk in one.chunks)
        if isinstance(self._fs, OsFs) and process.can_start():
            return self._run_helper(_Order(self._fs.root, stampings))
        return [stamp(self._fs, one, self._tell) for one in stampings]

    def cancel(self) -> None:
        """Have `run` end soon, with `Cancelled`."""
        with self._lock:
            self._cancelled = True
            if self._helper is not None:
                self._helper.kill()

    def _tell(self, more: int) -> None:
        self.done_bytes += more
        self._check()

    def _check(self) -> None:
        if self._cancelled:
            raise Cancelled("stamping was cancelled")

    def _run_helper(self, order: _Order) -> list[list[Stamped]]:
        with self._lock:
            self._check()
            helper = self._helper = process.Helper(MODULE)
        answer = _Answer()
        try:
            helper.send(msgspec.msgpack.encode(order))
            for message in helper.answers():
                answer = _ANSWER.decode(message)
                self.done_bytes = max(self.done_bytes, answer.done_bytes)
        finally:
            with self._lock:
                self._helper = None
            code = helper.close()
        self._check()
        if answer.error is not None:
            raise OSError(answer.errno, answer.error) if answer.errno else OSError(answer.error)
        if answer.made is None:
            raise process.HelperDied(f"the helper that stamps segments ended without an answer, exit code {code}")
        return answer.made


def main() -> None:
    """In the helper."""
    process.serve(_work)


def _work(message: bytes, send: process.Send) -> None:
    order = _ORDER.decode(message)
    fs = OsFs()
    fs.root = order.root
    done = 0

    def say(answer: _Answer) -> None:
        send(msgspec.msgpack.encode(answer))

    def tell(more: int) -> None:
        nonlocal done
        done += more
        say(_Answer(done))

    try:
        made = [stamp(fs, one, tell) for one in order.stampings]
    except OSError as error:
        say(_Answer(done, None, error.errno, error.strerror or str(error)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the process that waits has to be told
        say(_Answer(done, None, None, repr(error)))
    else:
        say(_Answer(done, made))
