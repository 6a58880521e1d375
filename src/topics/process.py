"""Helper processes, and commands of the user: the only place of the product that starts one. And manners of threads.

Work that needs the interpreter for seconds belongs in another process: here it would stall whoever shares the
interpreter. A helper is started anew, never forked: a fork would hold the store's lock and half of its state. It gets
messages on its standard input and answers on its standard output, each with its length in front:

    0  4  n  u32 little-endian        4  n  bytes

A helper ends when its input ends, whatever it is doing, so none outlives the process that started it. What is said of
this process in the environment (keys among it) is not handed on. A `Helper` belongs to one thread at a time, but for
`kill`; `serve` is the main thread of the other process.
"""

from __future__ import annotations

import json
import logging
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Final

log = logging.getLogger("topics.process")

_LEN: Final = struct.Struct("<I")
_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "import importlib; importlib.import_module(sys.argv[2]).main()"
)
_NICE: Final = 10
"""Who answers clients comes first."""
_FAR_NICE: Final = 15
"""A thirtieth of a processor that the event loop wants whole: it comes in stretches of some milliseconds."""
_GRACE_S: Final = 2
"""Within which a helper whose input has ended is gone by itself."""

Send = Callable[[bytes], None]


def stand_back(*, far: bool = False) -> None:
    """From now on this thread takes the processor from nobody: it runs when others wait, or had their share.

    A thread that comes back from a rest may otherwise go before one that has just begun. `far`: its own share is small,
    for what needs the processor for long and nothing that others wait for. Linux; elsewhere nothing.
    """
    if sys.platform == "linux":
        try:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
            me = threading.get_native_id()
            if far and os.getpriority(os.PRIO_PROCESS, me) < _FAR_NICE:
                os.setpriority(os.PRIO_PROCESS, me, _FAR_NICE)
        except OSError as error:
            log.debug("a helper cannot stand back: %s", error)


class HelperDied(OSError):
    """A helper ended without an answer."""


def can_start() -> bool:
    """Whether there is an interpreter to start; an application that embeds one may have none to offer."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


class Helper:
    """A process that runs `main` of a module."""

    def __init__(self, module: str) -> None:
        command = [sys.executable, "-c", _START, json.dumps(sys.path), module]
        env = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, start_new_session=True
        )

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, message: bytes) -> None:
        """Hand it a message."""
        assert self._process.stdin is not None
        try:
            _write(self._process.stdin, message)
        except OSError as error:
            raise HelperDied(f"a helper took no work: {error}") from error

    def answers(self) -> Iterator[bytes]:
        """What it says, until it ends."""
        assert self._process.stdout is not None
        while (message := _read(self._process.stdout)) is not None:
            yield message

    def kill(self) -> None:
        """End it now; any thread."""
        self._process.kill()

    def close(self) -> int:
        """End it, and wait until it is gone; what it ended with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError as error:
            log.info("a helper left what it was told: %s", error)
        self._process.stdout.close()
        try:
            return self._process.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()


def serve(work: Callable[[bytes, Send], None]) -> None:
    """In the helper: do what the first message asks for; end when it is done, or when nobody is left to tell."""
    os.nice(_NICE)
    given, said = sys.stdin.buffer, sys.stdout.buffer
    message = _read(given)
    if message is None:
        return

    def watch() -> None:
        # Past the buffer of `given`: its lock, held by a thread that waits, would not let the interpreter end.
        while os.read(given.fileno(), 1):
            continue
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    work(message, lambda answer: _write(said, answer))


def run_command(command: Sequence[str], given: bytes, env: Mapping[str, str], *, prints_to_stderr: bool = False) -> int:
    """Run a command of the user with something on its standard input; what it ended with, negative for a signal."""
    stdout = (sys.stderr or subprocess.DEVNULL) if prints_to_stderr else None
    return subprocess.run(command, input=given, stdout=stdout, env={**os.environ, **env}, check=False).returncode


def _write(stream: IO[bytes], message: bytes) -> None:
    stream.write(_LEN.pack(len(message)))
    stream.write(message)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes | None:
    """The next message; None where there is none, or only a part of one."""
    head = stream.read(_LEN.size)
    if len(head) < _LEN.size:
        return None
    (n,) = _LEN.unpack(head)
    body = stream.read(n)
    return body if len(body) == n else None
