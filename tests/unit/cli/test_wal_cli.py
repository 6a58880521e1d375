"""`topics wal`: what it finds, what it prints, and that it only looks [U-10, U-13]."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from topics import paths
from topics.cli import main as cli
from topics.cli import wal_demo, wal_survey
from topics.codec import control, frame
from topics.codec.scan import FileInfo
from topics.errors import CrcMismatch
from topics.fs import File, OsFs
from topics.wal import FsyncPolicy, Record, Wal, WalConfig
from topics.wal import record as record_module
from topics.wal.log import open_checked

Mutate = Callable[[Path], object]
TS = 1700000000001


class Result:
    """One run of the program."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


@pytest.fixture
def topics(capsys: pytest.CaptureFixture[str]) -> Callable[..., Result]:
    def run(*words: object) -> Result:
        status = cli.main(["wal", *map(str, words)])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


def records(count: int) -> list[Record]:
    return [Record.put(b"key-%03d" % n, b"number: %03d" % n) for n in range(count)]


def library(dir: Path, *, count: int = 30, size: int = 225) -> Path:
    """A closed log; nine records of 25 bytes fit a segment."""
    config = WalConfig(dir=str(dir), max_segment_size=size, fsync_policy=FsyncPolicy.os(), preallocate=False)
    wal, _ = open_checked(config)
    with wal:
        for record in records(count):
            wal.append(record)
    return dir


SEGMENTS = ("000000.wal", "000001.wal", "000002.wal", "000003.wal")


def flip(name: str, offset: int) -> Mutate:
    def change(dir: Path) -> None:
        data = bytearray((dir / name).read_bytes())
        data[offset] ^= 0xFF
        (dir / name).write_bytes(data)

    return change


def append(name: str, data: bytes) -> Mutate:
    def change(dir: Path) -> None:
        with (dir / name).open("ab") as file:
            file.write(data)

    return change


def resize(name: str, change_by: int) -> Mutate:
    def change(dir: Path) -> None:
        os.truncate(dir / name, (dir / name).stat().st_size + change_by)

    return change


def remove(*names: str) -> Mutate:
    def change(dir: Path) -> None:
        for name in names:
            (dir / name).unlink()

    return change


def several(*changes: Mutate) -> Mutate:
    def change(dir: Path) -> None:
        for one in changes:
            one(dir)

    return change


def put(name: str, data: bytes) -> Mutate:
    return lambda dir: (dir / name).write_bytes(data)


def from_the_future() -> bytes:
    raw = bytearray(Record.put(b"k", b"v").encode()[:-4])
    raw[2] |= 0x40
    return bytes(raw) + record_module._pack_crc(record_module.crc32c(bytes(raw)))


def nothing(dir: Path) -> None:
    return None


def test_the_library_log_of_these_tests_is_what_they_take_it_for(tmp_path: Path) -> None:
    dir = library(tmp_path / "log")
    sizes = {name: (dir / name).stat().st_size for name in sorted(os.listdir(dir))}
    assert sizes == {"000000.wal": 225, "000001.wal": 225, "000002.wal": 225, "000003.wal": 75, "LOCK": 13}


# What was done to the log · faults as (file, offset, kind) · torn tails as (file, offset, bytes)
LIBRARY_CASES: dict[str, tuple[Mutate, list[tuple[str, int | None, str]], list[tuple[str, int, int]]]] = {
    "clean": (nothing, [], []),
    "zero tail in the last": (resize("000003.wal", 4096), [], []),
    "zero tail before the last": (resize("000001.wal", 4096), [], []),
    "prepared segment behind": (put("000004.wal", bytes(100)), [], []),
    "empty segment behind a missing one": (put("000009.wal", b""), [], []),
    "first segments deleted": (remove("000000.wal", "000001.wal"), [], []),
    "foreign files": (several(put("notes.txt", b"x"), put("1.wal", b"x")), [], []),
    "torn: record cut short": (resize("000003.wal", -5), [], [("000003.wal", 50, 20)]),
    "torn: half a record behind": (append("000003.wal", records(1)[0].encode()[:9]), [], [("000003.wal", 75, 9)]),
    "torn: bad last record": (flip("000003.wal", 74), [], [("000003.wal", 50, 25)]),
    "inner record bad": (flip("000001.wal", 30), [("000001.wal", 25, "corrupt")], []),
    "inner segment cut short": (resize("000000.wal", -1), [("000000.wal", 200, "corrupt")], []),
    "bad record in the last, a good one behind": (flip("000003.wal", 30), [("000003.wal", 25, "corrupt")], []),
    "missing": (remove("000001.wal"), [("000001.wal", None, "missing")], []),
    "two missing": (remove("000001.wal", "000002.wal"), [("000001.wal", None, "missing")], []),
    "unknown flags": (append("000003.wal", from_the_future()), [("000003.wal", 75, "format")], []),
    "unknown flags before the last": (append("000000.wal", from_the_future()), [("000000.wal", 225, "format")], []),
    "damage in two segments and a torn tail": (
        several(flip("000000.wal", 30), flip("000002.wal", 30), resize("000003.wal", -1)),
        [("000000.wal", 25, "corrupt"), ("000002.wal", 25, "corrupt")],
        [("000003.wal", 50, 24)],
    ),
}


