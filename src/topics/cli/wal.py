"""`topics wal inspect|verify|dump DIR` and `topics wal demo` [U-10, U-13].

The first three look at files and nothing else: they take no lock, change nothing, and may run while the log is
written. DIR is a library log, a data directory or its `wal/`.

    status   inspect, verify             dump                          demo
    0        no fault; a torn tail is    everything was printed, to    every acknowledged
             none                        a torn tail                   record came back
    1        faults, or DIR is no log    damage was passed over        one did not

Under `--json` inspect, verify and demo print one object with `ok`, dump prints one object per line. What a fault
is: `wal_survey`. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
from collections import Counter
from collections.abc import Sequence

from topics.cli.progress import Progress
from topics.cli.wal_survey import Found, Lock, Survey, counted, survey
from topics.fs import OsFs

_DIR_HELP = "a library log, a data directory or its wal/"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    for name, text in (
        ("inspect", "list the segments of a log: sizes, records, how each one ends"),
        ("verify", "check every record of a log; exit status 1 when there are faults, a torn tail is none"),
        ("dump", "print the records of a log; long values are shortened unless --json is given"),
    ):
        action = actions.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        action.add_argument("dir", metavar="DIR", help=_DIR_HELP)
    dump = actions.choices["dump"]
    dump.add_argument(
        "--from", dest="start", metavar="SEG:OFFSET", type=_position, help="start there, as dump prints positions"
    )
    dump.add_argument("--limit", metavar="N", type=_count, help="print at most N records")
    text = "write a log, kill the writer with SIGKILL, recover, and count what was acknowledged"
    demo = actions.add_parser("demo", help=text, description=text[:1].upper() + text[1:] + ".")
    demo.add_argument("--dir", metavar="DIR", help="keep the log in DIR, which must be empty or missing")
    demo.add_argument("--keep", action="store_true", help="leave the temporary directory in place")
    demo.add_argument("--no-tear", dest="tear", action="store_false", help="do not add a half-written record")


def _position(text: str) -> tuple[str, int, int]:
    """`[GROUP/]SEG:OFFSET`."""
    group, _, place = text.rpartition("/")
    segment, colon, offset = place.partition(":")
    if not (colon and _is_number(segment) and _is_number(offset)):
        raise argparse.ArgumentTypeError(f"{text!r} is not SEG:OFFSET")
    return group, int(segment), int(offset)


def _count(text: str) -> int:
    if not _is_number(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of records")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20


def run(args: argparse.Namespace) -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):
        # File names and keys are anyone's bytes; a terminal that lacks a character gets its escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    if args.action == "demo":
        from topics.cli import wal_demo

        return wal_demo.run(args)
    root = args.dir.rstrip("/") or args.dir[:1]
    if args.action == "dump":
        from topics.cli import wal_dump

        return wal_dump.dump(OsFs(), root, args.start, args.limit, as_json=args.json, quiet=args.quiet)
    with Progress(f"{args.action} {root}", silent=args.quiet or args.json) as progress:
        seen = survey(OsFs(), root, values=args.action == "verify", looked=progress.add)
    if args.json:
        print(json.dumps(inspection(seen) if args.action == "inspect" else verification(seen)))
    else:
        show = show_inspection if args.action == "inspect" else show_verification
        show(seen, quiet=args.quiet)
    return 1 if seen.faults else 0


def inspection(seen: Survey) -> dict[str, object]:
    """The report of `inspect`."""
    return {
        "ok": not seen.faults,
        "dir": seen.root,
        "kind": seen.kind,
        "segments": [_row(found) for found in seen.segments],
        "totals": _totals(seen),
        "faults": [fault._asdict() for fault in seen.faults],
        "cuts": [{"name": cut.file, "size_bytes": cut.size} for cut in seen.cuts],
        "locks": [{"name": lock.file, "state": lock.state, "held_by": lock.holder} for lock in seen.locks],
    }


def verification(seen: Survey) -> dict[str, object]:
    """The report of `verify`."""
    totals = _totals(seen)
    return {
        "ok": not seen.faults,
        "dir": seen.root,
        "kind": seen.kind,
        "segments": totals["segments"],
        "records": totals["records"],
        "valid_bytes": totals["valid_bytes"],
        "faults": [fault._asdict() for fault in seen.faults],
        "torn": [
            {"file": found.name, "offset": found.valid_bytes, "bytes": found.bad_bytes, "reason": found.reason}
            for found in _torn(seen)
        ],
        "values_not_checked": seen.unchecked,
    }


def _row(found: Found) -> dict[str, object]:
    row: dict[str, object] = {
        "id": found.id,
        "name": found.name,
        "size_bytes": found.size,
        "valid_bytes": found.valid_bytes,
        "bad_bytes": found.bad_bytes,
        "zero_tail_bytes": found.zero_bytes,
        "records": found.records,
        "verdict": found.verdict,
        "detail": found.reason,
    }
    if found.group.kind == "server":
        row["group"] = found.group.key
        row["frames"] = {} if found.frames is None else found.frames.types
        row["topics"] = [] if found.frames is None else found.frames.topics
        row["run"] = None if found.frames is None else found.frames.run
    return row


def _totals(seen: Survey) -> dict[str, object]:
    totals: dict[str, object] = {
        "segments": len(seen.segments),
        "size_bytes": sum(found.size for found in seen.segments),
        "valid_bytes": sum(found.valid_bytes for found in seen.segments),
        "bad_bytes": sum(found.bad_bytes for found in seen.segments),
        "zero_tail_bytes": sum(found.zero_bytes for found in seen.segments),
        "records": sum(found.records for found in seen.segments),
    }
    if seen.kind != "library":
        frames = [found.frames for found in seen.segments if found.frames is not None]
        totals["frames"] = dict(sum((Counter(frame.types) for frame in frames), Counter()))
        totals["topics"] = len({topic for frame in frames for topic in frame.topics})
    return totals


def _torn(seen: Survey) -> list[Found]:
    return [found for found in seen.segments if found.verdict == "torn"]


def show_inspection(seen: Survey, *, quiet: bool) -> None:
    """The report of `inspect` for people."""
    totals = _totals(seen)
    print(f"{seen.root}: {seen.kind} log, {_size(seen)}")
    if quiet:
        _show_faults(seen)
        return
    head = ["segment", "size", "valid", f"{_unit(seen)}s", "zero tail", "verdict"]
    rows = [_cells(found) for found in seen.segments]
    columns = ("size_bytes", "valid_bytes", "records", "zero_tail_bytes")
    rows.append(["total", *(f"{totals[column]:,}" for column in columns), ""])
    if seen.kind != "library":
        head += ["topics", "types"]
        rows[-1] += [str(totals["topics"]), ""]
    print()
    _show_table(head, rows)
    print()
    for cut in seen.cuts:
        print(f"{cut.file}: {counted(cut.size, 'byte')} that a recovery cut off and kept")
    for lock in seen.locks:
        print(f"{lock.file}: {_lock_text(lock)}")
    for found in _torn(seen):
        print(_torn_text(found))
    _show_faults(seen)


def show_verification(seen: Survey, *, quiet: bool) -> None:
    """The report of `verify` for people."""
    if not quiet:
        print(f"{seen.root}: checked {_size(seen)}")
        for found in _torn(seen):
            print(_torn_text(found))
        if seen.unchecked:
            print(f"{counted(seen.unchecked, 'compressed value')} not checked: pip install 'topics[wal-compress]'")
    _show_faults(seen)
    if not seen.faults and not quiet:
        print("ok")


def _unit(seen: Survey) -> str:
    return "record" if seen.kind == "library" else "frame"


def _size(seen: Survey) -> str:
    records = sum(found.records for found in seen.segments)
    return f"{counted(records, _unit(seen))} in {counted(len(seen.segments), 'segment')}"


def _cells(found: Found) -> list[str]:
    numbers = (found.size, found.valid_bytes, found.records, found.zero_bytes)
    cells = [found.name, *(f"{number:,}" for number in numbers), found.verdict]
    if found.frames is not None:
        types = ", ".join(f"{name} {count:,}" for name, count in found.frames.types.items())
        cells += [_some(found.frames.topics), types]
    return cells


def _some(topics: Sequence[int]) -> str:
    if len(topics) > 6:
        return f"{len(topics):,} from {topics[0]} to {topics[-1]}"
    return " ".join(map(str, topics)) or "-"


_LEFT = frozenset(("segment", "verdict", "topics", "types"))


def _show_table(head: list[str], rows: list[list[str]]) -> None:
    """Columns as wide as their widest cell; names to the left, numbers to the right."""
    table = [head, *(row + [""] * (len(head) - len(row)) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (
            cell.ljust(width) if name in _LEFT else cell.rjust(width)
            for cell, width, name in zip(row, widths, head, strict=True)
        )
        print("  ".join(cells).rstrip())


def _lock_text(lock: Lock) -> str:
    if lock.holder is not None:
        return f"held by process {lock.holder}"
    known = {"open": "open, or its process died before closing", "closed": "closed in order"}
    return known.get(lock.state, lock.state)


def _torn_text(found: Found) -> str:
    return (
        f"{found.name}: torn tail of {counted(found.bad_bytes, 'byte')} at {found.valid_bytes} ({found.reason}); "
        "opening the log cuts it"
    )


def _show_faults(seen: Survey) -> None:
    for fault in seen.faults:
        place = "" if fault.offset is None else f" at {fault.offset}"
        print(f"FAULT {fault.kind}: {fault.file}{place}: {fault.reason}")
    if seen.faults:
        print(counted(len(seen.faults), "fault"))
