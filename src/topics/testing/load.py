"""Clients that load a real server and record what they see, for `history` to judge (13 §3, T8).

A client process holds some writers or followers, each a thread with one kept connection. They live through many lives
of the server: a life ends for them when nobody listens any more, and then the process hands its events over.

    driver → client     (life, host, port): go on · None: end
    client → driver     1: a write was acknowledged · (events, complaints): this life is over

A writer repeats every write that has an idempotency key or a producer until it is answered, as a careful program would,
and never repeats the others. Payloads are unique and can be checked by themselves: their text is their name, and their
length and content follow from it.
"""

from __future__ import annotations

import random
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

from topics.testing.history import Delete, Event, Gap, Outcome, Read, Write
from topics.testing.httpconn import Answer, HttpConn, NotSent

PAUSE_S = 0.02
LONG_POLL_MS = 500
BATCH_MAX = 24
KEPT_FOR_REPEATS = 50

Name = Literal["", "key", "producer"]
NAMES: tuple[Name, ...] = ("", "", "key", "producer")

Told = Callable[[], None]


class Plan(NamedTuple):
    """What one client process does."""

    seed: int
    name: str
    writers: int = 0
    followers: tuple[tuple[str, bool], ...] = ()
    """Topic, and whether it waits for records (long-poll) or asks again and again."""
    topics: tuple[str, ...] = ()
    """What writers write to."""
    keeping: tuple[str, ...] = ()
    """Of these, nothing is deleted."""
    forgetful: tuple[str, ...] = ()
    """These may forget producers when the server is killed."""


# -- payloads --------------------------------------------------------------------------------------------------------


def payload(text: str) -> str:
    """The payload of a name: the name and a filling that follows from it. Sizes come from regimes [R-11]."""
    mark = zlib.crc32(text.encode())
    regime, rest = mark % 100, mark // 100
    if regime < 60:
        size = rest % 40
    elif regime < 90:
        size = 40 + rest % 400
    elif regime < 99:
        size = (256, 512, 1024)[rest % 3] - len(text) % 50
    else:
        size = 4000 + rest % 16_000
    return f"{text} {'.' * size}{mark:08x}"


def name_of(data: Any) -> str:
    """The name of a payload that was read; a payload that is not whole is named by all of it."""
    text = data.partition(" ")[0] if isinstance(data, str) else ""
    return text if text and payload(text) == data else f"damaged {str(data)[:200]!r}"


# -- calls -----------------------------------------------------------------------------------------------------------


def outcome_of(status: int) -> Outcome:
    """What an answer says of a change: 500 may still have happened [R-6], every other refusal has not [INV-3]."""
    return "acked" if status < 300 else "unknown" if status == 500 else "refused"


def read_page(http: HttpConn, life: int, topic: str, cursor: int, limit: int, wait_ms: int = 0) -> Read | Answer:
    """One read after a cursor, as an event; or the answer, if it is a refusal."""
    began = time.monotonic_ns()
    asked = {"from_seq": cursor, "limit": limit, "wait_ms": wait_ms}
    answer = http.call("POST", f"/v0/topics/{topic}/diff", asked)
    if answer.status != 200:
        return answer
    page, gap = answer.body, answer.body["tombstone"]
    return Read(
        life, topic, began, time.monotonic_ns(), cursor,
        tuple((record["$seq"], name_of(record["data"])) for record in page["records"]),
        page["next_from_seq"], page["head_seq"], page["earliest_seq"], page["caught_up"],
        None if gap is None else Gap(gap["gap_from"], gap["gap_to"], gap["reason"]),
    )  # fmt: skip


class Client:
    """One thread's work over many lives of the server."""

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self.rng = random.Random(f"{seed} {name}")
        self.events: list[Event] = []
        self.complaints: list[str] = []
        """Answers that no client should get, and what went wrong in the client."""

    def live(self, life: int, host: str, port: int, told: Told) -> None:
        """Work until nobody listens any more."""
        alive = True
        with HttpConn(host, port) as http:
            while alive:
                try:
                    self.step(http, life, told)
                except OSError as error:
                    # A call that broke was noted by its step; only when nobody listens any more is this the end.
                    alive = not isinstance(error, NotSent)
                except Exception as error:  # noqa: BLE001 - an answer that cannot be understood is a finding
                    self.complaints.append(f"{self.name}: {error!r}")
                    return

    def step(self, http: HttpConn, life: int, told: Told) -> None:
        """One call; raises `OSError` when the connection broke."""
        raise NotImplementedError


# -- writers ---------------------------------------------------------------------------------------------------------


class Op(NamedTuple):
    """One write, as often as it may take."""

    topic: str
    texts: tuple[str, ...]
    tag: str | None
    name: Name
    body: Mapping[str, Any]
    first: int = 0


