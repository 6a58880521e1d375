"""Every call of a server as requests and answers, without I/O [U-20].

A call is a generator. It yields what is to be done, a `Request` to send or a `Pause` to wait, is sent what came of it,
and returns the value that a store in this process would return. `sync` and `aio` carry calls out; what a call asks,
reads, retries and raises is decided here, once.

    call = protocol.append("orders", [topics.new({"sku": "B-12"})])
    request = next(call)                          # POST /v0/topics/orders
    call.send(Heard(Answer(200, …), now_s))       # StopIteration carries the AppendResult

Appends carry an idempotency key, so that one whose answer was lost is asked again and is there once [U-21]. One
thread at a time per call; the object itself may be shared.
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Generator, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from topics.client import answers, body, failure
from topics.client.http1 import ANSWER_S, Address, Answer, Request, token
from topics.client.retry import BUDGET_S, KNOWN_S, Fault, Outage, may_be_done
from topics.errors import RouterNotFound, TopicsError, Unreachable
from topics.fs import process_id
from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    Checkpointed,
    ClaimResult,
    CommitResult,
    DeleteResult,
    ExtendResult,
    LeasePage,
    NackResult,
    NewRecord,
    Producer,
    ReadResult,
    RouterConfig,
    RouterState,
    StageResult,
    TopicConfig,
    TopicState,
    WriterState,
)

T = TypeVar("T")
PAGE_SIZE: Final = 1000
LONG_S: Final = 600.0
"""For what writes everything there is: checkpoints, and commits of bulk loads."""


WRITES: Final = frozenset({"append", "stage", "commit_staged"})
"""Calls that bring records."""


class Pause(NamedTuple):
    """Wait so long."""

    seconds: float


class Opening(NamedTuple):
    """Open a stream with this request; a good answer's body is read piece by piece, and not part of what is heard."""

    request: Request


class Heard(NamedTuple):
    """What came of a request, and when."""

    outcome: Answer | Fault
    now_s: float
    took_s: float = 0.0


Step: TypeAlias = Request | Pause | Opening
Call: TypeAlias = Generator[Step, Heard | None, T]


class Keys:
    """Idempotency keys of one process."""

    def __init__(self) -> None:
        self.pid = process_id()
        self._stem = f"py-{secrets.token_hex(12)}-"
        self._numbers = itertools.count()

    def next(self) -> str:
        """One that was never given before."""
        return f"{self._stem}{next(self._numbers)}"


