"""What was acknowledged over a WebSocket is there after a kill, and followed from where the client was [R-1]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

from tests.api.process import WAIT_S, Served, served

TOTAL = 2000
KILLED_AT = 500


def socket_of(one: Served) -> ClientConnection:
    return connect(one.url.replace("http", "ws") + "/v0/ws", max_size=None)


def told(ws: ClientConnection) -> dict[str, Any]:
    frame: dict[str, Any] = json.loads(ws.recv(WAIT_S))
    return frame


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_acknowledged_publishes_survive_sigkill_and_are_followed_without_a_gap(tmp_path: Path, durability: str) -> None:
    """[DUR-1, WS-8] Sent without waiting; a follower goes on behind the last record it saw."""
    acked: list[int] = []
    seen: list[int] = []
    with served(tmp_path) as one:
        one.ready()
        with one.client() as http:
            http.put("/v0/topics/t", json={"durability": durability}).raise_for_status()
        with socket_of(one) as writer, socket_of(one) as reader:
            reader.send('{"op":"subscribe","topic":"t"}')
            for n in range(TOTAL):
                writer.send(f'{{"op":"publish","topic":"t","request_id":{n},"records":[{{"data":{n}}}]}}')
            try:
                while len(acked) < KILLED_AT:
                    ack = told(writer)
                    assert ack["request_id"] == len(acked)
                    acked += ack["seqs"]
                while len(seen) < KILLED_AT // 2:
                    seen += [record["$seq"] for record in told(reader).get("records", [])]
                one.process.kill()
                while True:
                    acked += told(writer)["seqs"]
            except ConnectionClosed:
                pass
            try:
                while True:
                    seen += [record["$seq"] for record in told(reader).get("records", [])]
            except ConnectionClosed:
                pass
    with served(tmp_path) as again:
        again.ready()
        with socket_of(again) as reader:
            reader.send(json.dumps({"op": "subscribe", "topic": "t", "from_seq": seen[-1]}))
            head = told(reader)["topics"]["t"]["head_seq"]
            while seen[-1] < head:
                frame = told(reader)
                assert frame["op"] == "record"
                seen += [record["$seq"] for record in frame["records"]]
        assert head >= len(acked)
    assert acked == list(range(1, len(acked) + 1))
    assert seen == list(range(1, head + 1))


def test_sigterm_answers_what_was_sent_and_says_goodbye(tmp_path: Path) -> None:
    """[WS-7, API-5] Everything acknowledged is there at the next start, nothing else is."""
    with served(tmp_path) as one:
        one.ready()
        with socket_of(one) as ws:
            for n in range(TOTAL):
                ws.send(f'{{"op":"publish","topic":"t","request_id":{n},"records":[{{"data":{n}}}]}}')
            assert told(ws)["seqs"] == [1]
            one.process.terminate()
            last = 1
            while (frame := told(ws))["op"] == "ack":
                last = frame["last_seq"]
            assert frame["code"] == "server_shutting_down"
            with pytest.raises(ConnectionClosed):
                ws.recv(WAIT_S)
            assert ws.close_code == 1001
        assert one.ended() == 0
    with served(tmp_path) as again:
        again.ready()
        with again.client() as http:
            assert http.get("/v0/topics/t").json()["head_seq"] == last
