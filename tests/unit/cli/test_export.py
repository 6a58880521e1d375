"""`topics export`: every format holds every record, from files and from a server; errors are one line."""

from __future__ import annotations

import csv
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.api.kit import Running, running
from tests.unit.storage import storekit
from tests.unit.storage.storekit import Topic
from topics.cli.main import main

RECORDS: list[dict[str, Any]] = [
    {"data": None},
    {"data": {"a": [1, 2.5, "ü,\n\""]}, "tag": "t:1", "node": "n\"1"},
    {"data": "text", "tag": "日本,x", "meta": {"k": "v", "n": 1, "z": None}},
    {"data": [], "node": "n", "meta": {}},
]  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("export") / "store") as one, one.client() as client:
        client.post("/v0/topics/a", json={"records": RECORDS * 100})
        client.post("/v0/topics/b", json={"records": RECORDS})
        client.post("/v0/topics/a/delete", json={"seqs": [1, 7]})
        client.post("/v0/checkpoint")
        client.post("/v0/topics/b", json={"records": [{"data": "last"}]})
        yield one


def expected() -> list[dict[str, Any]]:
    """Topic, seq and members of all records, in order."""
    found = [
        {"topic": "a", "seq": seq, **record}
        for seq, record in enumerate(RECORDS * 100, 1)
        if seq not in (1, 7)
    ]  # fmt: skip
    found += [{"topic": "b", "seq": seq, **record} for seq, record in enumerate(RECORDS, 1)]
    return [*found, {"topic": "b", "seq": 5, "data": "last"}]


def exported(server: Running, out: Path, *more: str) -> Path:
    assert main(["export", "a", "b", "--url", server.url, "--out", str(out), "--quiet", *more]) == 0
    return out


def shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a table as `expected` has it."""
    meta = row["meta"]
    if meta is not None and not isinstance(meta, str):
        spelled = {"k": json.dumps(dict(meta).get("k")), "n": dict(meta).get("n"), "z": "null"}
        meta = "{" + ",".join(f'"{key}":{spelled[key]}' for key, _ in meta) + "}"
    given = {"tag": row["tag"], "node": row["node"], "meta": json.loads(meta) if meta else None}
    assert row["kind"] == "record"
    return {"topic": row["topic"], "seq": int(row["seq"]), "data": json.loads(row["data"])} | {
        name: value for name, value in given.items() if value is not None
    }


def test_parquet_and_arrow_hold_every_record(server: Running, tmp_path: Path) -> None:
    """11 §2, K-3: typed columns; the format follows the ending."""
    table = pa.parquet.read_table(exported(server, tmp_path / "x.parquet"))
    assert table.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert [shown(row) for row in table.to_pylist()] == expected()
    with pa.ipc.open_file(exported(server, tmp_path / "x.arrow")) as file:
        assert [shown(row) for row in file.read_all().to_pylist()] == expected()
    compressions = pa.parquet.ParquetFile(tmp_path / "x.parquet").metadata.row_group(0).column(1).compression
    assert compressions == "ZSTD"


def test_csv_holds_every_record(server: Running, tmp_path: Path) -> None:
    """11 §2: `data` and `meta` as JSON text, absent values empty and unquoted."""
    path = exported(server, tmp_path / "x", "--format", "csv")
    with path.open(newline="", encoding="utf-8") as file:
        found = [{name: value or None for name, value in row.items()} for row in csv.DictReader(file)]
    assert [shown(row) for row in found] == expected()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(found[0]["ts"]))


def test_json_lines_are_the_records_of_a_diff(server: Running, tmp_path: Path) -> None:
    """U-13: the same bytes, with the topic in front."""
    lines = exported(server, tmp_path / "x.jsonl").read_bytes().splitlines()
    with server.client() as client:
        told = client.post("/v0/topics/b/diff", json={"include_tags": True}).content
    for line in lines[-5:]:
        assert line.startswith(b'{"topic":"b","$seq":')
        assert b"{" + line.removeprefix(b'{"topic":"b",') in told
    found = [json.loads(line) for line in lines]
    assert [{"topic": row["topic"], "seq": row["$seq"], "data": row["data"]} for row in found] == [
        {name: row[name] for name in ("topic", "seq", "data")} for row in expected()
    ]


def test_a_directory_is_exported_without_a_server(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U-14 `--path`: the state of the newest snapshot; `--json` prints one report."""
    with server.client() as client:
        directory = client.get("/v0/topics/a/segments").json()["data_dir"]
    out = tmp_path / "x.jsonl"
    assert main(["export", "a", "b", "--path", directory, "--out", str(out), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {
        "ok": True, "out": str(out), "format": "jsonl", "rows": 402, "gaps": 0, "bytes": out.stat().st_size,
    }  # fmt: skip
    assert len(out.read_bytes().splitlines()) == 402


def test_gaps_are_in_the_file_and_in_the_exit_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U-10: 3 says gap; the file is complete."""
    files = storekit.store(Topic().segment(6, lost={3: 3, 4: 3}))
    for name, data in files.items():
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_bytes(data)
    out = tmp_path / "x.jsonl"
    assert main(["export", "orders", "--path", str(tmp_path / "store"), "--out", str(out)]) == 3
    assert "1 gaps" in capsys.readouterr().err
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [line.get("$seq") for line in lines] == [1, 2, None, 5, 6]
    assert lines[2] == {"topic": "orders", "tombstone": {"gap_from": 3, "gap_to": 4, "reason": "crash"}}


def test_nothing_is_overwritten_or_left_behind(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U-14 `--yes`; a failed export leaves no file."""
    out = tmp_path / "x.csv"
    out.write_text("mine")
    assert main(["export", "a", "--url", server.url, "--out", str(out)]) == 1
    assert capsys.readouterr().err == f"topics: file_exists: {out} exists (--yes replaces it)\n"
    assert main(["export", "nope", "--url", server.url, "--out", str(out), "--yes"]) == 1
    assert "topics: topic_not_found:" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert main(["export", "b", "--url", server.url, "--out", str(out), "--yes", "--quiet"]) == 0
    assert len(out.read_text()) > 100
    assert [path.name for path in tmp_path.iterdir()] == ["x.csv"]


def test_what_is_no_file_is_not_replaced_by_one(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder, a pipe, a device: `--yes` is about files."""
    os.mkfifo(tmp_path / "pipe")
    for out in (tmp_path, tmp_path / "pipe"):
        assert main(["export", "a", "--url", server.url, "--out", str(out), "--format", "csv", "--yes"]) == 1
        assert "topics: not_a_file: " in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_the_server_and_key_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """U-11, U-14: TOPICS_URL and TOPICS_API_KEY, or a file with the key."""
    with running(tmp_path / "store", {"TOPICS_API_KEYS": "open-sesame-123456"}) as server:
        with server.client(key="open-sesame-123456") as client:
            client.post("/v0/topics/a", json={"records": [{"data": 1}]})
        monkeypatch.setenv("TOPICS_URL", server.url)
        command = ["export", "a", "--out", str(tmp_path / "x.csv"), "--yes", "--quiet"]
        assert main(command) == 1
        assert "topics: unauthorized:" in capsys.readouterr().err
        monkeypatch.setenv("TOPICS_API_KEY", "open-sesame-123456")
        assert main(command) == 0
        monkeypatch.setenv("TOPICS_API_KEY", "wrong")
        (tmp_path / "key").write_text("open-sesame-123456\n")
        assert main([*command, "--api-key-file", str(tmp_path / "key")]) == 0
