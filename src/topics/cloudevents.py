"""CloudEvents as records: the shape that the server's HTTP binding gives them too [API-9, U-23].

>>> import topics
>>> from topics import cloudevents
>>> with topics.open(None) as log:                   # or topics.Client("http://…")
...     event = cloudevents.new("weighed", "/dock/7", {"kg": 412.5}, id="41", subject="pallet:A19")
...     [cloudevents.append(log, "weighbridge", event).deduped for _ in range(2)]
...     found = [cloudevents.parse(record) for record in log.read("weighbridge")]
[False, True]
>>> found[0].type, found[0].subject, found[0].data
('weighed', 'pallet:A19', {'kg': 412.5})

An event becomes one record: `data` is the event itself, in structured form, and its `subject` is the record's tag.
`source` and `id` make the idempotency key, so an event that is sent twice is there once. Any thread.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from topics.errors import CallerError
from topics.model import AppendResult, Gap, NewRecord, Record
from topics.model import new as new_record
from topics.surface.base import Surface

SPEC_VERSION: Final = "1.0"
_REQUIRED: Final = ("id", "source", "specversion", "type")


class Event(msgspec.Struct, frozen=True):
    """A CloudEvent 1.0."""

    id: str
    source: str
    type: str
    specversion: str = SPEC_VERSION
    subject: str | None = None
    time: str | None = None
    datacontenttype: str | None = None
    data: Any = None
    extensions: Mapping[str, Any] = {}
    """Attributes that the specification does not name."""

    def as_dict(self) -> dict[str, Any]:
        """The event in structured form; what is absent is left out."""
        told = {name: getattr(self, name) for name in (*_REQUIRED, "subject", "time", "datacontenttype", "data")}
        return {**{name: value for name, value in told.items() if value is not None}, **self.extensions}

    @property
    def key(self) -> str:
        """The idempotency key that it is written under."""
        return f"{self.source} {self.id}"


def new(
    type: str,
    source: str,
    data: object = None,
    *,
    id: str | None = None,
    subject: str | None = None,
    time: datetime | str | None = None,
    **extensions: Any,
) -> Event:
    """An event; without an `id` it gets one that nobody else has."""
    instant = time.isoformat() if isinstance(time, datetime) else time
    event = Event(
        secrets.token_hex(16) if id is None else id, source, type, SPEC_VERSION, subject, instant,
        None if data is None else "application/json", data, extensions,
    )  # fmt: skip
    return _checked(event.as_dict())


def parse(found: Record | Gap | Mapping[str, Any]) -> Event:
    """The event in a record, or in structured form; `CallerError` if it is none."""
    if isinstance(found, Gap):
        raise CallerError(f"seqs {found.gap_from} to {found.gap_to} are lost: there is no event in a gap")
    return _checked(found.data if isinstance(found, Record) else found)


def _checked(told: object) -> Event:
    if not isinstance(told, Mapping):
        raise CallerError("a CloudEvent is an object")
    for name in _REQUIRED:
        if not isinstance(told.get(name), str) or not told[name]:
            raise CallerError(f"a CloudEvent needs {name}, a text that is not empty")
    for name in ("subject", "time", "datacontenttype"):
        if not isinstance(told.get(name, ""), (str, type(None))):
            raise CallerError(f"{name} of a CloudEvent is a text")
    known = [name for name in Event.__struct_fields__ if name != "extensions"]
    members = {name: told[name] for name in known if name in told}
    return Event(**members, extensions={name: value for name, value in told.items() if name not in known})


def record(event: Event | Mapping[str, Any]) -> NewRecord:
    """The record that an event becomes."""
    event = event if isinstance(event, Event) else _checked(event)
    return new_record(event.as_dict(), event.subject)


def append(surface: Surface, topic: str, event: Event | Mapping[str, Any]) -> AppendResult:
    """Append an event, once however often it is sent."""
    event = event if isinstance(event, Event) else _checked(event)
    return surface.append_many(topic, [record(event)], idempotency_key=event.key)


def append_many(surface: Surface, topic: str, events: Iterable[Event | Mapping[str, Any]]) -> AppendResult:
    """Append events as one write, all or none."""
    return surface.append_many(topic, [record(event) for event in events])
