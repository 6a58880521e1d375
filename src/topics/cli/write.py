"""`topics write NAME [FILE|-]`: records from arguments, files and pipes (11 §2) [U-12, U-14].

JSON lines by default, CSV with `--csv`. Records go in batches, each acknowledged before the next; one that is not full
leaves when nothing more comes. A bad line stops it there, behind everything that was before it; with `--skip-bad` it is
counted. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final, TextIO

from topics.cli import output, remote, units
from topics.cli.interrupted import Interrupted
from topics.cli.lines import Bad, Found, Hopeless, Idle, Row, Source, json_row
from topics.cli.progress import Progress
from topics.cli.usage import UsageError
from topics.client.sync import Client
from topics.clock import SystemClock
from topics.errors import CallerError, CommitFailed, TopicsError, Unreachable
from topics.model import NewRecord, new

BATCH: Final = 500
BATCH_BYTES: Final = 4 << 20
BAR: Final = 24


class BadLine(CallerError):
    """A line that is no record."""

    code = "bad_line"
    hint = "--skip-bad passes over such lines"

    def __init__(self, name: str, bad: Bad, count: int) -> None:
        super().__init__(f"line {bad.number} is no record: {bad.why}; {count} records before it are in {name}")
        self.line = bad.number
        if isinstance(bad, Hopeless):
            self.hint = "the first row has the names of the columns"
        self.acknowledged = count


def add_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="name of the topic; it is created if it is absent")
    parser.add_argument("file", metavar="FILE", nargs="?", default="-", help="what to write, - for stdin; default: -")
    parser.add_argument("--data", metavar="JSON", action="append", help="a record given here instead; repeatable")
    parser.add_argument("--tag", metavar="TAG", help="tag of every record")
    parser.add_argument("--node", metavar="NODE", help="origin of every record")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--jsonl", action="store_true", help="each line is a JSON value; the default")
    form.add_argument("--csv", action="store_true", help="first line = names, each row an object of texts")
    parser.add_argument(
        "--batch", type=units.some, default=BATCH, metavar="N", help=f"records per write; default: {BATCH}"
    )
    parser.add_argument("--rate", type=units.some, metavar="N", help="records per second at most")
    parser.add_argument("--skip-bad", action="store_true", help="pass over lines that are no records")


def run(args: argparse.Namespace) -> int:
    with ExitStack() as stack:
        rows, source, total = _input(args, stack)
        client = stack.enter_context(remote.connect(args))
        bar = stack.enter_context(Bar(args.name, source, total, silent=args.json or args.quiet))
        writer = Writer(client, args, bar)
        try:
            writer.write(rows)
        except KeyboardInterrupt:
            raise Interrupted(writer.reached()) from None
        except TopicsError as error:
            writer.note(error)
            raise
    return writer.tell()


def _input(args: argparse.Namespace, stack: ExitStack) -> tuple[Iterable[Found], Source | None, int]:
    """The rows, where they come from, and how many bytes that has, if it is known."""
    if args.data is not None:
        if args.file != "-":
            raise UsageError("give --data or a file, not both", args.prog)
        return [_given(number, text) for number, text in enumerate(args.data, 1)], None, 0
    if args.file == "-":
        if args.api_key_file == "-":
            raise UsageError("stdin is either the key or the records: name a file for one of them", args.prog)
        if sys.stdin is None:
            raise CallerError("there is no stdin to read records from")
        fd, total = sys.stdin.fileno(), 0
    else:
        fd = os.open(args.file, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, fd)
        total = os.fstat(fd).st_size
    source = Source(fd)
    return (source.csv_rows() if args.csv else source.json_rows()), source, total


def _given(number: int, text: str) -> Found:
    found = json_row(number, text.encode("utf-8", "surrogateescape"))
    return Bad(number, f"--data: {found.why}") if isinstance(found, Bad) else found


class Bar(Progress):
    """How far a write is: records, records per second, the acknowledged seq, and a bar where the end is known."""

    def __init__(
        self, name: str, source: Source | None, total: int, *, silent: bool, stream: TextIO | None = None
    ) -> None:
        super().__init__(f"writing {name}", silent=silent, unit="records", stream=stream)
        self._source = source
        self._total = total
        self._began_ns = self._clock.monotonic_ns()
        self.seq: int | None = None

    def wrote(self, count: int, seq: int | None) -> None:
        """So many more are acknowledged."""
        self.files += count - 1
        self.seq = seq
        self.add(0)

    def _text(self) -> str:
        seconds = max((self._clock.monotonic_ns() - self._began_ns) / 1e9, 0.001)
        told = f"{self._label}: {self.files:,} records, {self.files / seconds:,.0f}/s, acked seq {self.seq or '-'}"
        if not self._total or self._source is None:
            return told
        share = min(self._source.taken / self._total, 1.0)
        return f"{told} [{'#' * int(share * BAR):<{BAR}}] {share:.0%}" if self._terminal else f"{told}, {share:.0%}"


class Writer:
    """Rows in batches."""

    def __init__(self, client: Client, args: argparse.Namespace, bar: Bar) -> None:
        self.count = 0
        self.skipped = 0
        self._client = client
        self._args = args
        self._bar = bar
        self._first: int | None = None
        self._last: int | None = None
        self._batch: list[NewRecord] = []
        self._bytes = 0
        self._is_asking = False
        """A batch is on its way, and nobody knows yet what becomes of it."""
        self._pace = Pace(args.rate)

    def write(self, rows: Iterable[Found]) -> None:
        """Everything, or up to the first bad line."""
        args = self._args
        for row in rows:
            if isinstance(row, Row):
                self._batch.append(new(row.data, args.tag, args.node))
                self._bytes += len(row.data)
                if len(self._batch) >= min(args.batch, args.rate or args.batch) or self._bytes >= BATCH_BYTES:
                    self._flush()
            elif isinstance(row, Idle):
                self._flush()
            elif args.skip_bad and not isinstance(row, Hopeless):
                self.skipped += 1
            else:
                self._flush()
                raise BadLine(args.name, row, self.count)
        self._flush()

    def _flush(self) -> None:
        if not self._batch:
            return
        batch, self._batch, self._bytes = self._batch, [], 0
        self._pace.wait(len(batch))
        self._is_asking = True
        result = self._client.append_many(self._args.name, batch)
        self.count += result.count
        self._first = result.first_seq if self._first is None else self._first
        self._last = result.last_seq
        self._is_asking = False
        self._bar.wrote(result.count, result.last_seq)

    def note(self, error: TopicsError) -> None:
        """Say of an error how far it came; after some nobody knows what became of the last batch."""
        if isinstance(error, BadLine) or not self.count:
            return
        self._is_asking = isinstance(error, (Unreachable, CommitFailed))
        error.add_note(self.reached())

    def reached(self) -> str:
        """How far it came, for one that ends early."""
        behind = "; the batch behind them may be there as well" if self._is_asking else ""
        return f"{self.count} records are in {self._args.name}{self.at()}{behind}"

    def at(self) -> str:
        """Up to where it came."""
        return "" if self._last is None else f", up to seq {self._last}"

    def tell(self) -> int:
        """What was written; the exit status."""
        args = self._args
        if args.json:
            told = {"topic": args.name, "count": self.count, "first_seq": self._first, "last_seq": self._last}
            output.answer({**told, "skipped": self.skipped} if args.skip_bad else told)
        elif not args.quiet:
            bad = f", {self.skipped} bad lines passed over" if self.skipped else ""
            print(f"{args.name}: {self.count:,} records{self.at()}{bad}")
        return 0


class Pace:
    """Not more than so many records a second."""

    def __init__(self, rate: int | None) -> None:
        self._rate = rate
        self._clock = SystemClock()
        self._free_ns = self._clock.monotonic_ns()

    def wait(self, count: int) -> None:
        """Until these may go."""
        if self._rate is None:
            return
        now_ns = self._clock.monotonic_ns()
        if self._free_ns > now_ns:
            threading.Event().wait((self._free_ns - now_ns) / 1e9)
        self._free_ns = max(self._free_ns, now_ns) + count * 1_000_000_000 // self._rate
