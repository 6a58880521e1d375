"""Commands that talk to a server: what they do, what they print, with `--json` and without (11 §2) [U-10, U-13]."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.api.kit import WAIT_S, Running, running
from tests.cli.conftest import Ran, Run
from tests.unit.engine.kit import real_config
from topics import errors
from topics.cli.completion import bash, fish, known
from topics.cli.main import COMMANDS, main
from topics.client.body import topic_path
from topics.client.sync import Client
from topics.fs import OsFs
from topics.testing import Fault, FaultFs


def test_create_takes_human_units_and_prints_the_answer(run: Run, name: str) -> None:
    told = run(
        "create", name, "--ttl", "1h", "--cap", "1M", "--cap-bytes", "1Gi", "--durability", "fsync", "--json"
    ).told
    assert (told["topic"], told["created"]) == (name, True)
    config = told["config"]
    assert (config["ttl_ms"], config["cap_records"], config["cap_bytes"]) == (3_600_000, 10**6, 2**30)
    assert config["durability"] == "fsync"
    again = run("create", name)
    assert again.out == f"{name}: there already; its configuration is replaced (log, disk)\n"


def test_create_knows_every_member_of_a_queue(run: Run, name: str) -> None:
    words = ["--queue", "--lease", "10s", "--max-deliveries", "3", "--dead-letter", "dead", "--claim-jitter", "50ms"]
    config = run("create", name, *words, "--leases-durable", "--priority", "-5", "--discard", "reject", "--json").told[
        "config"
    ]
    assert (config["type"], config["lease_ms"], config["max_deliveries"], config["dead_letter"]) == (
        "queue",
        10_000,
        3,
        "dead",
    )
    assert (config["claim_jitter_ms"], config["leases_durable"], config["priority"]) == (50, True, -5)


def test_ls_lists_all_pages(run: Run, client: Client, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.cli.topics.PAGE", 10)
    names = [f"{name}.{n:04}" for n in range(33)]
    for one in names:
        client.append(one, 1)
    assert [one["topic"] for one in run("ls", name, "--json").told["topics"]] == names
    assert run("ls", name, "--quiet").out.splitlines() == names
    table = run("ls", f"{name}.000")
    assert table.out.splitlines()[0].split() == [
        "topic",
        "type",
        "class",
        "records",
        "size",
        "head",
        "last",
        "write",
        "(UTC)",
    ]
    assert len(table.out.splitlines()) == 11


def test_ls_of_nothing_is_no_error(run: Run, name: str) -> None:
    assert run("ls", name, "--json").told == {"topics": []}
    assert run("ls", name).status == 0


def test_show_and_config_change_only_what_is_named(run: Run, name: str) -> None:
    run("create", name, "--ttl", "1h", "--durability", "fsync", "--priority", "7")
    told = run("config", name, "cap_records=10k", "auto_priority=off", "--json").told["config"]
    assert (told["ttl_ms"], told["durability"], told["priority"]) == (3_600_000, "fsync", 7)
    assert (told["cap_records"], told["auto_priority"]) == (10_000, False)
    assert run("config", name, "durability=memory", "priority=null", "--json").told["config"]["durability"] == "memory"
    assert run("config", name, "durable=true", "--json").told["config"]["durability"] == "fsync"
    assert run("show", name, "--json").told["config"]["priority"] is None
    assert "ttl_ms=1h" in run("show", name).out
    assert "cap_records=10000" in run("config", name).out


def test_rm_deletes_a_topic(run: Run, client: Client, name: str) -> None:
    client.append(name, 1)
    assert run("rm", name, "--if-empty").status == 1
    assert run("rm", name, "--json").told["deleted"] is True
    assert run("rm", name, "--json").told["deleted"] is False
    assert list(client.topics(name)) == []


# -- write -----------------------------------------------------------------------------------------------------------


def test_write_takes_json_lines_from_stdin(run: Run, client: Client, name: str) -> None:
    told = run("write", name, "--tag", "t", "--node", "n", "--json", stdin=b'{"a": 1}\n\n"x"\r\n1e400').told
    assert told == {"topic": name, "count": 3, "first_seq": 1, "last_seq": 3}
    records = client.page(name).records
    assert [record.raw_data for record in records] == [b'{"a":1}', b'"x"', b"1e400"]
    assert {(record.tag, record.node) for record in records} == {("t", "n")}


def test_write_takes_files_and_arguments(run: Run, client: Client, name: str, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text("".join(f"{n}\n" for n in range(1234)))
    assert run("write", name, "rows.jsonl", "--batch", "100", "--json").told["count"] == 1234
    assert run("write", name, "--data", "[1]", "--data", '"x"').out == f"{name}: 2 records, up to seq 1236\n"
    assert client.state(name).count == 1236


def test_write_takes_csv(run: Run, client: Client, name: str) -> None:
    text = 'id,"full name",note\r\n1,Ann,"two\nlines"\r\n2,"B, C",\r\n'
    run("write", name, "--csv", stdin=text.encode())
    assert [record.data for record in client.page(name).records] == [
        {"id": "1", "full name": "Ann", "note": "two\nlines"},
        {"id": "2", "full name": "B, C", "note": ""},
    ]


@pytest.mark.parametrize("form", ["--csv", "--jsonl"])
def test_a_byte_order_mark_is_no_part_of_the_first_line(run: Run, client: Client, name: str, form: str) -> None:
    """Spreadsheets write one."""
    text = {"--csv": b"a\n1\n", "--jsonl": b'{"a":"1"}\n'}[form]
    assert run("write", name, form, "--json", stdin=b"\xef\xbb\xbf" + text).told["count"] == 1
    assert [record.data for record in client.page(name).records] == [{"a": "1"}]


def test_a_bad_line_stops_a_write_and_says_what_is_there(run: Run, client: Client, name: str) -> None:
    """[U-14]"""
    ran = run("write", name, "--json", stdin=b"1\n2\nthree\n4\n")
    assert (ran.status, ran.out) == (1, "")
    error = json.loads(ran.err)["error"]
    assert (error["code"], error["detail"]["line"], error["detail"]["acknowledged"]) == ("bad_line", 3, 2)
    assert [record.data for record in client.page(name).records] == [1, 2]
    told = run("write", name, "--skip-bad", "--json", stdin=b"3\nfour\n5\n\xff\n").told
    assert (told["count"], told["skipped"]) == (2, 2)


@pytest.mark.parametrize(
    ("text", "line"),
    [(b"a,b\n1\n", 2), (b"a,a\n1,2\n", 1), (b'a\n"x\n', 2), (b"a\n\xff\n", 2), (b'a\n"x"y\n', 2)],
)
def test_a_bad_row_of_csv_is_named(run: Run, name: str, text: bytes, line: int) -> None:
    error = json.loads(run("write", name, "--csv", "--json", stdin=text).err)["error"]
    assert (error["code"], error["detail"]["line"]) == ("bad_line", line)


def bad_row(ran: Ran) -> tuple[int, str]:
    """The line that ended a write, and why."""
    assert (ran.status, ran.out) == (1, "")
    error = json.loads(ran.err)["error"]
    assert error["code"] == "bad_line"
    return error["detail"]["line"], error["message"]


def test_a_carriage_return_outside_quotes_is_told_and_no_row_is_dropped(run: Run, client: Client, name: str) -> None:
    """Rows of one line would be one row: what is behind the first would be lost."""
    text = b"a,b\r\n1,2\r3,4\n5,6\r\n"
    line, why = bad_row(run("write", name, "--csv", "--json", stdin=text))
    assert (line, "carriage return" in why) == (2, True)
    told = run("write", name, "--csv", "--skip-bad", "--json", stdin=text).told
    assert (told["count"], told["skipped"]) == (1, 1)
    assert [record.data for record in client.page(name).records] == [{"a": "5", "b": "6"}]


def test_a_file_whose_rows_end_with_carriage_returns_alone_is_told(run: Run, client: Client, name: str) -> None:
    for words in ([], ["--skip-bad"]):
        line, why = bad_row(run("write", name, "--csv", *words, "--json", stdin=b"a,b\r1,2\r3,4\r"))
        assert (line, "carriage return" in why) == (1, True)
    assert list(client.topics(name)) == []


def test_line_ends_inside_quotes_are_as_they_were_written(run: Run, client: Client, name: str) -> None:
    text = b'a,b\r\n1,"x\r\ny\nz\rw\r\n"\r\n'
    assert run("write", name, "--csv", "--json", stdin=text).told["count"] == 1
    assert [record.data for record in client.page(name).records] == [{"a": "1", "b": "x\r\ny\nz\rw\r\n"}]


@pytest.mark.parametrize("head", [b"a,\xff", b"a,a", b'a,"b"c', b'a,"b'])
def test_without_a_head_no_row_means_anything(run: Run, client: Client, name: str, head: bytes) -> None:
    """No row after it is taken for the head, and what cannot be understood is not passed over."""
    text = head + b"\n1,2\n3,4\n"
    assert bad_row(run("write", name, "--csv", "--skip-bad", "--json", stdin=text))[0] == 1
    assert "--skip-bad" not in run("write", name, "--csv", stdin=text).err
    assert list(client.topics(name)) == []


def test_a_cell_may_be_long(run: Run, client: Client, name: str) -> None:
    text = b"a,b\n1," + b"x" * 200_000 + b'\n2,"' + b"y\n" * 100_000 + b'"\n'
    assert run("write", name, "--csv", "--json", stdin=text).told["count"] == 2
    cells = [record.data["b"] for record in client.page(name).records]
    assert cells == ["x" * 200_000, "y\n" * 100_000]


def test_a_row_with_one_bad_line_is_bad_as_a_whole(run: Run, client: Client, name: str) -> None:
    """Half of it is not what somebody wrote."""
    text = b'a,b\n1,"x\n\xff\ny"\n2,z\n'
    assert bad_row(run("write", name, "--csv", "--json", stdin=text))[0] == 2
    told = run("write", name, "--csv", "--skip-bad", "--json", stdin=text).told
    assert (told["count"], told["skipped"]) == (1, 1)
    assert [record.data for record in client.page(name).records] == [{"a": "2", "b": "z"}]


def test_a_quote_that_is_never_closed_is_told_with_the_line_of_its_row(run: Run, client: Client, name: str) -> None:
    text = b'a,b\n1,2\n3,"4\n' + b"5,6\n" * 20_000
    line, why = bad_row(run("write", name, "--csv", "--json", stdin=text))
    assert (line, "a quote is not closed" in why) == (3, True)
    told = run("write", name, "--csv", "--skip-bad", "--json", stdin=text).told
    assert (told["count"], told["skipped"]) == (1, 1)
    assert {record.data["a"] for record in client.page(name).records} == {"1"}


def test_a_quote_that_is_not_closed_for_too_long_is_told_before_the_end(
    run: Run, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe may have none, and memory has."""
    monkeypatch.setattr("topics.cli.lines.LINE_BYTES_MAX", 1000)
    text = b'a,b\n1,"2\n' + b"333,444\n" * 1000
    assert bad_row(run("write", name, "--csv", "--json", stdin=text))[0] == 2
    told = run("write", name, "--csv", "--skip-bad", "--json", stdin=text).told
    assert told["skipped"] == 1
    assert 800 < told["count"] < 900
    assert client.state(name).count == told["count"]