class Writer(Client):
    """Writes single records and batches, repeats, deletes, and asks for a checkpoint now and then."""

    def __init__(self, name: str, plan: Plan) -> None:
        super().__init__(name, plan.seed)
        self._topics = plan.topics
        self._deletable = frozenset(plan.topics) - frozenset(plan.keeping)
        self._forgetful = plan.forgetful
        self._count = 0
        self._pairs = dict.fromkeys(plan.topics, (1, 0))
        """Epoch and index of this writer as a producer, by topic."""
        self._open: Op | None = None
        """A named write without an answer."""
        self._done: deque[Op] = deque(maxlen=KEPT_FOR_REPEATS)
        self._repeats = 0
        """How many writes of earlier lives are still to be repeated in this one."""

    def live(self, life: int, host: str, port: int, told: Told) -> None:
        self._repeats = 3
        super().live(life, host, port, told)

    def step(self, http: HttpConn, life: int, told: Told) -> None:
        if self._open is not None:
            self._send(http, life, self._open, told)
            return
        chance = self.rng.random()
        self._repeats -= 1
        if (chance < 0.02 or self._repeats >= 0) and (named := [op for op in self._done if op.name]):
            self._send(http, life, self.rng.choice(named), told)
        elif chance < 0.025:
            http.call("POST", "/v0/checkpoint")
        elif chance < 0.06 and self._done:
            self._delete(http, life)
        else:
            self._send(http, life, self._new(), told)

    def _new(self) -> Op:
        rng = self.rng
        self._count += 1
        topic = rng.choice(self._topics)
        size = 1 if rng.random() < 0.7 else rng.randrange(2, BATCH_MAX + 1)
        texts = tuple(f"{self.name}/{self._count}/{n}" for n in range(size))
        tag = f"{self.name}:{self._count // 4}" if rng.random() < 0.5 else None
        name: Name = rng.choice(NAMES)
        body: dict[str, Any] = {"records": [{"data": payload(text), "tag": tag} for text in texts]}
        if name == "key":
            body["idempotency_key"] = f"{self.name}/{self._count}"
        if name == "producer":
            epoch, index = self._pairs[topic]
            self._pairs[topic] = (epoch, index + 1)
            body["producer"] = {"id": self.name, "epoch": epoch, "index": index + 1}
        return Op(topic, texts, tag, name, body)

    def _send(self, http: HttpConn, life: int, op: Op, told: Told) -> None:
        self._open = op if op.name else None
        began = time.monotonic_ns()
        event = Write(life, op.topic, began, 0, op.texts, "unknown", tag=op.tag, name=op.name)
        try:
            answer = http.call("POST", f"/v0/topics/{op.topic}", op.body)
        except NotSent:
            raise
        except OSError:
            self.events.append(event._replace(until=time.monotonic_ns()))
            raise
        ended, outcome = time.monotonic_ns(), outcome_of(answer.status)
        event = event._replace(until=ended, outcome=outcome)
        if outcome != "acked":
            self.events.append(event)
            self._refused(op, answer)
            return
        said = answer.body
        self.events.append(event._replace(first=said["first_seq"], head=said["head_seq"], deduped=said["deduped"]))
        self._open = None
        if said["first_seq"] is not None and not said["deduped"]:
            self._done.append(op._replace(first=said["first_seq"]))
        told()

    def _refused(self, op: Op, answer: Answer) -> None:
        if answer.status == 409 and op.topic in self._forgetful:
            # The last pairs went with the process; a new epoch may begin with any index.
            self._pairs[op.topic] = (self._pairs[op.topic][0] + 1, 0)
            self._open = None
        elif answer.status not in (429, 503):
            self.complaints.append(f"{self.name}: a write of {op.texts[0]} to {op.topic} was answered {answer}")
            self._open = None
        time.sleep(PAUSE_S)

    def _delete(self, http: HttpConn, life: int) -> None:
        op = self.rng.choice(list(self._done))
        if op.topic not in self._deletable:
            return
        tag = op.tag if self.rng.random() < 0.5 else None
        seqs: tuple[int, ...] = ()
        if tag is None:
            seqs = tuple(op.first + n for n in range(len(op.texts)) if not n or self.rng.random() < 0.5)
        body: dict[str, Any] = {"seqs": seqs} if tag is None else {"match": ["tag", "Eq", tag]}
        event = Delete(life, op.topic, time.monotonic_ns(), 0, "unknown", tag, seqs)
        try:
            answer = http.call("POST", f"/v0/topics/{op.topic}/delete", body)
        except NotSent:
            raise
        except OSError:
            self.events.append(event._replace(until=time.monotonic_ns()))
            raise
        self.events.append(event._replace(until=time.monotonic_ns(), outcome=outcome_of(answer.status)))


# -- followers -------------------------------------------------------------------------------------------------------


class Follower(Client):
    """Reads a topic from the beginning, behind its cursor, for ever."""

    def __init__(self, name: str, seed: int, topic: str, waits: bool) -> None:
        super().__init__(name, seed)
        self._topic = topic
        self._waits = waits
        self._cursor = 0

    def step(self, http: HttpConn, life: int, told: Told) -> None:
        limit = self.rng.choice((1, 10, 256, 1000))
        page = read_page(http, life, self._topic, self._cursor, limit, LONG_POLL_MS if self._waits else 0)
        if not isinstance(page, Read):
            time.sleep(PAUSE_S)
            return
        if page.records or page.gap is not None or page.next_from != self._cursor:
            self.events.append(page)
        self._cursor = page.next_from
        if page.caught_up and not self._waits:
            time.sleep(PAUSE_S)


# -- the process -----------------------------------------------------------------------------------------------------


def run(link: Connection, plan: Plan) -> None:
    """The client process: live as often as the driver says."""
    clients: list[Client] = [Writer(f"{plan.name}.{n}", plan) for n in range(plan.writers)]
    clients += [
        Follower(f"{plan.name}.{n}", plan.seed, topic, waits) for n, (topic, waits) in enumerate(plan.followers)
    ]
    lock = threading.Lock()

    def told() -> None:
        with lock:
            link.send(1)

    while (order := link.recv()) is not None:
        threads = [threading.Thread(target=client.live, args=(*order, told)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        complaints = [why for client in clients for why in client.complaints]
        link.send(([event for client in clients for event in client.events], complaints))
        for client in clients:
            client.events, client.complaints = [], []
