"""What a staged commit asks of whatever brings its rows to a topic: through the WAL (`share`), or attached as segments.

    stamp    before anything is held: make ready what can be made ready then          (attaching only) [S-288]
    hold     the topics are held: what is to be submitted for each of them            (attaching only)
    chain    frames for the group's one submission, `stage` takes the seqs, in one stretch with it     [S-287]
    publish  as any ticket, once the submission is durable

Owner only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from topics.engine.topic import Lsn, Ticket, Topic
from topics.errors import TopicsError
from topics.model import AppendResult, Producer
from topics.storage.staging import Rows, Version


class Brought(Protocol):
    """What a commit brings to one topic: a `Ticket`, and frames for the group's submission."""

    topic: Topic
    is_attached: bool
    """It is to be placed before it is published."""
    frame_count: int
    """Of what `chain` made."""

    @property
    def is_current(self) -> bool:
        """Whether what it is made of still fits behind the topic's last record."""
        ...

    def chain(self, now: int, *, more: bool) -> list[bytes]:
        """Its part of the submission, durable and chained; `more`: something follows behind it."""
        ...

    def stage(self, now: int) -> None:
        """Take the seqs; raises what it is refused with."""
        ...

    def unstage(self, last_ts: int) -> None:
        """The log refused it: put back what `stage` did, the topic's `last_ts` to this."""
        ...


class Attaching(Protocol):
    """Brings rows to topics as sealed segments instead of through the WAL [TXN-8, S-288]."""

    def stamp(
        self, version: Version, rows: Mapping[Topic, Rows], then: Callable[[], None], done: Callable[[Any], None]
    ) -> None:
        """Make segments of the rows, while nothing is held; `done` is told why that is not possible."""
        ...

    def hold(
        self,
        version: Version,
        producer: Producer,
        rows: Mapping[Topic, Rows],
        answer: Callable[[Topic, AppendResult | Exception], None],
        then: Callable[[list[Brought]], None],
        done: Callable[[Any], None],
    ) -> None:
        """The topics are held until the commit is over: what is to be submitted for them.

        Each ticket tells `answer` once whether it was published; `done` is told why nothing can be submitted.
        """
        ...

    def place(
        self,
        tickets: Sequence[Ticket],
        late: Callable[[TopicsError], None],
        lsn: Lsn,
        then: Callable[[Lsn | TopicsError], None],
    ) -> None:
        """The submission of these tickets is durable: do what they need before they are published.

        `late` is told that this takes longer than anybody should wait for.
        """
        ...

    def release(self, version: Version) -> None:
        """The commit is over, whatever came of it."""
        ...

    def end(self) -> None:
        """The engine closes."""
        ...
