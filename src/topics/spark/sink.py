"""A data directory as the target of a write: tasks leave part files beside it, the commit opens the store [K-30].

    <stagingDir>/<%016x of xxh3(id)>-<version>/<part>      by default `<path>.staging`, on the same host

A part file is chunks one behind another, each a line of JSON and frames as a client sends them (codec/part.py), with
checksums. It has its name only once it is complete:

    {"topic": …, "records": n, "bytes": n}\\n frames

The commit opens the store alone, stages the parts through the engine, commits them and removes the files: the same
identity and the same rules as with a server. A version that is committed already is not staged again. What a killed
driver left behind is removed by a later commit, as a server would [TXN-4].

Tasks write; the driver opens the store. One thread each.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Final

from xxhash import xxh3_64_hexdigest

from topics.clock import SystemClock
from topics.codec import envelope
from topics.codec import part as codec
from topics.codec.frame import NotAFrame
from topics.engine.backup import as_laid_out
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.txn import AttachMode
from topics.errors import DataDirInUse, TopicsError
from topics.fs import OsFs
from topics.model import NewRecord
from topics.paths import META_DIR
from topics.spark.failure import SourceError
from topics.spark.parts import Staged, Version, behind
from topics.spark.rows import Row
from topics.spark.writeoptions import WriteOptions

log = logging.getLogger("topics.spark")

LOOK_S: Final = 0.1
IN_USE_MS: Final = 10_000
"""How long a store that somebody else has open is waited for: another commit ends soon, a server does not."""
LEFT_MS: Final = 3_600_000
"""How old what nobody writes to any more becomes."""
UNFINISHED: Final = ".tmp"
_LINE_MAX: Final = 4096


class FolderTarget:
    """Writes to a store that nobody else has open when it is committed."""

    def __init__(self, options: WriteOptions) -> None:
        assert options.path is not None
        self._options = options
        self._path = options.path

    def check(self) -> None:
        """Whether there is a place to write to; the store itself is opened by the commit alone."""
        parent = os.path.dirname(self._options.staging_dir)
        if not os.path.isdir(parent):
            raise SourceError("no_store", f"{parent} is not a directory", "create it, or correct `path`")

    def open(self, version: Version) -> None:
        """Tasks write where there is a folder for them."""
        os.makedirs(self._folder(version), exist_ok=True)

    def begin(self, version: Version, part: str, *, opened: bool = False) -> FolderPart:
        """A part of a task."""
        if not opened:
            self.open(version)
        try:
            return FolderPart(self._folder(version), part)
        except FileNotFoundError as error:
            raise SourceError("txn_aborted", f"{self._folder(version)} is gone", "the write was given up") from error

    def commit(self, version: Version, parts: Sequence[Staged], *, newest: bool = False) -> None:
        """Stage the part files and commit them, if that was not done before."""
        try:
            with self._opened() as engine:
                known = engine.writer(version.id).version
                if known is None or known < version.number:
                    self._bring(engine, version, parts)
                elif newest and known > version.number:
                    raise behind(version, known)
        except TopicsError as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(error.code, f"{self._path}: {error}", "correct that, then run it again") from error
        self.abort(version)
        self._sweep()

    def _bring(self, engine: Engine, version: Version, parts: Sequence[Staged]) -> None:
        engine.abort_staged(version.id, version.number)
        for one in parts:
            for chunk, (topic, records) in enumerate(read_part(os.path.join(self._folder(version), one.part))):
                engine.stage(version.id, version.number, one.part, chunk, topic, records)
        config = None if self._options.durability is None else {"durability": self._options.durability}
        attach: AttachMode = "always" if self._options.segments else "auto"
        engine.commit_staged(version.id, version.number, parts, config=config, create=True, attach=attach)

    def _opened(self) -> Engine:
        clock = SystemClock()
        end = clock.monotonic_ns() + min(self._options.retry_ms, IN_USE_MS) * 1_000_000
        while True:
            try:
                return Engine.open(self._path, self._config())
            except DataDirInUse as error:
                if clock.monotonic_ns() > end:
                    what = f"{self._path} is open in another process, such as a server"
                    raise SourceError(error.code, what, "write with `url` while a server runs") from error
            threading.Event().wait(LOOK_S)

    def _config(self) -> EngineConfig:
        """As the store is laid out, if it is there already."""
        is_new = not os.path.isdir(os.path.join(self._path, META_DIR))
        return EngineConfig() if is_new else as_laid_out(OsFs(), self._path, EngineConfig())

    def abort(self, version: Version, *, final: bool = False) -> None:
        """Remove the part files."""
        shutil.rmtree(self._folder(version), ignore_errors=True)
        _remove_if_empty(self._options.staging_dir)

    def _folder(self, version: Version) -> str:
        return os.path.join(self._options.staging_dir, f"{xxh3_64_hexdigest(version.id.encode())}-{version.number}")

    def _sweep(self) -> None:
        """Remove what others left behind long ago."""
        if not os.path.isdir(self._options.staging_dir):
            return
        before = (SystemClock().now_ms() - LEFT_MS) / 1000
        for one in os.scandir(self._options.staging_dir):
            newest = max((file.stat().st_mtime for file in _files(one.path)), default=0.0)
            if one.is_dir() and max(newest, one.stat().st_mtime) < before:
                shutil.rmtree(one.path, ignore_errors=True)
        _remove_if_empty(self._options.staging_dir)


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    try:
        yield from os.scandir(folder)
    except OSError as error:
        log.debug("%s: %s", folder, error)


def _remove_if_empty(folder: str) -> None:
    try:
        os.rmdir(folder)
    except OSError as error:
        log.debug("%s stays: %s", folder, error)


class FolderPart:
    """A part file that is being written."""

    def __init__(self, folder: str, part: str) -> None:
        self._path = os.path.join(folder, part)
        self._file: IO[bytes] = open(self._path + UNFINISHED, "xb")  # noqa: SIM115  it is closed by `close`

    def send(self, chunk: int, topic: str, rows: Sequence[Row]) -> None:
        frames = codec.upload((row.node, row.tag, row.stored) for row in rows)
        head = {"topic": topic, "records": len(rows), "bytes": len(frames)}
        self._file.write(json.dumps(head).encode() + b"\n" + frames)

    def close(self, *, complete: bool) -> None:
        try:
            self._file.close()  # a full disk may tell only now
            if complete:
                os.rename(self._path + UNFINISHED, self._path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(self._path + UNFINISHED)


def read_part(path: str) -> Iterator[tuple[str, list[NewRecord]]]:
    """Topic and records of each chunk; `SourceError` where the file is not what a task wrote."""
    todo = "nothing was written: run it again"
    try:
        with open(path, "rb") as file:
            while line := file.readline(_LINE_MAX):
                head = json.loads(line)
                frames = file.read(head["bytes"])
                records = [NewRecord(*_payload(stored, tag, node)) for node, tag, stored in codec.uploaded(frames)]
                if len(frames) != head["bytes"] or len(records) != head["records"]:
                    raise SourceError("txn_incomplete", f"{path} is cut off", todo)
                yield head["topic"], records
    except FileNotFoundError as error:
        what = f"{path} is gone: every task must write on the host of the driver"
        raise SourceError("txn_incomplete", what, "write with `url` from more than one host") from error
    except (NotAFrame, ValueError, KeyError) as error:
        raise SourceError("txn_incomplete", f"{path} is damaged: {error}", todo) from error


def _payload(stored: bytes, tag: str | None, node: str | None) -> tuple[bytes, str | None, str | None, bytes | None]:
    data, meta = envelope.parts(stored)
    return data, tag, node, meta
