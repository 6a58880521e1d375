"""Options of a write [K-30]."""

from __future__ import annotations

import pytest

from topics.spark.failure import SourceError
from topics.spark.writeoptions import WriteOptions, parse_write

URL = {"url": "http://h:1"}


def test_defaults_are_those_of_the_contract() -> None:
    """K-30"""
    found = parse_write(URL)
    assert (found.batch_records, found.batch_bytes, found.segments, found.text) == (5000, 1 << 20, False, False)
    assert (found.topic, found.durability, found.app_id, found.version) == (None, None, None, None)
    assert parse_write({"path": "/data/s"}).staging_dir == "/data/s.staging"
    assert parse_write({"path": "/data/s", "stagingDir": "/tmp/x"}).staging_dir == "/tmp/x"


def test_every_option_is_taken() -> None:
    """K-30: names are not case-sensitive."""
    given = {
        "TOPIC": "t", "dataformat": "TEXT", "mode": "segments", "batchRecords": "7", "batchBytes": "8",
        "durability": "fsync", "txnAppId": "job", "txnVersion": "0", "retryMs": "0", "apiKey": "k",
    }  # fmt: skip
    found = parse_write(URL | given)
    assert found == WriteOptions(
        url="http://h:1", api_key="k", staging_dir=found.staging_dir, topic="t", text=True, segments=True,
        batch_records=7, batch_bytes=8, durability="fsync", app_id="job", version=0, retry_ms=0,
    )  # fmt: skip
    assert "'k'" not in repr(found)


def test_a_stream_takes_what_spark_adds() -> None:
    """K-31: its version is the number of its batch."""
    given = URL | {"checkpointLocation": "/c", "queryName": "q", "txnAppId": "x" * 91}
    assert parse_write(given, stream=True).app_id == "x" * 91


@pytest.mark.parametrize(
    ("given", "stream", "line"),
    [
        ({}, False, "invalid_option: path or url: exactly one of them is needed"),
        (URL | {"path": "p"}, False, "invalid_option: path or url: exactly one of them is needed"),
        (URL | {"topics": "a"}, False, "unknown_option: there is no option `topics` — did you mean `topic`?"),
        (URL | {"checkpointLocation": "/c"}, False, "unknown_option: there is no option `checkpointLocation`"),
        (URL | {"mode": "overwrite"}, False, "invalid_option: mode: 'overwrite' is none of append, segments"),
        (URL | {"durability": "none"}, False, "invalid_option: durability: 'none' is none of ephemeral, "),
        (URL | {"batchRecords": "0"}, False, "invalid_option: batchRecords: '0' is no number from 1 to "),
        (URL | {"txnAppId": "a"}, False, "invalid_option: txnAppId and txnVersion: both or neither are needed"),
        (URL | {"txnVersion": "1"}, False, "invalid_option: txnAppId and txnVersion: both or neither are needed"),
        (URL | {"txnAppId": "a", "txnVersion": "-1"}, False, "invalid_option: txnVersion: '-1' is no number"),
        (URL | {"txnAppId": "ü" * 65, "txnVersion": "1"}, False, "invalid_option: txnAppId: it has more than 128"),
        (URL | {"txnAppId": "a" * 92}, True, "invalid_option: txnAppId: it has more than 91 bytes"),
        (URL | {"txnAppId": "a", "txnVersion": "1"}, True, "invalid_option: txnVersion: the version of a stream is"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], stream: bool, line: str) -> None:
    """K-15"""
    with pytest.raises(SourceError) as caught:
        parse_write(given, stream=stream)
    assert str(caught.value).startswith(f"topics: {line}")
