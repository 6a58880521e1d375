"""A running server as the target of a write: parts are staged over HTTP and committed by one call (02 §9) [K-31].

A server that does not answer, or says that it cannot now (429, 500, 503), is asked again: after the time it names, for
as long as `retryMs` allows [K-33]. That is harmless: a chunk that arrived is known by its number, a version by its
number too. A server that was restarted meanwhile has forgotten what was staged; then the task, or the job, fails and
is run again by whoever runs it.

Rows go as JSON like those of a write, or as frames that the task made (`mode=segments`) [K-34]. One thread each.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec

from topics.clock import SystemClock
from topics.codec import envelope
from topics.codec import part as codec
from topics.spark.failure import SourceError
from topics.spark.parts import Committed, Staged, TooLarge, Version, behind
from topics.spark.remote import TIMEOUT_S, Answered, Remote
from topics.spark.rows import Row
from topics.spark.writeoptions import WriteOptions

log = logging.getLogger("topics.spark")

PAUSE_S: Final = 0.05
PAUSE_S_MAX: Final = 2.0
CHECK_MS: Final = 3_000
"""How long a server is waited for before a write begins, and at its abort: nothing is lost yet, or any more."""
LATER: Final = frozenset({429, 500, 503})
FRAMES: Final = "application/vnd.topics.frames"
JSON: Final = "application/json"
_KEY_TODO: Final = "set `apiKey` or `apiKeyFile` to a key that may write to these topics"
_FRAMES_TODO: Final = "use a key with the scope admin, or leave out mode=segments"
_AGAIN_TODO: Final = "nothing was written; it is staged anew when Spark runs the task again, or you the job"
_encode = msgspec.json.encode


class Patient(Remote):
    """A server that is asked until it answers."""

    def __init__(self, options: WriteOptions, retry_ms: int, timeout_s: float = TIMEOUT_S) -> None:
        assert options.url is not None
        super().__init__(options.url, options.api_key, timeout_s)
        self._retry_ms = retry_ms
        self._clock = SystemClock()

    def ask(self, target: str, body: bytes, kind: str = JSON) -> Answered:
        """The answer to a POST, whatever it is; the last one where the server only puts us off."""
        end = self._clock.monotonic_ns() + self._retry_ms * 1_000_000
        pause = PAUSE_S
        while True:
            answer, failed = self._tried(target, body, kind)
            if answer is not None and answer.status not in LATER:
                return answer
            wait = max(answer.retry_after_s if answer is not None else 0.0, pause)
            if self._clock.monotonic_ns() + int(wait * 1e9) > end:
                if answer is None:
                    raise failed  # type: ignore[misc]
                return answer
            threading.Event().wait(wait)
            pause = min(2 * pause, PAUSE_S_MAX)

    def _tried(self, target: str, body: bytes, kind: str) -> tuple[Answered | None, SourceError | None]:
        try:
            return self._once("POST", target, body, kind), None
        except SourceError as error:
            if error.code != "unreachable":
                raise
            return None, error


class ServerTarget:
    """Writes to a server."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def check(self) -> None:
        """Whether the server is there and takes the key: an abort of nothing needs what a write needs."""
        body = _encode({"id": f"check-{secrets.token_hex(8)}", "version": 0})
        answer = self._call("/v0/txn/abort", body, CHECK_MS)
        if answer.status != 200:
            raise self._refused(answer, "the server takes no writes now")

    def open(self, version: Version) -> None:
        """The server begins a version by itself."""

    def begin(self, version: Version, part: str, *, opened: bool = False) -> ServerPart:
        """A part of a task."""
        return ServerPart(self._options, version, part)

    def commit(self, version: Version, parts: Sequence[Staged], *, newest: bool = False) -> None:
        """One call, repeated until it is answered; a version that is committed already is left as it is."""
        body: dict[str, Any] = {
            "id": version.id,
            "version": version.number,
            "parts": [one._asdict() for one in parts],
            "attach": "always" if self._options.segments else "auto",
        }
        if self._options.durability is not None:
            body |= {"create": True, "config": {"durability": self._options.durability}}
        retry_ms = self._options.retry_ms
        try:
            answer = self._call("/v0/txn/commit", _encode(body), retry_ms, max(TIMEOUT_S, retry_ms / 1000))
        except SourceError as error:
            if error.code != "unreachable":
                raise
            raise _unknown(version, error.what) from error
        code, message = ("", "") if answer.status == 200 else answer.error()
        if answer.status in LATER:
            raise _unknown(version, f"{self._options.url}: {message}")
        if code == "txn_incomplete":
            what = f"{self._options.url} has forgotten what was staged for version {version.number} of {version.id}"
            raise SourceError(code, f"{what}: it was restarted, or it took too long", "run it again")
        if answer.status != 200:
            raise self._refused(answer, "the commit was refused, nothing was written")
        told = json.loads(answer.body)
        if told["deduped"]:
            log.info("version %d of %s was committed before", version.number, version.id)
            if newest and not told["topics"]:  # of the newest version they would be told, if it has any [TXN-7]
                self._check_newest(version)

    def _check_newest(self, version: Version) -> None:
        remote = Patient(self._options, self._options.retry_ms)
        remote.met = True
        try:
            known = remote.call("GET", f"/v0/txn/{quote(version.id, safe='')}")["version"]
        except SourceError as error:
            if error.code not in ("unauthorized", "forbidden"):
                raise
            log.warning("whether %d is the newest version of %s, a key that may read would tell", *reversed(version))
            return
        finally:
            remote.close()
        if known is not None and known > version.number:
            raise behind(version, known)

    def abort(self, version: Version, *, final: bool = False) -> None:
        """What a server that does not answer keeps, it drops by itself [TXN-4].

        Tasks of a failed job may still be running, and one that begins its part now would leave it behind. Where nobody
        will use the version, it is committed without anything: what comes late is refused then [TXN-3].
        """
        named = {"id": version.id, "version": version.number}
        try:
            self._call("/v0/txn/abort", _encode(named), CHECK_MS)
            if final:
                self._call("/v0/txn/commit", _encode(named | {"parts": []}), CHECK_MS)
        except SourceError as error:
            log.warning("version %d of %s was not aborted: %s", version.number, version.id, error.what)

    def _call(self, target: str, body: bytes, retry_ms: int, timeout_s: float = TIMEOUT_S) -> Answered:
        remote = Patient(self._options, min(retry_ms, self._options.retry_ms), timeout_s)
        try:
            return remote.ask(target, body)
        finally:
            remote.close()

    def _refused(self, answer: Answered, todo: str) -> SourceError:
        code, message = answer.error()
        todo = _KEY_TODO if answer.status in (401, 403) else todo
        return SourceError(code, f"{self._options.url}: {message}", todo)


