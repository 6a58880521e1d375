"""Options of the format: all of them checked, wrong ones refused with a line that says what to do."""

from __future__ import annotations

import importlib
import pickle
import sys

import pytest

from topics.spark.failure import InSpark, SourceError, in_spark
from topics.spark.options import COLUMNS, Bound, ReadOptions, parse_read
from topics.storage.view import Tags

BASE = {"path": "d", "topics": "a"}


def test_names_are_not_case_sensitive_and_have_defaults() -> None:
    """10 §2"""
    assert parse_read({"PATH": "d", "Topics": "a, b,a"}) == ReadOptions(path="d", topics=("a", "b"))
    options = parse_read(BASE)
    assert (options.verify, options.on_data_loss, options.include_deleted) == (True, "fail", False)
    assert (options.partition_bytes, options.min_partitions, options.pin_ms) == (96 << 20, 2, 600_000)
    assert options.columns == COLUMNS
    assert parse_read({"path": "d", "subscribe": "a"}).topics == ("a",)
    assert pickle.loads(pickle.dumps(options)) == options


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"startingSek": "1"}, r"unknown_option: there is no option `startingSek` — did you mean `startingSeq`\?"),
        ({"zzz": "1"}, r"unknown_option: there is no option `zzz` — the options are listed"),
        ({"url": "http://x"}, r"invalid_option: path or url: exactly one of them"),
        ({"subscribe": "b"}, r"invalid_option: topics: exactly one of"),
        ({"topics": " , "}, r"invalid_option: topics: no topic is named"),
        ({"startingSeq": "-1"}, r"invalid_option: startingSeq: '-1' is neither `earliest` nor a seq"),
        ({"startingSeq": "latest"}, r"invalid_option: startingSeq: 'latest'"),
        ({"endingSeq": "{"}, r"invalid_option: endingSeq: no JSON object"),
        ({"startingTimestamp": "yesterday"}, r"invalid_option: startingTimestamp: 'yesterday' is neither ISO 8601"),
        ({"tags": "[1]"}, r"invalid_option: tags: an item is not a string"),
        ({"tags": "[1"}, r"invalid_option: tags: no JSON array"),
        ({"columns": "seq,value"}, r"invalid_option: columns: there is no column `value` — choose from topic, seq"),
        ({"columns": ""}, r"invalid_option: columns: no column is named"),
        ({"columns": "seq", "onDataLoss": "emit"}, r"invalid_option: columns: with onDataLoss=emit `kind` must be"),
        ({"payload": "avro"}, r"invalid_option: payload: 'avro' is none of string, binary"),
        ({"verify": "maybe"}, r"invalid_option: verify: 'maybe' is none of true, false"),
        ({"partitionBytes": "0"}, r"invalid_option: partitionBytes: '0' is no number from 1"),
        ({"partitionBytes": "9" * 5000}, r"invalid_option: partitionBytes: '9+' is no number from 1"),
        ({"startingSeq": "9" * 5000}, r"invalid_option: startingSeq: '9+' is neither `earliest` nor a seq"),
        ({"apiKey": "k", "apiKeyFile": "f"}, r"invalid_option: apiKey: a key and a file"),
        ({"apiKeyFile": "/nowhere/key"}, r"invalid_option: apiKeyFile: /nowhere/key cannot be read"),
    ],
)
def test_what_cannot_be_meant_is_refused(given: dict[str, str], line: str) -> None:
    """K-15"""
    with pytest.raises(SourceError, match=f"^topics: {line}"):
        parse_read(BASE | given)


def test_a_bad_pattern_is_refused() -> None:
    """K-15"""
    with pytest.raises(SourceError, match=r"^topics: invalid_option: subscribePattern: no regular expression"):
        parse_read({"path": "d", "subscribePattern": "("})


def test_bounds_are_numbers_words_instants_or_one_per_topic() -> None:
    """10 §2: all inclusive; an instant between two milliseconds moves inwards."""
    both = {"startingTimestamp": "2026-01-02T03:04:05.0001Z", "endingTimestamp": "2026-01-02T03:04:05.0009+00:00"}
    options = parse_read(BASE | both)
    assert (options.start_ts.each, options.end_ts.each) == (1767323045001, 1767323045000)
    assert parse_read(BASE | {"startingTimestamp": "1767323045001"}).start_ts == Bound(1767323045001)
    assert parse_read(BASE | {"endingTimestamp": "2026-01-02"}).end_ts == Bound(1767312000000)
    seqs = parse_read(BASE | {"startingSeq": '{"a": 5, "b": "earliest"}', "endingSeq": "latest"})
    assert [seqs.start_seq.of(name) for name in "abc"] == [5, None, None]
    assert seqs.end_seq == Bound()


def test_tags_end_in_a_star_or_not() -> None:
    """10 §2: a comma list or a JSON array, which can hold anything."""
    assert parse_read(BASE | {"tags": "a, b:*"}).tags == Tags(("a",), ("b:",))
    assert parse_read(BASE | {"tags": '["a,b", "*", ""]'}).tags == Tags(("a,b", ""), ("",))
    assert parse_read(BASE | {"node": '["x,y"]'}).nodes == ("x,y",)


def test_the_key_is_not_shown() -> None:
    """BOOT: secrets never reach a log."""
    options = parse_read({"url": "http://x", "topics": "a", "apiKey": "s3cret"})
    assert options.api_key == "s3cret"
    assert "s3cret" not in repr(options)
    assert "s3cret" not in f"{options}"


def test_the_last_line_inside_spark_is_ours() -> None:
    """K-15"""
    shown = in_spark(SourceError("code", "what\nhappened", "do it"))
    assert isinstance(shown, InSpark)
    assert f"Error: {shown}".splitlines()[-1] == "topics: code: what happened — do it"
    assert str(in_spark(OSError(2, "No such file"))).splitlines()[-1].startswith("topics: io_error: ")
    copied = pickle.loads(pickle.dumps(shown))
    assert str(copied) == str(shown)
    other = KeyError("x")
    assert in_spark(other) is other


def test_the_module_spark_looks_for_never_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-2: without pyarrow there is no source, and no error either."""
    monkeypatch.delitem(sys.modules, "pyspark_topics", raising=False)
    monkeypatch.setitem(sys.modules, "topics.spark.source", None)
    assert not hasattr(importlib.import_module("pyspark_topics"), "DefaultSource")
    monkeypatch.undo()
    sys.modules.pop("pyspark_topics", None)
    assert importlib.import_module("pyspark_topics").DefaultSource.name() == "topics"
