"""A running server as a source: sealed files directly, the rest by scan, exact at the time of the plan."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.kit import WAIT_S, Running, running
from tests.unit.spark.kit import METAS, NODES, TAGS, VALUES, rows
from topics.fs import Fs, OsFs
from topics.spark.failure import SourceError
from topics.spark.options import parse_read
from topics.spark.plan import Partition, Source
from topics.spark.reader import Reading, plan_read
from topics.spark.remote import Remote
from topics.testing import SimFs

ENV = {"TOPICS_SEGMENT_MAX_EVENTS": "7", "TOPICS_CHECKPOINT_MS": "3600000"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    """A server that checkpoints only when told."""
    with running(tmp_path / "store", ENV) as one:
        yield one


def planned(fs: Fs, server: Running, **options: str) -> list[Partition]:
    return plan_read(fs, parse_read({"url": server.url, "meta": "json", **options}), 0)


def written(client: httpx.Client, seed: int, name: str = "t") -> None:
    """Several writes with deletes and checkpoints between them; the last records lie in no segment."""
    pick = random.Random(seed)
    for _ in range(6):
        body = []
        for _ in range(pick.randint(1, 30)):
            named = {"tag": pick.choice(TAGS), "node": pick.choice(NODES[:4]), "meta": pick.choice(METAS)}
            body.append({"data": pick.choice(VALUES)} | {key: value for key, value in named.items() if value})
        answer = client.post(f"/v0/topics/{name}", json={"records": body})
        assert answer.status_code in (200, 201), answer.text
        head = answer.json()["head_seq"]
        if pick.random() < 0.6:
            client.post("/v0/checkpoint")
        client.post(f"/v0/topics/{name}/delete", json={"seqs": pick.sample(range(1, head + 1), min(head, 4))})


def by_diff(client: httpx.Client, name: str = "t") -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    at = 0
    while True:
        page = client.post(f"/v0/topics/{name}/diff", json={"from_seq": at, "include_tags": True}).json()
        found += [
            (name, one["$seq"], one["$ts"], one.get("$node"), one.get("$tag"), one["data"]) for one in page["records"]
        ]
        at = page["next_from_seq"]
        if page["caught_up"]:
            return found


def told(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["topic"], row["seq"], row["ts"], row["node"], row["tag"], json.loads(row["data"])) for row in found]


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_are_those_of_a_diff(server: Running, seed: int, fs: Fs) -> None:
    """K-11: with files and without; a simulated disk has none of the server's."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        written(client, seed)
        written(client, seed, "other")
        for small in ({}, {"partitionBytes": "900"}):
            parts = planned(fs, server, topics="t,other", **small)
            assert any(not one.stretch.remote for part in parts for one in part.pieces) == isinstance(fs, OsFs)
            assert told(rows(fs, parts)) == by_diff(client) + by_diff(client, "other")
        assert told(rows(fs, planned(fs, server, subscribePattern="o.*"))) == by_diff(client, "other")


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
def test_options_select_the_same_rows_as_from_files(server: Running, fs: Fs) -> None:
    """K-12"""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        written(client, 5)
        live = by_diff(client)
    middle = live[len(live) // 2]
    for options, keeps in (
        ({"startingSeq": "5", "endingSeq": str(middle[1])}, lambda row: 5 <= row[1] <= middle[1]),
        ({"startingTimestamp": str(middle[2])}, lambda row: row[2] >= middle[2]),
        ({"endingTimestamp": str(middle[2])}, lambda row: row[2] <= middle[2]),
        ({"endingTimestamp": str(2**64 - 1)}, lambda row: True),
        ({"tags": "a:*,b"}, lambda row: row[4] is not None and (row[4].startswith("a:") or row[4] == "b")),
        ({"node": "dock-7"}, lambda row: row[3] == "dock-7"),
    ):
        assert told(rows(fs, planned(fs, server, topics="t", **options))) == [row for row in live if keeps(row)]


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
def test_a_plan_is_kept_whatever_comes_later(server: Running, fs: Fs) -> None:
    """K-11: nothing newer, nothing deleted; deleted rows are told if asked for."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(1, 31)]})
        client.post("/v0/checkpoint")
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(31, 41)]})
        client.post("/v0/topics/t/delete", json={"seqs": [3, 35]})
        parts = planned(fs, server, topics="t", includeDeleted="true")
        client.post("/v0/topics/t/delete", json={"seqs": [7, 38]})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(41, 60)]})
        client.post("/v0/checkpoint")
    found = rows(fs, parts)
    live = [row["seq"] for row in found if row["kind"] == "record"]
    assert live == [seq for seq in range(1, 41) if seq not in (3, 7, 35, 38)]
    assert sorted(row["seq"] for row in found if row["kind"] == "deleted") == [3, 7, 35, 38]


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
@pytest.mark.parametrize("pin_ms", ["0", "600000"])
def test_what_is_deleted_after_the_plan_is_absent_at_once(server: Running, fs: Fs, pin_ms: str) -> None:
    """K-11, A-8: a pin keeps files, never records; no checkpoint has brought the deletes into them."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        records = [{"data": n, "tag": "even" if n % 2 == 0 else "odd"} for n in range(1, 31)]
        client.post("/v0/topics/t", json={"records": records})
        client.post("/v0/checkpoint")
        parts = planned(fs, server, topics="t", pinMs=pin_ms)
        client.post("/v0/topics/t/delete", json={"before_seq": 10})
        client.post("/v0/topics/t/delete", json={"match": ["tag", "Eq", "even"], "before_seq": 21})
        client.post("/v0/topics/t/delete", json={"seqs": [25]})
        assert [row["seq"] for row in rows(fs, parts)] == [11, 13, 15, 17, 19, *range(21, 25), *range(26, 31)]


def test_a_first_segment_that_is_lost_is_told(server: Running) -> None:
    """K-11, K-14: no floor of the server covers it, so nobody dropped it."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(1, 31)]})
        client.post("/v0/checkpoint")
        told = client.get("/v0/topics/t/segments").json()
        folder = Path(told["data_dir"], "topics", f"{told['id']:08d}")
        assert [file.unlink() for file in folder.glob("seg-0000000000000001.*")]
        fs = OsFs()
        with pytest.raises(SourceError, match=r"^topics: corrupt: t: seqs 1 to 7 cannot be read: no segment holds"):
            rows(fs, planned(fs, server, topics="t"))
        found = rows(fs, planned(fs, server, topics="t", onDataLoss="emit"))
        client.post("/v0/topics/t/delete", json={"before_seq": 8})
        assert [row["seq"] for row in rows(fs, planned(fs, server, topics="t"))] == list(range(8, 31))
    assert [(row["seq"], row["gap_to"], row["reason"]) for row in found if row["kind"] == "gap"] == [(1, 7, "corrupt")]


@pytest.mark.parametrize("fs", [OsFs(), SimFs()], ids=["files", "scan"])
def test_what_retention_took_is_lost(server: Running, fs: Fs) -> None:
    """K-10: before the plan for an explicit start, after it for everybody."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(1, 31)]})
        client.post("/v0/checkpoint")
        before = planned(fs, server, topics="t", onDataLoss="emit", pinMs="0")
        client.put("/v0/topics/t", json={"durable": True, "cap_records": 10})
        client.post("/v0/topics/t", json={"records": [{"data": 31}]})
        client.post("/v0/checkpoint")
        assert [row["seq"] for row in rows(fs, planned(fs, server, topics="t"))] == list(range(22, 32))
        with pytest.raises(SourceError, match=r"data_loss: t: seqs 4 to 21 are missing \(cap\)"):
            rows(fs, planned(fs, server, topics="t", startingSeq="4"))
        found = rows(fs, before)
    gone = [(row["seq"], row["gap_to"], row["reason"]) for row in found if row["kind"] == "gap"]
    live = [row["seq"] for row in found if row["kind"] == "record"]
    assert live[-1] == 30
    assert {seq for first, last, _ in gone for seq in range(first, last + 1)} == set(range(1, live[0]))
    assert {reason for *_, reason in gone} <= {"cap"}


@pytest.mark.parametrize("reachable", [True, False])
def test_cold_segments_are_read_where_they_lie_or_through_the_server(tmp_path: Path, reachable: bool) -> None:
    """10 §2 `url`: a cold tier that this machine cannot reach is the server's to read."""
    (tmp_path / "cold").mkdir()
    env = ENV | {"TOPICS_COLD_DIR": str(tmp_path / "cold"), "TOPICS_HOT_RETAIN_SEGMENTS": "1"}
    with running(tmp_path / "store", env) as server, server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(1, 61)]})
        client.post("/v0/checkpoint")
        while not any(one["tier"] == "cold" for one in client.get("/v0/topics/t/segments").json()["segments"]):
            client.post("/v0/checkpoint")
        elsewhere = {} if reachable else {"cold": str(tmp_path / "nowhere")}
        found = rows(OsFs(), planned(OsFs(), server, topics="t", **elsewhere))
        directory = str(tmp_path / "store")
        if not reachable:
            alone = parse_read({"path": directory, "topics": "t", **elsewhere})
            with pytest.raises(SourceError, match=r"^topics: not_ready: t: .*not mounted.* — mount the cold tier"):
                rows(OsFs(), plan_read(OsFs(), alone, 0))
    assert [row["data"] for row in found] == [str(n) for n in range(1, 61)]