@pytest.mark.parametrize("case", LIBRARY_CASES)
def test_faults_of_a_library_log_are_named_and_torn_tails_are_none(
    case: str, tmp_path: Path, topics: Callable[..., Result]
) -> None:
    mutate, faults, torn = LIBRARY_CASES[case]
    dir = library(tmp_path / "log")
    mutate(dir)
    for action in ("verify", "inspect"):
        result = topics(action, dir, "--json")
        report = result.json
        assert [(f["file"], f["offset"], f["kind"]) for f in report["faults"]] == faults
        assert all(f["reason"] for f in report["faults"])
        assert report["ok"] is (not faults)
        assert result.status == (1 if faults else 0)
        assert result.err == ""
        if action == "verify":
            assert [(t["file"], t["offset"], t["bytes"]) for t in report["torn"]] == torn
        text = topics(action, dir)
        assert text.status == result.status
        assert all(f"{kind}: {file}" in text.out for file, _, kind in faults)
        assert text.out.count("torn tail") == len(torn)
        assert (text.out.splitlines()[-1] == "ok") is (action == "verify" and not faults)


def test_inspect_reports_every_segment_and_totals(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = library(tmp_path / "log")
    resize("000003.wal", 100)(dir)
    append("000003.wal", b"\x05")(dir)
    resize("000003.wal", 50)(dir)
    (dir / "000004.wal").write_bytes(bytes(64))
    (dir / "000002.wal.cut").write_bytes(b"abc")
    report = topics("inspect", f"{dir}/", "--json").json
    assert report.keys() == {"ok", "dir", "kind", "segments", "totals", "faults", "cuts", "locks"}
    assert (report["ok"], report["dir"], report["kind"]) == (True, str(dir), "library")
    assert report["segments"][3] == {
        "id": 3,
        "name": "000003.wal",
        "size_bytes": 226,
        "valid_bytes": 75,
        "bad_bytes": 101,
        "zero_tail_bytes": 50,
        "records": 3,
        "verdict": "torn",
        "detail": report["segments"][3]["detail"],
    }
    assert [(row["id"], row["records"], row["verdict"]) for row in report["segments"]] == [
        (0, 9, "clean"),
        (1, 9, "clean"),
        (2, 9, "clean"),
        (3, 3, "torn"),
        (4, 0, "prepared"),
    ]
    assert report["totals"] == {
        "segments": 5,
        "size_bytes": 3 * 225 + 226 + 64,
        "valid_bytes": 3 * 225 + 75,
        "bad_bytes": 101,
        "zero_tail_bytes": 50 + 64,
        "records": 30,
    }
    assert report["cuts"] == [{"name": "000002.wal.cut", "size_bytes": 3}]
    assert report["locks"] == [{"name": "LOCK", "state": "closed", "held_by": None}]
    text = topics("inspect", dir).out
    for part in (*SEGMENTS, "prepared", "torn", "000002.wal.cut: 3 bytes", "LOCK: closed in order", "total"):
        assert part in text
    assert len(topics("inspect", dir, "--quiet").out.splitlines()) == 1
    assert topics("verify", dir, "--quiet").out == ""


@pytest.mark.parametrize("action", ["inspect", "verify", "dump"])
@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda dir: None, "does not exist"),
        (lambda dir: dir.mkdir(), "is empty"),
        (lambda dir: dir.write_text("x"), "is not a directory"),
        (lambda dir: [dir.mkdir(), (dir / "notes.txt").touch(), (dir / "LOCK").touch()], "holds no log"),
        (lambda dir: [(dir / "wal" / "shard-00").mkdir(parents=True), (dir / "meta").mkdir()], "holds no log"),
        (lambda dir: [dir.mkdir(), (dir / "wal").touch()], "is not a directory"),
    ],
)
def test_what_is_no_log_is_one_clear_line_and_status_1(
    action: str, make: Callable[[Path], object], words: str, tmp_path: Path, topics: Callable[..., Result]
) -> None:
    dir = tmp_path / "nolog"
    make(dir)
    result = topics(action, dir)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"topics: not_a_log: {dir}")
    assert words in result.err
    assert result.err.count("\n") == 1
    result = topics(action, dir, "--json")
    assert (result.status, result.out) == (1, "")
    assert json.loads(result.err)["error"]["code"] == "not_a_log"


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["nope"],
        ["inspect"],
        ["dump", "x", "--limit", "-1"],
        ["dump", "x", "--limit", "many"],
        ["dump", "x", "--from", "3"],
    ],
)
def test_wrong_usage_is_status_2(words: list[str], topics: Callable[..., Result]) -> None:
    result = topics(*words)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)


