"""One surface: the same calls have the same results and the same errors, whoever carries them out [U-20].

A script of calls runs over an embedded log, its asyncio twin, a client and an asyncio client of a real server, each
with a store and a clock of its own that say the same. Every outcome has to be that of the embedded log, down to the
type.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import topics
from tests.client.subjects import KINDS, subject
from topics.client.aio import AsyncClient
from topics.client.sync import Client
from topics.engine.log import AsyncLog, Log
from topics.errors import BatchTooLarge, CallerError, RecordTooLarge, RouterFanIn, TopicsError
from topics.surface.base import AsyncSurface, Surface
from topics.testing import ManualClock

NOW_MS = 1_790_000_000_000
NO_FIELDS = ("self", "args", "kwargs", "message")


class Told(NamedTuple):
    """An error, as far as it has to be the same."""

    kind: str
    code: str
    fields: dict[str, Any]
    message: str


Step = tuple[str, Callable[[Any], Any]]

BIG = "x" * 1_100_000


def produced(index: int) -> dict[str, Any]:
    return {"id": "p", "epoch": 1, "index": index}


def script() -> list[Step]:
    """Calls in their order; the name says what each shows."""
    new = topics.new
    return [
        ("create", lambda s: s.create("orders", durability="fsync", ttl_ms=0, cap_records=50)),
        ("create again, other config", lambda s: s.create("orders")),
        ("create a queue", lambda s: s.create("jobs", type="queue", lease_ms=5000, max_deliveries=2, dead_letter="d")),
        ("another type", lambda s: s.create("orders", type="queue")),
        ("a bad name", lambda s: s.create("no/slash")),
        ("no name", lambda s: s.create("")),
        ("a name that is none", lambda s: s.create(5)),
        ("a name that is no Unicode", lambda s: s.create("a\ud800")),
        ("a bad member", lambda s: s.create("x", durability="paper")),
        ("a bad number", lambda s: s.create("x", ttl_ms=-1)),
        ("append", lambda s: s.append("orders", {"sku": "B-12", "qty": 3}, tag="order:991")),
        ("append with everything", lambda s: s.append("orders", [1, "ü"], tag="t", node="n1", meta={"k": 1})),
        ("append creates", lambda s: s.append("made", None)),
        ("append JSON text", lambda s: s.append("orders", b' {"a" : 1e400} ')),
        ("text that is no JSON", lambda s: s.append("orders", b'1},{"data":2')),
        ("text that is no UTF-8", lambda s: s.append("orders", b'"\xff"')),
        ("a value that JSON has no word for", lambda s: s.append("orders", object())),
        ("not a number", lambda s: s.append("orders", float("nan"))),
        ("too deep", lambda s: s.append("orders", b"[" * 2000 + b"]" * 2000)),
        ("too large", lambda s: s.append("orders", BIG)),
        ("a tag that is none", lambda s: s.append("orders", 1, tag=5)),
        ("a tag that is too long", lambda s: s.append("orders", 1, tag="x" * 257)),
        ("a node that is too long", lambda s: s.append("orders", 1, node="x" * 129)),
        ("meta that is no object", lambda s: s.append("orders", 1, meta=[1])),
        ("meta with too many members", lambda s: s.append("orders", 1, meta={str(n): n for n in range(65)})),
        ("append to a bad name", lambda s: s.append("../x", 1)),
        ("append to no name", lambda s: s.append("", 1)),
        ("append to the server's own", lambda s: s.append("$deletes", 1)),
        ("append to a name with a dollar", lambda s: s.append("$mine", 1)),
        ("append many", lambda s: s.append_many("orders", [1, new(2, tag="order:992"), new(3, node="n2")], node="n1")),
        ("append many of an iterator", lambda s: s.append_many("orders", iter([4, 5]))),
        ("append none", lambda s: s.append_many("orders", [])),
        ("append too many", lambda s: s.append_many("orders", [0] * 10_001)),
        ("with a key", lambda s: s.append("orders", "once", idempotency_key="k1")),
        ("the same key", lambda s: s.append("orders", "once", idempotency_key="k1")),
        ("an empty key", lambda s: s.append("orders", 1, idempotency_key="")),
        ("a long key", lambda s: s.append("orders", 1, idempotency_key="k" * 257)),
        ("a producer", lambda s: s.append("orders", "p0", producer=produced(0))),
        ("the same again", lambda s: s.append("orders", "p0", producer=produced(0))),
        ("a producer's gap", lambda s: s.append("orders", "p9", producer=produced(9))),
        ("key and producer", lambda s: s.append("orders", 1, idempotency_key="k", producer=produced(1))),
        ("half a producer", lambda s: s.append("orders", 1, producer={"id": "p"})),
        ("state", lambda s: s.state("orders")),
        ("state of a queue", lambda s: s.state("jobs")),
        ("state of nothing", lambda s: s.state("absent")),
        ("state of a bad name", lambda s: s.state("a b")),
        ("state of no name", lambda s: s.state("")),
        ("names", lambda s: list(s.topics())),
        ("names by prefix", lambda s: list(s.topics("o"))),
        ("names by a strange prefix", lambda s: list(s.topics("ü&x=1"))),
        ("read", lambda s: list(s.read("orders"))),
        ("read on", lambda s: list(s.read("orders", 3))),
        ("read without a node", lambda s: list(s.read("orders", node="n1"))),
        ("read without nodes", lambda s: list(s.read("orders", node=["n1", "n2"]))),
        ("read by time", lambda s: list(s.read("orders", from_ts=NOW_MS))),
        ("read by a time to come", lambda s: list(s.read("orders", from_ts=NOW_MS + 10**9))),
        ("read nothing", lambda s: list(s.read("absent"))),
        ("page", lambda s: s.page("orders", 1, limit=2)),
        ("page of the default size", lambda s: s.page("orders", limit=0, max_bytes=0)),
        ("page of few bytes", lambda s: s.page("orders", max_bytes=1)),
        ("page behind the head", lambda s: s.page("orders", 10_000)),
        ("page by seq and time", lambda s: s.page("orders", 1, from_ts=5)),
        ("page of a bad seq", lambda s: s.page("orders", -1)),
        ("page of a bad limit", lambda s: s.page("orders", limit="many")),
        ("page of a bad node", lambda s: s.page("orders", node=5)),
        ("page with too many nodes", lambda s: s.page("orders", node=[str(n) for n in range(65)])),
        ("page with a yes", lambda s: s.page("orders", True)),
        ("delete, only looking", lambda s: s.delete("orders", match="order:99*", dry_run=True)),
        ("delete by tag", lambda s: s.delete("orders", match="order:991")),
        ("delete by tuple", lambda s: s.delete("orders", match=["tag", "Glob", "order:*"])),
        ("delete by seqs", lambda s: s.delete("orders", seqs=[2, 3])),
        ("delete below", lambda s: s.delete("orders", before_seq=5)),
        ("delete without a selector", lambda s: s.delete("orders")),
        ("delete by a bad selector", lambda s: s.delete("orders", match=["colour", "Eq", "red"])),
        ("delete by seqs that are none", lambda s: s.delete("orders", seqs="123")),
        ("delete by too many seqs", lambda s: s.delete("orders", seqs=range(1, 1002))),
        ("delete from nothing", lambda s: s.delete("absent", before_seq=5)),
        ("delete from the server's own", lambda s: s.delete("$deletes", before_seq=5)),
        ("read what is left", lambda s: list(s.read("orders"))),
        ("a topic that is full", lambda s: [s.create("full", cap_records=1, discard="reject"), s.append("full", 1)]),
        ("append to it", lambda s: s.append("full", 2)),
        ("can never fit", lambda s: [s.create("tiny", cap_bytes=3, discard="reject"), s.append("tiny", "too long")]),
        ("a cap", lambda s: [s.create("cap", cap_records=2), s.append_many("cap", [1, 2, 3, 4])]),
        ("what it lost", lambda s: list(s.read("cap"))),
        ("bound", lambda s: [s.topic("bound").append(1), s.topic("bound").page(), list(s.topic("bound").read())]),
        ("bound further", lambda s: [s.topic("bound").state(), s.topic("bound").delete(before_seq=9)]),
        ("bound and gone", lambda s: s.topic("bound").drop()),
        # Queues.
        ("put", lambda s: s.queue("jobs").put_many([new({"n": 1}, tag="a", meta={"x": 1}), {"n": 2}, {"n": 3}])),
        ("claim", lambda s: s.claim("jobs", "w1", 2)),
        ("claim the rest", lambda s: s.queue("jobs").claim("w2", max=10, lease_ms=60_000)),
        ("claim of none", lambda s: s.claim("jobs", "w2", 10)),
        ("claim from a log", lambda s: s.claim("orders", "w1")),
        ("claim from nothing", lambda s: s.claim("absent", "w1")),
        ("claim for nobody", lambda s: s.claim("jobs", "")),
        ("claim for a number", lambda s: s.claim("jobs", 5)),
        ("leases", lambda s: s.leases("jobs")),
        ("leases of a log", lambda s: s.leases("orders")),
        ("extend", lambda s: s.extend("jobs", "w1", [1, 2, 9], lease_ms=9000)),
        ("extend by a bad span", lambda s: s.extend("jobs", "w1", [1], lease_ms=-5)),
        ("ack", lambda s: s.ack("jobs", "w1", [1])),
        ("ack again", lambda s: s.ack("jobs", "w1", [1])),
        ("ack of another's", lambda s: s.ack("jobs", "w1", [3])),
        ("ack with a token", lambda s: s.ack("jobs", "w2", [3], ["lease_1"])),
        ("ack with a bad token", lambda s: s.ack("jobs", "w2", [3], ["token"])),
        ("ack with too few tokens", lambda s: s.ack("jobs", "w2", [2, 3], ["lease_1"])),
        ("ack of too many", lambda s: s.ack("jobs", "w2", range(1001))),
        ("ack of no list", lambda s: s.ack("jobs", "w2", "3")),
        ("nack", lambda s: s.nack("jobs", "w1", [2], delay_ms=0)),
        ("nack with a delay", lambda s: [s.claim("jobs", "w1"), s.nack("jobs", "w1", [2], delay_ms=1000)]),
        ("what is delayed", lambda s: [s.leases("jobs"), s.state("jobs").queue]),
        ("queue calls of the server's own", lambda s: s.claim("$loss", "w1")),
        # Routers.
        ("route", lambda s: s.route("r1", "orders", "copies", filter="order:*")),
        ("route again", lambda s: s.route("r1", "orders", "copies", preserve_tag=False)),
        ("route elsewhere", lambda s: s.route("r1", "orders", "others")),
        ("fan in", lambda s: s.route("r2", "made", "copies")),
        ("cycle", lambda s: s.route("r3", "copies", "orders")),
        ("route to itself", lambda s: s.route("r4", "orders", "orders")),
        ("route to nothing", lambda s: s.route("r5", "orders", "nowhere", create_dest=False)),
        ("route under a bad name", lambda s: s.route("r/6", "orders", "x")),
        ("route with a bad member", lambda s: s.route("r7", "orders", "x", guarantee="perhaps")),
        ("route of the server's own", lambda s: s.route("r8", "$loss", "x")),
        ("what is copied", lambda s: [s.append("orders", 1, tag="order:1"), [r.data for r in s.read("copies")]]),
        ("router", lambda s: s.router("r1")),
        ("no router", lambda s: s.router("absent")),
        ("routers", lambda s: s.routers()),
        ("routers by source", lambda s: s.routers(source="made")),
        ("routers by dest", lambda s: s.routers("r", dest="copies")),
        ("unroute", lambda s: [s.unroute("r1"), s.unroute("r1")]),
        # Transactions.
        ("stage", lambda s: s.stage("w", 1, "p1", 0, "t1", [1, new(2, tag="x")])),
        ("stage it again", lambda s: s.stage("w", 1, "p1", 0, "t1", [1, new(2, tag="x")])),
        ("stage something else", lambda s: s.stage("w", 1, "p1", 0, "t1", [3])),
        ("stage too far", lambda s: s.stage("w", 1, "p1", 5, "t1", [3])),
        ("stage under a bad part", lambda s: s.stage("w", 1, "a/b", 0, "t1", [3])),
        ("stage for nobody", lambda s: s.stage("", 1, "p", 0, "t1", [3])),
        ("writer", lambda s: s.writer("w")),
        ("commit what is not there", lambda s: s.commit_staged("w", 1, [("p9", 1, 1)])),
        ("commit", lambda s: s.commit_staged("w", 1, [("p1", 1, 2)])),
        ("commit again", lambda s: s.commit_staged("w", 1, [{"part": "p1", "chunks": 1, "records": 2}])),
        ("stage for what is committed", lambda s: s.stage("w", 1, "p2", 0, "t1", [1])),
        ("abort", lambda s: [s.stage("w", 2, "p", 0, "t1", [1]), s.abort_staged("w", 2), s.abort_staged("w", 1)]),
        ("writer now", lambda s: s.writer("w")),
        ("writer of nothing", lambda s: s.writer("nobody")),
        ("writer without a name", lambda s: s.writer("")),
        # Ends.
        ("drop", lambda s: [s.drop("orders"), s.drop("orders")]),
        ("drop a bad name", lambda s: s.drop("a b")),
        ("drop the server's own", lambda s: s.drop("$deletes")),
        ("read it", lambda s: list(s.read("orders"))),
        ("watch nothing", lambda s: s.watch({})),
        ("watch from a bad place", lambda s: s.watch({"made": -1})),
        ("watch from a bad word", lambda s: s.watch({"made": "head"})),
        ("watch by a bad name", lambda s: s.watch({5: 0})),
        ("watch what is absent", lambda s: next(iter(s.watch({"absent": 0})))),
        ("watch too many", lambda s: next(iter(s.watch({f"t{n}": 0 for n in range(300)})))),
        ("watch", lambda s: _first(s, {"made": 0, "cap": 0}, 5)),
    ]  # fmt: skip


def _first(s: Any, starts: dict[str, Any], count: int) -> list[Any]:
    with s.watch(starts) as events:
        found = [next(events) for _ in range(count)]
        return [*found, dict(events.cursors)]


def outcome(step: Callable[[Any], Any], one: Any) -> Any:
    try:
        return _plain(step(one))
    except TopicsError as error:
        kind = next(name for name in type(error).__mro__ if not name.__module__.startswith("topics.engine"))
        names = [name for name in inspect.signature(kind.__init__).parameters if name not in NO_FIELDS]
        # How a body is not understood is said by whoever decodes it; everything else is said by the engine.
        message = "" if kind is CallerError else str(error)
        fields = {name: getattr(error, name) for name in names}
        if kind is RouterFanIn:
            del fields["source"]  # the wire has no member for it [RTR-16]
        if kind in (BatchTooLarge, RecordTooLarge):
            fields.clear()  # nor for these, but in queue calls: the message has them
        return Told(kind.__name__, error.code, fields, message)


def _plain(value: Any) -> Any:
    """Structs keep their type beside their members; sequences are lists."""
    if isinstance(value, msgspec.Struct):
        members = {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
        return type(value).__name__, members
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return type(value).__name__, {name: _plain(one) for name, one in value._asdict().items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return value


def outcomes(kind: str, path: Path) -> dict[str, Any]:
    with subject(kind, path, ManualClock(NOW_MS)) as one:
        return {name: outcome(step, one) for name, step in script()}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcomes("log", tmp_path_factory.mktemp("log"))


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "log"])
def test_the_same_calls_have_the_same_results_and_errors(kind: str, expected: dict[str, Any], tmp_path: Path) -> None:
    """[U-20]"""
    found = outcomes(kind, tmp_path)
    different = {name: (found[name], expected[name]) for name in expected if found[name] != expected[name]}
    assert not different, "\n".join(f"{name}:\n  {ours}\n  {theirs}" for name, (ours, theirs) in different.items())


def test_the_script_says_something(expected: dict[str, Any]) -> None:
    """A parity of failures would prove nothing: as many calls succeed as fail, and errors are of many kinds."""
    told = [one for one in expected.values() if isinstance(one, Told)]
    assert len(expected) > 130
    assert 40 < len(told) < len(expected) - 60
    assert len({one.kind for one in told}) >= 15


PUBLIC = sorted(name for name, value in inspect.getmembers(Surface, inspect.isfunction) if not name.startswith("_"))


@pytest.mark.parametrize("name", PUBLIC)
def test_an_operation_takes_the_same_arguments_everywhere(name: str) -> None:
    """[U-20] Names, order, kinds and defaults; clients may have more, by name."""

    def arguments(cls: type) -> list[tuple[str, Any, Any]]:
        parameters = inspect.signature(getattr(cls, name)).parameters.values()
        return [(one.name, one.kind, one.default) for one in parameters]

    wanted = arguments(Surface)
    assert arguments(AsyncSurface) == wanted
    for cls in (Log, AsyncLog, Client, AsyncClient):
        found = arguments(cls)
        assert [one for one in found if one in wanted] == wanted
        assert all(one[1] is inspect.Parameter.KEYWORD_ONLY for one in found if one not in wanted)


MISTYPED: dict[str, Callable[[Any], Any]] = {
    "durabilty": lambda s: s.create("x", durabilty="fsync"),
    "ttl": lambda s: s.topic("x").create(ttl=5),
    "lease": lambda s: s.queue("x").create(lease=5),
    "filtr": lambda s: s.route("r", "x", "y", filtr="order:*"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_keyword_that_no_configuration_has_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """[U-24]: what goes over the wire may come from a newer version [CFG-8], a keyword is mistyped."""
    with subject(kind, tmp_path) as one:
        for name, step in MISTYPED.items():
            with pytest.raises(TypeError, match=rf"(create|route)\(\) got an unexpected keyword argument '{name}'"):
                step(one)
        assert list(one.topics()) == []


def test_nobody_has_operations_that_the_others_lack() -> None:
    """[U-20]"""

    def names(cls: type) -> set[str]:
        return {name for name, _ in inspect.getmembers(cls, callable) if not name.startswith("_")}

    assert names(Log) == names(AsyncLog) == set(PUBLIC)
    assert names(Client) == names(AsyncClient) == {*PUBLIC, "call", "exchange", "open_stream"}


def test_iterating_is_lazy_and_may_be_left(tmp_path: Path) -> None:
    def first(one: Any) -> Any:
        found: Iterator[Any] = iter(one.read("many"))
        return next(found).data

    for kind in KINDS:
        with subject(kind, tmp_path / kind) as one:
            one.append_many("many", list(range(3000)))
            assert first(one) == 0
            assert [record.data for record in one.read("many")] == list(range(3000))