def test_a_topic_made_anew_is_not_mistaken_for_the_old_one(server: Running) -> None:
    """K-11: a plan is of one instance."""
    with server.client() as client:
        client.post("/v0/topics/t", json={"records": [{"data": 1}, {"data": 2}]})
        parts = planned(SimFs(), server, topics="t")
        client.delete("/v0/topics/t")
        client.post("/v0/topics/t", json={"records": [{"data": 3}, {"data": 4}]})
        with pytest.raises(SourceError, match=r"^topics: recreated: t was deleted, or made anew"):
            rows(SimFs(), parts)


@pytest.mark.parametrize("anew", [0, 2, 50])
@pytest.mark.parametrize("policy", ["emit", "skip"])
def test_records_of_an_instance_that_is_gone_are_lost_not_taken_from_the_next_one(
    server: Running, policy: str, anew: int
) -> None:
    """K-11, A-21: whether the name is free again, shorter than before or longer."""
    with server.client() as client:
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(30)]})
        parts = planned(SimFs(), server, topics="t", onDataLoss=policy)
        client.delete("/v0/topics/t")
        if anew:
            client.post("/v0/topics/t", json={"records": [{"data": -1} for _ in range(anew)]})
        found = rows(SimFs(), parts)
    told = [(row["kind"], row["seq"], row["gap_to"], row["reason"]) for row in found]
    assert told == ([("gap", 1, 30, "recreated")] if policy == "emit" else [])


