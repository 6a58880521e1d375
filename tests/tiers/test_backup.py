"""Backups to a folder, to memory and to two S3 servers: the same everywhere [S-319, S-301]."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from tests.tiers.servers import S3Server
from topics.cli import main as cli
from topics.engine.backup import held
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import StoreUnavailable
from topics.fs import OsFs
from topics.storage.backup.depot import Depot
from topics.storage.backup.faults import BackupDamaged, NotABackup
from topics.storage.backup.place import open_depot
from topics.storage.backup.restore import restore
from topics.storage.backup.take import Source, Taken, Taker
from topics.storage.inspect import inspect
from topics.storage.tiers.object import MULTIPART_BYTES

SMALL = EngineConfig(segment_max_events=4, min_free_bytes=0)
NAMES = ("backup-0000000000000001.json", "topics/0000000A/seg-0000000000000001.00000000000000ff.data")


@pytest.fixture(params=["folder", "memory", "moto", "seaweedfs"])
def depot(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Depot:
    """An empty place of each kind."""
    prefix = uuid4().hex
    if request.param == "folder":
        return open_depot(OsFs(), str(tmp_path / "bk"), "DEST")
    if request.param == "memory":
        return open_depot(OsFs(), f"memory://{prefix}/bk", "DEST")
    found: S3Server = request.getfixturevalue(request.param)
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    return open_depot(OsFs(), found.url(f"bk/{prefix}"), "DEST")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with Engine.open(str(tmp_path / "data"), SMALL) as engine:
        engine.append("orders", [{"data": n, "tag": f"t{n % 2}"} for n in range(1, 11)])
        engine.delete("orders", seqs=[3])
    return tmp_path / "data"


def back_up(store: Path, depot: Depot) -> Taken:
    def nothing_is_cold(*which: int) -> bytes:
        raise AssertionError(which)

    with held(OsFs(), str(store), SMALL) as snapshot:
        return Taker(depot).take(Source(OsFs(), str(store), snapshot, nothing_is_cold))


def test_what_is_put_is_listed_read_and_removed(depot: Depot) -> None:
    """Also more than one request carries, and nothing at all."""
    assert depot.listing() == frozenset()
    assert depot.read(NAMES[0], 10) is None
    with depot.reserved():
        depot.put(NAMES[0], b"manifest")
        large = bytes(range(256)) * ((MULTIPART_BYTES >> 8) + 4096)
        depot.put(NAMES[1], large)
        depot.flush()
        assert depot.listing() == frozenset(NAMES)
        assert depot.read(NAMES[0], 1 << 30) == b"manifest"
        assert depot.read(NAMES[0], 4) == b"mani"
        assert depot.read(NAMES[1], len(large) + 1) == large
        depot.put(NAMES[0], b"")
        assert depot.read(NAMES[0], 5) == b""
        for name in (*NAMES, *NAMES):
            depot.remove(name)
        assert depot.listing() == frozenset()


def test_a_store_comes_back_from_every_place(store: Path, depot: Depot, tmp_path: Path) -> None:
    """S-319: incremental there as well; what was superseded is removed."""
    first = back_up(store, depot)
    assert first.copied_segments == 4, "three, and that of `$deletes`"
    assert back_up(store, depot).copied_bytes == 0
    with Engine.open(str(store), SMALL) as engine:
        engine.append("orders", [{"data": n} for n in range(11, 16)])
        engine.delete("orders", seqs=[5])
    second = back_up(store, depot)
    assert second.copied_segments == 4, "one with a delete, one that grew, one that is new, that of `$deletes`"
    assert second.removed > 0
    restore(OsFs(), depot, str(tmp_path / "new"))
    assert {one.severity for one in inspect(OsFs(), str(tmp_path / "new")).findings} <= {"note"}
    with Engine.open(str(tmp_path / "new"), SMALL) as engine:
        assert [one.seq for one in engine.read("orders").records] == [1, 2, 4, *range(6, 16)]


def test_a_damaged_or_missing_part_is_found_at_every_place(store: Path, depot: Depot, tmp_path: Path) -> None:
    """S-319: verified by checksum"""
    back_up(store, depot)
    part = sorted(name for name in depot.listing() if name.endswith(".data"))[0]
    data = depot.read(part, 1 << 20)
    assert data is not None
    depot.put(part, data[:-1] + b"?")
    with pytest.raises(BackupDamaged, match="is not what was put there"):
        restore(OsFs(), depot, str(tmp_path / "new"))
    depot.remove(part)
    with pytest.raises(BackupDamaged, match="is missing"):
        restore(OsFs(), depot, str(tmp_path / "new"))
    back_up(store, depot)
    restore(OsFs(), depot, str(tmp_path / "newer"))


def test_a_bucket_that_is_not_there_or_not_ours_is_told_in_words(
    server: S3Server, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-319, U-10: one line; no secret in it."""
    assert cli.main(["backup", "--path", str(store), server.url("bk", bucket="no-such-bucket")]) == 1
    assert "the bucket does not exist" in capsys.readouterr().err
    assert cli.main(["restore", server.url(f"bk/{uuid4().hex}"), str(tmp_path / "new")]) == 1
    assert "not_a_backup" in capsys.readouterr().err
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    assert cli.main(["backup", "--path", str(store), server.url("bk")]) == 1
    told = capsys.readouterr().err
    assert "access is denied" in told
    assert "wrong-secret" not in told
    assert not (tmp_path / "new").exists()


def test_the_command_line_takes_a_url(
    server: S3Server, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """S-319"""
    place = server.url(f"bk/{uuid4().hex}")
    for words in (["backup", "--path", str(store), place], ["restore", place, str(tmp_path / "new")]):
        assert cli.main(words) == 0, capsys.readouterr().err
    assert cli.main(["doctor", str(tmp_path / "new")]) == 0
    with pytest.raises((NotABackup, StoreUnavailable)):
        restore(OsFs(), open_depot(OsFs(), server.url("nothing/here"), "SRC"), str(tmp_path / "other"))
