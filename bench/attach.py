"""A bulk load by attach, over HTTP: what it costs others, and whether all of it is there (02 §9, 06 S-288).

    python -m bench.attach [--rows N] [--dir DIR]

Processes: the server; a loader that stages `--rows` rows (5,000,000) as `application/vnd.topics.frames` and commits
them with `attach: "always"`; a client that writes single records to another topic (`disk`), one after another, and
takes the time of each. Told as one JSON line: that client's p50 and p99 alone, while rows are staged, and while they
are committed; the latter two as ratios of the first; how long staging and committing took; the server's highest
resident memory that is its own (not pages of mapped files), in each phase, and that of its helper process.

Checked: the answer, every row by a reader from seq 0: seqs dense, values in the order of the parts. Not measured: other
classes, several loads at once. On two cores the four processes share them, so a part of the ratios is the machine's.
"""

from __future__ import annotations

import argparse
import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.measure import percentiles_us
from bench.served import served
from topics.codec import part
from topics.codec.envelope import build

ROWS = 5_000_000
CHUNK = 10_000
PARTS = 8
TOPIC = "loaded"
PAUSE_S = 10.0
"""How long the other client is alone, before the load and behind it: a machine may have other work at times."""
SAMPLE_S = 0.05
SMALL = b'{"records":[{"data":{"kg":412.5,"line":"dock-7"},"tag":"pallet:A19"}]}'
TIMEOUT_S = 900.0


