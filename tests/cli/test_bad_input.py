"""Bad input of every kind: one line on stderr with a code and a hint, the right status, never a traceback [U-10]."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.api.kit import Running
from tests.cli.conftest import Run
from topics.client.sync import Client

USAGE, FAILED = 2, 1

CASES: list[tuple[str, int, str, bytes | None]] = [
    # The program itself.
    ("", USAGE, "usage", None),
    ("fly", USAGE, "usage", None),
    ("--nonsense", USAGE, "usage", None),
    ("ls --nonsense", USAGE, "usage", None),
    ("ls a b", USAGE, "usage", None),
    # Which server.
    ("ls --url", USAGE, "usage", None),
    ("ls --url localhost:4000", FAILED, "invalid_request", None),
    ("ls --url ftp://localhost", FAILED, "invalid_request", None),
    ("ls --url http://user:pass@localhost", FAILED, "invalid_request", None),
    ("ls --url http://localhost:99999", FAILED, "invalid_request", None),
    ("ls --url http://127.0.0.1:1", FAILED, "unreachable", None),
    ("ls --url http://no.such.host.invalid", FAILED, "unreachable", None),
    ("ls --url https://127.0.0.1:1", FAILED, "unreachable", None),
    ("ls --api-key-file no-such-file", FAILED, "io_error", None),
    ("ls --api-key-file .", FAILED, "io_error", None),
    ("ls --api-key-file binary", FAILED, "invalid_request", None),
    ("ls --profile nobody", FAILED, "bad_profile", None),
    ("ls --api-key secret", USAGE, "usage", None),
    # Topics.
    ("create", USAGE, "usage", None),
    ("create bad/name", FAILED, "invalid_request", None),
    ("create $own", FAILED, "invalid_request|forbidden", None),
    ("create -- -dash", FAILED, "invalid_request", None),
    ("create x --ttl soon", USAGE, "usage", None),
    ("create x --ttl -1h", USAGE, "usage", None),
    ("create x --cap many", USAGE, "usage", None),
    ("create x --cap 1.5", USAGE, "usage", None),
    ("create x --cap 99999999999999999999", USAGE, "usage", None),
    ("create x --durability paper", USAGE, "usage", None),
    ("create x --priority high", USAGE, "usage", None),
    ("create x --priority 99999999999", FAILED, "invalid_request", None),
    ("create x --dead-letter a/b", FAILED, "invalid_request", None),
    ("create q --queue --dead-letter q", FAILED, "invalid_request", None),
    ("create log-1 --queue", FAILED, "topic_exists_incompatible", None),
    ("show absent", FAILED, "topic_not_found", None),
    ("show a b", USAGE, "usage", None),
    ("show a\\x00b", FAILED, "topic_not_found", None),
    ("config absent ttl_ms=1h", FAILED, "topic_not_found", None),
    ("config log-1 ttl_ms", USAGE, "usage", None),
    ("config log-1 colour=red", USAGE, "usage", None),
    ("config log-1 ttl_ms=soon", USAGE, "usage", None),
    ("config log-1 durability=paper", FAILED, "invalid_request", None),
    ("config log-1 priority=high", USAGE, "usage", None),
    ("config log-1 type=queue", FAILED, "topic_exists_incompatible", None),
    ("rm", USAGE, "usage", None),
    ("rm $deletes", FAILED, "forbidden", None),
    ("rm log-1 --if-empty", FAILED, "topic_not_empty", None),
    # Records.
    ("write", USAGE, "usage", None),
    ("write log-1 no-such-file", FAILED, "io_error", None),
    ("write log-1 .", FAILED, "io_error", None),
    ("write log-1 --csv --jsonl", USAGE, "usage", b""),
    ("write log-1", FAILED, "bad_line", b"not json\n"),
    ("write log-1", FAILED, "bad_line", b"NaN\n"),
    ("write log-1", FAILED, "bad_line", b'"\xff"\n'),
    ("write log-1", FAILED, "bad_line", b"[" * 5000 + b"\n"),
    ("write log-1", FAILED, "record_too_large", b'"' + b"x" * 1_200_000 + b'"\n'),
    ("write log-1 --tag " + "t" * 300, FAILED, "invalid_request", b"1\n"),
    ("write log-1 --batch 0", USAGE, "usage", b"1\n"),
    ("write log-1 --batch 20k", FAILED, "batch_too_large", b"1\n" * 10_001),
    ("write log-1 --rate 0", USAGE, "usage", b"1\n"),
    ("write log-1 --rate fast", USAGE, "usage", b"1\n"),
    ("write log-1 --data {", FAILED, "bad_line", None),
    ("write log-1 --data NaN", FAILED, "bad_line", None),
    ('write log-1 --data "\\\\ud800"', FAILED, "bad_line", None),
    ("write log-1 --tag \\udcff", FAILED, "invalid_request", b"1\n"),
    ("show \\udcff", FAILED, "topic_not_found", None),
    ("create \\udcff", FAILED, "invalid_request", None),
    ("read log-1 --node \\udcff", FAILED, "invalid_request", None),
    ("delete log-1 --tag \\udcff --yes", FAILED, "invalid_request", None),
    ("router add \\udcff log-1 other", FAILED, "invalid_request", None),
    ("write log-1 file --data 1", USAGE, "usage", None),
    ("write log-1 --api-key-file -", USAGE, "usage", b"1\n"),
    ("write $deletes", FAILED, "forbidden", b"1\n"),
    ("write a/b", FAILED, "invalid_request", b"1\n"),
    ("write full", FAILED, "topic_full", b"1\n"),
    ("read", USAGE, "usage", None),
    ("read absent", FAILED, "topic_not_found", None),
    ("read log-1 --from first", USAGE, "usage", None),
    ("read log-1 --from -1", USAGE, "usage", None),
    ("read log-1 --from 1 --since 1h", USAGE, "usage", None),
    ("read log-1 --since yesterday", USAGE, "usage", None),
    ("read log-1 --limit none", USAGE, "usage", None),
    ("read log-1 --format xml", USAGE, "usage", None),
    ("read log-1 --node " + "n" * 200, FAILED, "invalid_request", None),
    ("tail", USAGE, "usage", None),
    ("tail absent -f", FAILED, "topic_not_found", None),
    ("tail log-1 log-1", USAGE, "usage", None),
    ("tail log-1 -n all", USAGE, "usage", None),
    ("delete log-1", USAGE, "usage", None),
    ("delete log-1 --yes", USAGE, "usage", None),
    ("delete log-1 --before x", USAGE, "usage", None),
    ("delete log-1 --tag a --prefix b", USAGE, "usage", None),
    ("delete log-1 --before 1", FAILED, "not_confirmed", None),
    ("delete absent --before 1 --yes", FAILED, "topic_not_found", None),
    # Queues, routers and the rest.
    ("queue", USAGE, "usage", None),
    ("queue fly", USAGE, "usage", None),
    ("queue claim log-1", FAILED, "not_a_queue", None),
    ("queue claim absent", FAILED, "topic_not_found", None),
    ("queue claim jobs --max lots", USAGE, "usage", None),
    ("queue claim jobs --node " + "n" * 200, FAILED, "invalid_request", None),
    ("queue ack jobs", USAGE, "usage", None),
    ("queue ack jobs one", USAGE, "usage", None),
    ("queue ack jobs 1 --lease-id token", FAILED, "invalid_request", None),
    ("queue ack jobs 1 2 --lease-id lease_1", FAILED, "invalid_request", None),
    ("queue nack jobs 1 --delay later", USAGE, "usage", None),
    ("queue work jobs", USAGE, "usage", None),
    ("queue work jobs -- no-such-command-here", FAILED, "invalid_request", None),
    ("queue work log-1 -- true", FAILED, "not_a_queue", None),
    ("queue stats log-1", FAILED, "not_a_queue", None),
    ("queue redrive absent", FAILED, "topic_not_found", None),
    ("router add r", USAGE, "usage", None),
    ("router add r log-1 log-1", FAILED, "invalid_request", None),
    ("router add a/b log-1 other", FAILED, "invalid_request", None),
    ("router add r log-1 other --no-create", FAILED, "topic_not_found", None),
    ("router rm", USAGE, "usage", None),
    ("checkpoint --path no-such-dir", FAILED, "io_error|invalid_request|not_a_store", None),
    ("completion tcsh", USAGE, "usage", None),
    ("bench --against rabbits", USAGE, "usage", None),
    ("bench --against redis --url http://127.0.0.1:1", USAGE, "usage", None),
    ("bench --rounds 0", USAGE, "usage", None),
    ("pipeline submit --archive x.zip init project", USAGE, "usage", None),
    ("export absent --out x.jsonl", FAILED, "topic_not_found|missing_extra", None),
]


@pytest.fixture(scope="module", autouse=True)
def prepared(server: Running) -> None:
    with Client(server.url) as client:
        client.append("log-1", 1)
        client.create("jobs", type="queue")
        client.create("full", cap_records=1, discard="reject")
        client.append("full", 1)


@pytest.mark.parametrize(("line", "status", "code", "stdin"), CASES, ids=[case[0][:60] for case in CASES])
def test_bad_input_is_one_line_and_never_a_traceback(
    run: Run, tmp_path: Path, line: str, status: int, code: str, stdin: bytes | None
) -> None:
    """[U-10]"""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    words = [word.encode().decode("unicode_escape") if "\\" in word else word for word in line.split()]
    at = words.index("--") if "--" in words else len(words)
    ran = run(*words, stdin=stdin)
    assert (ran.status, "Traceback" in ran.out + ran.err) == (status, False), ran
    (said,) = ran.err.splitlines()
    head, told, rest = said.split(": ", 2)
    assert (head, told in code.split("|")) == ("topics", True), said
    assert rest.endswith(")"), "a hint"
    ran = run(*words[:at], "--json", *words[at:], stdin=stdin)
    assert (ran.status, ran.out) == (status, ""), ran
    (said,) = ran.err.splitlines()
    error = json.loads(said)["error"]
    assert error["code"] == told
    assert error["message"]
    assert set(error) == {"code", "message", "detail"}


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 60
    assert len({code for _, _, code, _ in CASES}) >= 15