def test_only_the_segments_of_the_range_are_planned_and_held(server: Running) -> None:
    """A-8: bounds go to the server."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": n} for n in range(1, 71)]})
        client.post("/v0/checkpoint")
        remote = Remote(server.url, None)
        assert [one["first_seq"] for one in remote.segments("t", 0, 10, 20)["segments"]] == [8, 15]
        remote.close()
    bounded = planned(OsFs(), server, topics="t", startingSeq="10", endingSeq="20")
    assert [row["seq"] for row in rows(OsFs(), bounded)] == list(range(10, 21))


def test_records_in_no_segment_weigh_what_the_topic_tells(server: Running) -> None:
    """K-13: partitions of about the wanted size, also of what only the log has."""
    with server.client() as client:
        client.put("/v0/topics/t", json={"durable": True})
        client.post("/v0/topics/t", json={"records": [{"data": "x" * 10_000} for _ in range(100)]})
        parts = planned(SimFs(), server, topics="t", partitionBytes="100000")
        assert 10 <= len(parts) <= 12
        assert len(rows(SimFs(), parts)) == 100


def test_bad_servers_keys_and_names_are_told_in_one_line(tmp_path: Path) -> None:
    """K-15"""
    with running(tmp_path / "store", {"TOPICS_API_KEYS": "secret-key-0123456789:read"}) as server:
        with pytest.raises(SourceError, match=r"^topics: unauthorized: http.* — set `apiKey` or `apiKeyFile`"):
            planned(SimFs(), server, topics="t")
        with pytest.raises(SourceError, match=r"^topics: topic_not_found: http.* — create the topic"):
            planned(SimFs(), server, topics="t", apiKey="secret-key-0123456789")
        url = server.url
    with pytest.raises(SourceError, match=r"^topics: unreachable: http.* — start the server"):
        plan_read(SimFs(), parse_read({"url": url, "topics": "t"}), 0)
    with pytest.raises(SourceError, match=r"^topics: invalid_option: url: 'nonsense' is no address"):
        plan_read(SimFs(), parse_read({"url": "nonsense", "topics": "t"}), 0)


def test_many_topics_are_read_although_pins_run_out(server: Running) -> None:
    """A-8: 64 pins at most; the rest is read without one."""
    with server.client() as client:
        for n in range(70):
            client.post(f"/v0/topics/n{n:02}", json={"records": [{"data": n}]})
        found = rows(OsFs(), planned(OsFs(), server, subscribePattern="n.*"))
    assert [row["data"] for row in found] == [str(n) for n in range(70)]


def test_threads_that_fetch_ahead_share_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-13: all of them may come to ask the server at once; a second client would never be closed."""
    reading = Reading(OsFs(), Source(parse_read({"url": "http://127.0.0.1:1", "topics": "t"}), None, None, None))
    found: list[Remote] = []
    other = threading.Thread(target=lambda: found.append(reading.remote()))
    make = Remote.of

    def slowly(options: Any) -> Remote:
        if not other.ident:
            other.start()
            other.join(0.1)  # as far as it comes
        return make(options)

    monkeypatch.setattr(Remote, "of", slowly)
    found.append(reading.remote())
    other.join(WAIT_S)
    assert found[0] is found[1]
    reading.close()
