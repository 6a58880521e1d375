"""Followers against a model: whatever happens, each record comes once and in order, or a tombstone covers it.

Writes, deletes, caps, TTL, topics deleted and made anew, and clients that stall, read on, leave and come back with the
cursor of their last frame. `TOPICS_TEST_MACHINES` is how many machines run, 100 by default.
"""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.engine.kit import Store
from tests.unit.engine.watchkit import Got, Tap, instance_of
from topics.engine.watch import Instance
from topics.model import new

MACHINES = int(os.environ.get("TOPICS_TEST_MACHINES", "100"))
NAMES = ("a", "b")
OWN = "me"


class History:
    """What was done to one instance of a topic."""

    def __init__(self) -> None:
        self.nodes: dict[int, str | None] = {}
        """By seq, of everything that was written."""
        self.deleted: set[int] = set()


class Client:
    """One watcher of one topic: what it has seen of the instance that it is in."""

    def __init__(self, store: Store, name: str, history: History, options: dict[str, Any], start: int) -> None:
        self.store = store
        self.name = name
        self.options = options
        self.history = history
        self.start = self.cursor = start
        self.instance: Instance = instance_of(store, name)
        self.seen: list[int] = []
        self.gaps: list[tuple[int, int]] = []
        self.ended = False
        self.tap: Tap | None = None

    def connect(self) -> None:
        self.tap = Tap(self.store.engine, fills=self.options["fills"])
        wants = {"limit": self.options["limit"], "max_bytes": self.options["max_bytes"]}
        nodes = [OWN] if self.options["own"] else []
        self.tap.follow(self.name, self.cursor, self.instance, nodes=nodes, **wants)

    def disconnect(self) -> None:
        assert self.tap is not None
        self.tap.close()
        self.tap = None

    def take(self, histories: dict[str, History]) -> None:
        """Look at the frames that came."""
        if self.tap is None:
            return
        got, self.tap.got = self.tap.got, []
        for one in got:
            self._take(one, histories)
        assert self.tap.error is None

    def _take(self, got: Got, histories: dict[str, History]) -> None:
        assert not self.ended
        assert got.name == self.name
        if got.kind == "deleted":
            self.ended = True
            return
        topic = self.store.engine.core.names[self.name]
        if got.kind == "tombstone":
            reason, first, last, _, head = got.said
            if reason == "recreated":
                self.history, self.seen, self.gaps, self.start = histories[self.name], [], [], 0
                self.cursor = got.cursors[self.name]
                assert first == 1
                if self.cursor:
                    self.gaps.append((1, self.cursor))
            else:
                assert self.cursor < first <= last <= head
                assert last < topic.evict_floor, "nothing is called lost that is not"
                self.gaps.append((first, last))
                self.cursor = last
        elif got.kind == "record":
            _, to_seq, head = got.said
            assert got.seqs, "at least one record [FRM-1]"
            assert got.seqs == sorted(set(got.seqs))
            assert self.cursor < got.seqs[0]
            assert got.seqs[-1] <= to_seq <= head
            assert not set(got.seqs) & self.history.deleted, "deleted before it was delivered [DEL-7]"
            assert set(got.seqs) <= set(self.history.nodes)
            if self.options["own"]:
                assert all(self.history.nodes[seq] != OWN for seq in got.seqs)
            assert len(got.seqs) <= self.options["limit"]
            self.seen += got.seqs
            self.cursor = to_seq
        assert got.cursors[self.name] >= self.cursor
        self.cursor = got.cursors[self.name]
        self.instance = Instance(topic.id, topic.epoch)

    def check(self) -> None:
        """It has read everything there is."""
        assert self.tap is not None
        topic = self.store.engine.core.names[self.name]
        assert self.tap.feed.cursors()[self.name] == topic.head
        covered = set(self.seen) | self.history.deleted
        for first, last in self.gaps:
            covered |= set(range(first, last + 1))
        if self.options["own"]:
            covered |= {seq for seq, node in self.history.nodes.items() if node == OWN}
        missed = {seq for seq in self.history.nodes if seq > self.start} - covered
        assert not missed, "neither delivered nor told"
        assert self.seen == sorted(set(self.seen)), "once and in order"


