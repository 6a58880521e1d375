"""Routers against a model of three lists, over every kind of stop (05 §3, §8).

    a -> b    everything            a: written to      b: written to as well
    b -> c    tags that begin with `x`                 c: deleted from

All topics are of class `fsync`, so every stop must show the same records at the same seqs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.unit.engine.kit import STOPS, Store, everything
from topics.model import new

TAGS = st.sampled_from((None, "x", "x:1", "y"))


class Copy(NamedTuple):
    data: int
    tag: str | None


class RouterMachine(RuleBasedStateMachine):
    """Writes, deletes, checkpoints and stops in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.a: dict[int, Copy] = {}
        self.b: dict[int, Copy] = {}
        self.c: dict[int, Copy] = {}
        self.heads = {"a": 0, "b": 0, "c": 0}
        self.totals = {"ab": 0, "bc": 0}

    @initialize(shards=st.sampled_from((1, 3)), events=st.sampled_from((1, 3, 1000)), guarantee=st.booleans())
    def begin(self, shards: int, events: int, guarantee: bool) -> None:
        """Topics and routers."""
        self.store = Store(wal_shards=shards, segment_max_events=events)
        for name in ("a", "b", "c"):
            self.store.put(name)
        said = {"guarantee": "exactly_once" if guarantee else "at_least_once"}
        self.store.engine.put_router("ab", {"source": "a", "dest": "b", **said})
        self.store.engine.put_router("bc", {"source": "b", "dest": "c", "filter": "x*", **said})

    def _arrive(self, name: str, copy: Copy) -> None:
        self.heads[name] += 1
        getattr(self, name)[self.heads[name]] = copy
        if name == "a":
            self.totals["ab"] += 1
            self._arrive("b", copy)
        elif name == "b" and copy.tag is not None and copy.tag.startswith("x"):
            self.totals["bc"] += 1
            self._arrive("c", copy)

    @rule(name=st.sampled_from(("a", "a", "b")), tags=st.lists(TAGS, min_size=1, max_size=5))
    def write(self, name: str, tags: list[str | None]) -> None:
        """To the source, or directly to its destination."""
        copies = [Copy(self.count + n, tag) for n, tag in enumerate(tags)]
        self.count += len(tags)
        self.store.engine.append(name, [new(one.data, tag=one.tag) for one in copies])
        for one in copies:
            self._arrive(name, one)

    @rule(data=st.data())
    def delete(self, data: Any) -> None:
        """From the end of the chain: nobody derives anything from it."""
        if self.c:
            seqs = data.draw(st.sets(st.sampled_from(sorted(self.c)), min_size=1))
            assert self.store.engine.delete("c", seqs=sorted(seqs)).deleted == len(seqs)
            self.c = {seq: one for seq, one in self.c.items() if seq not in seqs}

    @rule(below=st.integers(1, 20))
    def forget(self, below: int) -> None:
        """From the source, once its copies are in segments [RRC-8]."""
        self._look()
        self.store.engine.checkpoint(full=True)
        self.store.engine.delete("a", before_seq=below)
        self.a = {seq: one for seq, one in self.a.items() if seq >= below}

    @rule(full=st.booleans())
    def checkpoint(self, full: bool) -> None:
        self.store.engine.checkpoint(full=full)

    @rule()
    def change(self) -> None:
        """A configuration that changes nothing about records."""
        self.store.put("b", lease_ms=100 + self.count)

    @rule(ms=st.sampled_from((50, 6_000, 61_000)))
    def wait(self, ms: int) -> None:
        self.store.pass_time(ms)

    @rule(how=st.sampled_from(STOPS))
    def stop(self, how: str) -> None:
        """Closed, killed, or without power."""
        self.store.stop(how)

    @rule()
    def replace(self) -> None:
        """A router that goes and comes again begins where its source is then."""
        self.store.engine.delete_router("bc")
        self.store.engine.put_router("bc", {"source": "b", "dest": "c", "filter": "x*"})
        self.totals["bc"] = 0

    @invariant()
    def _look(self) -> None:
        """Readers see exactly what the model has, and nothing is told as lost."""
        if not hasattr(self, "store"):
            return
        engine = self.store.engine
        for name in ("a", "b", "c"):
            seen = everything(engine, name)
            assert seen.ranges == []
            assert {one.seq: Copy(one.data, one.tag) for one in seen.records} == getattr(self, name)
            assert engine.state(name).head_seq == self.heads[name]
        assert {name: engine.router(name).forwarded_total for name in ("ab", "bc")} == self.totals

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.engine.close()
            self.store.check_order()


TestRouters = RouterMachine.TestCase
TestRouters.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