def test_a_line_without_end_is_bad_and_the_next_one_is_read(
    run: Run, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.cli.lines.LINE_BYTES_MAX", 100_000)
    text = b"1\n" + b"1" * 300_000 + b"\n3\n" + b"4" * 300_000
    told = run("write", name, "--skip-bad", "--json", stdin=text).told
    assert (told["count"], told["skipped"]) == (2, 2)
    assert [record.data for record in client.page(name).records] == [1, 3]
    error = json.loads(run("write", name, "--json", stdin=text).err)["error"]
    assert error["detail"]["line"] == 2


def test_write_does_not_hold_back_what_a_pipe_has(server: Running, client: Client, name: str, tmp_path: Path) -> None:
    """A batch that is not full leaves when nothing more comes."""
    client.create(name)
    command = [sys.executable, "-m", "topics", "write", name, "--url", server.url, "--quiet"]
    env = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=env) as process:
        assert process.stdin is not None
        for number in range(3):
            process.stdin.write(b"%d\n" % number)
            process.stdin.flush()
            assert client.page(name, number, wait_ms=30_000).records[0].data == number
        process.stdin.close()
        assert process.wait(WAIT_S) == 0


def test_a_write_that_fails_in_the_middle_says_how_far_it_came(run: Run, client: Client, name: str) -> None:
    """[U-12]"""
    client.create(name, cap_records=5, discard="reject")
    ran = run("write", name, "--batch", "3", stdin=b"1\n" * 9)
    assert (ran.status, client.state(name).count) == (1, 3)
    assert ran.err.startswith("topics: topic_full: ")
    assert f"; 3 records are in {name}, up to seq 3 (" in ran.err


