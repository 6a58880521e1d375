"""Projects of Spark Declarative Pipelines: `topics pipeline init`, `run`, `dry-run` (10 §6)."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import Running, running
from topics.cli.main import main

Caught = pytest.CaptureFixture[str]


def orders(server: Running, start: int, end: int) -> None:
    """Every tenth is one that breaks a rule."""
    rows = [{"data": {"sku": f"B-{n % 5}", "qty": n if n % 10 else -1}, "tag": f"o:{n}"} for n in range(start, end)]
    with server.client() as http:
        http.post("/v0/topics/orders", json={"records": rows}).raise_for_status()


def said(caught: Caught, *words: str) -> dict[str, Any]:
    assert main(["pipeline", *words, "--json"]) == 0
    told: dict[str, Any] = json.loads(caught.readouterr().out)
    return told


@pytest.mark.timeout(900)
def test_a_run_after_100_new_records_processes_100_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    """K-50: bronze, silver by rules, gold, and back into a topic; the second run finds the catalog of the first."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPARK_TESTING", "1")  # other tests listen at Spark's fixed port
    with running(tmp_path / "store") as server:
        orders(server, 1, 301)
        said(capsys, "init", "shop", "--url", server.url, "--topic", "orders")
        first = said(capsys, "run", "shop")
        assert first["rows"] == {"bronze": 300, "silver": 270, "silver_rescue": 30, "gold": 5}
        assert first["rules"] == {"qty_is_positive": 30}
        orders(server, 301, 401)
        second = said(capsys, "run", "shop")
        assert second["new"] == {"bronze": 100, "silver": 90, "silver_rescue": 10}
        assert second["rows"]["gold"] == 5
        with server.client() as http:
            found = http.post("/v0/topics/orders.silver/diff", json={"from_seq": 0, "limit": 1000}).json()["records"]
    assert sorted(one["data"]["seq"] for one in found) == [n for n in range(1, 401) if n % 10]
    assert found[0]["data"].keys() == {"topic", "seq", "sku", "qty"}


def test_a_project_knows_the_members_of_the_records_it_is_made_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Caught
) -> None:
    """K-50: columns and rules from a sample; nothing that is there is touched."""
    monkeypatch.chdir(tmp_path)
    with running(tmp_path / "store") as server:
        orders(server, 1, 21)
        told = said(capsys, "init", "shop", "--url", server.url, "--topic", "orders")
        settings = tomllib.loads((tmp_path / "shop/pipeline.toml").read_text())
        assert settings["columns"] == {"sku": "string", "qty": "bigint"}
        assert settings["rules"]["qty_is_positive"] == "qty >= 0"
        assert settings["source"] == {"url": server.url, "topics": "orders", "startingSeq": "earliest"}
        assert {"pipeline.toml", "spark-pipeline.yml", "transformations/gold.sql"} <= set(told["files"])
        for words, code in (
            (["init", "shop", "--url", server.url, "--topic", "orders"], "target_not_empty"),
            (["init", "Shop!", "--url", server.url, "--topic", "orders"], "invalid_option"),
            (["init", "new", "--url", server.url, "--topic", "none"], "topic_not_found"),
            (["run", "nowhere"], "no_project"),
        ):
            assert main(["pipeline", *words]) == 1
            assert capsys.readouterr().err.startswith(f"topics: {code}: ")
    (tmp_path / "shop/pipeline.toml").write_text("[source\n")
    assert main(["pipeline", "dry-run", "shop"]) == 1
    assert "pipeline.toml" in capsys.readouterr().err