def _unknown(version: Version, why: str) -> SourceError:
    """A commit that nobody answered may be done, or not [TXN-10]."""
    what = f"whether version {version.number} of {version.id} was written is not known: {why}"
    return SourceError("commit_unknown", what, "with txnAppId and txnVersion a repeat is harmless, as in a stream")


class ServerPart:
    """A part on its way to a server, over one connection."""

    def __init__(self, options: WriteOptions, version: Version, part: str) -> None:
        self._url = options.url
        self._remote = Patient(options, options.retry_ms)
        self._frames = options.segments
        self._place = {"id": version.id, "version": version.number, "part": part}

    def send(self, chunk: int, topic: str, rows: Sequence[Row]) -> None:
        """Stage a chunk; the same one again is known [TXN-2]."""
        place = self._place | {"chunk": chunk}
        target = f"/v0/topics/{quote(topic, safe='')}/stage"
        if self._frames:
            body = codec.upload((row.node, row.tag, row.stored) for row in rows)
            answer = self._remote.ask(f"{target}?{urlencode(place)}", body, FRAMES)
        else:
            answer = self._remote.ask(target, _body(place, rows))
        if answer.status != 200:
            raise self._refused(answer, rows)

    def _refused(self, answer: Answered, rows: Sequence[Row]) -> Exception:
        code, message = answer.error()
        if code == "txn_committed":
            return Committed()
        if code in ("payload_too_large", "batch_too_large") and len(rows) > 1:
            return TooLarge()
        if code == "txn_conflict":
            what = f"{self._url} has forgotten what was staged before: it was restarted, or it took too long"
            return SourceError(code, what, _AGAIN_TODO)
        if answer.status in (401, 403):
            return SourceError(code, f"{self._url}: {message}", _FRAMES_TODO if "admin" in message else _KEY_TODO)
        where = f"rows {rows[0].number} to {rows[-1].number} of the partition"
        return SourceError(code, f"{self._url}: {where}: {message}", _TODO.get(code, "correct them, or drop them"))

    def close(self, *, complete: bool) -> None:
        self._remote.close()


_TODO: Final[Mapping[str, str]] = {
    "throttled": "nothing was written; try again when the server has room, or raise TOPICS_MAX_STAGED_BYTES",
    "not_ready": "nothing was written; look at the server's log, or try again later",
    "internal": "nothing was written; look at the server's log, or try again later",
}


def _body(place: Mapping[str, object], rows: Sequence[Row]) -> bytes:
    """What a chunk looks like as JSON; texts are put in as they are, they were checked."""
    head = _encode(place)
    return b'%b,"records":[%b]}' % (head[:-1], b",".join(map(_record, rows)))


def _record(row: Row) -> bytes:
    data, meta = envelope.parts(row.stored)
    text = b'{"data":%b' % data
    if row.tag is not None:
        text += b',"tag":%b' % _encode(row.tag)
    if row.node is not None:
        text += b',"node":%b' % _encode(row.node)
    if meta is not None:
        text += b',"meta":%b' % meta
    return text + b"}"