def test_a_write_that_fills_the_disk_says_that_its_last_batch_is_undecided(run: Run, name: str) -> None:
    """[U-14, R-6] (06 §21)"""
    fs = FaultFs(OsFs())
    with running(fs=fs, config=real_config()) as full, Client(full.url) as client:
        client.create(name, durability="fsync")
        fs.inject(Fault("pwrite", 2, "ENOSPC", "until_freed", path="wal-"))
        ran = run("write", name, "--url", full.url, "--batch", "1", stdin=b"1\n2\n3\n")
        assert ran.status == 1
        assert ran.err.startswith("topics: internal: ")
        assert f"1 records are in {name}, up to seq 1; the batch behind them may be there as well" in ran.err
        assert "bug" not in ran.err
        fs.free_space()


# -- read and tail ---------------------------------------------------------------------------------------------------


def test_read_prints_records_in_their_own_spelling(run: Run, client: Client, name: str) -> None:
    client.append_many(name, [topics.new(b'{"b":1e2,"a":"\xc3\xbc"}', "t", "n", {"m": 1}), 2])
    first, second = run("read", name, "--json", "--tags").out.splitlines()
    ts = client.page(name).records[0].ts
    assert first == f'{{"$seq":1,"$ts":{ts},"$node":"n","$tag":"t","meta":{{"m":1}},"data":{{"b":1e2,"a":"ü"}}}}'
    assert "$tag" not in run("read", name, "--json").out
    assert [one["$seq"] for one in run("read", name, "--from", "1", "--json").lines] == [2]
    assert [one["$seq"] for one in run("read", name, "--limit", "1", "--json").lines] == [1]
    assert [one["$seq"] for one in run("read", name, "--node", "n", "--json").lines] == [2]
    assert len(run("read", name, "--since", "1h", "--json").lines) == 2
    assert len(run("read", name, "--format", "table").out.splitlines()) == 2
    assert second.endswith('"data":2}')