class Protocol:
    """One server, one key."""

    def __init__(self, url: str, api_key: str | None = None, *, retry_s: float = BUDGET_S) -> None:
        self.address = Address.parse(url)
        self.token = token(api_key) if api_key else None
        self.retry_s = retry_s
        self.met = False
        """Whether the server has ever answered [U-21]."""
        self._keys = Keys()

    def new_key(self) -> str:
        """An idempotency key that nobody else has."""
        if self._keys.pid != process_id():
            self._keys = (
                Keys()
            )  # a child that went on with the keys of its parent would have its writes taken for known
        return self._keys.next()

    # -- asking ------------------------------------------------------------------------------------------------------

    def ask(self, request: Request) -> Call[bytes]:
        """One exchange, again where that is safe and helps; the body of a good answer."""
        outage = Outage(met=self.met, budget_s=self.retry_s)
        answer_s = request.answer_s
        own_s = max(answer_s - ANSWER_S, 0.0)  # a long poll, a large commit: no outage
        known_until_s = math.inf
        while True:
            heard = yield request
            assert heard is not None
            outcome = heard.outcome
            if isinstance(outcome, Answer) and outcome.status < 300:
                self.met = True
                return outcome.body
            if may_be_done(outcome):
                known_until_s = min(known_until_s, heard.now_s - heard.took_s + request.known_s)
            elif isinstance(outcome, Answer):
                self.met = True
            pause_s = outage.wait_s(request, outcome, heard.now_s)
            if pause_s is None or heard.now_s + pause_s > known_until_s:
                raise self.failed(outcome)
            yield Pause(pause_s)
            request = request._replace(answer_s=min(answer_s, own_s + outage.left_s(heard.now_s + pause_s)))

    def failed(self, outcome: Answer | Fault) -> TopicsError:
        """The exception of an answer that is none."""
        if isinstance(outcome, Answer):
            return failure.told(outcome)
        return Unreachable(f"no server answers at {self.address.url}: {outcome.message}")

    def _get(self, path: str) -> Call[bytes]:
        return self.ask(Request("GET", path))

    def _post(self, path: str, told: object, *, repeatable: bool = True, answer_s: float = ANSWER_S) -> Call[bytes]:
        return self.ask(Request("POST", path, body.encoded(told), repeatable=repeatable, answer_s=answer_s))

    def call(
        self,
        method: str,
        path: str,
        told: object = None,
        *,
        query: Mapping[str, object] | None = None,
        repeatable: bool | None = None,
        answer_s: float = ANSWER_S,
    ) -> Call[dict[str, Any]]:
        """Any call of the API; the object that it is answered with."""
        again = method in ("GET", "PUT") if repeatable is None else repeatable
        sent = None if told is None else body.encoded(told)
        where = path + body.query(query or {})
        request = Request(method, where, sent, (("accept", "application/json"),), again, answer_s)
        return answers.decoded((yield from self.ask(request)), answers.MEMBERS)

    # -- topics ------------------------------------------------------------------------------------------------------

    def create(self, name: str, config: Mapping[str, object]) -> Call[TopicConfig]:
        path = body.topic_path(name, creates=True)
        return answers.config((yield from self.ask(Request("PUT", path, body.encoded(dict(config))))))

    def state(self, name: str, *, touch: bool = True) -> Call[TopicState]:
        query = body.query({} if touch else {"touch": False})
        return answers.state((yield from self._get(body.topic_path(name) + query)))

    def topics(self, prefix: str, cursor: str | None) -> Call[answers.Names]:
        """One page of names."""
        query = body.query({"prefix": prefix or None, "page_size": PAGE_SIZE, "cursor": cursor})
        return answers.decoded((yield from self._get("/v0/topics" + query)), answers.NAMES)

    def drop(self, name: str) -> Call[bool]:
        # Asked again, it would take what others have written into a new topic of this name.
        told = yield from self.ask(Request("DELETE", body.topic_path(name), repeatable=False))
        return answers.decoded(told, answers.FLAG).deleted

    def checkpoint(self) -> Call[Checkpointed]:
        told = yield from self.ask(Request("POST", "/v0/checkpoint", answer_s=LONG_S))
        return answers.decoded(told, answers.CHECKPOINTED)

    # -- records -----------------------------------------------------------------------------------------------------

    def append(
        self,
        name: str,
        records: Iterable[NewRecord],
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        producer: Producer | Mapping[str, object] | None = None,
    ) -> Call[AppendResult]:
        told: dict[str, Any] = {"records": body.rows(records)}
        if node is not None:
            told["node"] = node
        if producer is not None:
            told["producer"] = producer
        if idempotency_key is not None:
            told["idempotency_key"] = idempotency_key
        elif producer is None:
            told["idempotency_key"] = self.new_key()
        path = body.topic_path(name, creates=True) + "?return_seqs=false"
        known_s = math.inf if producer is not None else KNOWN_S
        return answers.written((yield from self.ask(Request("POST", path, body.encoded(told), known_s=known_s))))

    def page(
        self,
        name: str,
        from_seq: int = 0,
        *,
        from_ts: int | None = None,
        limit: int = 256,
        max_bytes: int = 1 << 20,
        node: str | Iterable[str] | None = None,
        wait_ms: int = 0,
    ) -> Call[ReadResult]:
        told: dict[str, Any] = {"limit": limit, "max_batch_bytes": max_bytes, "include_tags": True}
        if from_ts is None or from_seq:
            told["from_seq"] = from_seq
        if from_ts is not None:
            told["from_ts"] = from_ts
        if node is not None:
            told["node"] = body.listed(node, "node")
        if wait_ms:
            told["wait_ms"] = wait_ms
        waits_s = min(wait_ms / 1000, 30.0) if isinstance(wait_ms, int) and wait_ms > 0 else 0.0
        path = body.topic_path(name) + "/diff"
        return answers.page((yield from self._post(path, told, answer_s=ANSWER_S + waits_s)))

    def delete(
        self,
        name: str,
        *,
        before_seq: int | None = None,
        match: object = None,
        seqs: Iterable[int] | None = None,
        dry_run: bool = False,
    ) -> Call[DeleteResult]:
        told: dict[str, Any] = {"dry_run": dry_run}
        if before_seq is not None:
            told["before_seq"] = before_seq
        if match is not None:
            told["match"] = match
        if seqs is not None:
            told["seqs"] = body.items(seqs, "seqs")
        # By tag alone it takes what exists when it arrives: later on, that may be more than was meant.
        again = dry_run or match is None or before_seq is not None
        path = body.topic_path(name) + "/delete"
        return answers.decoded((yield from self._post(path, told, repeatable=again)), answers.DELETED)

    # -- queues ------------------------------------------------------------------------------------------------------

    def claim(self, name: str, node: str, max: int = 1, lease_ms: int | None = None) -> Call[ClaimResult]:
        told = {"node": node, "max": max, "lease_ms": lease_ms}
        # Asked twice it would lease twice as many, half of them to nobody until their leases end.
        path = body.topic_path(name) + "/claim"
        return answers.claimed((yield from self._post(path, told, repeatable=False)))

    def ack(self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = ()) -> Call[AckResult]:
        told = yield from self._leased(name, "ack", node, seqs, lease_ids)
        return answers.decoded(told, answers.ACKED)

    def nack(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, delay_ms: int = 0
    ) -> Call[NackResult]:
        told = yield from self._leased(name, "nack", node, seqs, lease_ids, delay_ms=delay_ms)
        return answers.decoded(told, answers.NACKED)

    def extend(
        self, name: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] = (), *, lease_ms: int
    ) -> Call[ExtendResult]:
        told = yield from self._leased(name, "extend", node, seqs, lease_ids, lease_ms=lease_ms)
        return answers.decoded(told, answers.EXTENDED)

    def _leased(
        self, name: str, verb: str, node: str, seqs: Iterable[int], lease_ids: Iterable[str] | None, **more: object
    ) -> Call[bytes]:
        tokens = body.items(() if lease_ids is None else lease_ids, "lease_ids")
        told = {"node": node, "seqs": body.items(seqs, "seqs"), "lease_ids": tokens, **more}
        return (yield from self._post(f"{body.topic_path(name)}/{verb}", told))

    def leases(self, name: str) -> Call[LeasePage]:
        """All pages as one."""
        path, cursor = body.topic_path(name) + "/leases", None
        found = answers.Leases([], [])
        while True:
            told = yield from self._get(path + body.query({"page_size": PAGE_SIZE, "cursor": cursor}))
            one = answers.decoded(told, answers.LEASES)
            found.leases += one.leases
            found.delayed += one.delayed
            cursor = one.next_cursor
            if cursor is None:
                return found.held()

    # -- routers -----------------------------------------------------------------------------------------------------

    def route(self, name: str, config: Mapping[str, object]) -> Call[RouterState]:
        path = body.router_path(name)
        given = dict(config)
        told = answers.decoded((yield from self.ask(Request("PUT", path, body.encoded(given)))), answers.ROUTER)
        entry = yield from self._entry(name)
        state = told.state(entry or answers.RouterEntry(name, 0, 0, 0))
        asked = RouterConfig.parse(given)
        return state._replace(config=_with_create(state.config, asked.create_dest))

    def router(self, name: str) -> Call[RouterState]:
        told = answers.decoded((yield from self._get(body.router_path(name))), answers.ROUTER)
        entry = yield from self._entry(name)
        if entry is None:
            raise RouterNotFound(name)
        return told.state(entry)

    def _entry(self, name: str) -> Call[answers.RouterEntry | None]:
        """How far a router is; its name is the first of those that begin with it."""
        query = body.query({"prefix": name, "page_size": 1})
        found = answers.decoded((yield from self._get("/v0/routers" + query)), answers.ROUTERS).routers
        return found[0] if found and found[0].router == name else None

    def routers(
        self, prefix: str = "", *, source: str | None = None, dest: str | None = None
    ) -> Call[list[RouterState]]:
        """A list tells how far routers are, each one by itself how it is defined."""
        found: list[RouterState] = []
        cursor: str | None = None
        while True:
            asked = {"prefix": prefix or None, "source": source, "dest": dest, "page_size": PAGE_SIZE, "cursor": cursor}
            told = yield from self._get("/v0/routers" + body.query(asked))
            page = answers.decoded(told, answers.ROUTERS)
            for entry in page.routers:
                try:
                    told = yield from self._get(body.router_path(entry.router))
                except RouterNotFound:
                    continue  # deleted since
                found.append(answers.decoded(told, answers.ROUTER).state(entry))
            cursor = page.next_cursor
            if cursor is None:
                return found

    def unroute(self, name: str) -> Call[bool]:
        told = yield from self.ask(Request("DELETE", body.router_path(name), repeatable=False))
        return answers.decoded(told, answers.FLAG).deleted

    # -- transactions ------------------------------------------------------------------------------------------------

    def stage(
        self,
        id: str,
        version: int,
        part: str,
        chunk: int,
        topic: str,
        records: Iterable[NewRecord],
        *,
        node: str | None = None,
    ) -> Call[StageResult]:
        told: dict[str, Any] = {"id": id, "version": version, "part": part, "chunk": chunk}
        told |= {"records": body.rows(records), "node": node}
        path = body.topic_path(topic, creates=True) + "/stage"
        return answers.decoded((yield from self._post(path, told)), answers.STAGED)

    def commit_staged(
        self,
        id: str,
        version: int,
        parts: Iterable[Mapping[str, object] | tuple[str, int, int]],
        *,
        create: bool | None = None,
        config: TopicConfig | Mapping[str, object] | None = None,
        attach: str = "auto",
    ) -> Call[CommitResult]:
        named = [one if isinstance(one, Mapping) else dict(zip(_PART, one, strict=False)) for one in parts]
        told = {"id": id, "version": version, "parts": named, "create": create, "config": config, "attach": attach}
        answer = yield from self._post("/v0/txn/commit", told, answer_s=LONG_S)
        return answers.decoded(answer, answers.COMMITTED)

    def abort_staged(self, id: str, version: int) -> Call[AbortResult]:
        told = yield from self._post("/v0/txn/abort", {"id": id, "version": version})
        return answers.decoded(told, answers.ABORTED)

    def writer(self, id: str) -> Call[WriterState]:
        return answers.decoded((yield from self._get(body.writer_path(id))), answers.WRITER)


_PART: Final = ("part", "chunks", "records")


def _with_create(config: RouterConfig, create_dest: bool) -> RouterConfig:
    """The server does not say whether it would create a destination [RTR-9]; who asked knows."""
    return RouterConfig(
        config.source, config.dest, config.preserve_node, config.preserve_tag, create_dest, config.filter,
        config.allow_cycle, config.guarantee,
    )  # fmt: skip
