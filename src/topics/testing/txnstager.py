"""A stager of `txn-chaos`: a process of its own that stages its share of every version, over and over if need be.

    python -m topics.testing.txnstager FOLDER NUMBER SEED

It reads `version attempt` from its input and answers with one JSON line: the part that is staged completely, or that
the version is committed. What a part holds follows from seed, version and number alone, so that whoever judges knows.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from topics.testing.httpconn import Answer, HttpConn, NotSent

ID = "chaos"
TOPICS = ("left", "middle", "right")
PAUSE_S = 0.01
ZOMBIE = 0.15
"""How often a part is staged twice, as by an attempt that is slow and was given up."""


class Chunk(NamedTuple):
    """Rows of one topic."""

    topic: str
    rows: list[str]


def share(seed: int, version: int, number: int) -> list[Chunk]:
    """What one stager brings to a version; the first brings something to every topic."""
    rng = random.Random(f"{seed} {version} {number}")
    topics = [*TOPICS] if number == 0 else []
    topics += rng.choices(TOPICS, k=rng.randrange(1, 4))
    made: list[Chunk] = []
    for at, topic in enumerate(topics):
        made.append(Chunk(topic, [f"{version}/{number}/{at}.{n}" for n in range(rng.randrange(1, 30))]))
    return made


def expected(seed: int, version: int, stagers: int) -> dict[str, list[str]]:
    """What a version brings to each topic, in order [TXN-6]."""
    found: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    for number in range(stagers):
        for chunk in share(seed, version, number):
            found[chunk.topic] += chunk.rows
    return found


class Restart(Exception):
    """The server has forgotten what was staged: the part begins anew."""


class Committed(Exception):
    """The version is committed: there is nothing to stage [TXN-3]."""


def address(folder: Path) -> tuple[str, int]:
    """Where the server listens now."""
    try:
        host, _, port = (folder / "port").read_text().strip().rpartition(":")
        return host.strip("[]"), int(port)
    except (FileNotFoundError, ValueError):
        raise NotSent("no server yet") from None


class Stager:
    """Stages one share after another."""

    def __init__(self, folder: Path, number: int, seed: int) -> None:
        self._folder = folder
        self._number = number
        self._seed = seed
        self._rng = random.Random(f"{seed} stager {number}")

    def run(self) -> None:
        """Until the input ends."""
        for line in sys.stdin:
            version, attempt = map(int, line.split())
            sys.stdout.buffer.write(msgspec.json.encode(self._told(version, attempt)) + b"\n")
            sys.stdout.flush()

    def _told(self, version: int, attempt: int) -> dict[str, Any]:
        chunks = share(self._seed, version, self._number)
        tries = 0
        while True:
            tries += 1
            part = f"p{self._number}-a{attempt}-{tries}"
            try:
                if self._rng.random() < ZOMBIE:
                    self._stage(version, f"{part}-zombie", chunks[:1])
                self._stage(version, part, chunks)
            except Restart:
                continue
            except Committed:
                return {"version": version, "committed": True}
            records = sum(len(chunk.rows) for chunk in chunks)
            return {"version": version, "part": part, "chunks": len(chunks), "records": records}

    def _stage(self, version: int, part: str, chunks: list[Chunk]) -> None:
        for number, chunk in enumerate(chunks):
            body = {
                "id": ID,
                "version": version,
                "part": part,
                "chunk": number,
                "records": [{"data": row} for row in chunk.rows],
            }
            answer = self._ask(f"/v0/topics/{chunk.topic}/stage", body)
            if answer.status == 409:
                code = answer.body["error"]["code"]
                raise Committed if code == "txn_committed" else Restart
            assert answer.status == 200, answer

    def _ask(self, path: str, body: object) -> Answer:
        """Until it is answered; a server that is gone comes back, perhaps at another port."""
        while True:
            try:
                with HttpConn(*address(self._folder)) as http:
                    answer = http.call("POST", path, body)
            except OSError:
                # Killed, or not there yet: the chunk is sent again, and known if it had arrived [TXN-2].
                time.sleep(PAUSE_S)
                continue
            if answer.status != 503:
                return answer
            time.sleep(PAUSE_S)


if __name__ == "__main__":
    Stager(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])).run()
