"""`topics doctor [DATA_DIR]`: is every file of a store what it should be, and if not, what to do [U-10, U-13].

It looks at every file, frame, index and snapshot, takes no lock and changes nothing. In a store that is in use, what
an engine does all the time is only noted. `--salvage` is the explicit way on for a store whose log is damaged: it takes
the lock, copies every file it changes, and needs the store to be stopped [S-66].

    status   doctor                                  doctor --salvage
    0        no error; warnings and notes are none   the store opens, and is examined without an error
    1        errors, or DATA_DIR is no store         it cannot be mended, or errors are left

What is an error, a warning, a note: `topics.storage.findings`. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from topics import paths, settings
from topics.cli.progress import Progress
from topics.cli.wal_survey import counted, holder, read_whole
from topics.fs import Fs, OsFs
from topics.storage.findings import Area, Finding
from topics.storage.inspect import Report, inspect
from topics.storage.salvage import Plan, plan_salvage

if TYPE_CHECKING:
    from topics.engine.salvage import Outcome

TOPICS_SHOWN = 20
"""Rows of topics without a finding; the rest is one line."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("dir", metavar="DATA_DIR", nargs="?", help="the store; default: TOPICS_DATA_DIR")
    parser.add_argument("--cold", metavar="DIR", help="cold tier, folder or URL, if it is not where the snapshot says")
    parser.add_argument(
        "--salvage", action="store_true", help="mend a damaged log: copies first, tells readers what is lost"
    )
    parser.add_argument("--dry-run", action="store_true", help="with --salvage: only say what would be changed")


def run(args: argparse.Namespace) -> int:
    fs = OsFs()
    path = args.dir if args.dir is not None else settings.from_env().settings.data_dir
    if args.salvage:
        return _salvage(fs, path, args)
    report = _examine(fs, path, args)
    if args.json:
        print(json.dumps(report_object(report)))
    else:
        show_report(report, quiet=args.quiet)
    return 0 if report.ok else 1


def _examine(fs: Fs, path: str, args: argparse.Namespace) -> Report:
    with Progress("examining", silent=args.json or args.quiet) as progress:
        return inspect(fs, path, in_use=is_in_use(fs, path), cold=args.cold, looked=progress.add)


def is_in_use(fs: Fs, path: str) -> bool:
    """Whether a process has the store open, as far as that can be told without touching its lock."""
    lock = f"{path}/{paths.LOCK_FILE}"
    if os.path.exists("/proc/locks"):
        return holder(fs, lock) is not None
    try:
        first = read_whole(fs, lock).decode("ascii", "replace").partition("\n")[0]
    except OSError:
        return False
    return _is_running(first.removeprefix("pid="))


def _is_running(pid: str) -> bool:
    if not (pid.isascii() and pid.isdigit() and len(pid) < 10):
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _salvage(fs: Fs, path: str, args: argparse.Namespace) -> int:
    inspect(fs, path, in_use=True)  # refuses what is no store, before a lock file is made in it
    if args.dry_run:
        plan = plan_salvage(fs, path)
        _tell_plan(plan, args)
        return 0
    from topics.engine.salvage import salvage

    loaded = settings.from_env().settings
    config = replace(loaded, cold_dir=args.cold or loaded.cold_dir)
    with Progress("salvaging", silent=args.json or args.quiet) as progress:
        outcome = salvage(fs, path, config=config, looked=progress.add)
    report = _examine(fs, path, args)
    if args.json:
        done = plan_object(outcome.plan) | {
            "copies": list(outcome.done.copies),
            "padded_bytes": outcome.done.padded,
            "gaps": [gap._asdict() for gap in outcome.lost.gaps],
            "skipped_topics": {str(id): frames for id, frames in outcome.lost.skipped.items()},
        }
        print(json.dumps({"ok": report.ok, "dir": path, "salvage": done, "report": report_object(report)}))
    else:
        show_salvage(outcome)
        show_report(report, quiet=args.quiet)
    return 0 if report.ok else 1


def _tell_plan(plan: Plan, args: argparse.Namespace) -> None:
    if args.json:
        print(json.dumps({"ok": True, "dir": plan.path, "dry_run": True, "salvage": plan_object(plan)}))
    elif plan.is_empty:
        print(f"{plan.path}: nothing in the log needs to be salvaged")
    else:
        print(f"{plan.path}: would be changed, after a copy of each file:")
        _show_plan(plan)


def report_object(report: Report) -> dict[str, object]:
    """The report under `--json`."""
    findings = report.findings
    counts = {f"{name}s": sum(one.severity == name for one in findings) for name in ("note", "warning", "error")}
    return {
        "ok": report.ok,
        "dir": report.path,
        "store": report.store,
        "in_use": report.in_use,
        "snapshot": report.snapshot,
        "clean": report.clean,
        "topics": report.topics,
        "areas": [_area_object(area) for area in report.areas],
        "totals": {
            "files": sum(area.files for area in report.areas),
            "bytes": sum(area.bytes for area in report.areas),
            "records": sum(area.records for area in _topic_areas(report)),
            **counts,
        },
        "findings": [{**one._asdict(), "means": one.means, "do": one.do} for one in findings],
    }


