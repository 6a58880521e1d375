"""The oracle for routers: what their destinations must show, now and after a restart (05 §3, §8).

One source feeds three destinations, and one of these feeds a fourth:

    to.copy    everything, nothing else          its k-th seq stands for the k-th seq of the source, whatever happens
    to.chain   everything of to.copy             the same
    to.few     what the filter of its time picks in the order of the source, each once
    to.mixed   everything, and direct writes     the same; direct writes keep their promise and their seqs

Nothing that the source shows may be missing, nothing deleted may come back, nothing may be there twice or be made up. A
killed or closed engine shows every record that a reader has seen where it was [RRC-3]. A destination that has become
`ephemeral` may forget with any stop what came to it since, but not what it had, and never what was deleted [CFG-10].
The source itself is judged by the model of topics; it is never deleted from, because a copy lives through its source
[RRC-8].

Plain values: any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from topics.testing.enginemodel import Rec, Rules, View
from topics.testing.subject import Violation

SOURCE = "source"
PREFIX = "to."
FILTERS = ("a*", "b*", None)
"""What `to.few` may be picked by; the first is what it begins with."""


class Dest(NamedTuple):
    """A destination: its router, where it gets its records, and what is special about it."""

    router: str
    source: str
    filtered: bool = False
    mixed: bool = False


DESTS: Mapping[str, Dest] = {
    "to.copy": Dest("r1", SOURCE),
    "to.few": Dest("r2", SOURCE, filtered=True),
    "to.mixed": Dest("r3", SOURCE, mixed=True),
    "to.chain": Dest("r4", "to.copy"),
}
"""In an order in which sources come first."""


class Written(NamedTuple):
    """A record as it was given; its data is its identity."""

    seq: int
    tag: str | None
    node: str | None
    filters: frozenset[str | None]
    """Which of `FILTERS` may have been in force: one, unless it is open whether a change of it took place."""


class Flow:
    """What is known of one destination."""

    def __init__(self, durability: str) -> None:
        self.durability = durability
        self.began: int | None = None
        """Head of the source when the router was created; None as long as that is not certain."""
        self.attempts: list[int] = []
        """The same of creations whose outcome is open."""
        self.known: dict[int, bytes] = {}
        """What a reader has seen, by seq."""
        self.direct: dict[bytes, int] = {}
        """Acknowledged direct writes and their seqs."""
        self.tried: set[bytes] = set()
        """All direct writes."""
        self.deleted: set[bytes] = set()
        self.unsure: set[bytes] = set()
        """Selected by a delete that failed, or that a crash may have taken back."""
        self.kept: dict[int, bytes] | None = None
        """What it had when it became `ephemeral`, or may have; None as long as it is not."""


class Routes:
    """The oracle."""

    def __init__(self) -> None:
        self.flows: dict[str, Flow] = {}
        self.written: dict[bytes, Written] = {}
        """Everything that was ever handed to the source."""
        self.filters: frozenset[str | None] = frozenset(FILTERS[:1])
        """Which of `FILTERS` may be in force."""
        self.blind = False
        """Sound frames were read as damaged: routers then copied a hole, and nobody can tell it from a lost record."""

    def wrote(self, seq: int, recs: list[Rec]) -> None:
        """Records were handed to the source, from `seq` on."""
        for at, rec in enumerate(recs):
            self.written[rec.data] = Written(seq + at, rec.tag, rec.node, self.filters)

    def show(self, views: Mapping[str, View], *, complete: bool) -> None:
        """Hold what a running engine shows against what it must; `complete`: nothing keeps the routers from working."""
        for name, flow in self.flows.items():
            if name in views and flow.began is not None:
                self._check(name, flow, views, flow.began, lossless=True, complete=complete)
                flow.known = {rec.seq: rec.data for rec in views[name].records}

    def judge(self, views: Mapping[str, View], rules: Rules) -> Routes:
        """The oracle as it is after a restart; raises `Violation` if that breaks a promise."""
        routes = Routes()
        routes.written = dict(self.written)
        routes.filters = self.filters
        routes.blind = self.blind
        for name, flow in self.flows.items():
            began = flow.began
            if name not in views:
                if began is not None:
                    raise Violation(f"{name!r} is gone after a {rules.how}")
                continue
            lossless = rules.how != "crash" and not rules.assumed
            if began is None:
                self._attempted(name, flow, views, lossless=lossless)
            else:
                self._check(name, flow, views, began, lossless=lossless, complete=True)
            after = routes.flows[name] = Flow(flow.durability)
            after.began, after.attempts = began, flow.attempts if began is None else []
            shown = {rec.data: rec.seq for rec in views[name].records}
            after.known = {seq: data for data, seq in shown.items()}
            after.direct = {data: seq for data, seq in shown.items() if data in flow.tried}
            after.tried = flow.tried
            after.deleted, after.unsure = flow.deleted - shown.keys(), flow.unsure
            if flow.kept is not None:
                after.kept = {seq: data for seq, data in flow.kept.items() if data in shown}
        return routes

    def found(self, name: str, views: Mapping[str, View]) -> int | None:
        """Where the router of an open creation began, which turned out to be there."""
        flow = self.flows[name]
        if not views[name].head:
            return flow.attempts[-1]
        return self._one_of(flow.attempts, name, flow, views, lossless=True)

    def _attempted(self, name: str, flow: Flow, views: Mapping[str, View], *, lossless: bool) -> None:
        """A creation whose outcome is open: the router is there from one of the attempts, or it is not."""
        if views[name].head:
            # Without a router it is as if one had begun at the head: there are direct writes and nothing else.
            begun = [*flow.attempts, views[DESTS[name].source].head]
            self._one_of(begun, name, flow, views, lossless=lossless)

    def _one_of(self, begun: list[int], name: str, flow: Flow, views: Mapping[str, View], *, lossless: bool) -> int:
        """The first of these beginnings that explains what is shown."""
        broken = Violation(f"{name!r} has records, and nobody asked for a router into it")
        for began in begun:
            try:
                self._check(name, flow, views, began, lossless=lossless, complete=True)
            except Violation as violation:
                broken = violation
            else:
                return began
        raise broken

    def _check(
        self, name: str, flow: Flow, views: Mapping[str, View], began: int, *, lossless: bool, complete: bool
    ) -> None:
        dest, view, source = DESTS[name], views[name], views[DESTS[name].source]
        seqs = self._seqs(dest.source, source)
        self._nothing_made_up(name, flow, view, began)
        self._in_order(name, flow, view)
        if self.blind:
            return
        if complete:
            if flow.kept is None:
                self._nothing_missing(name, flow, view, source, began)
            if not dest.filtered and not dest.mixed and view.head != source.head - began:
                raise Violation(f"{name!r}: the head is {view.head}, the source has {source.head - began} seqs for it")
        if not dest.filtered and not dest.mixed:
            for rec in view.records:
                if rec.data in seqs and seqs[rec.data] - began != rec.seq:
                    raise Violation(f"{name!r}: {rec.data[:20]!r} is at {rec.seq}, not at {seqs[rec.data] - began}")
        self._direct(name, flow, view, lossless=lossless)
        self._holes(name, flow, view, source, lossless=lossless)
        if lossless:
            shown = {rec.seq: rec.data for rec in view.records}
            for seq, data in flow.known.items():
                if flow.kept is not None and seq not in flow.kept and seq not in shown:
                    continue
                if shown.get(seq) != data and data not in flow.deleted | flow.unsure and seq >= view.floor:
                    raise Violation(f"{name!r}: a reader saw {data[:20]!r} at {seq}, now there is {shown.get(seq)!r}")

    def _seqs(self, name: str, view: View) -> dict[bytes, int]:
        if name == SOURCE:
            return {data: one.seq for data, one in self.written.items()}
        return {rec.data: rec.seq for rec in view.records}

    def _nothing_made_up(self, name: str, flow: Flow, view: View, began: int) -> None:
        dest = DESTS[name]
        for rec in view.records:
            if rec.data in flow.tried:
                continue
            one = self.written.get(rec.data)
            picked = one is not None and (not dest.filtered or any(_picks(each, one.tag) for each in one.filters))
            if one is None or not picked or (dest.source == SOURCE and one.seq <= began):
                raise Violation(f"{name!r}: {rec.data[:20]!r} at {rec.seq} is no copy of anything")
            if (rec.tag, rec.node) != (one.tag, one.node):
                raise Violation(f"{name!r}: {rec.data[:20]!r} has lost its tag or node [FWD-5]")
            if rec.data in flow.deleted:
                raise Violation(f"{name!r}: {rec.data[:20]!r} is back, which was deleted [RRC-7]")

    def _in_order(self, name: str, flow: Flow, view: View) -> None:
        last = 0
        for rec in view.records:
            one = self.written.get(rec.data)
            if one is not None and rec.data not in flow.tried:
                if one.seq <= last:
                    raise Violation(f"{name!r}: {rec.data[:20]!r} comes twice or too late [FWD-4, FWD-12]")
                last = one.seq

    def _nothing_missing(self, name: str, flow: Flow, view: View, source: View, began: int) -> None:
        shown = {rec.data for rec in view.records}
        for rec in source.records:
            filters = self.written[rec.data].filters if DESTS[name].filtered else (None,)
            if rec.seq > began and all(_picks(each, rec.tag) for each in filters):
                if rec.data not in shown | flow.deleted | flow.unsure:
                    raise Violation(f"{name!r}: {rec.data[:20]!r} of the source was not forwarded [RRC-1]")

    def _direct(self, name: str, flow: Flow, view: View, *, lossless: bool) -> None:
        """Direct writes keep their seqs and the promise of their class [RRC-3]."""
        shown = {rec.data: rec.seq for rec in view.records}
        told = {seq for run in view.runs if run.reason == "crash" for seq in range(run.first, run.last + 1)}
        for data, seq in flow.direct.items():
            if data in flow.deleted | flow.unsure:
                continue
            if data in shown:
                if shown[data] != seq:
                    raise Violation(f"{name!r}: {data[:20]!r} was acknowledged at {seq} and is at {shown[data]}")
            elif lossless or flow.durability == "fsync" or (flow.durability == "disk" and seq not in told):
                raise Violation(f"{name!r}: {data[:20]!r} was acknowledged at {seq} and is gone")

    def _holes(self, name: str, flow: Flow, view: View, source: View, *, lossless: bool) -> None:
        for run in view.runs:
            if run.reason == "source_trim" and source.runs:
                continue
            if run.reason == "crash" and DESTS[name].mixed and flow.durability == "disk":
                continue
            raise Violation(f"{name!r}: {run} is told, and nothing was lost")


def _picks(filter: str | None, tag: str | None) -> bool:
    return filter is None or (tag is not None and tag.startswith(filter[:-1]))


def names_of(topics: Iterator[str]) -> list[str]:
    """Which of the topics are destinations."""
    return [name for name in topics if name.startswith(PREFIX)]