class Watching(RuleBasedStateMachine):
    clients = Bundle("clients")

    @initialize()
    def begin(self) -> None:
        self.store = Store(segment_max_events=7)
        self.histories: dict[str, History] = {}
        self.all: list[Client] = []
        for name in NAMES:
            self.make(name)

    def make(self, name: str) -> None:
        self.store.put(name)
        self.histories[name] = History()

    def exists(self, name: str) -> bool:
        return name in self.store.engine.core.names

    @rule(name=st.sampled_from(NAMES), nodes=st.lists(st.sampled_from([None, OWN, "you"]), min_size=1, max_size=6))
    def write(self, name: str, nodes: list[str | None]) -> None:
        if not self.exists(name):
            return
        first = self.store.engine.core.names[name].next_seq
        for at, node in enumerate(nodes):
            self.histories[name].nodes[first + at] = node
        result = self.store.engine.append(name, [new({"at": at}, node=node) for at, node in enumerate(nodes)])
        assert result.first_seq == first

    @rule(name=st.sampled_from(NAMES), back=st.integers(0, 8), whole=st.booleans())
    def delete(self, name: str, back: int, whole: bool) -> None:
        if not self.exists(name):
            return
        head = self.store.engine.core.names[name].head
        at = max(head - back, 0)
        if whole:
            self.store.engine.delete(name, before_seq=at + 1)
            gone = set(range(1, at + 1))
        else:
            self.store.engine.delete(name, seqs=[at] if at else [1])
            gone = {at} if at else {1} & set(self.histories[name].nodes)
        for client in self.all:
            client.take(self.histories)
        self.histories[name].deleted |= gone

    @rule(name=st.sampled_from(NAMES), cap=st.sampled_from([0, 1, 3, 10]), ttl=st.sampled_from([0, 0, 1000]))
    def configure(self, name: str, cap: int, ttl: int) -> None:
        if self.exists(name):
            self.store.put(name, cap_records=cap, ttl_ms=ttl)

    @rule(ms=st.sampled_from([1, 600, 1500]))
    def pass_time(self, ms: int) -> None:
        self.store.clock.advance(ms)
        self.store.engine.tick()

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.store.engine.checkpoint(full=full)

    @rule(name=st.sampled_from(NAMES))
    def delete_topic(self, name: str) -> None:
        if self.exists(name):
            self.store.engine.delete_topic(name)

    @rule(name=st.sampled_from(NAMES))
    def make_again(self, name: str) -> None:
        if not self.exists(name):
            self.make(name)

    @rule(
        target=clients,
        name=st.sampled_from(NAMES),
        options=st.fixed_dictionaries(
            {
                "limit": st.sampled_from([1, 2, 256]),
                "max_bytes": st.sampled_from([1, 60, 1 << 18]),
                "own": st.booleans(),
                "fills": st.booleans(),
            }
        ),
        tail=st.booleans(),
    )
    def watch(self, name: str, options: dict[str, Any], tail: bool) -> Client:
        if not self.exists(name):
            self.make(name)
        start = self.store.engine.core.names[name].head if tail else 0
        client = Client(self.store, name, self.histories[name], options, start)
        self.all.append(client)
        client.connect()
        return client

    @rule(client=clients)
    def stall(self, client: Client) -> None:
        if client.tap is not None:
            client.tap.stall()

    @rule(client=clients)
    def drink(self, client: Client) -> None:
        if client.tap is not None:
            client.tap.drink()

    @rule(client=clients)
    def disconnect(self, client: Client) -> None:
        if client.tap is not None and not client.ended:
            client.disconnect()

    @rule(client=clients)
    def reconnect(self, client: Client) -> None:
        if client.tap is None:
            client.connect()

    @invariant()
    def frames_are_right(self) -> None:
        for client in getattr(self, "all", []):
            client.take(self.histories)

    @rule()
    def settle(self) -> None:
        """Everybody reads all there is."""
        for client in self.all:
            if client.ended:
                continue
            if client.tap is None:
                client.connect()
            assert client.tap is not None
            for _ in range(1000):
                seen = len(client.tap.got)
                client.tap.drink()
                if len(client.tap.got) == seen:
                    break
            client.take(self.histories)
            if not client.ended:
                client.check()

    def teardown(self) -> None:
        if hasattr(self, "all"):
            self.settle()
            self.store.check_order()


TestWatching = Watching.TestCase
TestWatching.settings = settings(
    max_examples=MACHINES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
