"""What other tools bring along: logging, CloudEvents, OpenTelemetry [U-23]."""

from __future__ import annotations

import doctest
import importlib
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

import topics
from tests.api.kit import running
from tests.client.subjects import WAIT_S, client_of, subject
from topics import cloudevents, errors, telemetry
from topics.logging import TopicsHandler
from topics.model import NewRecord
from topics.testing.tcpproxy import TcpProxy


@pytest.mark.parametrize("name", ["topics.logging", "topics.cloudevents", "topics.engine.log", "topics.client.sync"])
def test_examples_of_docstrings_work(name: str) -> None:
    """[U-22]"""
    result = doctest.testmod(importlib.import_module(name))
    assert (result.failed, result.attempted > 0) == (0, True)


# -- logging ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    one = logging.getLogger("shop.till")
    yield one
    for handler in list(one.handlers):
        one.removeHandler(handler)
        handler.close()


def test_lines_become_records_with_what_belongs_to_them(logger: logging.Logger) -> None:
    with topics.open(None) as log:
        handler = TopicsHandler(log, "logs", node="till-3")
        logger.addHandler(handler)
        try:
            1 // 0  # noqa: B018
        except ZeroDivisionError:
            logger.exception("sold %s", "rye", extra={"price": 2.5, "odd": {1, 2}, "nan": float("nan"), "at": [None]})
        handler.flush()
        (record,) = log.page("logs").records
    assert (record.tag, record.node) == ("shop.till", "till-3")
    told = record.data
    assert (told["level"], told["logger"], told["message"]) == ("ERROR", "shop.till", "sold rye")
    assert (told["price"], told["odd"], told["nan"], told["at"]) == (2.5, "{1, 2}", "nan", [None])
    assert "ZeroDivisionError" in told["exception"]
    assert "test_ecosystem.py" in told["where"]


def test_whoever_logs_does_not_wait_and_losses_are_told(logger: logging.Logger) -> None:
    """The line is bounded; what did not fit is a line of its own, later."""
    with running() as server, TcpProxy(server.host, server.port) as line, client_of("client", line.endpoint) as one:
        one.append("logs", "first")
        handler = TopicsHandler(one, "logs", waiting_max=10)
        logger.addHandler(handler)
        line.stall()
        for number in range(700):
            logger.warning("line %d", number)
        assert handler.lost > 0
        line.resume()
        handler.flush()
        logger.warning("last")
        handler.flush()
        lines = [record.data for record in one.page("logs", 1, limit=1000).records]
    told = sum(found.get("lost", 0) for found in lines)
    assert told == handler.lost
    assert len([found for found in lines if "lost" not in found]) == 701 - handler.lost
    assert lines[-1]["message"] == "last"


def test_our_own_lines_are_left_out() -> None:
    """Writing them would make more of them."""
    with topics.open(None) as log:
        handler = TopicsHandler(log, "logs")
        for name in ("topics", "topics.engine"):
            handler.handle(logging.LogRecord(name, logging.ERROR, "x", 1, "m", None, None))
        handler.flush()
        assert list(log.topics()) == []
        handler.close()
        handler.close()


def test_a_line_that_cannot_be_written_is_counted() -> None:
    with topics.open(None) as log:
        log.create("full", cap_records=1, discard="reject")
        log.append("full", 1)
        handler = TopicsHandler(log, "full")
        handler.handle(logging.LogRecord("a", logging.ERROR, "x", 1, "m", None, None))
        handler.flush()
        assert handler.lost == 1
        handler.close()