def snapshot(dir: Path) -> dict[str, tuple[bytes, int, int]]:
    return {
        str(path): (path.read_bytes() if path.is_file() else b"", path.stat().st_mtime_ns, path.stat().st_mode)
        for path in [dir, *sorted(dir.rglob("*"))]
    }


class ReadingFs(OsFs):
    """The real disk, refusing everything but reading."""

    def open(self, path: str, mode: Any) -> File:
        assert mode == "r", f"{path} opened for {mode}"
        return super().open(path, mode)

    def _refuse(self, *_: object) -> Any:
        raise AssertionError("a read-only command wrote")

    rename = remove = rmdir = sync_dir = makedirs = lock = map = _refuse  # type: ignore[assignment]


@pytest.mark.parametrize("action", [["inspect"], ["verify"], ["dump"], ["dump", "--json"]])
def test_looking_changes_nothing_and_works_while_the_log_is_open(
    action: list[str], tmp_path: Path, topics: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.cli.wal.OsFs", ReadingFs)
    dir = tmp_path / "log"
    wal, _ = Wal.open(WalConfig(dir=str(dir), max_segment_size=1 << 20, fsync_policy=FsyncPolicy.always()))
    with wal:
        wal.append_batch(records(5))
        (dir / "000000.wal.cut").write_bytes(b"x")
        before = snapshot(dir)
        result = topics(action[0], dir, *action[1:])
        assert (result.status, result.err) == (0, "")
        assert snapshot(dir) == before
        wal.append(records(1)[0])
    assert topics("verify", dir, "--json").json["records"] == 6


def test_the_holder_of_the_lock_is_told_where_the_system_tells(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = tmp_path / "log"
    wal, _ = Wal.open(WalConfig(dir=str(dir), max_segment_size=1 << 20))
    with wal:
        wal.append(records(1)[0])
        lock = topics("inspect", dir, "--json").json["locks"][0]
        assert lock["state"] == "open"
        assert lock["held_by"] in (os.getpid(), None)
        assert "LOCK: " in topics("inspect", dir).out


def test_the_table_of_locks_is_read_right(tmp_path: Path) -> None:
    path = tmp_path / "LOCK"
    path.touch()
    stat = path.stat()
    place = f"{os.major(stat.st_dev):02x}:{os.minor(stat.st_dev):02x}:{stat.st_ino}"
    table = tmp_path / "locks"
    table.write_text(
        f"1: POSIX  ADVISORY  WRITE 11 {place} 0 EOF\n"
        "2: FLOCK  ADVISORY  WRITE 12 00:00:1 0 EOF\n"
        f"3: FLOCK  ADVISORY  WRITE 13 {place} 0 EOF\n"
        f"3: -> FLOCK  ADVISORY  WRITE 14 {place} 0 EOF\n"
    )

    class Tables(OsFs):
        def open(self, path: str, mode: Any) -> File:
            return super().open(str(table) if path == "/proc/locks" else path, mode)

    assert wal_survey.holder(Tables(), str(path)) == 13
    table.write_text("")
    assert wal_survey.holder(Tables(), str(path)) is None
    table.unlink()
    assert wal_survey.holder(Tables(), str(path)) is None


class ChangingFs(OsFs):
    """The real disk; `before_open` may change it under the reader."""

    def __init__(self, before_open: Callable[[str, int], None]) -> None:
        super().__init__()
        self.before_open = before_open
        self.opens = 0

    def open(self, path: str, mode: Any) -> File:
        self.opens += 1
        self.before_open(path, self.opens)
        return super().open(path, mode)


def test_segments_deleted_from_the_front_meanwhile_are_no_fault(tmp_path: Path) -> None:
    dir = library(tmp_path / "log")

    def delete(path: str, opens: int) -> None:
        if path.endswith("000001.wal"):
            (dir / "000000.wal").unlink(missing_ok=True)
            (dir / "000001.wal").unlink(missing_ok=True)

    seen = wal_survey.survey(ChangingFs(delete), str(dir))
    assert ([found.id for found in seen.segments], seen.faults) == ([0, 2, 3], ())


def test_all_segments_gone_meanwhile_is_no_log(tmp_path: Path) -> None:
    dir = library(tmp_path / "log")

    def delete(path: str, opens: int) -> None:
        for name in SEGMENTS:
            (dir / name).unlink(missing_ok=True)

    with pytest.raises(wal_survey.NotALog):
        wal_survey.survey(ChangingFs(delete), str(dir))


@pytest.mark.parametrize(("at", "bad"), [(30, b"\xff" * 10), (25, bytes(25)), (60, b"")])
def test_a_bad_end_is_believed_only_when_a_second_reading_shows_it(at: int, bad: bytes, tmp_path: Path) -> None:
    """A pread may overlap a write: the same place reads well a moment later."""
    dir = library(tmp_path / "log")
    path = dir / "000003.wal"
    good = path.read_bytes()
    mixed = good[:at] + (bad + good[at + len(bad) :] if bad else b"")
    readings = iter([mixed, mixed, good, good])  # the first is the search for the last segment with content

    def rewrite(name: str, opens: int) -> None:
        if name == str(path):
            path.write_bytes(next(readings))

    seen = wal_survey.survey(ChangingFs(rewrite), str(dir))
    assert (seen.faults, seen.segments[3].verdict, seen.segments[3].records) == ((), "clean", 3)


def test_a_file_that_shrinks_while_it_is_read_is_read_to_where_it_ends(tmp_path: Path) -> None:
    dir = library(tmp_path / "log")

    class Sized:
        def __init__(self, file: File) -> None:
            self._file = file

        def size(self) -> int:
            return self._file.size() + 1000

        def __getattr__(self, name: str) -> Any:
            return getattr(self._file, name)

    class Longer(OsFs):
        def open(self, path: str, mode: Any) -> File:
            return Sized(super().open(path, mode))

    seen = wal_survey.survey(Longer(), str(dir))
    assert [(found.size, found.verdict) for found in seen.segments][3] == (75, "clean")


def test_a_segment_that_cannot_be_read_is_a_fault_and_the_others_are_looked_at(
    tmp_path: Path, topics: Callable[..., Result]
) -> None:
    dir = library(tmp_path / "log")
    (dir / "000001.wal").unlink()
    (dir / "000001.wal").mkdir()
    report = topics("inspect", dir, "--json")
    assert report.status == 1
    assert [(f["file"], f["kind"]) for f in report.json["faults"]] == [("000001.wal", "unreadable")]
    assert [row["verdict"] for row in report.json["segments"]] == ["clean", "unreadable", "clean", "clean"]
    dumped = topics("dump", dir)
    assert dumped.status == 1
    assert len(dumped.out.splitlines()) == 21
    assert dumped.err.startswith("topics: unreadable: 000001.wal")


SPECIAL = [
    Record.put(b"plain", b"text"),
    Record.put_with_ttl(b"ttl", b"x", 5000),
    Record.delete(b"gone"),
    Record.put(b"", b""),
    Record.put(b"\xff\x00", b"line\nbreak"),
    Record.put("größe".encode(), b'"quoted" \x1b[31m'),
    Record.put(b"long", b"y" * 300),
    Record.put(b"packed", b"abc" * 20).with_compression("zstd"),
    Record.put(b"packed", b"abc" * 20).with_compression("lz4"),
]


def special(dir: Path) -> Path:
    dir.mkdir()
    (dir / "000007.wal").write_bytes(b"".join(map(record_module.encode, SPECIAL)))
    return dir


def test_dump_prints_every_kind_of_record_for_people(tmp_path: Path, topics: Callable[..., Result]) -> None:
    result = topics("dump", special(tmp_path / "log"))
    lines = result.out.splitlines()
    assert (result.status, result.err) == (0, "")
    assert lines[0] == '7:0  put     "plain" = "text"'
    assert lines[1].endswith('put     "ttl" = "x"  ttl 5000 ms')
    assert lines[2].endswith('delete  "gone"')
    assert lines[3].endswith('put     "" = ""')
    assert lines[4].endswith("put     0xff00 = 0x6c696e650a627265616b")
    assert '"größe" = 0x' in lines[5]
    assert lines[6].endswith("yyy… (300 bytes)")
    assert lines[7].endswith("zstd")
    assert lines[8].endswith("lz4")


def test_dump_under_json_gives_every_record_back_whole(tmp_path: Path, topics: Callable[..., Result]) -> None:
    rows = topics("dump", special(tmp_path / "log"), "--json").lines

    def octets(row: dict[str, Any], name: str) -> bytes:
        return row[name].encode() if name in row else base64.b64decode(row[f"{name}_base64"])

    again = [
        Record(octets(row, "key"), octets(row, "value"), row["tombstone"], row["ttl_ms"], row["compression"])
        for row in rows
    ]
    assert again == SPECIAL
    assert rows[0] == {
        "segment": 7,
        "offset": 0,
        "size": 16,
        "key": "plain",
        "value": "text",
        "tombstone": False,
        "ttl_ms": None,
        "compression": "none",
    }
    assert [row["offset"] for row in rows[1:]] == [row["offset"] + row["size"] for row in rows[:-1]]


def damaged_value() -> bytes:
    """A record whose checksum is right and whose value is no LZ4 block."""
    raw = b"\x01\x03\x04k\x3c\xff\xff"
    return raw + record_module._pack_crc(record_module.crc32c(raw))


def test_a_value_that_does_not_decompress_is_a_fault_and_dump_shows_what_is_stored(
    tmp_path: Path, topics: Callable[..., Result]
) -> None:
    dir = library(tmp_path / "log")
    append("000003.wal", damaged_value() + records(1)[0].encode())(dir)
    result = topics("verify", dir, "--json")
    assert result.status == 1
    assert [(f["file"], f["offset"], f["kind"]) for f in result.json["faults"]] == [("000003.wal", 75, "value")]
    assert result.json["records"] == 32
    bad = topics("dump", dir, "--json").lines[30]
    assert (bad["key"], bad["value_stored_base64"]) == ("k", base64.b64encode(b"\x3c\xff\xff").decode())
    assert bad["value_error"]
    assert "3 stored bytes" in topics("dump", dir).out.splitlines()[30]


def test_without_the_compression_library_values_are_counted_as_not_checked(
    tmp_path: Path, topics: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    dir = special(tmp_path / "log")
    monkeypatch.setitem(sys.modules, "lz4.block", None)
    result = topics("verify", dir, "--json")
    assert (result.status, result.json["ok"], result.json["values_not_checked"]) == (0, True, 1)
    assert "1 compressed value not checked" in topics("verify", dir).out


@pytest.mark.parametrize(
    ("options", "first", "count"),
    [
        ([], "0:0", 30),
        (["--limit", "4"], "0:0", 4),
        (["--limit", "0"], None, 0),
        (["--from", "1:25"], "1:25", 20),
        (["--from", "1:25", "--limit", "9"], "1:25", 9),
        (["--from", "3:75"], None, 0),
        (["--from", "2:0", "--limit", "1"], "2:0", 1),
    ],
)
def test_dump_starts_and_stops_where_it_is_told(
    options: list[str], first: str | None, count: int, tmp_path: Path, topics: Callable[..., Result]
) -> None:
    result = topics("dump", library(tmp_path / "log"), *options)
    lines = result.out.splitlines()
    assert (result.status, result.err, len(lines)) == (0, "", count)
    if first is not None:
        assert lines[0].startswith(f"{first}  ")


@pytest.mark.parametrize(
    ("position", "code"),
    [("1:26", "not_a_position"), ("3:76", "not_a_position"), ("9:0", "segment_not_found"), ("x/1:0", "not_a_position")],
)
def test_dump_from_where_nothing_begins_is_an_error(
    position: str, code: str, tmp_path: Path, topics: Callable[..., Result]
) -> None:
    result = topics("dump", library(tmp_path / "log"), "--from", position)
    assert (result.status, result.out) == (1, "")
    assert result.err.startswith(f"topics: {code}: ")


def test_dump_passes_over_damage_says_so_and_goes_on(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = library(tmp_path / "log")
    flip("000000.wal", 30)(dir)
    remove("000001.wal")(dir)
    resize("000003.wal", -1)(dir)
    result = topics("dump", dir)
    assert result.status == 1
    assert [line.split(":")[0] for line in result.out.splitlines()] == ["0"] + ["2"] * 9 + ["3"] * 2
    told = result.err.splitlines()
    assert [line.split(": ")[1] for line in told] == ["corrupt", "missing", "torn"]
    assert "000000.wal at 25: " in told[0]
    assert "200 bytes not shown" in told[0]
    under_json = topics("dump", dir, "--json")
    assert [json.loads(line)["stopped"]["kind"] for line in under_json.err.splitlines()] == [
        "corrupt",
        "missing",
        "torn",
    ]
    assert len(under_json.lines) == 12
    # What lies behind the damage can be asked for.
    assert topics("dump", dir, "--from", "0:50", "--limit", "2").out.startswith("0:50  ")


def test_a_torn_tail_is_told_by_dump_and_is_no_failure(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = library(tmp_path / "log")
    resize("000003.wal", -1)(dir)
    result = topics("dump", dir)
    assert (result.status, len(result.out.splitlines())) == (0, 29)
    assert result.err.startswith("topics: torn: 000003.wal at 50: ")
    assert topics("dump", dir, "--quiet").err == ""
    assert topics("dump", dir, "--limit", "29").err == ""


def wal_file(number: int, frames: bytes = b"", *, prev: tuple[int, int] | None = None, shard: int = 0) -> bytes:
    context = frame.OpenContext(run=number, boot="boot", shard=shard, shards=2, ts=TS)
    return frame.FrameCodec().preamble(FileInfo(number, prev, context)) + frames


CREATE = frame.encode_control(
    control.TopicCreate(name="orders", epoch=1, cfg={"ttl_ms": 0, "blob": b"\xff", "nan": float("nan")}), 10, TS
)
APPENDS = frame.encode_appends(
    [("n1", "job:7", b'{"d":12345678901234567890123456789,"m":{"k":1.0}}'), (None, None, b'{"d":"\xc3\xa9"}')],
    10,
    1,
    TS,
    durable=True,
)
SYNC = frame.encode_control(control.SyncMark(), 0, TS, synced_prefix=True)
FIRST = wal_file(1, CREATE + APPENDS)
SECOND = wal_file(2, APPENDS + SYNC, prev=(1, len(FIRST)))
OPEN_BYTES = len(wal_file(2, prev=(1, len(FIRST))))
ONE, TWO = paths.wal_file(1), paths.wal_file(2)


def store(dir: Path) -> Path:
    """A data directory with two shards, two files each, the next file prepared in the first."""
    (dir / "meta").mkdir(parents=True)
    (dir / ".topics.lock").write_text("pid=4711\nboot=b\n")
    for shard in (0, 1):
        group = dir / "wal" / f"shard-{shard:02d}"
        group.mkdir(parents=True)
        (group / ONE).write_bytes(FIRST)
        (group / TWO).write_bytes(SECOND)
        (group / "CURRENT").write_text(f"{TWO}\n")
    (dir / "wal" / "shard-00" / paths.wal_file(3)).write_bytes(bytes(500))
    return dir


def flat(dir: Path) -> Path:
    """A data directory with one shard."""
    (dir / "wal").mkdir(parents=True)
    (dir / "wal" / ONE).write_bytes(FIRST)
    (dir / "wal" / TWO).write_bytes(SECOND + bytes(100))
    return dir


@pytest.mark.parametrize(("make", "inside"), [(store, ""), (store, "wal"), (flat, ""), (flat, "wal")])
def test_a_data_directory_and_its_wal_are_found(
    make: Callable[[Path], Path], inside: str, tmp_path: Path, topics: Callable[..., Result]
) -> None:
    dir = make(tmp_path / "data") / inside
    before = snapshot(tmp_path)
    result = topics("inspect", dir, "--json")
    report = result.json
    shards = 2 if make is store else 1
    assert (result.status, report["ok"], report["kind"]) == (0, True, "server")
    assert report["totals"]["frames"] == {
        "Append": 4 * shards,
        "TopicCreate": shards,
        "CheckpointMark": 3 * shards,
    }
    assert (report["totals"]["records"], report["totals"]["topics"]) == (8 * shards, 1)
    row = report["segments"][1]
    assert row["name"] == ("" if inside else "wal/") + ("shard-00/" if make is store else "") + TWO
    assert (row["id"], row["group"], row["topics"], row["run"]) == (2, "shard-00" if make is store else "", [10], 2)
    assert (row["records"], row["frames"]) == (4, {"Append": 2, "CheckpointMark": 2})
    if make is store:
        assert [lock["state"] for lock in report["locks"]] == ["pid=4711"]
        assert report["segments"][2]["verdict"] == "prepared"
    assert "Append 2" in topics("inspect", dir).out
    assert topics("verify", dir).out.endswith("ok\n")
    assert topics("dump", dir).status == 0
    assert snapshot(tmp_path) == before


def test_one_shard_of_a_store_can_be_looked_at(tmp_path: Path, topics: Callable[..., Result]) -> None:
    report = topics("verify", store(tmp_path / "data") / "wal" / "shard-01", "--json").json
    assert (report["ok"], report["segments"], report["records"]) == (True, 2, 8)


def test_a_library_log_in_a_folder_called_wal_is_found_too(tmp_path: Path, topics: Callable[..., Result]) -> None:
    library(tmp_path / "wal")
    report = topics("inspect", tmp_path, "--json").json
    assert (report["kind"], report["segments"][0]["name"]) == ("library", "wal/000000.wal")
    assert report["locks"][0]["name"] == "wal/LOCK"


SHARD = "wal/shard-00/"
SERVER_CASES: dict[str, tuple[Mutate, list[tuple[str, int | None, str]], int]] = {
    "torn tail": (resize(SHARD + TWO, -3), [], 1),
    "torn submission": (append(SHARD + TWO, APPENDS[: -(len(b'{"d":"\xc3\xa9"}') + 46)]), [], 1),
    "bad frame, a later one tells of a sync": (
        flip(SHARD + TWO, OPEN_BYTES + 20),
        [(SHARD + TWO, OPEN_BYTES, "corrupt")],
        0,
    ),
    "inner file bad": (
        flip(SHARD + ONE, len(FIRST) - 9),
        [(SHARD + ONE, len(FIRST) - 46 - len(b'{"d":"\xc3\xa9"}'), "corrupt")],
        0,
    ),
    "inner file shorter than the next one says": (
        put(SHARD + ONE, FIRST[: -len(APPENDS)]),
        [(SHARD + ONE, len(FIRST) - len(APPENDS), "length")],
        0,
    ),
    "missing file": (
        lambda dir: (dir / SHARD / TWO).rename(dir / SHARD / paths.wal_file(4)),
        [(SHARD + paths.wal_file(4), 0, "preamble"), (SHARD + TWO, None, "missing")],
        0,
    ),
    "no open mark": (
        several(put(SHARD + ONE, CREATE + APPENDS), remove(SHARD + TWO)),
        [(SHARD + ONE, 0, "preamble")],
        0,
    ),
    "open mark replaced by salvage": (
        put(SHARD + TWO, frame.encode_pads(OPEN_BYTES) + APPENDS),
        [],
        0,
    ),
    "unknown frame type": (
        append(SHARD + TWO, frame._encode(77, 0, 0, 0, TS, b"")),
        [(SHARD + TWO, len(SECOND), "format")],
        0,
    ),
    "CURRENT ahead of the files": (
        put(SHARD + "CURRENT", f"{paths.wal_file(9)}\n".encode()),
        [(SHARD + "CURRENT", None, "pointer")],
        0,
    ),
    "CURRENT names a prepared file": (
        put(SHARD + "CURRENT", f"{paths.wal_file(3)}\n".encode()),
        [],
        0,
    ),
    "CURRENT is noise": (
        put(SHARD + "CURRENT", b"\xff\xff"),
        [(SHARD + "CURRENT", None, "pointer")],
        0,
    ),
    "no CURRENT": (remove(SHARD + "CURRENT"), [], 0),
}


@pytest.mark.parametrize("case", SERVER_CASES)
def test_faults_of_a_server_log_are_named(case: str, tmp_path: Path, topics: Callable[..., Result]) -> None:
    mutate, faults, torn = SERVER_CASES[case]
    dir = store(tmp_path / "data")
    mutate(dir)
    result = topics("verify", dir, "--json")
    assert [(f["file"], f["offset"], f["kind"]) for f in result.json["faults"]] == faults
    assert len(result.json["torn"]) == torn
    assert (result.status, result.json["ok"]) == ((1, False) if faults else (0, True))
    assert topics("verify", dir).status == result.status


def test_frames_are_dumped_for_people_and_for_programs(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = store(tmp_path / "data")
    text = topics("dump", dir, "--limit", "4").out.splitlines()
    assert text[0].startswith("shard-00/1:0  CheckpointMark  ts 1700000000001  synced_prefix  {")
    assert text[1].split("  ")[1:3] == ["TopicCreate", "topic 10"]
    assert 'seq 1  ts 1700000000001  node "n1"  tag "job:7"  durable  more  {"d":123456789' in text[2]
    result = topics("dump", dir, "--json")
    rows = result.lines
    assert (result.status, result.err, len(rows)) == (0, "", 16)
    assert rows[0]["body"] == {"k": "open", "run": 1, "boot": "boot", "shard": 0, "shards": 2, "file": 1, "fmt": 2}
    assert rows[1]["body"]["cfg"] == {"ttl_ms": 0, "blob": base64.b64encode(b"\xff").decode(), "nan": "nan"}
    assert (rows[2]["group"], rows[2]["segment"], rows[2]["node"], rows[2]["tag"]) == ("shard-00", 1, "n1", "job:7")
    assert rows[2]["data"] == {"d": 12345678901234567890123456789, "m": {"k": 1.0}}
    assert (rows[2]["durable"], rows[2]["more"], rows[3]["more"]) == (True, True, False)
    assert '"data": {"d":12345678901234567890123456789,"m":{"k":1.0}}}' in result.out
    assert {row["group"] for row in rows} == {"shard-00", "shard-01"}


@pytest.mark.parametrize("data", [b"not json", b"\xff", b'{"d":\n1}', b'{"d":"\x01"}', b"", b"{} {}"])
def test_data_that_is_no_json_line_never_breaks_one(data: bytes, tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = tmp_path / "wal"
    dir.mkdir()
    (dir / ONE).write_bytes(wal_file(1, frame.encode_appends([(None, None, data)], 10, 1, TS)))
    row = topics("dump", dir, "--json").lines[1]
    assert row["data"].encode() == data if "data" in row else base64.b64decode(row["data_base64"]) == data
    assert len(topics("dump", dir).out.splitlines()) == 2


def test_dump_of_a_sharded_store_starts_at_a_position_it_printed(tmp_path: Path, topics: Callable[..., Result]) -> None:
    dir = store(tmp_path / "data")
    everything = topics("dump", dir).out.splitlines()
    position = everything[11].split("  ")[0]
    assert position.startswith("shard-01/1:")
    assert topics("dump", dir, "--from", position).out.splitlines() == everything[11:]
    refused = topics("dump", dir, "--from", "1:0")
    assert refused.status == 1
    assert "shard-00/SEG:OFFSET" in refused.err


def program(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "topics", "wal", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


def test_the_program_inspects_a_log(tmp_path: Path) -> None:
    result = program("inspect", library(tmp_path / "log"))
    assert (result.returncode, result.stderr) == (0, "")
    assert "30 records in 4 segments" in result.stdout


def test_looking_at_a_library_log_does_not_load_the_server_codec(tmp_path: Path) -> None:
    dir = library(tmp_path / "log")
    code = (
        f"import sys, topics.cli.main as m; m.main(['wal', 'inspect', {str(dir)!r}]); sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_a_reader_that_goes_away_ends_a_dump_quietly(tmp_path: Path) -> None:
    dir = library(tmp_path / "log", count=6000, size=1 << 20)
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", "topics", "wal", "dump", str(dir)]
    process = subprocess.Popen(command, stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    os.read(read_end, 10)
    os.close(read_end)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")


def test_the_demo_proves_that_acknowledged_records_come_back(tmp_path: Path) -> None:
    dir = tmp_path / "demo"
    result = program("demo", "--json", "--dir", dir)
    assert (result.returncode, result.stderr) == (0, "")
    report = json.loads(result.stdout)
    assert (report["ok"], report["kept"], report["dir"]) == (True, True, str(dir))
    assert (report["missing"], report["wrong"]) == (0, 0)
    assert report["found"] >= report["acknowledged"] > 0
    assert report["recovery"]["bytes_truncated"] >= report["torn_bytes_added"] > 0
    looked = json.loads(program("verify", "--json", dir).stdout)
    assert (looked["ok"], looked["records"]) == (True, report["found"])
    # A log that is there is not torn.
    again = program("demo", "--dir", dir)
    assert again.returncode == 1
    assert "is not empty" in again.stderr


@pytest.fixture
def short_demo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(wal_demo, "ACKS", 20)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_the_demo_tells_what_happens_and_cleans_up(short_demo: Path, topics: Callable[..., Result]) -> None:
    result = topics("demo")
    assert (result.status, result.err) == (0, "")
    for part in ("SIGKILL", "half-written", "Nothing that was acknowledged is lost", "$ topics wal inspect", "--keep"):
        assert part in result.out
    assert os.listdir(short_demo) == []
    quiet = topics("demo", "--quiet", "--no-tear", "--keep")
    assert quiet.status == 0
    assert quiet.out.startswith(quiet.out.split()[0] + " of ")
    assert len(os.listdir(short_demo)) == 1


def test_a_lost_record_fails_the_demo_and_the_log_is_kept(
    short_demo: Path, topics: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = wal_demo._storm

    def lying(dir: str) -> wal_demo.Storm:
        storm = real(dir)
        return storm._replace(acked=[*storm.acked, b"writer-0/999999"])

    monkeypatch.setattr(wal_demo, "_storm", lying)
    result = topics("demo", "--json")
    assert (result.status, result.json["ok"], result.json["missing"], result.json["kept"]) == (1, False, 1, True)
    assert os.listdir(short_demo) == [os.path.basename(result.json["dir"])]
    text = topics("demo")
    assert text.status == 1
    assert "must not happen" in text.out


def test_a_recovery_that_fails_is_one_line_and_the_log_is_kept(
    short_demo: Path, topics: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    def prove(*_: object) -> wal_demo.Proof:
        raise CrcMismatch(1, 2)

    monkeypatch.setattr(wal_demo, "_prove", prove)
    result = topics("demo", "--quiet")
    (kept,) = os.listdir(short_demo)
    assert (result.status, result.out, result.err.count("\n")) == (1, "", 1)
    assert kept in result.err


def test_a_writer_that_cannot_start_is_one_line(
    short_demo: Path, topics: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = short_demo / "file"
    file.touch()
    assert "not a directory" in topics("demo", "--dir", file).err
    result = topics("demo", "--dir", file / "below")
    assert (result.status, result.err.count("\n")) == (1, 1)
    assert result.err.startswith("topics: demo_failed: the writer ended by itself")
