"""The server says what the embedded engine says: random operations on both, under one clock [S-350]."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.api.expect import like
from tests.api.kit import WAIT_S, Running
from tests.api.watching import pass_time
from topics import Engine
from topics.errors import TopicsError
from topics.testing import ManualClock

STATUS = {
    "invalid_request": 400, "batch_too_large": 400, "record_too_large": 400, "topic_not_found": 404, "forbidden": 403,
    "producer_gap": 409, "topic_exists_incompatible": 409, "topic_full": 422, "throttled": 429,
    "txn_conflict": 409, "txn_committed": 409, "txn_incomplete": 409,
}  # fmt: skip
EXAMPLES = 100 if os.environ.get("TOPICS_TEST_SWEEPS") == "full" else 50


class Op(NamedTuple):
    """One operation: what it is, the topic's number, its arguments."""

    kind: str
    topic: int
    body: dict[str, Any]


# -- operations ------------------------------------------------------------------------------------------------------

TAGS = st.sampled_from(["a", "ab", "b", "", "é", "a*", None])
NODES = st.sampled_from(["n1", "n2", "", None])
DATA = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.text(max_size=6)
    | st.floats(allow_nan=False, width=32),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
).filter(lambda value: "inf" not in str(value))
SEQ = st.integers(0, 12)
ODD_SEQ = st.sampled_from([2**53, 2**64 - 1, 2**64, -1, 1.0, True, "1"])


def _some(**members: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=members)


CONFIG = _some(
    ttl_ms=st.sampled_from([0, 50, 100]), cap_records=st.sampled_from([0, 0, 2, 5]),
    cap_bytes=st.sampled_from([0, 0, 10, 60]), discard=st.sampled_from(["old", "old", "reject"]),
    durability=st.sampled_from(["ephemeral", "memory", "disk", "fsync"]), priority=st.sampled_from([None, -5, 2000]),
    dedupe_node=st.booleans(), auto_create=st.booleans(), idempotency_window_ms=st.sampled_from([0, 80, 120_000]),
    lease_ms=st.sampled_from([1, 500]), unknown=st.just([1]),
)  # fmt: skip
METAS: st.SearchStrategy[Any] = st.sampled_from([None, {}, {"k": 1}, {"m": {}}])
RECORD = st.fixed_dictionaries({"data": DATA}, optional={"tag": TAGS, "node": NODES, "meta": METAS})
PRODUCER = st.fixed_dictionaries(
    {"id": st.sampled_from(["p", "q"]), "epoch": st.integers(0, 2), "index": st.integers(0, 3)}
)
RECORDS = st.lists(RECORD, min_size=1, max_size=6)
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "plain": st.fixed_dictionaries({"records": RECORDS}, optional={"node": NODES}),
    "keyed": st.fixed_dictionaries({"records": RECORDS, "idempotency_key": st.sampled_from(["k1", "k2"])}),
    "produced": st.fixed_dictionaries({"records": RECORDS, "producer": PRODUCER}),
    "odd": st.fixed_dictionaries(
        {"records": st.lists(RECORD | st.just({"data": 1, "meta": 5}), max_size=3)},
        optional={
            "idempotency_key": st.sampled_from(["k1", "", None]), "producer": PRODUCER,
            "create": st.sampled_from([True, False, None]), "config": CONFIG,
        },
    ),
}  # fmt: skip
MATCH: st.SearchStrategy[Any] = st.sampled_from(["a", "a*", "*", "", ["tag", "Eq", "b"]])
KINDS: dict[str, tuple[int, st.SearchStrategy[Any]]] = {
    "write": (6, NAMED["plain"] | NAMED["plain"] | NAMED["keyed"] | NAMED["produced"] | NAMED["odd"]),
    "diff": (6, _some(
        from_seq=SEQ, limit=st.sampled_from([0, 1, 3, 1000]), node=NODES | st.lists(st.sampled_from(["n1", "n2"])),
        max_batch_bytes=st.integers(0, 40) | st.just(2**64 - 1),
    )),
    "odd diff": (1, _some(from_seq=ODD_SEQ, limit=st.sampled_from([1, 2**32, -1, None]), node=st.just(5))),
    "from_ts": (1, st.fixed_dictionaries({"ago_ms": st.integers(-10, 200)})),
    "delete": (2, st.one_of(
        st.fixed_dictionaries({"before_seq": SEQ}, optional={"match": MATCH, "dry_run": st.booleans()}),
        st.fixed_dictionaries({"match": MATCH}, optional={"dry_run": st.booleans()}),
        st.fixed_dictionaries({"seqs": st.lists(SEQ, max_size=3)}, optional={"match": MATCH}),
    )),
    "odd delete": (1, _some(
        before_seq=ODD_SEQ, match=st.sampled_from([["tag", "Glob", "b"], None]), seqs=st.just([1]),
    )),
    "stage": (4, st.fixed_dictionaries(
        {"version": st.integers(0, 2), "part": st.sampled_from(["p", "q"]), "chunk": st.sampled_from([0, 0, 0, 1, 2]),
         "records": RECORDS}, optional={"node": NODES},
    )),
    "odd stage": (1, st.fixed_dictionaries({
        "version": ODD_SEQ, "part": st.sampled_from(["", "a/b", "p"]), "chunk": ODD_SEQ, "records": RECORDS,
    })),
    "commit": (3, st.fixed_dictionaries(
        {"version": st.integers(0, 2), "more": st.sampled_from([0, 0, 0, 1])},
        optional={"create": st.sampled_from([True, False, None]), "config": CONFIG},
    )),
    "abort": (1, st.fixed_dictionaries({"version": st.integers(0, 2)})),
    "writer": (1, st.just({})),
    "put": (2, CONFIG | st.fixed_dictionaries({"type": st.sampled_from(["queue", "x"])})),
    "state": (2, _some(touch=st.booleans())),
    "list": (1, st.just({})),
    "drop": (1, st.just({})),
    "pass": (2, st.fixed_dictionaries({"ms": st.sampled_from([1, 30, 51, 100])})),
}  # fmt: skip


