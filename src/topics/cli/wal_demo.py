"""`topics wal demo`: a writer is killed in the middle of its work, and every record it acknowledged comes back.

    parent                                            child: python -m topics.cli.wal_demo DIR
    starts the child, collects its acknowledgements   threads append under `always`, print each key
    kills it with SIGKILL                              when `append` has returned
    adds half a record behind the last one            -
    opens the log, reads it, compares

The half record stands for what a power cut leaves of a write: the kill alone does not tear, because the operating
system has the bytes of every finished call. The parent runs on its main thread.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import topics
from topics.cli.wal_survey import NotALog, counted, survey
from topics.clock import SystemClock
from topics.errors import CallerError, TopicsError, WalError
from topics.fs import OsFs, pwrite_all
from topics.wal import FsyncPolicy, Position, Record, RecoveryInfo, Wal, WalConfig

WRITERS = 4
ACKS = 20_000
"""Ends the storm on a very fast disk; elsewhere time does."""
STORM_MS = 1000
START_MS = 60_000
"""A loaded machine may take long to start Python."""
RECORDS_MAX = 50_000
"""Per writer; never reached unless the kill fails."""


class DemoFailed(TopicsError):
    """The demonstration did not get to its end."""

    code = "demo_failed"


class Storm(NamedTuple):
    """What the writer told before it was killed."""

    pid: int
    acked: list[bytes]
    elapsed_ms: float


class Proof(NamedTuple):
    """What is in the log, against what was acknowledged."""

    acknowledged: int
    found: int
    missing: list[bytes]
    wrong: list[bytes]
    """Not the bytes that were written, twice there, or out of order."""


class Outcome(NamedTuple):
    """Everything that happened."""

    storm: Storm
    torn: int
    info: RecoveryInfo
    proof: Proof

    @property
    def holds(self) -> bool:
        """All acknowledged records are there, the half record was cut, and nothing durable was found damaged."""
        proof = self.proof
        return not (proof.missing or proof.wrong or self.info.holes) and self.info.bytes_truncated >= self.torn


def run(args: argparse.Namespace) -> int:
    """Carry it out and tell; 0 only if everything acknowledged came back."""
    say = _say_nothing if args.json or args.quiet else _say
    with ExitStack() as cleanup:
        temporary = args.dir is None
        dir = tempfile.mkdtemp(prefix="topics-wal-demo-") if temporary else _given(args.dir)
        if temporary and not args.keep:
            cleanup.callback(shutil.rmtree, dir, ignore_errors=True)
        try:
            outcome = _carry_out(dir, args.tear, say)
        except WalError as error:
            cleanup.pop_all()
            raise DemoFailed(f"recovery failed: {error}; the log is kept in {dir}") from error
        if not outcome.holds:
            # It is evidence now.
            cleanup.pop_all()
        kept = not temporary or args.keep or not outcome.holds
        if args.json:
            print(json.dumps(_report(dir, kept, outcome)))
        else:
            _conclude(dir, outcome)
            _look(dir, kept, say)
    return 0 if outcome.holds else 1


def _say(text: str) -> None:
    # At once: whoever watches should see the steps happen, also through a pipe.
    print(text, flush=True)


def _say_nothing(text: str) -> None:
    return None


def _carry_out(dir: str, tear: bool, say: Callable[[str], None]) -> Outcome:
    say(f"Another process appends to a log in {dir} with {WRITERS} threads.")
    say("`append` returns when the record is on the medium; only then is it acknowledged.\n")
    storm = _storm(dir)
    say(
        f"- killed process {storm.pid} with SIGKILL after {storm.elapsed_ms / 1e3:.1f} s of writing: "
        f"{counted(len(storm.acked), 'record')} acknowledged"
    )
    torn = _tear(dir) if tear else 0
    if torn:
        say(f"- added {counted(torn, 'byte')} of a half-written record, as a power cut may leave it")
    wal, info = Wal.open(_config(dir))
    with wal:
        proof = _prove(wal, storm.acked)
    say(
        f"- opened the log again: {counted(info.valid_records, 'record')} in "
        f"{counted(info.segments_scanned, 'segment')}, {counted(info.bytes_truncated, 'torn byte')} cut off, "
        f"{counted(info.prealloc_bytes_trimmed, 'reserved byte')} given back, {info.elapsed_ms:.0f} ms\n"
    )
    return Outcome(storm, torn, info, proof)


def _given(dir: str) -> str:
    """The directory asked for; a log that is already there is not ours to tear."""
    fs = OsFs()
    try:
        if fs.exists(dir) and fs.listdir(dir):
            raise CallerError(f"{dir} is not empty, and the demo tears what it writes: name another directory")
    except NotADirectoryError as error:
        raise NotALog(f"{dir} is not a directory") from error
    return dir


def _config(dir: str) -> WalConfig:
    return WalConfig(dir=dir, max_segment_size=4 << 20, fsync_policy=FsyncPolicy.always())


def _value(key: bytes) -> bytes:
    """What a key's record holds, so that the reader can tell right from wrong."""
    return key * (20 + sum(key) % 200)


