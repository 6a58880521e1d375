"""`topics read NAME` and `topics tail NAME… [-f]` (11 §2) [U-13]. Runs on the main thread.

Records go to stdout, one per line, in the spelling they were written in. A gap is a line of its own, in colour on a
terminal; with `--fail-on-gap` the exit status is 3 then, and whoever follows ends with the first one.
"""

from __future__ import annotations

import argparse
import os
import select
import stat
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from topics.cli import output, remote, units
from topics.cli.interrupted import Interrupted
from topics.cli.usage import UsageError
from topics.cli.verb import Verb
from topics.client.sync import Client
from topics.clock import SystemClock
from topics.errors import TopicsError
from topics.model import CaughtUp, Gap, Record, TopicDeleted, TopicGap, TopicRecord

LAST: Final = 10
GAP_STATUS: Final = 3


class Printer:
    """Records and gaps, as people or programs want them."""

    def __init__(self, *, as_json: bool, tags: bool, named: bool) -> None:
        self._json = as_json
        self._tags = tags
        self._named = named
        self.gaps = 0
        self.last: dict[str, int] = {}

    def show(self, topic: str, found: Record | Gap) -> None:
        """One of them."""
        name = topic if self._named else None
        if isinstance(found, Gap):
            self.gaps += 1
            self.last[topic] = found.gap_to
            if self._json:
                print(output.gap_line(found, topic=name))
            else:
                output.show_gap(found, topic=name)
            return
        self.last[topic] = found.seq
        if self._json:
            print(output.record_line(found, topic=name, tags=self._tags))
        else:
            output.show_record(found, topic=name, tags=self._tags)

    def flush(self) -> None:
        """Whoever reads along sees it now."""
        sys.stdout.flush()

    def at(self) -> str:
        """How far it came."""
        return ", ".join(f"{name} at seq {seq}" for name, seq in self.last.items()) or "nothing was read"

    def note(self, error: TopicsError) -> None:
        """Say of an error how far it came."""
        if self.last:
            error.add_note(self.at())


def _format_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tags", action="store_true", help="show tags")
    parser.add_argument("--format", choices=("table", "jsonl"), help="default: table on a terminal, else jsonl")
    parser.add_argument("--fail-on-gap", action="store_true", help="exit status 3 if records are lost")


def _printer(args: argparse.Namespace, *, named: bool) -> Printer:
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    as_json = args.json or args.format == "jsonl" or (args.format is None and not is_terminal)
    return Printer(as_json=as_json, tags=args.tags, named=named)


def _status(args: argparse.Namespace, printer: Printer) -> int:
    return GAP_STATUS if printer.gaps and args.fail_on_gap else 0


# -- read ------------------------------------------------------------------------------------------------------------


def _read_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="name of the topic")
    start = parser.add_mutually_exclusive_group()
    start.add_argument(
        "--from", type=units.seq, default=0, metavar="SEQ", dest="from_seq", help="records behind this seq"
    )
    start.add_argument("--since", type=units.span_ms, metavar="SPAN", help="records of the last 10m, 1h, …")
    parser.add_argument("--limit", type=units.count, metavar="N", help="records at most; default: all there are")
    parser.add_argument("--node", metavar="NODE", help="leave out records of this node")
    _format_arguments(parser)


def _read(args: argparse.Namespace) -> int:
    printer = _printer(args, named=False)
    from_ts = None if args.since is None else max(SystemClock().now_ms() - args.since, 0)
    with remote.connect(args) as client:
        try:
            found = client.read(args.name, args.from_seq, from_ts=from_ts, node=args.node)
            _show_all(printer, args.name, found, args.limit)
        except KeyboardInterrupt:
            raise Interrupted(printer.at()) from None
        except TopicsError as error:
            printer.note(error)
            raise
    return _status(args, printer)


def _show_all(printer: Printer, name: str, found: Iterable[Record | Gap], limit: int | None) -> None:
    left = limit
    for one in found:
        if left == 0:
            break
        printer.show(name, one)
        if left is not None and isinstance(one, Record):
            left -= 1


# -- tail ------------------------------------------------------------------------------------------------------------


def _tail_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("names", metavar="NAME", nargs="+", help="names of topics")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what is written")
    parser.add_argument(
        "-n", type=units.count, default=LAST, metavar="N", dest="count", help="the last N records; default: 10"
    )
    parser.add_argument("--node", metavar="NODE", help="leave out records of this node")
    _format_arguments(parser)


def _tail(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(args.names))
    if len(names) < len(args.names):
        raise UsageError("a topic is named twice", args.prog)
    printer = _printer(args, named=len(names) > 1)
    with remote.connect(args) as client:
        try:
            starts = {name: _last(client, name, args) for name in names}
            if args.follow:
                _follow(client, printer, starts, args)
            else:
                for name, start in starts.items():
                    _show_all(printer, name, client.read(name, start, node=args.node), None)
        except KeyboardInterrupt:
            raise Interrupted(printer.at()) from None
        except TopicsError as error:
            printer.note(error)
            raise
    return _status(args, printer)


def _last(client: Client, name: str, args: argparse.Namespace) -> int:
    """The cursor in front of the last records that there are; what is gone before them is nobody's question."""
    state = client.state(name)
    floor = max(state.earliest_seq - 1, 0)
    count: int = min(args.count, state.count)
    if not count or (state.count == state.head_seq - floor and args.node is None):
        return state.head_seq - count
    span = count
    while True:
        start = max(state.head_seq - span, floor)
        last = deque((one.seq for one in client.read(name, start, node=args.node) if isinstance(one, Record)), count)
        if len(last) == count:
            return last[0] - 1
        if start == floor:
            return start
        span *= 4


def _follow(client: Client, printer: Printer, starts: dict[str, int], args: argparse.Namespace) -> None:
    with client.watch(starts, node=args.node) as events:
        gone = _reader_gone(events.close)
        for event in events:
            if isinstance(event, (TopicRecord, TopicGap)):
                printer.show(event.topic, event)
                if _status(args, printer):
                    return
            elif isinstance(event, TopicDeleted):
                print(f"topics: {event.topic} was deleted", file=sys.stderr)
            if isinstance(event, CaughtUp):
                printer.flush()
        if gone.is_set():
            raise BrokenPipeError


def _reader_gone(then: Callable[[], None]) -> threading.Event:
    """Set when nobody reads the pipe that is stdout any more: `tail -f | head -1` ends without a further record."""
    gone = threading.Event()

    def wait() -> None:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)  # only that it has ended
        poll.poll()
        gone.set()
        then()

    if sys.stdout is not None and stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode):
        threading.Thread(target=wait, name="topics-stdout", daemon=True).start()
    return gone


read = Verb(_read_arguments, _read)
tail = Verb(_tail_arguments, _tail)
