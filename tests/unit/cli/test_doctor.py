"""`topics doctor`: what it says, how it ends, that it only looks unless asked to salvage [U-10, U-12, U-13, S-66]."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.storage import kit, storekit
from tests.unit.storage.storekit import Files, Topic
from topics.cli import doctor
from topics.cli import main as cli
from topics.codec.snapshot import WalRow
from topics.engine import salvage as engine_salvage
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine, RecoveryReport, ToldGap
from topics.fs import Fs, OsFs


class Result:
    """One run of the program."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Run = Callable[..., Result]


@pytest.fixture
def topics(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> Result:
        status = cli.main(["doctor", *map(str, words)])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


def tree(root: Path) -> Files:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


TOPIC = Topic().segment(6, deleted=[2]).segment(4, sealed=False)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return storekit.on_disk(storekit.store(TOPIC), tmp_path / "data")


def flip(root: Path, path: str, at: int) -> None:
    data = bytearray((root / path).read_bytes())
    data[at] ^= 1
    (root / path).write_bytes(data)


def test_a_healthy_store_is_ok_and_stays_as_it_is(topics: Run, store: Path) -> None:
    """U-10: status 0; per area files, bytes, what it holds, verdict."""
    before = tree(store)
    result = topics(store)
    assert (result.status, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0] == f"{store}: store {storekit.STORE_ID}, 1 topic, snapshot 2, closed in order"
    assert lines[-1] == "ok"
    row = next(line for line in lines if line.startswith("topics/0000000A orders"))
    assert "9 records" in row
    assert row.endswith("ok")
    assert tree(store) == before


def test_an_error_is_told_with_its_place_its_meaning_and_what_to_do(topics: Run, store: Path) -> None:
    """U-10: status 1."""
    flip(store, TOPIC.path(1, "data"), 35)
    result = topics(store)
    assert result.status == 1
    assert f"ERROR frame_damaged: {TOPIC.path(1, 'data')}: 1 seq: 1" in result.out
    assert "restore" in result.out
    assert result.out.splitlines()[-1] == "1 error"


def test_warnings_and_notes_do_not_fail(topics: Run, store: Path) -> None:
    (store / TOPIC.path(1, "tag")).unlink()
    (store / "notes.txt").write_text("x")
    result = topics(store)
    assert result.status == 0
    assert "WARNING tag_damaged" in result.out
    assert result.out.splitlines()[-1] == "ok (1 warning, 1 note)"


def test_quiet_shows_errors_and_the_conclusion(topics: Run, store: Path) -> None:
    assert topics(store, "--quiet").out == "ok\n"
    flip(store, TOPIC.path(1, "data"), 35)
    (store / "notes.txt").write_text("x")
    lines = topics(store, "--quiet").out.splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("ERROR frame_damaged")
    assert lines[-1] == "1 error, 1 note"


def test_json_is_one_report_object(topics: Run, store: Path) -> None:
    """U-13: with `ok`; findings carry meaning and advice."""
    report = topics(store, "--json").json
    assert report["ok"] is True
    assert report["totals"]["files"] == len(tree(store))
    assert report["totals"]["bytes"] == sum(map(len, tree(store).values()))
    assert report["totals"]["records"] == 9
    assert {area["name"] for area in report["areas"]} == {"lock", "meta", "wal", "topics/0000000A"}
    flip(store, TOPIC.path(1, "data"), 35)
    result = topics(store, "--json")
    assert (result.status, result.json["ok"], result.json["totals"]["errors"]) == (1, False, 1)
    assert set(result.json["findings"][0]) == {"severity", "code", "where", "what", "means", "do"}


def test_the_data_directory_of_the_settings_is_the_default(
    topics: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOPICS_DATA_DIR", str(store))
    assert topics("--json").json["dir"] == str(store)


@pytest.mark.parametrize("words", [("--nope",), ("a", "b")])
def test_wrong_usage_ends_with_2(topics: Run, words: tuple[str, ...]) -> None:
    assert topics(*words).status == 2


@pytest.mark.parametrize("option", ["--json", "--salvage", "--quiet"])
def test_what_is_no_store_is_refused_and_nothing_is_made_there(topics: Run, tmp_path: Path, option: str) -> None:
    """U-10: one line on stderr; salvage does not leave a lock file behind."""
    result = topics(tmp_path, option)
    assert result.status == 1
    assert "not_a_store" in result.err
    assert list(tmp_path.iterdir()) == []
    assert topics(tmp_path / "none", option).status == 1


def test_names_that_would_steer_a_terminal_are_shown_not_sent(topics: Run, store: Path) -> None:
    (store / "\x1b[31mred").write_text("x")
    out = topics(store).out
    assert "\x1b" not in out
    assert "\\x1b[31mred" in out


def test_many_healthy_topics_are_one_line(topics: Run, tmp_path: Path) -> None:
    many = [Topic(id, f"t{id}").segment(2) for id in range(1, doctor.TOPICS_SHOWN + 6)]
    root = storekit.on_disk(storekit.store(*many), tmp_path / "data")
    flip(root, many[-1].path(1, "data"), 35)
    out = topics(root).out
    assert "4 more topics" in out
    assert f"t{doctor.TOPICS_SHOWN + 5} " in out, "a topic with a finding is always shown"


@pytest.fixture
def locked(store: Path) -> Iterator[Path]:
    with (store / ".topics.lock").open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield store


@pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="the system does not tell who holds a lock")
def test_a_store_in_use_is_examined_without_its_lock(topics: Run, locked: Path) -> None:
    """What may change meanwhile is a note."""
    (locked / TOPIC.path(1, "tag")).unlink()
    result = topics(locked)
    assert result.status == 0
    assert "in use" in result.out.splitlines()[0]
    assert "NOTE tag_damaged" in result.out


def test_without_a_table_of_locks_the_pid_in_the_lock_file_decides(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os.path, "exists", lambda path: False)
    for text, expected in ((f"pid={os.getpid()}\n", True), ("pid=999999999\n", False), ("pid=x\n", False)):
        (store / ".topics.lock").write_text(text)
        assert doctor.is_in_use(OsFs(), str(store)) is expected
    (store / ".topics.lock").unlink()
    assert doctor.is_in_use(OsFs(), str(store)) is False


def test_progress_is_told_and_silenced(topics: Run, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """U-12: plain lines where there is no terminal; nothing of it under --json."""
    monkeypatch.setattr("topics.cli.progress.PLAIN_EVERY_NS", 0)
    assert "examining: 1 files" in topics(store).err
    assert topics(store, "--json").err == ""
    assert topics(store, "--quiet").err == ""


ONE = kit.log_file(1, kit.append(1), kit.append(2), kit.append(3))
TWO = kit.log_file(2, kit.append(4), prev=(1, len(ONE)))
DAMAGED = kit.flip(ONE, len(kit.open_mark(1)) + 64 + 40)


class FakeEngine:
    """Stands in for the engine: records how it is used."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.recovered = RecoveryReport((ToldGap("orders", 2, 2, 2), ToldGap("notes", 4, 9, 0)), {9: 3})

    def checkpoint(self, full: bool = False) -> None:
        self.calls.append(f"checkpoint {full}")

    def close(self) -> None:
        self.calls.append("close")


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    made = FakeEngine()

    def opened(fs: Fs, path: str) -> FakeEngine:
        fs.lock(f"{path}/.topics.lock").close()  # the lock must be free for it
        made.calls.append("open")
        return made

    monkeypatch.setattr(engine_salvage, "_engine", lambda config: opened)
    return made


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    files = storekit.base_files() | storekit.wal_files({1: DAMAGED, 2: TWO}, current=2)
    files |= storekit.snapshot_file(1, [], [WalRow("", 1, 0)])
    return storekit.on_disk(files, tmp_path / "data")


def test_salvage_copies_pads_recovers_and_examines(topics: Run, broken: Path, engine: FakeEngine) -> None:
    """S-66: lock, copies, Pads, recovery with a full checkpoint, clean close, and a report."""
    assert topics(broken).status == 1
    result = topics(broken, "--salvage")
    assert result.status == 0
    assert engine.calls == ["open", "checkpoint True", "close"]
    assert "wal/wal-0000000000000001.log: bad at" in result.out
    assert "kept: wal/wal-0000000000000001.log.salvaged" in result.out
    assert "Deletes and configurations in these ranges may be missing" in result.out
    assert "orders: seq 2 lost, told to readers\n" in result.out
    assert "notes: seqs 4 to 9 lost\n" in result.out
    assert "topic 9: 3 frames skipped" in result.out
    assert (broken / "wal/wal-0000000000000001.log.salvaged").read_bytes() == DAMAGED
    assert len((broken / "wal/wal-0000000000000001.log").read_bytes()) == len(ONE)


def test_salvage_under_json_is_one_object(topics: Run, broken: Path, engine: FakeEngine) -> None:
    """U-13."""
    result = topics(broken, "--salvage", "--json").json
    assert result["ok"] is True
    assert result["salvage"]["files"][0]["file"] == "wal/wal-0000000000000001.log"
    assert result["salvage"]["skipped_topics"] == {"9": 3}
    assert result["salvage"]["gaps"][0] == {"topic": "orders", "first": 2, "last": 2, "reason": 2}
    assert result["report"]["ok"] is True


def test_a_dry_run_changes_nothing(topics: Run, broken: Path, engine: FakeEngine) -> None:
    """U-14: --dry-run."""
    before = tree(broken)
    result = topics(broken, "--salvage", "--dry-run")
    assert (result.status, engine.calls, tree(broken)) == (0, [], before)
    assert "would be changed" in result.out
    assert topics(broken, "--salvage", "--dry-run", "--json").json["salvage"]["files"][0]["ranges"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine_salvage, "_engine", None)
        assert (
            "nothing in the log"
            in topics(storekit.on_disk(storekit.store(), broken / "x"), "--salvage", "--dry-run").out
        )


def test_a_store_in_use_is_not_salvaged(topics: Run, locked: Path, engine: FakeEngine) -> None:
    """S-66: it takes the lock, or refuses."""
    result = topics(locked, "--salvage")
    assert (result.status, engine.calls) == (1, [])
    assert "data_dir_in_use" in result.err


def test_a_log_without_damage_is_still_recovered(topics: Run, store: Path, engine: FakeEngine) -> None:
    """S-66: an earlier salvage may have ended after the padding."""
    result = topics(store, "--salvage")
    assert (result.status, engine.calls) == (0, ["open", "checkpoint True", "close"])
    assert "nothing in the log had to be mended" in result.out


def test_what_cannot_be_mended_is_refused_before_anything_changes(
    topics: Run, broken: Path, engine: FakeEngine
) -> None:
    """S-135, S-216: swapped files, damaged snapshots."""
    (broken / "wal/wal-0000000000000001.log").write_bytes(TWO)
    before = tree(broken)
    result = topics(broken, "--salvage")
    assert (result.status, engine.calls, tree(broken)) == (1, [], before)
    assert "wal_corrupt" in result.err
    flip(broken, "meta/snapshot-0000000000000001.bin", 50)
    assert "metadata_lost" in topics(broken, "--salvage").err


@pytest.mark.parametrize("closed", [True, False])
@pytest.mark.parametrize("checkpointed", [True, False])
def test_a_store_with_routers_is_sound_while_copies_are_in_memory_and_after(
    topics: Run, tmp_path: Path, closed: bool, checkpointed: bool
) -> None:
    """[S-212] Positions and copies in the log are as good as any other frame."""
    with Engine.open(str(tmp_path / "live"), EngineConfig(min_free_bytes=0, wal_shards=2)) as engine:
        engine.put_router("r", {"source": "a", "dest": "b", "filter": "x*", "guarantee": "exactly_once"})
        engine.put_router("on", {"source": "b", "dest": "c"})
        for n in range(5):
            engine.append("a", [{"data": n, "tag": "x:1"}, {"data": n}])
            engine.append("b", [{"data": f"own {n}"}])
        if checkpointed:
            engine.checkpoint(full=True)
        engine.append("a", [{"data": "last", "tag": "x"}])
        assert engine.state("c").head_seq == 11
        if not closed:
            shutil.copytree(tmp_path / "live", tmp_path / "seen")
    result = topics(tmp_path / ("live" if closed else "seen"), "--json")
    serious = [one for one in result.json["findings"] if one["severity"] != "note"]
    assert (result.status, serious) == (0, [])