class Client:
    """One kept connection."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._rest = b""

    def post(self, path: str, body: bytes, kind: str = "application/json") -> bytes:
        """The body of the answer, which must be a success."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self._socket.sendall(head.encode() + body)
        data = self._rest
        while b"\r\n\r\n" not in data:
            data += self._more()
        answer, _, rest = data.partition(b"\r\n\r\n")
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201")), data[:500]
        length = int(answer.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        pieces = [rest]
        while sum(map(len, pieces)) < length:
            pieces.append(self._more())
        whole = b"".join(pieces)
        self._rest = whole[length:]
        return whole[:length]

    def close(self) -> None:
        """No more requests."""
        self._socket.close()

    def _more(self) -> bytes:
        data = self._socket.recv(1 << 20)
        assert data, "the server closed the connection"
        return data


# -- the load --------------------------------------------------------------------------------------------------------


class Load(NamedTuple):
    """Rows in parts."""

    rows: int

    def parts(self) -> Iterator[tuple[str, list[range]]]:
        """The rows of each part's chunks."""
        each = -(-self.rows // PARTS)
        for number in range(PARTS):
            low, high = number * each, min((number + 1) * each, self.rows)
            chunks = [range(at, min(at + CHUNK, high)) for at in range(low, high, CHUNK)]
            if chunks:
                yield f"part-{number}", chunks

    def stage(self, client: Client) -> list[dict[str, Any]]:
        """Stage all rows; what the commit names."""
        named = []
        for name, chunks in self.parts():
            for number, rows in enumerate(chunks):
                where = f"/v0/topics/{TOPIC}/stage?id=bench&version=1&part={name}&chunk={number}"
                body = part.upload([(None, None, _row(n)) for n in rows])
                client.post(where, body, "application/vnd.topics.frames")
            named.append({"part": name, "chunks": len(chunks), "records": sum(map(len, chunks))})
        return named


def _row(n: int) -> bytes:
    return build(b'{"n":%d,"line":"dock-7","kg":412.5,"note":"a row like many others"}' % n)


class _Data(msgspec.Struct):
    n: int


class _Record(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    data: _Data


class _Page(msgspec.Struct):
    records: list[_Record]
    next_from_seq: int
    caught_up: bool


def check(client: Client, rows: int) -> None:
    """Read everything: each row once, in order, at the next seq."""
    decode = msgspec.json.Decoder(_Page).decode
    cursor = 0
    while True:
        body = b'{"from_seq":%d,"limit":10000}' % cursor
        page = decode(client.post(f"/v0/topics/{TOPIC}/diff", body))
        for record in page.records:
            cursor += 1
            assert (record.seq, record.data.n) == (cursor, cursor - 1), f"{record} at {cursor}"
        if page.caught_up:
            break
    assert cursor == rows, f"{cursor} of {rows} rows"


# -- the other client ------------------------------------------------------------------------------------------------


def probe(port: int) -> None:
    """Write single records; a line names the next phase, the end of input ends it. Runs as a process."""
    client, phases = Client(port), dict[str, list[int]]()
    phase = [""]

    def listen() -> None:
        for line in sys.stdin:
            phase[0] = line.strip()
        phase[0] = "over"

    client.post("/v0/topics/small", SMALL)
    print("writing", flush=True)
    threading.Thread(target=listen, daemon=True).start()
    while phase[0] != "over":
        start = time.perf_counter_ns()
        client.post("/v0/topics/small", SMALL)
        phases.setdefault(phase[0], []).append(time.perf_counter_ns() - start)
    print(json.dumps({name: {**percentiles_us(taken), "writes": len(taken)} for name, taken in phases.items() if name}))


@contextmanager
def probing(port: int) -> Iterator[subprocess.Popen[str]]:
    """The other client as a process."""
    command = [sys.executable, "-m", "bench.attach", "--probe", str(port)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


# -- memory ----------------------------------------------------------------------------------------------------------


class Memory(threading.Thread):
    """The highest resident memory of a process and of its children, by phase; pages of files do not count."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.phase = "before"
        self.server: dict[str, int] = {}
        self.helper = 0
        self._pid = pid
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(SAMPLE_S):
            self.server[self.phase] = max(self.server.get(self.phase, 0), _own_kib(self._pid))
            for child in _children(self._pid):
                self.helper = max(self.helper, _own_kib(child))

    def stop(self) -> None:
        """No more."""
        self._over.set()
        self.join()


def _own_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return 0  # it has gone
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith("RssAnon:")), 0)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that has gone
            found += map(int, (task / "children").read_text(encoding="ascii").split())
    return found


# -- all of it -------------------------------------------------------------------------------------------------------


def run(rows: int, dir: Path) -> dict[str, Any]:
    """One load."""
    with (
        served(dir / "store", pinned=False) as (port, pid, *_),
        probing(port) as other,
        closing(Client(port)) as client,
    ):
        assert other.stdin is not None
        memory = Memory(pid)
        memory.start()
        took: dict[str, float] = {}

        def phase(name: str) -> None:
            memory.phase = name
            assert other.stdin is not None
            other.stdin.write(f"{name}\n")
            other.stdin.flush()

        assert other.stdout is not None
        assert other.stdout.readline() == "writing\n"
        phase("alone")
        threading.Event().wait(PAUSE_S)
        phase("staging")
        began = time.perf_counter()
        named = Load(rows).stage(client)
        took["stage_s"] = time.perf_counter() - began
        phase("committing")
        began = time.perf_counter()
        asked = {"id": "bench", "version": 1, "parts": named, "attach": "always"}
        answer = json.loads(client.post("/v0/txn/commit", json.dumps(asked).encode()))
        took["commit_s"] = time.perf_counter() - began
        phase("behind")
        assert [(one["count"], one["attached"]) for one in answer["topics"]] == [(rows, True)], answer
        check(client, rows)
        phase("alone")
        threading.Event().wait(PAUSE_S)
        memory.stop()
        told, _ = other.communicate()
    phases = json.loads(told)
    return {
        "rows": rows,
        **{name: round(value, 2) for name, value in took.items()},
        "rows_per_s_committed": round(rows / took["commit_s"]),
        "phases": phases,
        "p99_ratio_staging": _ratio(phases, "staging"),
        "p99_ratio_committing": _ratio(phases, "committing"),
        "server_own_mib": {name: kib >> 10 for name, kib in memory.server.items()},
        "helper_own_mib": memory.helper >> 10,
    }


def _ratio(phases: dict[str, dict[str, float]], name: str) -> float | None:
    """Beside the client alone; None where a phase was over before a write was."""
    if name not in phases or "alone" not in phases:
        return None
    return round(phases[name]["p99_us"] / phases["alone"]["p99_us"], 2)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--dir", type=Path, default=Path(__file__).parent / "results", help="whose disk is used")
    parser.add_argument("--probe", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        probe(given.probe)
        return
    given.dir.mkdir(parents=True, exist_ok=True)
    dir = Path(tempfile.mkdtemp(dir=given.dir))
    try:
        print(json.dumps(run(given.rows, dir)))
    finally:
        shutil.rmtree(dir, ignore_errors=True)


if __name__ == "__main__":
    main()