def test_output_whose_encoding_lacks_characters_is_spelled(
    run: Run, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U-10] JSON stays JSON."""
    client.append(name, {"ü": "😀"}, tag="é", node="ñ")
    told = run("read", name, "--json", "--tags").told
    for form in ("jsonl", "table"):
        with io.TextIOWrapper(io.BytesIO(), "ascii") as out, monkeypatch.context() as patched:
            patched.setattr("sys.stdout", out)
            assert main(["read", name, "--tags", "--format", form]) == 0
            printed = out.buffer.getvalue().decode("ascii")  # type: ignore[attr-defined]
        assert "\\u00fc" in printed
        assert form == "table" or json.loads(printed) == told


def test_a_gap_is_a_line_and_a_status_if_asked_for(run: Run, client: Client, name: str) -> None:
    """[U-13]"""
    client.create(name, cap_records=2)
    client.append_many(name, range(5))
    gap, *rest = run("read", name, "--json").lines
    assert (gap["tombstone"]["gap_from"], gap["tombstone"]["gap_to"], gap["tombstone"]["reason"]) == (1, 3, "cap")
    assert len(rest) == 2
    assert run("read", name, "--fail-on-gap").status == 3
    assert run("read", name, "--fail-on-gap", "--from", "3").status == 0
    assert "1 to 3: lost (cap)" in run("read", name, "--format", "table").out


def test_what_would_steer_a_terminal_is_shown(run: Run, client: Client, name: str) -> None:
    client.append(name, "x", tag="\x1b[2J", node="\x07")
    out = run("read", name, "--format", "table", "--tags").out
    assert "\x1b" not in out
    assert "\\x1b[2J" in out


def test_tail_prints_the_last_records_of_several_topics(run: Run, client: Client, name: str) -> None:
    for topic in ("a", "b"):
        client.append_many(f"{name}.{topic}", range(20))
    assert [one["data"] for one in run("tail", f"{name}.a", "--json").lines] == list(range(10, 20))
    both = run("tail", f"{name}.a", f"{name}.b", "-n", "2", "--json").lines
    assert [(one["topic"][-1], one["data"]) for one in both] == [("a", 18), ("a", 19), ("b", 18), ("b", 19)]


def test_tail_shows_the_last_records_that_there_are(run: Run, client: Client, name: str) -> None:
    """However many behind them are deleted, or left out."""
    client.append_many(name, [topics.new(n, node="a" if n % 2 else "b") for n in range(100)])
    client.delete(name, seqs=[*range(3, 50), *range(60, 101)])
    kept = [0, 1, *range(49, 59)]
    assert [one["data"] for one in run("tail", name, "--json").lines] == kept[-10:]
    assert [one["data"] for one in run("tail", name, "-n", "11", "--json").lines] == kept[-11:]
    assert [one["data"] for one in run("tail", name, "-n", "1M", "--json").lines] == kept
    assert [one["data"] for one in run("tail", name, "-n", "2", "--node", "a", "--json").lines] == [56, 58]
    assert run("tail", name, "-n", "0", "--json").lines == []


def test_tail_without_loss_in_what_it_shows_tells_of_none(run: Run, client: Client, name: str) -> None:
    client.create(name, cap_records=3)
    client.append_many(name, range(50))
    assert [one["data"] for one in run("tail", name, "--json", "--fail-on-gap").lines] == [47, 48, 49]


def test_tail_follows_until_the_topic_goes(run: Run, client: Client, server: Running, name: str) -> None:
    client.append(name, "before")

    def write() -> None:
        with Client(server.url) as other:
            while not other.call("GET", "/v0/metrics")["sse_connections"]:
                continue
            for number in range(3):
                other.append(name, number)
            assert other.page(name, 3, wait_ms=0).records[0].data == 2
            other.drop(name)

    writer = threading.Thread(target=write)
    writer.start()
    ran = run("tail", name, "-f", "--json")
    writer.join()
    # What is dropped before it was delivered is not delivered.
    found = [one["data"] for one in ran.lines]
    assert found == ["before", 0, 1, 2][: len(found)]
    assert found
    assert f"{name} was deleted" in ran.err


def test_whoever_follows_and_minds_gaps_ends_with_the_first_one(
    run: Run, client: Client, server: Running, name: str
) -> None:
    """[U-13] A gap in what is followed is not told hours later."""
    client.create(name, cap_records=2)
    ended = threading.Event()

    def write() -> None:
        with Client(server.url) as other:
            for _ in range(200):
                other.append_many(name, range(5))
                if ended.wait(0.05):
                    return
            other.drop(name)  # who goes on would never end

    writer = threading.Thread(target=write)
    writer.start()
    ran = run("tail", name, "-f", "-n", "0", "--json", "--fail-on-gap")
    ended.set()
    writer.join()
    assert (ran.status, ran.err) == (3, "")
    *before, last = [json.loads(line) for line in ran.out.splitlines()]
    assert "tombstone" in last
    assert not any("tombstone" in one for one in before)


# -- delete ----------------------------------------------------------------------------------------------------------


def test_delete_shows_first_and_deletes_what_it_showed(run: Run, client: Client, name: str) -> None:
    client.append_many(name, [topics.new(n, tag=f"order:{n}") for n in range(10)])
    assert run("delete", name, "--prefix", "order:", "--dry-run", "--json").told["deleted"] == 10
    refused = run("delete", name, "--before", "3")
    assert (refused.status, "2 records would go" in refused.out) == (1, True)
    assert "not_confirmed" in refused.err
    assert run("delete", name, "--before", "3", "--yes", "--json").told["deleted"] == 2
    assert run("delete", name, "--tag", "order:5", "--yes", "--json").told["deleted"] == 1
    assert run("delete", name, "--prefix", "order:", "--yes").out.endswith("7 records deleted; 0 are there\n")


# -- queues ----------------------------------------------------------------------------------------------------------


def test_jobs_are_put_claimed_and_settled(run: Run, name: str) -> None:
    run("create", name, "--queue")
    assert run("queue", "put", name, "--json", stdin=b"1\n2\n3\n").told["count"] == 3
    claimed = run("queue", "claim", name, "--node", "w", "--max", "2", "--lease", "1m", "--json").told["claimed"]
    assert [job["data"] for job in claimed] == [1, 2]
    acked = run("queue", "ack", name, "1", "--node", "w", "--lease-id", claimed[0]["lease_id"], "--json").told
    assert (acked["acked"], acked["skipped"]) == (1, [])
    assert run("queue", "nack", name, "2", "--node", "w", "--delay", "1h", "--json").told["nacked"] == 1
    assert run("queue", "stats", name, "--json").told["queue"]["delayed"] == 1
    assert run("queue", "stats", name).out == f"{name}: 1 ready, 0 in flight, 1 delayed, 0 dead lettered\n"
    assert "not held by w: 3" in run("queue", "ack", name, "3", "--node", "w").err
    assert "1 claimed" in run("queue", "claim", name).err


def test_work_runs_a_command_for_each_job(run: Run, client: Client, name: str, tmp_path: Path) -> None:
    client.create(name, type="queue")
    client.append_many(name, [topics.new({"n": n}, tag=f"t{n}", meta={"m": n}) for n in range(3)])
    script = 'cat; echo " $TOPICS_QUEUE $TOPICS_JOB_SEQ $TOPICS_JOB_TAG $TOPICS_JOB_META"; test $TOPICS_JOB_SEQ != 2'
    ran = run("queue", "work", name, "--until-empty", "--backoff", "1h", "--", "sh", "-c", script)
    assert ran.status == 1
    shown = [f'{{"n":{n}}} {name} {n + 1} t{n} {{"m":{n}}}' for n in range(3)]
    assert ran.out.splitlines() == [*shown, f"{name}: 2 done, 1 failed and given back, 0 lost"]
    assert ran.err == f"{name}: job 2: status 1, delivery 1\n"
    assert run("queue", "work", name, "--until-empty", "--json", "--", "true").told == {
        "ok": True, "topic": name, "acked": 0, "nacked": 0, "lost": 0,
    }  # fmt: skip


def test_work_as_json_keeps_what_commands_print_out_of_its_report(run: Run, client: Client, name: str) -> None:
    """[U-10]"""
    client.create(name, type="queue")
    client.append_many(name, ["said", 2])
    ran = run("queue", "work", name, "--until-empty", "--json", "--", "cat")
    assert ran.told == {"ok": True, "topic": name, "acked": 2, "nacked": 0, "lost": 0}
    assert ran.err == '"said"2'


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_redrive_moves_dead_letters_back_once(run: Run, client: Client, name: str, kind: str) -> None:
    dead = f"{name}.dead"
    client.create(dead, type=kind)
    client.append(dead, "no letter")
    client.create(name, type="queue", max_deliveries=1, dead_letter=dead)
    client.append_many(name, [topics.new(n, tag="t", meta={"mine": n}) for n in range(3)])
    for _ in range(2):
        for job in client.claim(name, "w", 10).jobs:
            client.nack(name, "w", [job.seq])
    assert client.state(name).count == 0
    assert run("queue", "redrive", dead, "--dry-run", "--json").told["moved"] == 3
    told = run("queue", "redrive", dead, "--json").told
    assert (told["ok"], told["moved"], told["left"]) == (True, 3, 1)
    assert [record.data for record in client.page(dead).records] == ["no letter"]
    jobs = client.claim(name, "w", 10).jobs
    assert [(job.data, job.tag, job.meta) for job in jobs] == [(n, "t", {"mine": n}) for n in range(3)]
    assert run("queue", "redrive", dead, "--json").told["moved"] == 0


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_redrive_moves_the_letters_of_a_dead_letter_topic_that_was_made_anew(
    run: Run, client: Client, name: str, kind: str
) -> None:
    """[EPO-1, IDM-1] They have the seqs of those before, whose keys are still known."""
    dead = name.ljust(255, "x")  # as long as a name may be: a key has no more room than that
    client.create(name, type="queue", dead_letter=dead)
    for letter in ("first", "second"):
        client.create(dead, type=kind)
        client.append(dead, topics.new(letter, meta={"$dead_letter_from": name}))
        assert run("queue", "redrive", dead, "--json").told["moved"] == 1
        client.drop(dead)
    assert [job.data for job in client.claim(name, "w", 10).jobs] == ["first", "second"]


@pytest.mark.parametrize(("kind", "verb"), [("log", "page"), ("queue", "claim")])
def test_a_redrive_takes_nothing_of_a_topic_that_was_made_anew_meanwhile(
    run: Run, client: Client, name: str, kind: str, verb: str
) -> None:
    """[EPO-1] Its seqs say nothing about the letters that are there now."""
    dead = f"{name}.dead"
    client.create(name, type="queue", dead_letter=dead)
    client.create(dead, type=kind)
    ask = getattr(Client, verb)

    def ask_too_late(self: Client, *args: object, **options: object) -> object:
        patched.undo()
        self.drop(dead)
        self.create(dead, type=kind)
        self.append_many(dead, [topics.new(n, meta={"$dead_letter_from": name}) for n in range(3)])
        return ask(self, *args, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, verb, ask_too_late)
        ran = run("queue", "redrive", dead)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "was made anew" in ran.err
    assert client.state(name).count == 0
    assert run("queue", "redrive", dead, "--json").told["moved"] == 3


def test_a_redrive_deletes_no_letter_of_a_topic_that_was_made_anew_behind_its_copy(
    run: Run, client: Client, name: str
) -> None:
    """[EPO-1] A delete names a seq, and the new topic has it too."""
    dead = f"{name}.dead"
    client.create(name, type="queue", dead_letter=dead)
    client.create(dead)
    client.append_many(dead, [topics.new(n, meta={"$dead_letter_from": name}) for n in ("a", "b")])
    call = Client.call

    def make_anew(self: Client, method: str, path: str, *args: Any, **options: Any) -> Any:
        told = call(self, method, path, *args, **options)
        if method == "POST" and path == topic_path(name):
            patched.undo()
            self.drop(dead)
            self.append_many(dead, [topics.new(n, meta={"$dead_letter_from": name}) for n in ("c", "d")])
        return told

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Client, "call", make_anew)
        ran = run("queue", "redrive", dead)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert "was made anew" in ran.err
    assert [record.data for record in client.page(dead).records] == ["c", "d"]
    assert run("queue", "redrive", dead, "--json").told["moved"] == 2
    assert [job.data for job in client.claim(name, "w", 10).jobs] == ["a", "c", "d"]


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_redriven_letter_is_spelled_as_it_was(run: Run, client: Client, name: str, kind: str) -> None:
    """11 §2: the same job again."""
    dead = f"{name}.dead"
    client.create(dead, type=kind)
    client.create(name, type="queue", max_deliveries=1, dead_letter=dead)
    data, meta = b'{"b":1.0,"2":[1e400],"1":{},"1":"\\u0041"}', b'{"rate":2.50,"7":1e400,"6":{"b":0,"1":0,"1":"\\/"}}'
    client.append(name, topics.new(data, meta=meta))
    for _ in range(2):
        for job in client.claim(name, "w").jobs:
            client.nack(name, "w", [job.seq])
    assert run("queue", "redrive", dead, "--json").told["moved"] == 1
    (job,) = client.claim(name, "w").jobs
    assert (job.raw_data, job.raw_meta) == (data, meta)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_redrive_leaves_what_none_of_its_queues_has_sent(run: Run, client: Client, name: str, kind: str) -> None:
    """[REC-11] Anybody may write that a record came from anywhere."""
    dead, source, other, log, gone = (f"{name}.{one}" for one in ("dead", "source", "other", "log", "gone"))
    client.create(dead, type=kind)
    client.create(source, type="queue", dead_letter=dead)
    client.create(other, type="queue", dead_letter=f"{name}.elsewhere")
    client.create(log)
    named = [gone, log, other, dead, "", "no/name", "$topics", 7, source]
    client.append_many(dead, [topics.new(n, meta={"$dead_letter_from": one}) for n, one in enumerate(named)])
    before = list(client.topics(name))
    for words in (["--dry-run"], []):
        told = run("queue", "redrive", dead, *words, "--json").told
        assert (told["ok"], told["moved"], told["left"]) == (True, 1, 8)
    assert list(client.topics(name)) == before
    assert [record.data for record in client.page(dead).records] == list(range(8))
    assert (client.state(other).count, client.state(log).count) == (0, 0)
    assert [job.data for job in client.claim(source, "w", 10).jobs] == [8]
    if kind == "queue":
        assert "8 ready, 0 in flight" in run("queue", "stats", dead).out


def test_a_redrive_that_fails_gives_back_what_it_has_claimed(run: Run, client: Client, name: str) -> None:
    """[U-12] Whoever mends it may go on at once."""
    dead = f"{name}.dead"
    client.create(dead, type="queue", lease_ms=3_600_000)
    client.create(name, type="queue", dead_letter=dead, cap_records=2, discard="reject")
    client.append_many(dead, [topics.new(n, meta={"$dead_letter_from": name}) for n in range(9)])
    ran = run("queue", "redrive", dead)
    assert ran.status == 1
    assert ran.err.startswith("topics: topic_full: ")
    assert len(ran.err.splitlines()) == 1
    assert client.state(name).count == 2
    assert "7 ready, 0 in flight" in run("queue", "stats", dead).out


def test_a_redrive_that_can_give_nothing_back_ends_with_one_line(
    run: Run, client: Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U-10] The server went away: leases end by themselves."""
    dead = f"{name}.dead"
    client.create(dead, type="queue")
    client.create(name, type="queue", dead_letter=dead)
    client.append_many(dead, [topics.new(n, meta={"$dead_letter_from": name}) for n in range(3)])
    asked: list[str] = []
    call = Client.call

    def gone(*args: object, **options: object) -> None:
        asked.append(str(args[1]))
        raise errors.Unreachable("it is gone")

    def gone_for_changes(*args: Any, **options: Any) -> Any:
        return (call if args[1] == "GET" else gone)(*args, **options)

    monkeypatch.setattr("topics.cli.remote.Server.nack", gone)
    monkeypatch.setattr("topics.cli.remote.Server.call", gone_for_changes)
    ran = run("queue", "redrive", dead)
    assert (ran.status, ran.err.count("\n")) == (1, 1)
    assert ran.err.startswith("topics: unreachable: it is gone")
    assert asked == ["POST", dead]  # it is waited for once more, not once for each letter


