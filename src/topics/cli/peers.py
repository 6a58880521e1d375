"""Other servers to be measured beside, where they are installed: Redis Streams and NATS JetStream [P-3].

Each is started by the measurement in a directory of its own, on a port of its own, on one core like ours, and is killed
behind it. Both are spoken to as our own server is: bytes made before, pipelined, every answer counted.

    Redis   `XADD` into one stream, append-only file; `appendfsync everysec` beside our `disk`, `always` beside `fsync`
    NATS    `PUB` with a reply subject into one stream of a file store, an acknowledgement for each. By default it
            leaves syncing to the system for two minutes, which is our `disk`; `sync_interval: always`, beside `fsync`,
            came with 2.10, and an older server says that it does not know it

Runs on the main thread.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

from topics.cli.load import WAIT_S, Target, Unexpected, Wire, apart
from topics.clock import SystemClock

STREAM: Final = "hot"
NAMES: Final = {"redis": "redis-server", "nats": "nats-server"}
_OWN: Final = b"######"
_INBOX: Final = b"_INBOX." + _OWN
"""Each connection has its own."""
_now_ns = SystemClock().monotonic_ns


def installed(name: str) -> bool:
    """Whether a peer can be started."""
    return shutil.which(NAMES[name]) is not None


@cache
def version(name: str) -> str | None:
    """What a peer calls itself; None where it is missing."""
    if not installed(name):
        return None
    said = subprocess.run([NAMES[name], "--version"], capture_output=True, text=True, check=True).stdout
    words = said.replace("v=", " ").split()
    return next((word.removeprefix("v") for word in words if word.removeprefix("v")[:1].isdigit()), said.strip())


# -- Redis -----------------------------------------------------------------------------------------------------------


@contextmanager
def redis(dir: Path, appendfsync: str) -> Iterator[Target]:
    """Redis with an append-only file in the directory."""
    port = _free_port()
    options = {"port": str(port), "bind": "127.0.0.1", "dir": str(dir), "appendonly": "yes", "save": ""}
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    command = [NAMES["redis"], *words, "--appendfsync", appendfsync]
    with apart(command, stdout=subprocess.DEVNULL) as child:
        _wait_for(port, child)
        while _asked(port, redis_command(b"PING"), b"\r\n") != b"+PONG\r\n":  # it listens before it has its data
            _alive(child)
        try:
            yield Target(port, child.pid)
        finally:
            child.kill()


def redis_count(target: Target) -> int:
    """Records in the stream."""
    return int(_asked(target.port, redis_command(b"XLEN", STREAM.encode()), b"\r\n")[1:])


def redis_command(*parts: bytes) -> bytes:
    """A command as Redis reads it."""
    return b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%b\r\n" % (len(part), part) for part in parts)


def xadd(data: bytes, count: int) -> Wire:
    """So many records into the stream, pipelined; an id for each: `$15` and the id, a line each."""

    def answer(found: bytes) -> int:
        if not found.startswith(b"$"):
            raise Unexpected(f"Redis refused a record: {found[:200]!r}")
        return len(found) if found.count(b"\r\n") == 2 * count else 0

    return Wire(redis_command(b"XADD", STREAM.encode(), b"*", b"d", data) * count, answer)


# -- NATS ------------------------------------------------------------------------------------------------------------


@contextmanager
def nats(dir: Path, *, sync_always: bool = False) -> Iterator[Target]:
    """NATS with JetStream in the directory, and its one stream."""
    port = _free_port()
    with apart([NAMES["nats"], "-c", str(_configured(dir, port, sync_always))], stderr=subprocess.DEVNULL) as child:
        _wait_for(port, child)
        try:
            _make_stream(port)
            yield Target(port, child.pid)
        finally:
            child.kill()


@cache
def can_sync_always() -> bool:
    """Whether the installed NATS can sync every write."""
    if not installed("nats"):
        return False
    with tempfile.TemporaryDirectory() as dir:
        path = _configured(Path(dir), 0, sync_always=True)
        return subprocess.run([NAMES["nats"], "-t", "-c", str(path)], capture_output=True, check=False).returncode == 0


def _configured(dir: Path, port: int, sync_always: bool) -> Path:
    options = [f'store_dir: "{dir / "jetstream"}"', "max_file_store: 64G"]
    options += ["sync_interval: always"] if sync_always else []
    path = dir / "nats.conf"
    path.write_text(f'listen: "127.0.0.1:{port}"\njetstream {{ {", ".join(options)} }}\n')
    return path


def _make_stream(port: int) -> None:
    """Make it, or find it as it was made."""
    asked = json.dumps({"name": STREAM, "subjects": [STREAM], "storage": "file"}).encode()
    told = _api(port, b"CREATE", asked)
    if "error" in told:
        raise Unexpected(f"NATS made no stream: {told['error']}")


def nats_count(target: Target) -> int:
    """Records in the stream."""
    return int(_api(target.port, b"INFO", b"")["state"]["messages"])


def _api(port: int, verb: bytes, asked: bytes) -> Any:
    """A request to JetStream about the stream; the answer's JSON."""
    subject = b"$JS.API.STREAM.%b.%b" % (verb, STREAM.encode())
    request = _greeting() + b"PUB %b %b %d\r\n%b\r\n" % (subject, _INBOX, len(asked), asked)
    said = _asked(port, request, b"}\r\n", behind=b"MSG ")
    return json.loads(said[said.index(b"{") :])


def _greeting() -> bytes:
    options = json.dumps({"verbose": False, "pedantic": False, "lang": "topics", "version": "0", "protocol": 1})
    return b"CONNECT %b\r\nSUB %b 1\r\n" % (options.encode(), _INBOX)


def publish(data: bytes, count: int) -> Wire:
    """So many records into the stream, pipelined; an acknowledgement with its seq for each."""

    def answer(found: bytes) -> int:
        if found.count(b"\r\n") < 2 * count:
            return 0
        if found.count(b'"seq":') != count:
            raise Unexpected(f"NATS refused a record: {found[:200]!r}")
        return len(found)

    request = b"PUB %b %b %d\r\n%b\r\n" % (STREAM.encode(), _INBOX, len(data), data) * count
    return Wire(request, answer, _greeting() + b"PING\r\n", b"PONG\r\n", b"PING\r\n", b"PONG\r\n", _OWN)


# -- both ------------------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _wait_for(port: int, child: subprocess.Popen[bytes]) -> None:
    until_ns = _now_ns() + int(WAIT_S * 1e9)
    while not _listens(port):
        _alive(child)
        if _now_ns() > until_ns:
            raise Unexpected(f"{child.args!r} did not start")


def _alive(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is not None:
        raise Unexpected(f"{child.args!r} ended with {child.returncode}")


def _asked(port: int, request: bytes, end: bytes, behind: bytes = b"") -> bytes:
    """Send something on a new connection; what comes from `behind` on, until it ends like this."""
    with closing(socket.create_connection(("127.0.0.1", port), WAIT_S)) as client:
        client.sendall(request)
        said = b""
        while behind not in said or not said.endswith(end):
            part = client.recv(65536)
            if not part:
                raise Unexpected(f"a peer ended the connection: {said!r}")
            said += part
    return said[said.index(behind) :]


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
