"""`topics backup` and `topics restore`: what they say and how they end [U-10, U-12, U-13, U-14, S-319]."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import Running, records, running
from tests.unit.engine.test_tiering_waits import move
from topics.cli import main as cli
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine


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
    def error(self) -> Any:
        return json.loads(self.err)["error"]


Run = Callable[..., Result]
SMALL = EngineConfig(segment_max_events=4, min_free_bytes=0)


@pytest.fixture
def topics(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    for name in ("TOPICS_URL", "TOPICS_API_KEY", "TOPICS_DATA_DIR", "TOPICS_COLD_DIR"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: object) -> Result:
        status = cli.main([*map(str, words)])
        captured = capsys.readouterr()
        return Result(status, captured.out, captured.err)

    return run


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Engine.open(str(tmp_path / "data"), SMALL) as engine:
        engine.append("orders", [{"data": n, "tag": f"t{n % 2}"} for n in range(1, 11)])
        engine.delete("orders", seqs=[3])
    return tmp_path / "data"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    env = {"TOPICS_SEGMENT_MAX_EVENTS": "4", "TOPICS_API_KEYS": "boss,reader:r,keeper:a+r"}
    with running(tmp_path / "served", env) as one:
        with one.client(key="boss") as client:
            client.post("/v0/topics/orders", json=records(*range(1, 11)))
        yield one


def pins(server: Running) -> int:
    engine: Any = server.server.app.engine
    return server.on_loop(lambda: len(engine.core.pins))


def seqs(path: Path, topic: str = "orders") -> list[int]:
    with Engine.open(str(path), SMALL) as engine:
        return [one.seq for one in engine.read(topic).records]


def test_a_stopped_store_is_copied_and_restored_and_the_doctor_finds_nothing(
    topics: Run, store: Path, tmp_path: Path
) -> None:
    """S-319: status 0; a second backup copies nothing."""
    made = topics("backup", "--path", store, tmp_path / "bk")
    assert (made.status, made.err) == (0, "")
    assert "2 topics, 4 segments" in made.out, "with $deletes"
    again = topics("backup", "--path", store, tmp_path / "bk", "--json")
    assert again.json["ok"] is True
    assert (again.json["number"], again.json["copied_segments"], again.json["copied_bytes"]) == (1, 0, 0)
    back = topics("restore", tmp_path / "bk", tmp_path / "new", "--json")
    assert (back.status, back.err, back.json["ok"]) == (0, "", True)
    assert back.json["store_before"] == again.json["store"] != back.json["store"]
    report = topics("doctor", tmp_path / "new", "--json").json
    assert report["ok"] is True
    assert {one["severity"] for one in report["findings"]} <= {"note"}
    assert report["store"] == back.json["store"]
    assert seqs(tmp_path / "new") == [1, 2, 4, 5, 6, 7, 8, 9, 10]


def test_what_rotted_at_its_place_is_found_and_copied_anew_on_request(topics: Run, store: Path, tmp_path: Path) -> None:
    """[S-319] A part has the checksum of what it must hold in its name; only `--check` reads it again."""
    dest, restored = tmp_path / "kept", tmp_path / "restored"
    words = ("--path", str(store), str(dest), "--json")
    assert topics("backup", *words).status == 0
    part = max(dest.glob("topics/*/*.data*"), key=lambda path: path.stat().st_size)
    rotten = bytearray(part.read_bytes())
    rotten[len(rotten) // 2] ^= 1
    part.write_bytes(rotten)
    assert topics("backup", *words).json["damaged_parts"] == 0
    assert topics("restore", str(dest), str(tmp_path / "refused")).status != 0
    checked = topics("backup", "--check", *words)
    assert (checked.json["damaged_parts"], checked.json["copied_segments"]) == (1, 1)
    assert topics("restore", str(dest), str(restored)).status == 0
    assert topics("doctor", str(restored)).status == 0


def test_a_store_without_a_name_is_the_one_of_the_settings(
    topics: Run, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U-11"""
    monkeypatch.setenv("TOPICS_DATA_DIR", str(store))
    assert topics("backup", tmp_path / "bk", "--json").json["topics"] == 2


def test_a_running_server_is_copied_while_it_runs(topics: Run, server: Running, tmp_path: Path) -> None:
    """S-319, U-14: the key from a file; the pin is gone afterwards."""
    (tmp_path / "key").write_text("boss\n")
    words = ("--url", server.url, "--api-key-file", tmp_path / "key", tmp_path / "bk", "--json")
    first = topics("backup", *words)
    assert (first.status, first.err) == (0, "")
    assert first.json["copied_segments"] == 3
    with server.client(key="boss") as client:
        client.post("/v0/topics/orders", json=records(11, 12, 13))
        client.post("/v0/topics/orders/delete", json={"seqs": [2]})
    again = topics("backup", *words).json
    assert 3 <= again["copied_segments"] < again["segments"], f"a delete, a grown one, a new one: {again}"
    assert pins(server) == 0
    assert topics("restore", tmp_path / "bk", tmp_path / "new").status == 0
    assert seqs(tmp_path / "new") == [1, *range(3, 14)]
    assert topics("doctor", tmp_path / "new").status == 0


