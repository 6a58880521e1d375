"""Which implementation of the hot loops runs: Python, or the compiled kernel where it is installed (`TOPICS_KERNEL`).

    pure      the functions of this package, complete by themselves: they are the specification
    native    the same functions ask `topics_kernel` first (native/, a distribution of its own)
    auto      native where it is installed and belongs to this version, else pure; the default

The compiled functions know no rules. Whatever is not plainly right they decline, with None, and the Python below goes
over it: each limit, error code and word exists once. Each takes and gives bytes; from 64 KiB on it works without the
interpreter's lock. Buffers that are handed over must not be written to meanwhile.

The choice is the process's. It is made at import and by whoever starts an engine or a server, before there is work.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal, Protocol, cast

from topics.errors import SettingsError
from topics.settings import environment

Buffer = bytes | bytearray | memoryview
Name = Literal["pure", "native"]

INTERFACE: Final = 10
"""Of the compiled functions; a kernel with another one is none of ours."""


class Written(Protocol):
    """The body of a write, scanned; to the engine it is what `engine.records.Prepared` is."""

    @property
    def records(self) -> int: ...
    @property
    def writes(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def is_plain(self) -> bool: ...
    @property
    def node(self) -> str | None: ...
    @property
    def idempotency_key(self) -> bytes | None: ...
    @property
    def producer(self) -> bytes | None: ...
    @property
    def create(self) -> bytes | None: ...
    @property
    def config(self) -> bytes | None: ...
    @property
    def disable_backpressure(self) -> bytes | None: ...
    @property
    def has_tags(self) -> bool: ...
    @property
    def tags(self) -> list[str | None]: ...
    @property
    def envelopes(self) -> list[bytes]: ...
    @property
    def accounted(self) -> list[int]: ...
    def rows(self) -> list[tuple[str | None, str | None, bytes]]: ...
    def framed(
        self, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, begin: int = 0, end: int | None = None, /
    ) -> tuple[bytes, bytes, bytes]: ...


class Run(Protocol):
    """Writes to one topic that connections brought at once; to the engine what `engine.records.Joined` is."""

    @property
    def topic(self) -> int: ...
    @property
    def writes(self) -> int: ...
    @property
    def body_bytes(self) -> int: ...
    @property
    def heads(self) -> list[int]: ...
    @property
    def records(self) -> int: ...
    @property
    def total(self) -> int: ...
    @property
    def has_tags(self) -> bool: ...
    @property
    def tags(self) -> list[str | None]: ...
    @property
    def envelopes(self) -> list[bytes]: ...
    @property
    def accounted(self) -> list[int]: ...
    def each(self) -> list[tuple[bytes, int]]: ...
    def framed(
        self, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, begin: int = 0, end: int | None = None, /
    ) -> tuple[bytes, bytes, bytes]: ...


class Lines(Protocol):
    """The connections of a server; `server/lines.py` says what each call is for."""

    def fileno(self) -> int: ...
    def limit(self, limits: tuple[int, ...], /) -> None: ...
    def add(self, fd: int, owner: object, /) -> int: ...
    def close(self, line: int, /) -> None: ...
    def shutdown(self, line: int, /) -> None: ...
    def pause(self, line: int, /) -> None: ...
    def resume(self, line: int, /) -> bool: ...
    def plain(self, line: int, /) -> None: ...
    def served(self, line: int, /) -> tuple[bool, int]: ...
    def know(self, head: bytes, declared: int, most_records: int, topic: int, number: int, /) -> None: ...
    def forget(self) -> None: ...
    def receive(self) -> tuple[list[Run], list[tuple[Any, int, Any]], bool]: ...
    def answer(self, run: Run, prefix: bytes, topic: str, first: int, head: int, performance: bytes, /) -> bool: ...
    def give_up(self, run: Run, /) -> list[Any]: ...
    def write(self, line: int, data: bytes, /) -> int: ...
    def tell(self, line: int, tells: bool, /) -> None: ...
    def unsent(self, line: int, /) -> int: ...
    def flush(self) -> bool: ...
    def send(self, line: int, /) -> int: ...
    def spread(self, lines: list[int], data: bytes, /) -> tuple[list[Any], bool]: ...
    def mute(self, line: int, /) -> None: ...
    def gone(self, line: int, /) -> int: ...


class Syncer(Protocol):
    """Makes one descriptor after another durable, on a thread that does not need the interpreter.

    `ask` begins; `fileno` is readable at its end, of which `take` tells once: 0, or the number of an error. `wait`
    waits for it. The descriptor must stay open until then.
    """

    def fileno(self) -> int: ...
    def ask(self, fd: int, /) -> None: ...
    def take(self) -> int | None: ...
    def wait(self) -> int: ...


class Rounds(Protocol):
    """How threads share work, beside the interpreter; `wal.rounds.Rounds` says more.

    Those who come back from a round have the interpreter one behind the other, each when the one before it waits again.
    """

    def gathered(self) -> int: ...
    def share(self, work: Any, serve: Callable[[Sequence[Any]], object], /) -> None: ...


Records = list[tuple[str | None, str | None, bytes]]
Arrow = tuple[bytes, bytes, bytes]
"""A column: which values there are, their ends, their bytes."""


class Native(Protocol):
    """The functions of `topics_kernel`; each is described where it is called."""

    def Lines(self, body_bytes_max: int, /) -> Lines: ...  # noqa: N802 - a class
    def Syncer(self) -> Syncer: ...  # noqa: N802 - a class
    def Rounds(self, hand_over_s: float, look_again_s: float, /) -> Rounds: ...  # noqa: N802 - a class
    def scan_write(self, body: bytes, limits: tuple[int, ...], /) -> Written | None: ...
    def scan_chunks(self, chunks: list[bytes], limits: tuple[int, ...], /) -> Written | None: ...
    def uploaded(
        self, chunks: list[bytes], limits: tuple[int, ...], piece_bytes: int, /
    ) -> tuple[list[bytes], int, int, bytes] | None: ...
    def frame_values(
        self, records: Records, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, /
    ) -> bytes | None: ...
    def answer_write(
        self, topic: str, first: int, count: int, head: int, seqs: bool, performance: bytes, /
    ) -> bytes: ...
    def verify(self, buffer: Buffer, begin: int, end: int, /) -> tuple[bytes, int, int]: ...
    def verify_data(self, buffer: Buffer, mask: int, begin: int, end: int, /) -> tuple[bytes, int, int]: ...
    def agree(self, buffer: Buffer, mask: int | None, starts: bytes, sizes: bytes, seqs: bytes, /) -> bytes: ...
    def columns(
        self, buffer: Buffer, starts: bytes, entries: bytes, node: bool, tag: bool, data: bool, binary: bool, /
    ) -> Sequence[Arrow] | None: ...
    def index_rows(self, buffer: Buffer, rows: bytes, /) -> tuple[bytes, bytes] | None: ...
    def tail_bytes(self, entries: Buffer, ts_before: int, /) -> int | None: ...
    def mark(self, entries: bytearray, first: int, seqs: list[int], /) -> tuple[int, int]: ...
    def reframe(
        self, buffer: Buffer, offsets: bytes, mask: int, at: int, hops: bytes | None, /
    ) -> tuple[bytes, bytes] | int | None: ...
    def stamp(self, frames: bytearray, begins: bytes, first_seq: int, ts: int, mask: int, /) -> bytes | int | None: ...
    def appends(
        self, chunk: bytes, begins: bytes, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, /
    ) -> tuple[bytes, bytes, bytes, list[bytes | None], int] | None: ...
    def shifted(self, parts: list[tuple[int, bytes]], /) -> bytes: ...
    def encode_record(self, key: bytes, value: bytes, tombstone: bool, /) -> bytes: ...
    def walk_records(self, buffer: Buffer, begin: int, end: int, /) -> tuple[int, int]: ...
    def project(
        self, buffer: Buffer, entries: bytes, first_seq: int, mask: int, tags: bool, metas: bool, data: bool, /
    ) -> bytes | None: ...
    def page(
        self,
        buffer: Buffer,
        index: Buffer,
        at: int,
        limits: tuple[int, int, int],
        first_seq: int,
        mask: int,
        tags: bool,
        metas: bool,
        data: bool,
        /,
    ) -> tuple[bytes, int, int] | None: ...
    def project_wal(self, frames: bytes, offsets: bytes, tags: bool, metas: bool, data: bool, /) -> bytes | None: ...
    def jobs(self, frames: bytes, offsets: bytes, first_id: int, deadline: int, /) -> bytes | None: ...
    def events(
        self, name: str, from_seq: int, to_seq: int, head: int, records: list[bytes], chunked: bool, /
    ) -> bytes: ...


def _load() -> Native | None:
    try:
        found = importlib.import_module("topics_kernel")
    except ImportError:
        return None
    return cast("Native", found) if getattr(found, "INTERFACE", None) == INTERFACE else None


_INSTALLED: Final = _load()

native: Native | None = None
"""The compiled functions, if they are used."""


def installed() -> Native | None:
    """The compiled functions, if they can be used."""
    return _INSTALLED


def has_lines() -> bool:
    """Whether the kernel that is used can have the connections of a server."""
    return native is not None and hasattr(native, "Lines")


def syncer() -> Syncer | None:
    """What syncs beside the interpreter, if the kernel that is used can."""
    return native.Syncer() if native is not None and hasattr(native, "Syncer") else None


def rounds(hand_over_s: float, look_again_s: float) -> Rounds | None:
    """How threads share work beside the interpreter, if the kernel that is used can."""
    return native.Rounds(hand_over_s, look_again_s) if native is not None and hasattr(native, "Rounds") else None


def name() -> Name:
    """What runs, as `/v0/health` tells it."""
    return "pure" if native is None else "native"


def select(choice: str) -> None:
    """Use this one from now on; `auto` stands for what the environment says, or what is used already."""
    global native
    if choice == "auto":
        choice = _wish()
    if choice == "native" and _INSTALLED is None:
        raise SettingsError("TOPICS_KERNEL", "the native kernel of this version is not installed; use auto or pure")
    if choice != "auto":
        native = None if choice == "pure" else _INSTALLED


def _wish() -> str:
    """Of the environment; what is no choice is told where settings are read."""
    wish = environment().get("TOPICS_KERNEL", "").strip()
    return wish if wish in ("pure", "native") else "auto"


native = None if _wish() == "pure" else _INSTALLED