def _area_object(area: Area) -> dict[str, object]:
    row: dict[str, object] = {name: getattr(area, name) for name in ("name", "files", "bytes", "records", "verdict")}
    return row | ({"topic": area.label} if area.label else {})


def plan_object(plan: Plan) -> dict[str, object]:
    """What salvage changes, under `--json`."""
    return {
        "files": [
            {
                "file": os.path.relpath(patch.path, plan.path),
                "reason": patch.why,
                "ranges": [list(span) for span in patch.spans],
                "cut_at": patch.cut,
            }
            for patch in plan.patches
        ],
        "pointers": [
            {"file": f"{os.path.relpath(one.dir, plan.path)}/{paths.CURRENT_FILE}", "named": paths.wal_file(one.named)}
            for one in plan.pointers
        ],
    }


def _topic_areas(report: Report) -> list[Area]:
    return [area for area in report.areas if area.label]


def show_report(report: Report, *, quiet: bool) -> None:
    """The report for people."""
    if not quiet:
        print(f"{report.path}: {_headline(report)}")
        print()
        _show_table(report)
        print()
    for one in report.findings:
        if not quiet or one.severity == "error":
            _show_finding(one)
    print(_conclusion(report.findings))


def _headline(report: Report) -> str:
    parts = [f"store {report.store or 'without an id'}", counted(report.topics, "topic")]
    parts.append("no snapshot" if report.snapshot is None else f"snapshot {report.snapshot}")
    if report.in_use:
        parts.append("in use")
    elif report.clean and not any(one.code == "not_closed" for one in report.findings):
        parts.append("closed in order")
    return ", ".join(parts)


_UNITS = {"lock": "", paths.META_DIR: "topic", paths.WAL_DIR: "frame", paths.TOPICS_DIR: "record"}


def _show_table(report: Report) -> None:
    rows = [["area", "files", "bytes", "holds", "verdict"]]
    hidden: list[Area] = []
    shown = 0
    for area in report.areas:
        plain = bool(area.label) and area.verdict == "ok"
        if plain and shown >= TOPICS_SHOWN:
            hidden.append(area)
            continue
        shown += plain
        rows.append(_cells(f"{area.name} {_printable(area.label)}".rstrip(), area.name, [area], area.verdict))
    if hidden:
        rows.append(_cells(f"{counted(len(hidden), 'more topic')}", paths.TOPICS_DIR, hidden, "ok"))
    rows.append(_cells("total", "", report.areas, ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        name, *numbers, verdict = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([row[0].ljust(len(name)), *numbers, verdict.strip()]).rstrip())


def _cells(text: str, name: str, areas: Sequence[Area], verdict: str) -> list[str]:
    unit = _UNITS.get(name.partition("/")[0], "")
    records = counted(sum(area.records for area in areas), unit) if unit else ""
    return [text, f"{sum(area.files for area in areas):,}", f"{sum(area.bytes for area in areas):,}", records, verdict]


def _show_finding(one: Finding) -> None:
    what = f": {one.what}" if one.what else ""
    print(f"{one.severity.upper()} {one.code}: {_printable(one.where)}{_printable(what)}")
    print(f"    {one.means}; to do: {one.do}")


def _conclusion(findings: Iterable[Finding]) -> str:
    counts = [(name, sum(one.severity == name for one in findings)) for name in ("error", "warning", "note")]
    told = ", ".join(counted(count, name) for name, count in counts if count)
    return told if counts[0][1] else f"ok ({told})" if told else "ok"


def show_salvage(outcome: Outcome) -> None:
    """What was changed and what is lost, for people."""
    plan, done, lost = outcome
    if plan.is_empty:
        print(f"{plan.path}: nothing in the log had to be mended")
    else:
        print(f"{plan.path}: mended, {counted(done.padded, 'byte')} given up")
        _show_plan(plan)
        for copy in done.copies:
            print(f"  kept: {_printable(os.path.relpath(copy, plan.path))}")
        print("Deletes and configurations in these ranges may be missing.")
    for gap in lost.gaps:
        seqs = f"seq {gap.first}" if gap.first == gap.last else f"seqs {gap.first} to {gap.last}"
        print(f"  {_printable(gap.topic)}: {seqs} lost{', told to readers' if gap.reason else ''}")
    for id, frames in lost.skipped.items():
        print(f"  topic {id}: {counted(frames, 'frame')} skipped, because its creation was lost")
    print()


def _show_plan(plan: Plan) -> None:
    for patch in plan.patches:
        ranges = ", ".join(f"{span.start}..{span.end}" for span in patch.spans)
        cut = f"cut at {patch.cut}" if patch.cut is not None else ""
        what = ", ".join(part for part in (f"bytes {ranges}" if ranges else "", cut) if part)
        print(f"  {os.path.relpath(patch.path, plan.path)}: {patch.why}; {what}")
    for one in plan.pointers:
        named = f"{paths.wal_file(one.named)}, which is lost with what it held"
        print(f"  {os.path.relpath(one.dir, plan.path)}/{paths.CURRENT_FILE}: names {named}")


def _printable(text: str) -> str:
    """File names are anyone's bytes: what would steer a terminal is shown, not sent."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)