def _op(kind: str) -> st.SearchStrategy[Op]:
    return st.builds(Op, st.just(kind.removeprefix("odd ")), st.integers(0, 1), KINDS[kind][1])


OPS = st.builds(
    lambda config, first, other, then: [Op("put", 0, config), Op("write", 0, first), Op("write", 1, other), *then],
    CONFIG,
    NAMED["plain"],
    NAMED["plain"],
    st.lists(st.sampled_from([kind for kind, (weight, _) in KINDS.items() for _ in range(weight)]).flatmap(_op),
             min_size=5, max_size=14),
)  # fmt: skip


# -- both sides ------------------------------------------------------------------------------------------------------


class Ledger:
    """What is staged, so that a commit can name it."""

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, list[int]]] = {}

    def staged(self, body: dict[str, Any], told: Any) -> None:
        if isinstance(told, dict) and not told["deduped"]:
            counts = self._parts.setdefault(body["version"], {}).setdefault(body["part"], [0, 0])
            counts[0] += 1
            counts[1] += told["staged"]

    def over(self, version: int, told: Any, *, below: bool) -> None:
        if isinstance(told, dict):
            gone = [one for one in self._parts if one == version or (below and one < version)]
            for one in gone:
                del self._parts[one]

    def named(self, version: int, more: int) -> list[dict[str, Any]]:
        found = sorted(self._parts.get(version, {}).items())
        return [{"part": part, "chunks": chunks, "records": records + more} for part, (chunks, records) in found]


