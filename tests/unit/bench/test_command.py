"""The command line of the benchmarks."""

from __future__ import annotations

import importlib
import json

import pytest

from bench import __main__ as command


def test_results_keep_each_round_on_one_line() -> None:
    given = {"doc": "a\nb  c", "rounds": [{"wall_us": 1.0, "cpu_us": 2.0}, {"wall_us": 3.0, "cpu_us": 4.0}]}
    text = command.to_json(given)
    assert json.loads(text) == given
    assert [line.count("wall_us") for line in text.splitlines()].count(1) == 2


def test_every_benchmark_is_known_and_says_what_it_measures() -> None:
    assert command.NAMES == (
        "archive",
        "cold",
        "delivery",
        "engine_commit",
        "engine_memory",
        "engine_recovery",
        "http_commit",
        "http_read",
        "http_stall",
        "http_write",
        "loop_stalls",
        "queue",
        "retained",
        "routers",
        "spark",
        "sse",
        "stalled",
        "wal_append",
        "wal_policies",
        "wal_recovery",
        "wal_slow_syncs",
    )
    for name in command.NAMES:
        doc = importlib.import_module(f"bench.bench_{name}").__doc__ or ""
        assert doc.splitlines()[0].endswith("?")
        assert "Not measured" in doc


@pytest.mark.parametrize(
    ("words", "message"),
    [(["nope"], "no benchmark 'nope'"), (["--rounds", "4"], "fewer than 5"), (["compare"], "required: ref")],
)
def test_wrong_usage_is_refused_with_a_reason(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(words)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