# -- routers, checkpoint ---------------------------------------------------------------------------------------------


def test_routers_are_added_listed_and_removed(run: Run, client: Client, name: str) -> None:
    told = run(
        "router", "add", f"{name}->b", name, f"{name}.b", "--filter", "x*", "--drop-tag", "--exactly-once", "--json"
    ).told
    assert (told["created"], told["filter"], told["preserve_tag"]) == (True, ["tag", "Glob", "x*"], False)
    assert told["guarantee"] == "exactly_once"
    client.append(name, 1, tag="x1")
    listed = run("router", "ls", name, "--json").told["routers"]
    assert [one["router"] for one in listed] == [f"{name}->b"]
    assert f"{name}->b" in run("router", "ls").out
    assert run("router", "rm", f"{name}->b", "--json").told["deleted"] is True
    assert run("router", "rm", f"{name}->b").out == f"{name}->b: there was no such router\n"


def test_checkpoint_of_a_server_and_of_a_store(run: Run, tmp_path: Path) -> None:
    """[A-15, U-13]"""
    assert "sealed" in run("checkpoint", "--json").told
    with topics.open(str(tmp_path / "store")) as log:
        log.append("a", 1)
    told = run("checkpoint", "--path", str(tmp_path / "store"), "--json").told
    assert (told["ok"], told["topics"]) == (True, 1)
    assert run("checkpoint", "--path", str(tmp_path / "nothing")).status == 1
    assert not (tmp_path / "nothing").exists()