class Served:
    """The operations over HTTP: the answer, or code and detail of the error."""

    def __init__(self, client: httpx.Client, clock: ManualClock, ledger: Ledger | None = None) -> None:
        self._client = client
        self._clock = clock
        self._ledger = ledger or Ledger()

    def do(self, op: Op, name: str) -> Any:
        path = f"/v0/topics/{name}"
        ask = self._client
        match op.kind:
            case "put":
                return self._told(ask.put(path, json=op.body))
            case "write":
                # Numbers spelt as the engine spells them: `1e16`, not `1e+16`.
                body = msgspec.json.encode(op.body)
                return self._told(ask.post(path, content=body, headers={"content-type": "application/json"}))
            case "stage":
                body = msgspec.json.encode({"id": name[:-1], **op.body})
                return self._told(ask.post(f"{path}/stage", content=body, headers={"content-type": "application/json"}))
            case "commit":
                asked = {key: value for key, value in op.body.items() if key != "more"}
                parts = self._ledger.named(op.body["version"], op.body["more"])
                return self._told(ask.post("/v0/txn/commit", json={"id": name[:-1], "parts": parts, **asked}))
            case "abort":
                return self._told(ask.post("/v0/txn/abort", json={"id": name[:-1], **op.body}))
            case "writer":
                return self._told(ask.get(f"/v0/txn/{name[:-1]}"))
            case "diff":
                return self._told(ask.post(f"{path}/diff", json={**op.body, "include_tags": True}))
            case "from_ts":
                ts = self._clock.now_ms() - op.body["ago_ms"]
                return self._told(ask.post(f"{path}/diff", json={"from_ts": ts, "include_tags": True}))
            case "delete":
                return self._told(ask.post(f"{path}/delete", json=op.body))
            case "state":
                touch = "true" if op.body.get("touch", True) else "false"
                return self._told(ask.get(path, params={"touch": touch}))
            case "list":
                prefix = name[:-1]
                told = self._told(ask.get("/v0/topics", params={"prefix": prefix}))
                return [(one["topic"], one["count"], one["bytes"], one["earliest_seq"]) for one in told["topics"]]
            case _:
                told = self._told(ask.delete(path))
                return told["deleted"] if isinstance(told, dict) else told

    def _told(self, answer: httpx.Response) -> Any:
        told = answer.json()
        if "error" in told:
            error = told["error"]
            assert answer.status_code == STATUS[error["code"]]
            return error["code"], error.get("detail")
        told.pop("performance")
        assert answer.status_code == (201 if told.get("created") else 200)
        return told


