"""Traces and metrics by OpenTelemetry, where `opentelemetry-api` is installed; without it nothing happens here [U-23].

    clients    a span per call (`topics append`), a producer's for writes; counter `topics.client.calls` and histogram
               `topics.client.duration` (seconds), by operation and outcome
    records    what is appended within a span carries it: `meta.traceparent`, as W3C Trace Context says
    readers    `context_of(record)` is the context to go on with; workers' `run` has a consumer's span for each job

Only the API is used: where the program set up no SDK, spans and instruments do nothing. Any thread.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from typing import Any, Final

from topics.clock import SystemClock
from topics.model import Job, NewRecord, Record

NAME: Final = "topics"
CARRIED: Final = ("traceparent", "tracestate")


@lru_cache(maxsize=1)
def is_present() -> bool:
    """Whether OpenTelemetry is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("opentelemetry", "opentelemetry.trace"))


@contextmanager
def _spanned(operation: str, server: str, *, writes: bool) -> Iterator[None]:
    from opentelemetry import trace

    kind = trace.SpanKind.PRODUCER if writes else trace.SpanKind.CLIENT
    attributes = {"messaging.system": NAME, "server.address": server, "messaging.operation.name": operation}
    clock = SystemClock()
    began_ns, outcome = clock.monotonic_ns(), "ok"
    with trace.get_tracer(NAME).start_as_current_span(f"{NAME} {operation}", kind=kind, attributes=attributes):
        try:
            yield
        except BaseException as error:
            outcome = str(getattr(error, "code", type(error).__name__))
            raise
        finally:
            told = {"messaging.operation.name": operation, "outcome": outcome}
            calls, duration = _instruments()
            calls.add(1, told)
            duration.record((clock.monotonic_ns() - began_ns) / 1e9, told)


@lru_cache(maxsize=1)
def _instruments() -> tuple[Any, Any]:
    from opentelemetry import metrics

    meter = metrics.get_meter(NAME)
    return (
        meter.create_counter("topics.client.calls", description="calls of a server"),
        meter.create_histogram("topics.client.duration", unit="s", description="how long calls took, retries included"),
    )


def call(operation: str, server: str, *, writes: bool = False) -> AbstractContextManager[None]:
    """Around a call of a server."""
    return _spanned(operation, server, writes=writes) if is_present() else nullcontext()


def carried(records: Sequence[NewRecord]) -> Sequence[NewRecord]:
    """Records that carry the current span; those with a trace of their own, or with meta as text, stay as they are."""
    if not is_present():
        return records
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    found = {name: value for name, value in carrier.items() if name in CARRIED}
    return [_carrying(one, found) for one in records] if found else records


def _carrying(record: NewRecord, carrier: Mapping[str, str]) -> NewRecord:
    if record.meta is not None and (not isinstance(record.meta, Mapping) or "traceparent" in record.meta):
        return record
    return NewRecord(record.data, record.tag, record.node, {**(record.meta or {}), **carrier})


def context_of(found: Record | Job) -> Any:
    """The OpenTelemetry context that a record was written in; None without one, or without OpenTelemetry."""
    meta = found.meta
    if not is_present() or not isinstance(meta, dict) or "traceparent" not in meta:
        return None
    from opentelemetry import propagate

    return propagate.extract({name: str(meta[name]) for name in CARRIED if name in meta})


def handling(topic: str, job: Job) -> AbstractContextManager[Any]:
    """Around the work on a job: a consumer's span that goes on with the producer's trace."""
    if not is_present():
        return nullcontext()
    from opentelemetry import trace

    attributes = {"messaging.system": NAME, "messaging.destination.name": topic, "messaging.message.id": str(job.seq)}
    span: AbstractContextManager[Any] = trace.get_tracer(NAME).start_as_current_span(
        f"{NAME} process {topic}", context=context_of(job), kind=trace.SpanKind.CONSUMER, attributes=attributes
    )
    return span
