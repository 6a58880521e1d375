"""Staged writes over HTTP: shapes, codes, scopes, prefixes, frames, and that nothing is left behind (02 §9)."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.expect import diff, invalid, like, ok, put, refused, state, write
from tests.api.kit import Running, records, running
from topics.codec import envelope
from topics.codec import part as codec
from topics.codec.frame import Record
from topics.storage.staging import CHUNK_COST
from topics.testing import ManualClock

FRAMES = {"content-type": "application/vnd.topics.frames"}


def stage(client: httpx.Client, topic: str, id: str, /, *values: object, **more: Any) -> httpx.Response:
    """Stage a chunk, by default chunk 0 of part `p` of version 1."""
    body = {**records(*values), "id": id, "version": 1, "part": "p", "chunk": 0, **more}
    return client.post(f"/v0/topics/{topic}/stage", json=body)


def named(part: str = "p", chunks: int = 1, records: int = 1) -> dict[str, object]:
    return {"part": part, "chunks": chunks, "records": records}


def commit(client: httpx.Client, id: str, *parts: dict[str, object], version: int = 1, **more: Any) -> httpx.Response:
    body = {"id": id, "version": version, "parts": list(parts or [named()]), **more}
    return client.post("/v0/txn/commit", json=body)


def frames(*rows: Record) -> bytes:
    return codec.upload(rows)


def send(client: httpx.Client, topic: str, id: str, body: bytes, /, **more: Any) -> httpx.Response:
    """Stage frames."""
    query = {"id": id, "version": 1, "part": "p", "chunk": 0, **more}
    return client.post(f"/v0/topics/{topic}/stage", params=query, content=body, headers=FRAMES)


def row(data: bytes, tag: str | None = None, node: str | None = None, meta: bytes | None = None) -> Record:
    return node, tag, envelope.build(data, meta)


def staged_files(path: Path) -> list[str]:
    return [name for _, _, names in os.walk(path / "staging") for name in names]


# -- shapes ------------------------------------------------------------------------------------------------------------


def test_records_are_staged_committed_and_known_again(client: httpx.Client, topic: str) -> None:
    """TXN-1, TXN-7, TXN-9, TXN-12: the members of every answer."""
    told = ok(stage(client, topic, topic, {"n": 1}, {"n": 2}))
    assert told == {
        "topic": topic, "id": topic, "version": 1, "part": "p", "chunk": 0, "staged": 2, "deduped": False,
    }  # fmt: skip
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    assert ok(stage(client, topic, topic, {"n": 1}, {"n": 2})) == {**told, "deduped": True}
    known = ok(client.get(f"/v0/txn/{topic}"))
    assert known == {
        "id": topic, "version": None, "topics": [], "committed_ts": None,
        "staged": [{"version": 1, "parts": 1, "bytes": 2 * (38 + 6 + 7)}],
    }  # fmt: skip
    brought = {"topic": topic, "first_seq": 1, "last_seq": 2, "count": 2, "created": True, "attached": False}
    told = ok(commit(client, topic, named(records=2)))
    assert told == {"id": topic, "version": 1, "deduped": False, "topics": [brought]}
    brought["created"] = False
    assert ok(commit(client, topic, named(records=2))) == {
        "id": topic, "version": 1, "deduped": True, "topics": [brought],
    }  # fmt: skip
    assert [one["data"] for one in diff(client, topic)["records"]] == [{"n": 1}, {"n": 2}]
    known = ok(client.get(f"/v0/txn/{topic}"))
    assert (known["version"], known["topics"], known["staged"]) == (1, [brought], [])
    assert known["committed_ts"] >= diff(client, topic)["records"][0]["$ts"]


def test_payloads_come_back_byte_for_byte(client: httpx.Client, topic: str) -> None:
    """REC-6, S-286: spellings are kept through staging."""
    body = b'{"id":"%b","version":1,"part":"p","chunk":0,"node":"n","records":[{"data":{"a":1.0, "b":1e3},"tag":"t",'
    body += b'"meta":{"k":  [1]}},{"data":"\\u00e9 \xc3\xa9","node":"m"},{"data":12345678901234567890123}]}'
    answer = client.post(
        f"/v0/topics/{topic}/stage", content=body % topic.encode(), headers={"content-type": "application/json"}
    )
    assert ok(answer)["staged"] == 3
    ok(commit(client, topic, named(records=3)))
    text = client.post(f"/v0/topics/{topic}/diff", json={"include_tags": True}).text
    for part in ('"data":{"a":1.0,"b":1e3}', '"meta":{"k":[1]}', '"data":"\\u00e9 é"', "12345678901234567890123"):
        assert part in text
    assert [one.get("$node") for one in diff(client, topic)["records"]] == ["n", "m", "n"]


def test_several_topics_become_visible_with_one_call(client: httpx.Client, topic: str) -> None:
    """TXN-6: parts in the order given, chunks in order, records in order."""
    names = [f"{topic}.{n}" for n in range(3)]
    for chunk, name in enumerate(names * 2):
        ok(stage(client, name, topic, f"{chunk}a", f"{chunk}b", chunk=chunk))
    ok(stage(client, names[0], topic, "first", part="q"))
    told = ok(commit(client, topic, named("q"), named("p", 6, 12)))
    assert [(one["topic"], one["count"]) for one in told["topics"]] == [(names[0], 5), (names[1], 4), (names[2], 4)]
    assert [one["data"] for one in diff(client, names[0])["records"]] == ["first", "0a", "0b", "3a", "3b"]


def test_an_abort_drops_a_version(client: httpx.Client, topic: str) -> None:
    """TXN-11."""
    ok(stage(client, topic, topic, 1))
    told = ok(client.post("/v0/txn/abort", json={"id": topic, "version": 1}))
    assert told == {"id": topic, "version": 1, "state": "aborted"}
    refused(commit(client, topic), 409, "txn_incomplete", {"missing": ["p"]})
    ok(stage(client, topic, topic, 1))
    ok(commit(client, topic))
    told = ok(client.post("/v0/txn/abort", json={"id": topic, "version": 1}))
    assert told["state"] == "committed"


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_conflicting_and_skipped_chunks_are_409(client: httpx.Client, topic: str) -> None:
    """TXN-2: detail `{"part","expected"}`."""
    ok(stage(client, topic, topic, 1))
    detail = {"part": "p", "expected": 1}
    refused(stage(client, topic, topic, 2), 409, "txn_conflict", detail)
    refused(stage(client, topic, topic, 1, chunk=2), 409, "txn_conflict", detail)
    refused(stage(client, topic, topic, 1, part="q", chunk=1), 409, "txn_conflict", {"part": "q", "expected": 0})
    assert ok(client.get(f"/v0/txn/{topic}"))["staged"][0]["parts"] == 1


def test_staging_for_a_committed_version_is_409(client: httpx.Client, topic: str) -> None:
    """TXN-3: detail `{"version"}`, the highest committed one."""
    ok(stage(client, topic, topic, 1, version=7))
    ok(commit(client, topic, version=7))
    for version in (3, 7):
        refused(stage(client, topic, topic, 2, version=version), 409, "txn_committed", {"version": 7})
    ok(stage(client, topic, topic, 2, version=8))


def test_a_commit_of_what_is_not_staged_is_409_and_names_it(client: httpx.Client, topic: str) -> None:
    """TXN-5: nothing is published, nothing created."""
    ok(stage(client, topic, topic, 1))
    refused(commit(client, topic, named(records=2)), 409, "txn_incomplete", {"missing": ["p"]})
    refused(commit(client, topic, named(chunks=2)), 409, "txn_incomplete", {"missing": ["p"]})
    many = [named(f"n{n}") for n in range(30)]
    refused(commit(client, topic, *many), 409, "txn_incomplete", {"missing": [f"n{n}" for n in range(20)]})
    refused(client.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
    ok(commit(client, topic))


def test_a_full_topic_refuses_the_whole_commit(client: httpx.Client, topic: str) -> None:
    """TXN-5: 422, 400, and 404 with `create` false; other topics get nothing of it."""
    full, other = f"{topic}.full", f"{topic}.other"
    put(client, full, discard="reject", cap_records=2)
    write(client, full, 1)
    ok(stage(client, full, topic, 1, 2))
    ok(stage(client, other, topic, 1, part="q"))
    detail = {"topic": full, "cap_records": 2, "cap_bytes": 0, "head_seq": 1, "earliest_seq": 1}
    refused(commit(client, topic, named(records=2), named("q")), 422, "topic_full", detail)
    ok(stage(client, full, topic, 1, 2, 3, part="r"))
    refused(commit(client, topic, named("r", 1, 3), named("q")), 400, "record_too_large")
    refused(commit(client, topic, named("q"), create=False), 404, "topic_not_found", {"topic": other})
    refused(client.get(f"/v0/topics/{other}"), 404, "topic_not_found", {"topic": other})
    assert state(client, full)["head_seq"] == 1


WRONG_STAGES: list[dict[str, Any]] = [
    {"id": ""}, {"id": "x" * 129}, {"id": 5}, {"id": None}, {"version": -1}, {"version": 2**64}, {"version": "1"},
    {"version": True}, {"version": 1.0}, {"part": ""}, {"part": "a/b"}, {"part": "x" * 129}, {"part": None},
    {"chunk": -1}, {"chunk": 2**32}, {"chunk": None}, {"records": []}, {"records": [{"tag": "no data"}]},
    {"records": None}, {"node": "x" * 129}, {"records": [{"data": 1, "tag": "x" * 257}]},
]  # fmt: skip
WRONG_COMMITS: list[dict[str, Any]] = [
    {"id": ""}, {"version": -1}, {"version": None}, {"parts": None}, {"parts": "p"}, {"parts": [1]}, {"parts": [{}]},
    {"parts": [named(), named()]}, {"parts": [named("a b")]}, {"parts": [{**named(), "chunks": -1}]},
    {"parts": [{**named(), "records": "1"}]}, {"create": 1}, {"config": 5}, {"config": {"ttl_ms": -1}},
    {"attach": "maybe"}, {"attach": None},
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG_STAGES, ids=str)
def test_a_chunk_of_wrong_types_is_400_and_leaves_nothing(client: httpx.Client, topic: str, wrong: Any) -> None:
    """02 §9.1, API-11, API-12: same limits and checks as a write."""
    invalid(stage(client, "t", f"wrong-{topic[:80]}", 1, **wrong))
    assert ok(client.get(f"/v0/txn/wrong-{topic[:80]}"))["staged"] == []


@pytest.mark.parametrize("wrong", WRONG_COMMITS, ids=str)
def test_a_commit_of_wrong_types_is_400(client: httpx.Client, wrong: Any) -> None:
    """TXN-5: types first."""
    body = {"id": "wrong", "version": 1, "parts": [], **wrong}
    invalid(client.post("/v0/txn/commit", json=body))
    assert ok(client.get("/v0/txn/wrong"))["version"] is None


@pytest.mark.parametrize("path", ["/v0/topics/t/stage", "/v0/txn/commit", "/v0/txn/abort"])
def test_bodies_are_json_objects(client: httpx.Client, path: str) -> None:
    """API-9, API-10, API-11."""
    refused(client.post(path), 415, "unsupported_media_type")
    refused(client.post(path, content=b"{}", headers={"content-type": "text/plain"}), 415, "unsupported_media_type")
    invalid(client.post(path, content=b"", headers={"content-type": "application/json"}))
    for body in (b"{}", b"[]", b"null", b"{", b'{"id":"\xff","version":1}'):
        invalid(client.post(path, content=body, headers={"content-type": "application/json"}))


def test_frames_are_for_staging_only(client: httpx.Client) -> None:
    """API-9."""
    for path in ("/v0/topics/t", "/v0/txn/commit"):
        refused(client.post(path, content=b"x", headers=FRAMES), 415, "unsupported_media_type")


def test_names_of_the_server_take_no_staged_records(client: httpx.Client, topic: str) -> None:
    """A-14: 403 for its topics, 400 for other names with a `$`."""
    refused(stage(client, "$deletes", topic, 1), 403, "forbidden", {"topic": "$deletes"})
    invalid(stage(client, "$other", topic, 1))
    invalid(stage(client, "-x", topic, 1))


def test_an_id_that_is_none_is_400(client: httpx.Client) -> None:
    """TXN-12, 02 §9.1."""
    invalid(client.get("/v0/txn/" + "x" * 129))
    assert ok(client.get("/v0/txn/a%2Fb%20c"))["id"] == "a/b c"


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_staging_is_bounded_and_expires(tmp_path: Path) -> None:
    """TXN-4: 429 `max_staged_bytes`; a version not staged to is dropped, with its files."""
    clock = ManualClock()
    most = 2 * (CHUNK_COST + 45)
    env = {"TOPICS_MAX_STAGED_BYTES": str(most), "TOPICS_STAGE_TTL_MS": "5000"}
    with running(tmp_path, env, clock=clock) as server, server.client() as client:
        ok(stage(client, "t", "w", 1))
        ok(stage(client, "t", "w", 2, part="q"))
        answer = stage(client, "t", "w", 3, version=2)
        refused(answer, 429, "throttled", {"limit": "max_staged_bytes", "max": most})
        assert answer.headers["retry-after"] == "1"
        assert len(staged_files(tmp_path)) == 2
        clock.advance(5001)
        refused(commit(client, "w"), 409, "txn_incomplete", {"missing": ["p"]})
        assert ok(client.get("/v0/txn/w"))["staged"] == []
        ok(stage(client, "t", "w", 3, version=2))
        ok(client.post("/v0/txn/abort", json={"id": "w", "version": 2}))
    assert staged_files(tmp_path) == []


def test_a_restart_drops_staging_and_keeps_the_version(tmp_path: Path) -> None:
    """TXN-4, A-19: `created` is told once, seqs are told again."""
    with running(tmp_path) as server, server.client() as client:
        ok(stage(client, "t", "w", 1, 2, version=4))
        ok(commit(client, "w", named(records=2), version=4))
        ok(stage(client, "t", "w", 3, version=5))
        assert len(staged_files(tmp_path)) == 1
        committed_ts = ok(client.get("/v0/txn/w"))["committed_ts"]
    with running(tmp_path) as server, server.client() as client:
        assert staged_files(tmp_path) == []
        known = ok(client.get("/v0/txn/w"))
        assert (known["version"], known["committed_ts"], known["staged"]) == (4, committed_ts, [])
        told = ok(commit(client, "w", named(records=2), version=4))
        assert told["deduped"]
        assert told["topics"] == [
            {"topic": "t", "first_seq": 1, "last_seq": 2, "count": 2, "created": False, "attached": False}
        ]
        refused(commit(client, "w", version=5), 409, "txn_incomplete", {"missing": ["p"]})


# -- keys --------------------------------------------------------------------------------------------------------------

KEYS = "full,writer:w,reader:r,admin:w+r+a,left:w+r:left.,leftadmin:w+r+a:left."


@pytest.fixture(scope="module")
def guarded() -> Iterator[Running]:
    with running(env={"TOPICS_API_KEYS": KEYS}) as one:
        yield one


def test_scopes_are_those_of_the_table(client: httpx.Client, guarded: Running, topic: str) -> None:
    """09 §2: write to stage, commit and abort; read for the state; frames also admin."""
    body = frames(row(b"1"))
    with like(client, guarded, key="reader") as reader, like(client, guarded, key="writer") as writer:
        for answer in (
            stage(reader, topic, topic, 1), commit(reader, topic), send(writer, topic, topic, body),
            reader.post("/v0/txn/abort", json={"id": topic, "version": 1}), writer.get(f"/v0/txn/{topic}"),
        ):  # fmt: skip
            refused(answer, 403, "forbidden")
        ok(stage(writer, topic, topic, 1))
        assert len(ok(reader.get(f"/v0/txn/{topic}"))["staged"]) == 1
        ok(commit(writer, topic))
    with like(client, guarded, key="admin") as admin:
        ok(send(admin, topic, topic, body, version=2))


def test_a_configuration_for_absent_topics_takes_the_scope_admin(
    client: httpx.Client, guarded: Running, topic: str
) -> None:
    """09 §2, WR-1: 403 with the topic; nothing is created."""
    with like(client, guarded, key="writer") as writer, like(client, guarded, key="admin") as admin:
        ok(stage(writer, topic, topic, 1))
        refused(commit(writer, topic, config={"ttl_ms": 5}), 403, "forbidden", {"topic": topic})
        refused(admin.get(f"/v0/topics/{topic}"), 404, "topic_not_found", {"topic": topic})
        ok(commit(admin, topic, config={"cap_records": 5}))
        assert state(admin, topic)["config"]["cap_records"] == 5
        ok(stage(writer, topic, topic, 2, version=2))
        ok(commit(writer, topic, version=2, config={"cap_records": 9}))
        assert state(admin, topic)["config"]["cap_records"] == 5


def test_prefixes_hold_for_every_topic_staged_under_the_parts(
    client: httpx.Client, guarded: Running, topic: str
) -> None:
    """PFX-1, PFX-2, TXN-5, TXN-12: also when another key staged them; `topics` lists what the key may see."""
    mine, other = f"left.{topic}", f"right.{topic}"
    with like(client, guarded, key="left") as left, like(client, guarded, key="full") as full:
        refused(stage(left, other, topic, 1), 403, "forbidden")
        ok(stage(left, mine, topic, 1))
        ok(stage(full, other, topic, 2, part="q"))
        refused(commit(left, topic, named(), named("q")), 403, "forbidden", {"topic": other})
        refused(full.get(f"/v0/topics/{mine}"), 404, "topic_not_found", {"topic": mine})
        ok(commit(full, topic, named(), named("q")))
        assert [one["topic"] for one in ok(left.get(f"/v0/txn/{topic}"))["topics"]] == [mine]
        assert [one["topic"] for one in ok(commit(left, topic, named(), named("q")))["topics"]] == [mine]
        assert len(ok(full.get(f"/v0/txn/{topic}"))["topics"]) == 2


# -- frames ------------------------------------------------------------------------------------------------------------


def test_frames_are_staged_like_the_same_records_as_json(client: httpx.Client, topic: str) -> None:
    """02 §9.1, 06 §8.1: the same chunk either way is the same chunk."""
    body = frames(
        row(b'{"a":1}', "t", "n", b'{"k":"v"}'), row(b'"\xc3\xa9"', "\u00e9"), row(b"null", None, ""), row(b"[1]")
    )
    assert ok(send(client, topic, topic, body))["staged"] == 4
    same = [
        {"data": {"a": 1}, "tag": "t", "node": "n", "meta": {"k": "v"}}, {"data": "é", "tag": "é"},
        {"data": None, "node": ""}, {"data": [1]},
    ]  # fmt: skip
    assert ok(stage(client, topic, topic, records=same))["deduped"]
    refused(send(client, topic, topic, frames(row(b"2"))), 409, "txn_conflict", {"part": "p", "expected": 1})
    ok(commit(client, topic, named(records=4)))
    page = diff(client, topic, include_tags=True)
    told = [{key: one[key] for key in one if key not in ("$seq", "$ts")} for one in page["records"]]
    assert told == [
        {"$tag": "t", "$node": "n", "data": {"a": 1}, "meta": {"k": "v"}}, {"$tag": "é", "data": "é"},
        {"$node": "", "data": None}, {"data": [1]},
    ]  # fmt: skip


def test_frames_may_be_gzipped_and_large(client: httpx.Client, topic: str) -> None:
    """API-16, P-10: a chunk of megabytes is taken in slices; bytes that are no UTF-8 do not matter."""
    rows = [row(b'"%b %d"' % (b"x" * 900, n), tag=f"k{n % 7}") for n in range(2500)]
    packed = gzip.compress(frames(*rows))
    query = {"id": topic, "version": 1, "part": "p", "chunk": 0}
    answer = client.post(
        f"/v0/topics/{topic}/stage", params=query, content=packed, headers={**FRAMES, "content-encoding": "gzip"}
    )
    assert ok(answer)["staged"] == 2500
    assert ok(send(client, topic, topic, frames(*rows)))["deduped"]
    ok(commit(client, topic, named(records=2500)))
    found = state(client, topic)
    assert (found["head_seq"], found["count"], found["bytes"]) == (2500, 2500, sum(len(one[2]) - 6 for one in rows))


def broken_frames() -> dict[str, bytes]:
    good = frames(row(b"1"), row(b"2"))
    changed = bytearray(good)
    changed[4 + 25 + 5] ^= 1
    with_seq = bytearray(good)
    with_seq[5] = 1
    return {
        "nothing": b"", "cut": good[:-1], "longer": good + b"\0", "changed": bytes(changed), "seq": bytes(with_seq),
        "no envelope": frames((None, None, b'{"x":1}')), "not json": frames((None, None, b'{"d":{]}')),
        "spaces": frames((None, None, b'{"d": 1}')), "not utf-8": frames((None, None, b'{"d":"\xff"}')),
        "meta is no object": frames((None, None, b'{"d":1,"m":5}')), "zeros": bytes(100), "json": b'{"records":[]}',
        "long tag": frames(row(b"1", "x" * 257)), "deep": frames(row(b"[" * 2000 + b"]" * 2000)),
    }  # fmt: skip


@pytest.mark.parametrize(("what", "body"), broken_frames().items(), ids=list(broken_frames()))
def test_bytes_that_are_no_frames_are_400_and_leave_nothing(
    client: httpx.Client, topic: str, what: str, body: bytes
) -> None:
    """02 §9.1, R-7: every length and checksum is looked at, every record checked like that of a write."""
    invalid(send(client, "t", topic, body))
    assert ok(client.get(f"/v0/txn/{topic}"))["staged"] == []


def test_frames_meet_the_limits_of_a_write(client: httpx.Client, topic: str) -> None:
    """02 §1.9: records per write, bytes per record."""
    refused(send(client, "t", topic, frames(*[row(b"1")] * 10_001)), 400, "batch_too_large")
    refused(send(client, "t", topic, frames(row(b'"%b"' % (b"x" * 1_048_576)))), 400, "record_too_large")
    for wrong in ({"version": "x"}, {"version": ""}, {"chunk": "-1"}, {"part": "a/b"}, {"id": ""}, {"chunk": 2**32}):
        invalid(send(client, "t", topic, frames(row(b"1")), **wrong))
    assert ok(client.get(f"/v0/txn/{topic}"))["staged"] == []


def test_a_large_json_chunk_is_taken_in_slices(client: httpx.Client, topic: str) -> None:
    """P-10: the same as a small one."""
    values = [f"{n} " + "x" * 700 for n in range(4000)]
    assert ok(stage(client, topic, topic, *values))["staged"] == 4000
    assert ok(stage(client, topic, topic, *values))["deduped"]
    values[17] = "other"
    refused(stage(client, topic, topic, *values), 409, "txn_conflict", {"part": "p", "expected": 1})
    body = records(*values[:3000], id=topic, version=1, part="q", chunk=0)
    body["records"][2999]["tag"] = 7  # type: ignore[index]
    invalid(client.post(f"/v0/topics/{topic}/stage", json=body))
    ok(commit(client, topic, named(records=4000)))
    assert state(client, topic)["count"] == 4000


def test_a_commit_that_names_very_many_parts_is_taken(client: httpx.Client, topic: str) -> None:
    """02 §9.2: 100 000 at most; producers without rows have nothing staged."""
    ok(stage(client, topic, topic, 1))
    parts = [named(f"part-of-nothing-{n}", 0, 0) for n in range(99_999)]
    ok(commit(client, topic, *parts, named()))
    invalid(commit(client, topic, *parts, named(), named("q"), version=2))


def test_the_volume_being_full_is_503_and_nothing_stays(tmp_path: Path) -> None:
    """06 §21, S-286: `detail.state` full; the same call works when there is room."""
    with running(tmp_path, {"TOPICS_MIN_FREE_BYTES": "0"}) as server, server.client() as client:
        core = server.server.app.engine.core  # type: ignore[union-attr]
        real = core.config
        server.on_loop(lambda: object.__setattr__(core, "config", _with_min_free(real)))
        refused(stage(client, "t", "w", 1), 503, "not_ready", {"state": "full"})
        assert ok(client.get("/v0/txn/w"))["staged"] == []
        server.on_loop(lambda: object.__setattr__(core, "config", real))
        ok(stage(client, "t", "w", 1))
        ok(commit(client, "w"))


def _with_min_free(config: Any) -> Any:
    return replace(config, min_free_bytes=2**62)