def _storm(dir: str) -> Storm:
    """Start the writer, collect acknowledgements, kill it in mid-work."""
    source = os.path.dirname(os.path.dirname(os.path.abspath(topics.__file__)))
    path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "topics.cli.wal_demo", dir],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    try:
        assert process.stdout is not None
        told, elapsed_ms = _collect(process.stdout.fileno())
    finally:
        process.kill()
        # What it had told before the kill is still in the pipe, and counts.
        rest, complaint = process.communicate()
    if process.returncode != -signal.SIGKILL:
        words = complaint.decode("utf-8", "replace").strip().splitlines()
        raise DemoFailed(f"the writer ended by itself: {words[-1] if words else process.returncode}")
    acked = (told + rest).split(b"\n")[:-1]
    if not acked:
        raise DemoFailed(f"the writer acknowledged nothing within {START_MS // 1000} s")
    return Storm(process.pid, acked, elapsed_ms)


def _collect(pipe: int) -> tuple[bytes, float]:
    """Bytes told until there are enough or time is up, and for how long the writer had been telling."""
    clock = SystemClock()
    told = bytearray()
    began = clock.monotonic_ns()
    deadline = began + START_MS * 1_000_000
    acks = 0
    while acks < ACKS:
        left_s = (deadline - clock.monotonic_ns()) / 1e9
        if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
            break
        part = os.read(pipe, 65536)
        if not part:
            break
        if not told:
            began = clock.monotonic_ns()
            deadline = began + STORM_MS * 1_000_000
        told += part
        acks += part.count(b"\n")
    return bytes(told), (clock.monotonic_ns() - began) / 1e6


def _tear(dir: str) -> int:
    """Put the first half of a record behind the last one; how many bytes."""
    fs = OsFs()
    found = next(found for found in reversed(survey(fs, dir).segments) if found.verdict != "prepared")
    encoded = Record.put(b"half-written", _value(b"half-written")).encode()
    half = encoded[: len(encoded) // 2]
    file = fs.open(found.group.path(found.id), "rw")
    try:
        pwrite_all(file, half, found.valid_bytes)
        file.fsync()
    finally:
        file.close()
    return len(half)


def _prove(wal: Wal, acked: Sequence[bytes]) -> Proof:
    """Read the whole log and compare it with what was acknowledged."""
    found: Counter[bytes] = Counter()
    wrong = []
    expected: Counter[bytes] = Counter()
    for record, _ in wal.read_from(Position(wal.segments()[0].id, 0)):
        writer = record.key.partition(b"/")[0]
        in_order = record.key == _key(writer, expected[writer])
        expected[writer] += 1
        found[record.key] += 1
        if not in_order or found[record.key] > 1 or record.value != _value(record.key):
            wrong.append(record.key)
    missing = [key for key in acked if key not in found]
    return Proof(len(acked), found.total(), missing, wrong)


def _key(writer: bytes, number: int) -> bytes:
    return b"%b/%06d" % (writer, number)


def _conclude(dir: str, outcome: Outcome) -> None:
    proof = outcome.proof
    back = proof.acknowledged - len(proof.missing)
    print(f"{back:,} of {counted(proof.acknowledged, 'acknowledged record')} came back. ", end="")
    if outcome.holds:
        print("Nothing that was acknowledged is lost.")
    else:
        wrong = f"{len(proof.missing)} missing, {len(proof.wrong)} wrong, {outcome.info.bytes_truncated} bytes cut"
        print(f"This must not happen ({wrong}). The log is kept in {dir}.")
    if proof.found > back:
        print(f"{counted(proof.found - back, 'more record')} had been written and not yet acknowledged.")


def _look(dir: str, kept: bool, say: Callable[[str], None]) -> None:
    """Show how to look at the log, and do it while it is there."""
    if say is _say_nothing:
        return
    from topics.cli import wal

    say(f"\n$ topics wal inspect {dir}")
    wal.show_inspection(survey(OsFs(), dir), quiet=False)
    if not kept:
        say("\nThe directory is removed now; `topics wal demo --keep` leaves it to look at.")


def _report(dir: str, kept: bool, outcome: Outcome) -> dict[str, object]:
    info, proof = outcome.info, outcome.proof
    return {
        "ok": outcome.holds,
        "dir": dir,
        "kept": kept,
        "acknowledged": proof.acknowledged,
        "found": proof.found,
        "missing": len(proof.missing),
        "wrong": len(proof.wrong),
        "writing_ms": round(outcome.storm.elapsed_ms, 1),
        "torn_bytes_added": outcome.torn,
        "recovery": {**info._asdict(), "holes": [hole._asdict() for hole in info.holes]},
    }


def write(dir: str) -> None:
    """The child: append for ever, and tell each key when it is durable."""
    wal, _ = Wal.open(_config(dir))
    threads = [threading.Thread(target=_append, args=(wal, b"writer-%d" % number)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _append(wal: Wal, writer: bytes) -> None:
    try:
        for number in range(RECORDS_MAX):
            key = _key(writer, number)
            wal.append(Record.put(key, _value(key)))
            # Short enough for a pipe to take it whole or not at all.
            os.write(1, key + b"\n")
    except (OSError, TopicsError) as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    write(sys.argv[1])