class Gated:
    """A surface whose first append waits until the test lets it on: what is logged meanwhile goes in one batch."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.reached, self.open = threading.Event(), threading.Event()
        self.sizes: list[int] = []

    def append(self, name: str, data: object, **more: Any) -> Any:
        return self.inner.append(name, data, **more)

    def append_many(self, name: str, records: Any) -> Any:
        self.sizes.append(len(records))
        self.reached.set()
        assert self.open.wait(WAIT_S)
        return self.inner.append_many(name, records)


@pytest.mark.parametrize("kind", ["log", "client"])
def test_only_lines_that_cannot_be_written_are_lost(kind: str) -> None:
    """Those of the same batch are there, in their order; what is no Unicode is spelled out."""
    with subject(kind, None) as one:
        surface = Gated(one)
        handler = TopicsHandler(surface, "logs")  # type: ignore[arg-type]

        def say(message: str, name: str = "shop", **extra: object) -> None:
            record = logging.LogRecord(name, logging.WARNING, "till.py", 1, message, None, None)
            vars(record).update(extra)
            handler.handle(record)

        say("first")
        assert surface.reached.wait(WAIT_S)
        say("before")
        say("file a\udcff.txt", **{"p\udc80": "b\udcfe", "at": ["c\udcfd", {"d": "\udcfc"}]})
        say("x" * (1 << 20))
        say("after", "ü" * 200)
        say("name", "till\udcff")
        say("last")
        surface.open.set()
        handler.flush()
        assert surface.sizes[:2] == [1, 6]
        assert handler.lost == 1
        say("later")
        handler.close()
        records = one.page("logs").records
    told = [record.data for record in records]
    assert [line["message"] for line in told] == [
        "first", "before", "file a\\udcff.txt", "after", "name", "last", "1 log lines were lost", "later",
    ]  # fmt: skip
    assert (told[2]["p\\udc80"], told[2]["at"]) == ("b\\udcfe", ["c\\udcfd", {"d": "\\udcfc"}])
    assert [record.tag for record in records[3:5]] == ["ü" * 128, "till\\udcff"]
    assert [line["logger"] for line in told[3:5]] == ["ü" * 200, "till\\udcff"]


# -- CloudEvents -----------------------------------------------------------------------------------------------------


def test_an_event_is_the_same_record_through_the_client_and_through_the_binding() -> None:
    """[API-9]"""
    event = cloudevents.new(
        "weighed",
        "/dock/7",
        {"kg": 1.5},
        id="41",
        subject="pallet:A19",
        time=datetime(2026, 1, 2, tzinfo=UTC),
        plant="p3",
    )
    with running() as server, client_of("client", server.url) as one, server.client() as http:
        cloudevents.append(one, "a", event)
        head = {"content-type": "application/cloudevents+json"}
        answer = http.post("/v0/topics/b", content=json.dumps(event.as_dict()), headers=head)
        assert answer.status_code == 201
        (ours,), (theirs,) = one.page("a").records, one.page("b").records
        assert (ours.data, ours.tag, ours.meta) == (theirs.data, theirs.tag, theirs.meta)
        assert cloudevents.parse(theirs) == event
        assert http.post("/v0/topics/a", content=json.dumps(event.as_dict()), headers=head).json()["deduped"]
        assert cloudevents.append(one, "b", event.as_dict()).deduped
        assert cloudevents.append_many(one, "c", [event, cloudevents.new("t", "/s")]).count == 2


@pytest.mark.parametrize(
    "bad",
    [5, {}, {"id": "1"}, {"id": "", "source": "s", "type": "t", "specversion": "1.0"},
     {"id": "1", "source": "s", "type": "t", "specversion": "1.0", "subject": 5}],
)  # fmt: skip
def test_what_is_no_event_is_refused(bad: Any) -> None:
    with pytest.raises(errors.CallerError):
        cloudevents.parse(bad)


# -- OpenTelemetry ---------------------------------------------------------------------------------------------------


def test_without_opentelemetry_nothing_is_added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "is_present", lambda: False)
    records = [NewRecord(1)]
    assert telemetry.carried(records) is records
    with telemetry.call("append", "http://x"):
        pass
    with topics.open(None) as log:
        log.append("a", 1, meta={"traceparent": "x"})
        assert telemetry.context_of(log.page("a").records[0]) is None


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Spans that ended, of an SDK that keeps them in memory."""
    sdk = pytest.importorskip("opentelemetry.sdk.trace", reason="needs opentelemetry-sdk")
    export = importlib.import_module("opentelemetry.sdk.trace.export")
    memory = importlib.import_module("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    trace = importlib.import_module("opentelemetry.trace")
    exporter = memory.InMemorySpanExporter()
    provider = sdk.TracerProvider()
    provider.add_span_processor(export.SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    telemetry.is_present.cache_clear()
    return provider.get_tracer("test"), exporter.get_finished_spans


@pytest.mark.parametrize("kind", ["client", "async-client"])
def test_a_trace_goes_from_the_writer_to_the_worker(kind: str, spans: Any) -> None:
    """[U-23] W3C traceparent in `meta`."""
    tracer, finished = spans
    with running() as server, client_of(kind, server.url) as one:
        queue = one.queue("jobs")
        queue.create()
        if kind == "client":
            with tracer.start_as_current_span("order") as order:
                queue.put({"n": 1}, meta={"mine": 1})
        else:
            order = _append_in_span(one, tracer)
        trace_id = f"{order.get_span_context().trace_id:032x}"
        (record,) = one.page("jobs").records
        assert record.meta["traceparent"].split("-")[1] == trace_id
        assert record.meta.get("mine") == 1
        done = threading.Event()

        def handle(job: Any) -> None:
            done.set()

        async def handle_async(job: Any) -> None:
            done.set()

        with queue.worker("w", wait=False) as jobs:
            jobs.run(handle if kind == "client" else handle_async)
        assert done.wait(WAIT_S)
        with pytest.raises(errors.TopicNotFound):
            one.state("absent")
    by_name = {span.name: span for span in finished()}
    assert f"{by_name['topics process jobs'].context.trace_id:032x}" == trace_id
    assert f"{by_name['topics append'].context.trace_id:032x}" == trace_id
    assert by_name["topics append"].kind.name == "PRODUCER"
    assert not by_name["topics state"].status.is_ok


def _append_in_span(one: Any, tracer: Any) -> Any:
    async def work() -> Any:
        with tracer.start_as_current_span("order") as order:
            await one._inner.append("jobs", {"n": 1}, meta={"mine": 1})
            return order

    return one._loop.run(work())