def test_checkpoint_uses_the_store_here_when_no_server_runs(
    clean: None, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("topics.cli.remote.DEFAULT_URL", "http://127.0.0.1:1")
    with topics.open("./topics-data") as log:
        log.append("a", 1)
    assert main(["checkpoint", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["topics"] == 1


@pytest.fixture
def away(clean: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile whose server is away, by default, and a store here that has nothing to do with it."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.toml").write_text('default = "away"\n[profiles.away]\nurl = "http://127.0.0.1:1"\n')
    store = tmp_path / "store"
    with topics.open(str(store)) as log:
        log.append("a", 1)
    monkeypatch.setenv("TOPICS_DATA_DIR", str(store))
    return store


@pytest.mark.parametrize("words", [[], ["--profile", "away"]], ids=["by default", "named"])
@pytest.mark.parametrize("command", [["backup", "bk"], ["checkpoint"]], ids=["backup", "checkpoint"])
def test_no_store_here_stands_in_for_the_server_of_a_profile(
    away: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], command: list[str], words: list[str]
) -> None:
    """[U-11] A backup of another store, or a checkpoint of it, would be taken for that of the server."""
    before = {path: path.read_bytes() for path in away.rglob("*") if path.is_file()}
    assert main([*command, *words, "--json"]) == 1
    told = capfd.readouterr()
    assert (told.out, json.loads(told.err)["error"]["code"]) == ("", "unreachable")
    assert not [path for path in (tmp_path / "bk").rglob("*") if path.is_file()]
    assert {path: path.read_bytes() for path in away.rglob("*") if path.is_file()} == before


def test_a_backup_asks_the_server_of_a_profile(
    away: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """[U-11] A store that is named by its path needs none."""
    with running(tmp_path / "served") as served, Client(served.url) as client:
        client.append_many("b", range(7))
        (tmp_path / "config" / "topics.toml").write_text(f'[profiles.served]\nurl = "{served.url}"\n')
        assert main(["backup", str(tmp_path / "one"), "--profile", "served", "--json"]) == 0
        monkeypatch.setenv("TOPICS_PROFILE", "served")
        assert main(["backup", str(tmp_path / "two"), "--json"]) == 0
        assert main(["backup", str(tmp_path / "three"), "--path", str(away), "--json"]) == 0
    one, two, three = (json.loads(line) for line in capfd.readouterr().out.splitlines())
    assert one["store"] == two["store"] != three["store"]


# -- which server ----------------------------------------------------------------------------------------------------


def test_profiles_name_servers_and_their_keys(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """[U-11]"""
    monkeypatch.delenv("TOPICS_URL")
    with running(tmp_path / "locked", {"TOPICS_API_KEYS": "secret-1"}) as locked, running(tmp_path / "open") as other:
        (tmp_path / "key").write_text("secret-1\n")
        (tmp_path / "config").mkdir()
        (tmp_path / "config" / "topics.toml").write_text(
            f'default = "open"\n[profiles.locked]\nurl = "{locked.url}"\napi_key_file = "{tmp_path / "key"}"\n'
            f'[profiles.wrong]\nurl = "{locked.url}"\napi_key = "secret-2"\n[profiles.open]\nurl = "{other.url}"\n'
        )
        run("write", "in-locked", "--profile", "locked", "--data", "1")
        run("write", "in-open", "--data", "1")
        assert run("ls", "--quiet", "--profile", "locked").out == "in-locked\n"
        assert run("ls", "--quiet").out == "in-open\n"
        assert "unauthorized" in run("ls", "--profile", "wrong").err
        monkeypatch.setenv("TOPICS_PROFILE", "locked")
        assert run("ls", "--quiet").out == "in-locked\n"
        assert run("ls", "--quiet", "--url", other.url).out == "in-open\n"
        assert "unauthorized" in run("ls", "--url", locked.url + "/").err, "a profile's key is for its address"
        assert (
            run("ls", "--quiet", "--url", locked.url, "--api-key-file", "-", stdin=b"secret-1\n").out == "in-locked\n"
        )


def test_a_key_may_have_any_letters(tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """[KEY-1, U-11] From the environment, a file and stdin."""
    with running(tmp_path / "locked", {"TOPICS_API_KEYS": "clé"}) as locked:
        monkeypatch.setenv("TOPICS_API_KEY", "clé")
        assert run("write", "a", "--data", "1", "--url", locked.url).status == 0
        monkeypatch.delenv("TOPICS_API_KEY")
        (tmp_path / "key").write_bytes("clé\n".encode())
        assert run("ls", "--quiet", "--url", locked.url, "--api-key-file", str(tmp_path / "key")).out == "a\n"
        stdin = "clé\n".encode()
        assert run("ls", "--quiet", "--url", locked.url, "--api-key-file", "-", stdin=stdin).out == "a\n"


@pytest.mark.parametrize(
    "text", ["default = 'x'\n", "[profiles.a]\nurl = 5\n", "[profiles.a]\nkey = 'x'\n", "not toml", "profiles = 1\n"]
)
def test_a_profile_that_cannot_be_used_is_told(run: Run, tmp_path: Path, text: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.toml").write_text(text)
    ran = run("ls", "--profile", "a")
    assert (ran.status, "bad_profile" in ran.err) == (1, True)


# -- completion ------------------------------------------------------------------------------------------------------


def test_every_command_and_action_is_known_to_completion() -> None:
    """[U-11]"""
    paths = {one.path for one in known()}
    assert {(command.name,) for command in COMMANDS} <= paths
    assert ("queue", "redrive") in paths
    assert all(command.name in fish() for command in COMMANDS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_a_script_or_with_json_an_object(run: Run, shell: str) -> None:
    """[U-10]"""
    assert run("completion", shell, "--json").told["script"] == run("completion", shell).out


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("topics che", ["checkpoint"]),
        ("topics queue re", ["redrive"]),
        ("topics create x --dur", ["--durability"]),
        ("topics --json queue work --unt", ["--until-empty"]),
        ("topics read my-t", ["my-topic"]),
    ],
)
def test_bash_completes(words: str, expected: list[str], tmp_path: Path) -> None:
    """[U-11]"""
    stub = tmp_path / "topics"
    stub.write_text("#!/bin/sh\necho my-topic\n")
    stub.chmod(0o755)
    script = f"""{bash()}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _topics_complete; printf '%s\\n' "${{COMPREPLY[@]}}" """
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    result = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True, env=env)
    assert result.stdout.split() == expected


def test_the_program_loads_no_server_and_no_engine_to_talk_to_a_server() -> None:
    code = (
        "import sys; from topics.cli.main import main; main(['ls', '--url', 'http://127.0.0.1:1']);"
        "heavy = ('topics.server', 'topics.engine', 'topics.spark', 'topics.storage', 'numpy', 'asyncio');"
        "bad = [m for m in sys.modules if m.startswith(heavy)];"
        "sys.exit(str(bad) if bad else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
