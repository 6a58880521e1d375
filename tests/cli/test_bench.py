"""`topics bench`: it measures a server, tells what it found in three ways, and leaves nothing behind (11 §2)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.api.kit import Running
from tests.cli.conftest import Run
from topics.cli import peers
from topics.client.sync import Client

QUESTIONS = ["one-record writes", "100-record writes", "durable writes", "reads of 1000", "deliveries"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.cli.bench.QUICK", 200)


def test_a_running_server_is_measured_and_has_no_topic_more_behind_it(
    run: Run, server: Running, client: Client, tmp_path: Path
) -> None:
    before = [one.topic for one in client.topics()]
    told = run("bench", "--url", server.url, "--quick", "--rounds", "1", "--json").told
    assert told["ok"]
    assert [one["question"] for one in told["questions"]] == QUESTIONS
    for one in told["questions"]:
        assert one["arms"]["topics"]["per_second"]["low"] > 0
        assert one["beside"] == {}
    assert [one.topic for one in client.topics()] == before
    assert json.loads((tmp_path / "topics-bench.json").read_text()) == told
    page = ET.fromstring((tmp_path / "topics-bench.html").read_text().removeprefix("<!DOCTYPE html>\n"))
    assert len(list(page.iter("svg"))) == 2 * len(QUESTIONS)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_a_server_is_started_for_it_and_a_missing_peer_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[P-3]"""
    monkeypatch.setattr(peers, "installed", lambda name: False)
    peers.version.cache_clear()
    peers.can_sync_always.cache_clear()
    ran = run("bench", "--path", str(tmp_path), "--out", str(tmp_path / "out"), "--quick", "--rounds", "1",
              "--against", "redis,nats")  # fmt: skip
    assert ran.status == 0, ran.err
    assert "NATS is not installed: not compared." in ran.out
    assert [line.split("  ")[0] for line in ran.out.splitlines()[1:6]] == QUESTIONS
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out"]
    peers.version.cache_clear()
    peers.can_sync_always.cache_clear()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--against", "kafka"], "no peer 'kafka'"),
        (["--against", "redis", "--url", "http://127.0.0.1:1"], "give --against or --url"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_what_makes_no_sense_is_refused(run: Run, words: list[str], why: str) -> None:
    """[U-10]"""
    ran = run("bench", *words)
    assert ran.status == 2
    assert why in ran.err


def test_a_server_that_refuses_ends_it_with_one_line(run: Run, server: Running) -> None:
    ran = run("bench", "--url", server.url + "/elsewhere", "--quick", "--rounds", "1", "--json")
    assert ran.status == 1
    assert len(ran.err.splitlines()) == 1
