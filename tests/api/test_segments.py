"""`GET /v0/topics/{topic}/segments`: what a reader is told who opens the files itself [A-8]."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.kit import Running, records, running
from tests.api.rawclient import RawClient, get, in_flight, leave, until
from topics.fs import OsFs
from topics.storage.view import Batch, StoreView

ENV = {"TOPICS_SEGMENT_MAX_EVENTS": "3", "TOPICS_CHECKPOINT_MS": "3600000"}


@pytest.fixture
def small(tmp_path: Path) -> Any:
    """A server whose segments hold three records, and which checkpoints only when told."""
    with running(tmp_path / "store", ENV) as server:
        yield server


def filled(client: httpx.Client, count: int = 7, **config: object) -> None:
    client.put("/v0/topics/t", json={"durable": True, **config})
    client.post("/v0/topics/t", json=records(*range(1, count + 1)))
    assert client.post("/v0/checkpoint").status_code == 200


def plan(client: httpx.Client, query: str = "") -> dict[str, Any]:
    answer = client.get(f"/v0/topics/t/segments{query}")
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


def test_an_unknown_topic_is_not_found(client: httpx.Client) -> None:
    """[A-8, NAME-3]"""
    for name in ("nowhere", ".hidden", "%24loss"):
        answer = client.get(f"/v0/topics/{name}/segments")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "topic_not_found"


def test_the_members_are_those_of_the_specification(small: Running, tmp_path: Path) -> None:
    """[A-8]: `pending` only where something is."""
    with small.client() as client:
        filled(client)
        client.post("/v0/topics/t", json=records(8))
        told = plan(client)
    assert set(told) == {
        "topic", "id", "epoch", "store", "data_dir", "cold", "class", "now_ms", "head_seq", "durable_seq", "ckpt_seq",
        "earliest_seq", "floors", "segments", "next_seq", "pin", "version", "performance",
    }  # fmt: skip
    assert (told["topic"], told["class"], told["cold"]) == ("t", "fsync", None)
    assert (told["next_seq"], told["pin"]) == (None, None)
    assert (told["head_seq"], told["durable_seq"], told["ckpt_seq"], told["earliest_seq"]) == (8, 8, 7, 1)
    assert told["floors"] == {"cap": 1, "ttl": 1, "deleted_below": 1}
    assert told["data_dir"] == str(tmp_path / "store")
    assert told["store"] == (tmp_path / "store/meta/STORE").read_text().strip()
    assert [set(one) for one in told["segments"]] == 3 * [
        {
            "first_seq", "last_seq", "records", "bytes", "min_ts", "max_ts", "tier", "path", "generation", "sealed",
            "gap", "version",
        }
    ]  # fmt: skip
    for one in told["segments"]:
        assert Path(one["path"]).stat().st_size == one["bytes"]
        assert one["path"].startswith(told["data_dir"] + "/")
    assert [one["sealed"] for one in told["segments"]] == [True, True, False]


def test_the_files_of_a_plan_show_no_record_that_was_deleted_before_it(small: Running) -> None:
    """[A-8, K-11]: read by a program of its own, while the server runs."""
    with small.client() as client:
        filled(client, 9)
        client.post("/v0/topics/t/delete", json={"seqs": [2, 8]})
        client.post("/v0/topics/t/delete", json={"before_seq": 2})
        told = plan(client)
        live = [one["$seq"] for one in client.post("/v0/topics/t/diff").json()["records"]]
    view = StoreView(OsFs(), told["data_dir"]).topic("t")
    assert view is not None
    found = [seq for part in view.scan() if isinstance(part, Batch) for seq in part.seqs.tolist()]
    assert [seq for seq in found if seq >= max(told["floors"].values())] == live == [3, 4, 5, 6, 7, 9]
    assert sum(one["records"] for one in told["segments"]) == len(live)


def test_pages_are_cut_by_limit_and_go_on_at_next_seq(small: Running) -> None:
    """[A-8]"""
    with small.client() as client:
        filled(client, 12)
        first = plan(client, "?limit=2")
        assert [one["first_seq"] for one in first["segments"]] == [1, 4]
        second = plan(client, f"?limit=2&from_seq={first['next_seq']}")
        assert [one["first_seq"] for one in second["segments"]] == [7, 10]
        assert (second["next_seq"], second["version"]) == (None, first["version"])
        assert [one["first_seq"] for one in plan(client, "?from_seq=5&to_seq=7")["segments"]] == [4, 7]
        for odd in ("?limit=0", "?limit=abc", "?limit=-1", "?limit=99999999", "?from_seq=x&to_seq=y"):
            assert len(plan(client, odd)["segments"]) == 4, odd
        assert plan(client, f"?from_seq={2**64 - 1}")["segments"] == []


def test_expired_records_are_gone_from_the_answer(tmp_path: Path) -> None:
    """[A-8, TTL-3]"""
    with running(tmp_path, ENV) as server, server.client() as client:
        filled(client, 4, ttl_ms=1)
        last = client.post("/v0/topics/t/diff").json()["head_seq"]
        told = plan(client)
        while told["floors"]["ttl"] == 1:
            told = plan(client)
        assert told["floors"]["ttl"] == told["earliest_seq"] == last + 1
        assert told["segments"] == []


def test_many_segments_are_one_answer(tmp_path: Path) -> None:
    """[P-10]: put together aside, the same as few."""
    with running(tmp_path, {**ENV, "TOPICS_SEGMENT_MAX_EVENTS": "1"}) as server, server.client() as client:
        filled(client, 300)
        told = plan(client)
        assert [one["first_seq"] for one in told["segments"]] == list(range(1, 301))
    with running(tmp_path, ENV) as server, server.client() as client:
        again = plan(client)
        assert [one["min_ts"] for one in again["segments"]] == [one["min_ts"] for one in told["segments"]]


def test_the_version_is_that_of_the_answer(small: Running) -> None:
    """[A-8]: it stays when only `head_seq` and `durable_seq` move."""
    with small.client() as client:
        filled(client)
        before = plan(client)
        client.post("/v0/topics/t", json=records("more"))
        assert plan(client)["version"] == before["version"]
        client.post("/v0/topics/t/delete", json={"seqs": [1]})
        after = plan(client)
        assert after["version"] != before["version"]
        assert isinstance(after["version"], str)


def test_it_needs_the_read_scope_and_the_name(tmp_path: Path) -> None:
    """09 §2, [PFX-1]"""
    env = {**ENV, "TOPICS_API_KEYS": "all,reader:r:t,other:r:x,writer:w"}
    with running(tmp_path, env) as server:
        with server.client(key="all") as client:
            filled(client)
        for key, status in (("reader", 200), ("other", 403), ("writer", 403), ("stranger", 401)):
            with server.client(key=key) as client:
                assert client.get("/v0/topics/t/segments").status_code == status, key


# -- pins --------------------------------------------------------------------------------------------------------------


def test_pages_of_a_pin_come_from_one_instant_whatever_happens_to_the_topic(small: Running) -> None:
    """[A-8]"""
    with small.client() as client:
        filled(client, 12)
        whole = plan(client)
        first = plan(client, "?limit=2&pin_ms=60000")
        pin = first["pin"]
        assert set(pin) == {"id", "expires_ms"}
        assert 0 < pin["expires_ms"] - first["now_ms"] <= 60_001
        client.post("/v0/topics/t/delete", json={"seqs": [8]})
        client.post("/v0/topics/t", json=records(*range(13, 20)))
        assert client.post("/v0/checkpoint").status_code == 200
        second = plan(client, f"?limit=2&from_seq={first['next_seq']}&pin={pin['id']}")
        assert second["pin"] == pin
        assert second["next_seq"] is None
        assert first["segments"] + second["segments"] == whole["segments"]
        same = ("head_seq", "durable_seq", "ckpt_seq", "now_ms", "version", "floors")
        assert [first[name] for name in same] == [second[name] for name in same]
        assert len(plan(client)["segments"]) > 4
        assert client.delete("/v0/topics/t").status_code == 200
        assert plan(client, f"?pin={pin['id']}")["segments"] == whole["segments"]


def test_a_released_pin_is_not_found_and_neither_is_one_of_another_topic(small: Running) -> None:
    """[A-8]: 404 `not_found`"""
    with small.client() as client:
        filled(client)
        client.post("/v0/topics/other", json=records(1))
        id = plan(client, "?pin_ms=60000")["pin"]["id"]
        unknown = [
            f"/v0/topics/other/segments?pin={id}",
            "/v0/topics/t/segments?pin=none",
            "/v0/topics/t/segments?pin=",
        ]
        for path in unknown:
            answer = client.get(path)
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found"), path
        told = client.delete(f"/v0/pins/{id}")
        assert (told.status_code, set(told.json())) == (200, {"deleted", "performance"})
        for answer in (client.delete(f"/v0/pins/{id}"), client.get(f"/v0/topics/t/segments?pin={id}")):
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_there_are_64_pins_and_not_one_more(small: Running) -> None:
    """[A-8, RES-2]"""
    with small.client() as client:
        filled(client)
        pins = [plan(client, "?pin_ms=99999999")["pin"] for _ in range(64)]
        assert max(pin["expires_ms"] for pin in pins) <= plan(client)["now_ms"] + 3_600_000
        for answer in (
            client.get("/v0/topics/t/segments?pin_ms=1000"),
            client.post("/v0/checkpoint", json={"pin_ms": 1000}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "throttled")
            assert answer.json()["error"]["detail"] == {"limit": "pins", "max": 64}
        client.delete(f"/v0/pins/{pins[0]['id']}")
        assert plan(client, "?pin_ms=1000")["pin"] is not None


def test_a_pinned_file_outlives_its_drop_and_goes_with_the_pin(small: Running) -> None:
    """[A-8] 15 C34"""
    with small.client() as client:
        filled(client, 9)
        told = plan(client, "?pin_ms=3600000")
        files = [Path(one["path"]) for one in told["segments"]]
        client.post("/v0/topics/t/delete", json={"before_seq": 9})
        client.post("/v0/topics/t", json=records(10))
        for _ in range(2):
            client.post("/v0/checkpoint")
        assert all(one.exists() for one in files)
        assert [one["$seq"] for one in client.post("/v0/topics/t/diff").json()["records"]] == [9, 10]
        client.delete(f"/v0/pins/{told['pin']['id']}")
        client.post("/v0/topics/t", json=records(11))
        client.post("/v0/checkpoint")  # its files are written behind what the pin set free
        assert [one.exists() for one in files] == [False, False, True]


def test_a_checkpoint_with_a_pin_names_its_snapshot_and_holds_it(small: Running, tmp_path: Path) -> None:
    """[A-15]"""
    with small.client() as client:
        filled(client, 9)
        told = client.post("/v0/checkpoint", json={"pin_ms": 60_000}).json()
        assert set(told) == {"topics", "sealed", "pin", "snapshot", "performance"}
        snapshot = tmp_path / "store/meta" / told["snapshot"]
        held = snapshot.read_bytes()
        files = [Path(one["path"]) for one in plan(client)["segments"]]
        for number in range(4):
            client.post("/v0/topics/t/delete", json={"before_seq": 7})
            client.post("/v0/topics/t", json=records(number))
            client.post("/v0/checkpoint")
        assert snapshot.read_bytes() == held
        assert all(one.exists() for one in files)
        assert client.delete(f"/v0/pins/{told['pin']['id']}").status_code == 200
        client.post("/v0/topics/t", json=records("one more"))
        client.post("/v0/checkpoint")
        assert not snapshot.exists()
        assert [one.exists() for one in files] == [False, False, True]


def test_pin_ms_of_a_checkpoint_is_checked(small: Running) -> None:
    """[A-15, API-11, API-12]: nothing, `{}` and null ask for no pin."""
    with small.client() as client:
        filled(client)
        good: list[Any] = [{}, {"pin_ms": None}, {"pin_ms": 0}, {"other": 1}]
        bad: list[Any] = [{"pin_ms": -1}, {"pin_ms": "5"}, {"pin_ms": True}, {"pin_ms": 2**64}, [], 5]
        for body in good:
            assert "pin" not in client.post("/v0/checkpoint", json=body).json()
        for body in bad:
            answer = client.post("/v0/checkpoint", json=body)
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request"), body
        answer = client.post("/v0/checkpoint", content=b'{"pin_ms":', headers={"content-type": "application/json"})
        assert answer.status_code == 400


def test_a_pin_is_released_with_the_read_scope(tmp_path: Path) -> None:
    """09 §2"""
    with running(tmp_path, {**ENV, "TOPICS_API_KEYS": "all,reader:r,writer:w"}) as server:
        with server.client(key="all") as client:
            filled(client)
        with server.client(key="reader") as client:
            id = plan(client, "?pin_ms=1000000")["pin"]["id"]
        for key, status in (("writer", 403), ("stranger", 401), ("reader", 200)):
            with server.client(key=key) as client:
                assert client.delete(f"/v0/pins/{id}").status_code == status, key


def test_a_client_that_leaves_before_it_is_told_of_its_pin_holds_neither_it_nor_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[A-8, RES-7, API-23]"""
    env = {**ENV, "TOPICS_API_KEYS": "k", "TOPICS_MAX_INFLIGHT_PER_KEY": "1"}
    with running(tmp_path, env) as server, server.client(key="k") as client:
        filled(client)
        engine = server.server.app.engine
        assert engine is not None
        begin, held = engine.begin_plan, list[Callable[[], None]]()

        def hold(name: str, asked: Any, done: Callable[[Any], None]) -> None:
            begin(name, asked, lambda outcome: held.append(lambda: done(outcome)))

        with monkeypatch.context() as patch, RawClient(server) as gone:
            patch.setattr(engine, "begin_plan", hold)
            gone.send(get("/v0/topics/t/segments?pin_ms=60000", "Authorization: Bearer k"))
            until(server, lambda: bool(held))
            assert (in_flight(server), pins(server)) == (1, 1)
            leave(server, gone)
            server.on_loop(held.pop())
        assert (in_flight(server), pins(server)) == (0, 0)
        assert plan(client)["head_seq"] == 7


def pins(server: Running) -> int:
    return server.on_loop(lambda: len(server.server.app.engine.core.pins))  # type: ignore[union-attr]