def test_the_files_of_a_server_may_be_seen_elsewhere(topics: Run, server: Running, tmp_path: Path) -> None:
    """A server in a container: `--path` says where its directory is mounted."""
    (tmp_path / "key").write_text("keeper\n")
    (tmp_path / "mounted").symlink_to(tmp_path / "served")
    words = ("backup", "--url", server.url, "--api-key-file", tmp_path / "key", "--json")
    assert topics(*words, "--path", tmp_path / "mounted", tmp_path / "bk").json["segments"] == 3
    (tmp_path / "other").mkdir()
    refused = topics(*words, "--path", tmp_path / "other", tmp_path / "bk")
    assert (refused.status, refused.error["code"]) == (1, "not_local")
    assert pins(server) == 0


def test_the_server_of_the_environment_is_asked(
    topics: Run, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U-11"""
    monkeypatch.setenv("TOPICS_URL", server.url)
    monkeypatch.setenv("TOPICS_API_KEY", "boss")
    assert topics("backup", tmp_path / "bk", "--json").json["topics"] == 1


def test_refusals_are_one_line_with_a_code_and_a_hint(topics: Run, store: Path, tmp_path: Path) -> None:
    """U-10: status 1, nothing left behind."""
    topics("backup", "--path", store, tmp_path / "bk")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").write_text("mine")
    cases = {
        "not_a_store": ("backup", "--path", tmp_path / "nowhere", tmp_path / "x"),
        "not_a_backup": ("restore", tmp_path / "nowhere", tmp_path / "y"),
        "target_not_empty": ("restore", tmp_path / "bk", tmp_path / "full"),
        "unreachable": ("backup", "--url", "http://127.0.0.1:1", tmp_path / "x"),
    }
    for code, words in cases.items():
        plain, told = topics(*words), topics(*words, "--json")
        assert (plain.status, told.status, plain.out, told.out) == (1, 1, "", ""), code
        assert plain.err.startswith(f"topics: {code}: "), plain.err
        assert plain.err.count("\n") == 1
        assert told.error["code"] == code
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "y").exists()
    for words in (("backup", tmp_path / "bk", "--url", "ftp://x"), ("restore", "x://y", tmp_path / "z")):
        assert topics(*words).status in (1, 2)


def test_a_backup_into_the_store_itself_is_refused(topics: Run, store: Path, server: Running, tmp_path: Path) -> None:
    """S-319: it would go with the store, and lie among its files."""
    (tmp_path / "link").symlink_to(store)
    before = sorted(store.rglob("*"))
    for dest in (store, store / "bk", store / "topics/bk", tmp_path / "link"):
        refused = topics("backup", "--path", store, dest, "--json")
        assert (refused.status, refused.error["code"]) == (1, "invalid_request")
    assert sorted(store.rglob("*")) == before
    served = tmp_path / "served"
    key = tmp_path / "key"
    key.write_text("boss")
    refused = topics("backup", "--url", server.url, "--api-key-file", key, "--path", served, served / "bk", "--json")
    assert (refused.status, refused.error["code"]) == (1, "invalid_request")
    assert topics("backup", "--path", store, tmp_path / "data.bk").status == 0


def test_a_key_that_may_not_is_told_by_the_server(topics: Run, server: Running, tmp_path: Path) -> None:
    """09 §2"""
    (tmp_path / "key").write_text("reader")
    words = ("backup", "--url", server.url, "--path", tmp_path / "served", tmp_path / "bk", "--json")
    assert topics(*words).error["code"] == "unauthorized"
    assert topics(*words, "--api-key-file", tmp_path / "key").error["code"] == "forbidden"


def test_a_store_that_a_server_has_open_needs_its_url(topics: Run, server: Running, tmp_path: Path) -> None:
    """S-11"""
    refused = topics("backup", "--path", tmp_path / "served", tmp_path / "bk")
    assert refused.status == 1
    assert "data_dir_in_use" in refused.err
    assert "--url" in refused.err


def test_damage_is_told_by_both(topics: Run, store: Path, tmp_path: Path) -> None:
    """S-319: a damaged segment is no part of a backup, a damaged part no part of a store."""
    topics("backup", "--path", store, tmp_path / "bk")
    part = next((tmp_path / "bk/topics").rglob("*.data"))
    part.write_bytes(part.read_bytes()[::-1])
    assert topics("restore", tmp_path / "bk", tmp_path / "new", "--json").error["code"] == "backup_damaged"
    data = next(store.rglob("seg-0000000000000001.data"))
    raw = bytearray(data.read_bytes())
    raw[40] ^= 0xFF
    data.write_bytes(raw)
    damaged = topics("backup", "--path", store, tmp_path / "bk2", "--json")
    assert (damaged.status, damaged.error["code"]) == (1, "source_damaged")
    assert "topic 'orders', segment 1" in damaged.error["message"]
    assert topics("restore", tmp_path / "bk2", tmp_path / "new2", "--json").error["code"] == "not_a_backup"


def test_a_server_does_not_open_what_is_half_restored(topics: Run, store: Path, tmp_path: Path) -> None:
    """S-319: refused with what to do; the same command completes it."""
    topics("backup", "--path", store, tmp_path / "bk")
    topics("restore", tmp_path / "bk", tmp_path / "new")
    number = json.loads((tmp_path / "bk/backup-0000000000000001.json").read_text().splitlines()[0])
    marker = {"number": 1, "snapshot": number["snapshot"][2], "of": number["store"], "store": "0" * 32}
    (tmp_path / "new/meta/RESTORING").write_text(json.dumps(marker))
    next((tmp_path / "new/topics").rglob("*.data")).unlink()
    assert "restore_unfinished" in topics("doctor", tmp_path / "new").out
    served = [sys.executable, "-m", "topics", "serve", "--data-dir", str(tmp_path / "new"), "--port", "0"]
    refused = subprocess.run(served, capture_output=True, timeout=60, check=False)
    assert refused.returncode == 3
    assert b"topics restore" in refused.stderr
    assert topics("restore", tmp_path / "bk", tmp_path / "new").status == 0
    assert (tmp_path / "new/meta/STORE").read_text() == "0" * 32 + "\n"
    assert seqs(tmp_path / "new") == [1, 2, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture
def tiered(tmp_path: Path) -> Path:
    """A store whose sealed segments are cold, as a kill leaves it: its newest record is in the log."""
    config = replace(SMALL, cold_dir=str(tmp_path / "cold"), hot_retain_segments=0)
    with Engine.open(str(tmp_path / "open"), config) as engine:
        engine.append("orders", [{"data": n} for n in range(1, 11)])
        engine.checkpoint(full=True)
        move(engine)
        engine.checkpoint(full=True)
        engine.append("orders", [{"data": 11}])
        shutil.copytree(tmp_path / "open", tmp_path / "data")
    return tmp_path / "data"


def test_a_killed_store_with_a_cold_tier_is_copied_without_being_told_where_that_is(
    topics: Run, tiered: Path, tmp_path: Path
) -> None:
    """S-319, S-346: the snapshot says where it is, and goes on saying so."""
    for _ in range(2):
        made = topics("backup", "--path", tiered, tmp_path / "bk", "--json")
        assert (made.status, made.err) == (0, "")
    assert topics("restore", tmp_path / "bk", tmp_path / "new").status == 0
    assert seqs(tmp_path / "new") == list(range(1, 12))
    assert "cold_unchecked" not in topics("doctor", tiered).out


@pytest.mark.parametrize("moved", [False, True])
def test_salvage_looks_at_the_cold_tier_where_doctor_does(
    topics: Run, tiered: Path, tmp_path: Path, moved: bool
) -> None:
    """S-317, S-346: what is lost there is made final, not forgotten."""
    where: tuple[object, ...] = ()
    if moved:
        (tmp_path / "cold").rename(tmp_path / "elsewhere")
        where = ("--cold", tmp_path / "elsewhere")
    next((tmp_path / ("elsewhere" if moved else "cold")).glob("topics/*/seg-0000000000000001.data")).unlink()
    assert "cold_missing" in topics("doctor", tiered, *where).out
    assert topics("doctor", tiered, "--salvage", *where).status == 0
    report = topics("doctor", tiered, "--json").json
    assert {one["code"] for one in report["findings"]} <= {"not_closed"}, report["findings"]
    with Engine.open(
        str(tiered), replace(SMALL, cold_dir=str(where[1]) if moved else str(tmp_path / "cold"))
    ) as engine:
        found = engine.read("orders")
    assert found.tombstone is not None
    assert (found.tombstone.gap_from, found.tombstone.gap_to, found.tombstone.reason) == (1, 4, "corrupt")
    assert [one.seq for one in found.records] == list(range(5, 12))