class Embedded:
    """The same with the engine, answered in the shapes of HTTP."""

    def __init__(self, engine: Engine, clock: ManualClock, ledger: Ledger | None = None) -> None:
        self._engine = engine
        self._clock = clock
        self._ledger = ledger or Ledger()

    def do(self, op: Op, name: str) -> Any:
        try:
            return getattr(self, f"_{op.kind}")(name, **op.body)
        except TopicsError as error:
            names = {
                "topic_not_found": ("topic",), "forbidden": ("topic",), "producer_gap": ("epoch", "index"),
                "topic_full": ("topic", "cap_records", "cap_bytes", "head_seq", "earliest_seq"),
                "topic_exists_incompatible": ("topic", "existing_type", "requested_type"),
                "txn_conflict": ("part", "expected"), "txn_committed": ("version",), "txn_incomplete": ("missing",),
            }.get(error.code)  # fmt: skip
            return error.code, names and {name: getattr(error, name) for name in names}

    def _put(self, name: str, **config: Any) -> Any:
        created, stored = self._engine.put_topic(name, config)
        return {"topic": name, "created": created, "config": stored.as_dict()}

    def _write(self, name: str, **body: Any) -> Any:
        result = self._engine.append(name, body.pop("records"), **body)
        told = {"topic": name, **msgspec.structs.asdict(result), "seqs": result.seqs}
        # Over HTTP a part of the performance block; nothing waits here.
        assert told.pop("throttle_wait_ms") is None
        return told

    def _stage(self, name: str, **body: Any) -> Any:
        place = {key: body[key] for key in ("version", "part", "chunk")}
        result = self._engine.stage(name[:-1], topic=name, records=body["records"], node=body.get("node"), **place)
        return {"topic": name, "id": name[:-1], **place, **msgspec.structs.asdict(result)}

    def _commit(self, name: str, version: int, more: int, **body: Any) -> Any:
        parts = self._ledger.named(version, more)
        result = self._engine.commit_staged(name[:-1], version, parts, **body)
        return {"id": name[:-1], **_in_json(result)}

    def _abort(self, name: str, version: int) -> Any:
        state = self._engine.abort_staged(name[:-1], version).state
        return {"id": name[:-1], "version": version, "state": state}

    def _writer(self, name: str) -> Any:
        return {"id": name[:-1], **_in_json(self._engine.writer(name[:-1]))}

    def _diff(self, name: str, from_seq: Any = 0, max_batch_bytes: Any = 0, **body: Any) -> Any:
        return self._page(name, self._engine.read(name, from_seq, max_bytes=max_batch_bytes, **body))

    def _from_ts(self, name: str, ago_ms: int) -> Any:
        return self._page(name, self._engine.read(name, from_ts=self._clock.now_ms() - ago_ms))

    def _page(self, name: str, page: Any) -> Any:
        records = []
        for one in page.records:
            told = {"$seq": one.seq, "$ts": one.ts, "$node": one.node, "$tag": one.tag, "meta": one.meta}
            records.append({**{key: value for key, value in told.items() if value is not None}, "data": one.data})
        gap = page.tombstone and msgspec.structs.asdict(page.tombstone)
        return {
            "topic": name, "records": records, "next_from_seq": page.next_from_seq, "head_seq": page.head_seq,
            "earliest_seq": page.earliest_seq, "caught_up": page.caught_up, "tombstone": gap, "lag": page.lag,
        }  # fmt: skip

    def _delete(self, name: str, **body: Any) -> Any:
        return {"topic": name, **msgspec.structs.asdict(self._engine.delete(name, **body))}

    def _state(self, name: str, touch: bool = True) -> Any:
        found = self._engine.state(name, touch=touch)
        told = msgspec.structs.asdict(found)
        assert told.pop("queue") is None
        return {**told, "config": found.config.as_dict(), "type": found.type, "next_seq": found.next_seq}

    def _drop(self, name: str) -> Any:
        return self._engine.delete_topic(name)

    def _list(self, name: str) -> Any:
        found = [self._engine.state(one, touch=False) for one in self._engine.topics(name[:-1])]
        return [(one.topic, one.count, one.bytes, one.earliest_seq) for one in found]


def _in_json(result: Any) -> dict[str, Any]:
    told: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(result))
    return told


# -- the test --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine(clock: ManualClock) -> Iterator[Engine]:
    with tempfile.TemporaryDirectory() as scratch, Engine.open(scratch, clock=clock) as one:
        yield one


@pytest.fixture(scope="module")
def fresh() -> Callable[[], str]:
    """Prefixes that no other example uses."""
    count = iter(range(1_000_000))
    return lambda: f"e{next(count)}-"


@settings(max_examples=EXAMPLES, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(ops=OPS)
def test_the_server_answers_like_the_engine(
    client: httpx.Client,
    timed_server: Running,
    engine: Engine,
    clock: ManualClock,
    fresh: Callable[[], str],
    ops: list[Op],
) -> None:
    """[S-350, DIF-2, WR-3, DLR-2, TOP-6, TXN-1 … TXN-12]"""
    prefix, ledger = fresh(), Ledger()
    with like(client, timed_server) as one:
        served, embedded = Served(one, clock, ledger), Embedded(engine, clock, ledger)
        for op in ops:
            if op.kind == "pass":
                clock.jump(op.body["ms"])
                continue
            name = f"{prefix}{op.topic}"
            told = served.do(op, name)
            assert told == embedded.do(op, name), op
            if op.kind == "stage":
                ledger.staged(op.body, told)
            elif op.kind in ("commit", "abort"):
                ledger.over(op.body["version"], told, below=op.kind == "commit")
        for topic in (0, 1):
            _compare_pages(served, embedded, topic, f"{prefix}{topic}")


def _compare_pages(served: Served, embedded: Embedded, topic: int, name: str) -> None:
    """Read all that is left, by pages of a few bytes and of a few records [RD-5]."""
    for more in ({"max_batch_bytes": 4}, {"max_batch_bytes": 15}, {"max_batch_bytes": 40}, {"limit": 2}):
        cursor, page = 0, {"caught_up": False}
        while isinstance(page, dict) and not page["caught_up"]:
            op = Op("diff", topic, {"from_seq": cursor, **more})
            page = served.do(op, name)
            assert page == embedded.do(op, name), op
            cursor = page["next_from_seq"] if isinstance(page, dict) else 0


@pytest.mark.parametrize("name", ["$deletes", "$loss", "$other", "$"])
def test_both_refuse_what_only_the_server_may_do(
    client: httpx.Client, timed_server: Running, engine: Engine, clock: ManualClock, name: str
) -> None:
    """[A-14, S-350]"""
    ops = [
        Op("put", 0, {}), Op("drop", 0, {}), Op("delete", 0, {"before_seq": 1}), Op("delete", 0, {"match": "*"}),
        Op("write", 0, {"records": [{"data": 1}]}), Op("write", 0, {"records": [{"data": 1}], "create": False}),
    ]  # fmt: skip
    with like(client, timed_server) as one:
        served, embedded = Served(one, clock), Embedded(engine, clock)
        for op in ops:
            answer = served.do(op, name)
            assert answer == embedded.do(op, name), op
            assert answer[0] in ("forbidden", "invalid_request")


def test_both_tell_the_same_deletes_and_losses(
    client: httpx.Client, timed_server: Running, engine: Engine, clock: ManualClock, fresh: Callable[[], str]
) -> None:
    """[A-20, A-22, S-350]"""
    name = f"{fresh()}0"
    records = [{"data": n, "tag": "ab"[n % 2]} for n in range(6)]
    ops = [
        Op("put", 0, {"cap_records": 4, "durability": "fsync"}), Op("write", 0, {"records": records}),
        Op("delete", 0, {"match": "a*"}), Op("delete", 0, {"seqs": [4, 9]}), Op("delete", 0, {"before_seq": 5}),
        Op("delete", 0, {"before_seq": 9, "dry_run": True}), Op("drop", 0, {}),
    ]  # fmt: skip
    with like(client, timed_server) as one:
        served, embedded = Served(one, clock), Embedded(engine, clock)
        for op in ops:
            assert served.do(op, name) == embedded.do(op, name), op
        pass_time(timed_server, clock, 11_000)
        engine.tick()
        for topic, count in (("$deletes", 4), ("$loss", 1)):
            told = _recorded(served, topic, name, count)
            assert told == _about(embedded, topic, name)
            assert len(told) == count


def _recorded(side: Served, topic: str, name: str, count: int) -> list[dict[str, Any]]:
    """What a server says, once it does: its records are written after their time has come, batch by batch."""
    end = time.monotonic() + WAIT_S
    while len(told := _about(side, topic, name)) < count:
        assert time.monotonic() < end
    return told


def _about(side: Served | Embedded, topic: str, name: str) -> list[dict[str, Any]]:
    """What the records of a topic say about another, but for its id and epoch, which may differ."""
    said: list[dict[str, Any]] = []
    page: dict[str, Any] = {"next_from_seq": 0, "caught_up": False}
    while not page["caught_up"]:
        page = side.do(Op("diff", 0, {"from_seq": page["next_from_seq"], "limit": 1000}), topic)
        said += [one["data"] for one in page["records"] if one["$tag"] == name]
    return [{key: value for key, value in one.items() if key not in ("id", "epoch")} for one in said]
