"""`topics serve` from the outside: refusals, signals, keys, certificates, what it says and what it never says."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.api.kit import received, records
from tests.api.process import WAIT_S, Served, served
from topics.codec import kernel

TLS = Path(__file__).parent / "tls"
SECRET = "s3cret-of-nobody"


def head_of(client: httpx.Client, topic: str) -> int:
    return int(client.get(f"/v0/topics/{topic}").json()["head_seq"])


# -- starting ------------------------------------------------------------------------------------------------------


def test_it_serves_says_what_it_serves_and_keeps_it(tmp_path: Path) -> None:
    """[ENV-2, API-5, U-3]"""
    port_file = tmp_path / "port"
    with served(tmp_path, "--port-file", str(port_file), "--wal-shards", "2") as one:
        told = one.event("listening")
        one.url = told["url"]
        assert port_file.read_text() == one.url.removeprefix("http://")
        assert os.listdir(tmp_path).count("port.tmp") == 0
        assert (told["keys"], told["wal_shards"], told["data_dir"]) == (0, 2, "./topics-data")
        assert told["limits"]["max_batch_records"] == 10_000
        assert one.event("ready")["topics"] == 0
        assert "authentication is OFF" in one.messages
        with one.client() as client:
            assert client.post("/v0/topics/a", json=records(1, 2)).status_code == 201
            assert client.put("/v0/topics/b", json={"durability": "fsync"}).status_code == 201
        assert one.stop() == 0
        assert one.event("stopped")
    with served(tmp_path) as again:
        again.listening()
        ready = again.event("ready")
        assert (ready["topics"], ready["classes"]) == (2, {"disk": 1, "fsync": 1})
        with again.client() as client:
            assert head_of(client, "a") == 2


def test_it_says_which_kernel_runs(tmp_path: Path) -> None:
    """[HLT-1, SET-1] As chosen; one that is not installed is not taken for one that is [A-17]."""
    with served(tmp_path, "--kernel", "pure") as one:
        told = one.event("listening")
        one.url = told["url"]
        assert told["kernel"] == "pure"
        assert one.event("ready")
        with one.client() as client:
            assert client.get("/v0/health").json()["kernel"] == "pure"
            assert client.get("/v0/settings").json()["build"]["kernel"] == "pure"
    if kernel.installed() is None:
        assert "is not installed" in str(refusal(tmp_path, "--kernel", "native", status=2)["message"])
        return
    with served(tmp_path, env={"TOPICS_KERNEL": "native"}) as one:
        one.listening()
        with one.client() as client:
            assert client.get("/v0/health").json()["kernel"] == "native"


def test_a_flag_wins_over_its_variable_and_the_settings_say_who_did(tmp_path: Path) -> None:
    """[SET-1]"""
    env = {"TOPICS_MAX_TOPICS": "5", "TOPICS_MAX_LIMIT": "7", "TOPICS_HOST": "127.0.0.1:1", "TOPICS_SEGMENT_MMAP": "on"}
    flags = ("--max-topics", "9", "--segment-mmap", "off", "--probe-auth")
    with served(tmp_path, *flags, env=env) as one, one.ready().client() as client:
        rows = {row["name"]: (row["value"], row["source"]) for row in client.get("/v0/settings").json()["settings"]}
    assert rows["TOPICS_MAX_TOPICS"] == (9, "flag")
    assert rows["TOPICS_MAX_LIMIT"] == (7, "environment")
    assert rows["TOPICS_SEGMENT_MMAP"] == (False, "flag")
    assert rows["TOPICS_PROBE_AUTH"] == (True, "flag")
    assert rows["TOPICS_DATA_DIR"] == ("./topics-data", "default")


def test_an_unknown_variable_is_warned_about_once_with_the_nearest_known_one(tmp_path: Path) -> None:
    """[ENV-3]"""
    with served(tmp_path, env={"TOPICS_WAL_SHARD": "4", "TOPICS_URL": "http://x", "TOPICS_API_KEY": SECRET}) as one:
        one.ready()
        assert one.stop() == 0
    warned = [line for line in one.lines if "TOPICS_WAL_SHARD" in line["message"]]
    assert len(warned) == 1
    assert warned[0]["level"] == "warning"
    assert "TOPICS_WAL_SHARDS" in warned[0]["message"]
    assert "TOPICS_URL" not in one.messages


@pytest.mark.parametrize(("given", "shown"), [(None, 300), ("0", 0), ("299", 299), ("301", 300)])
def test_the_settings_say_how_many_files_stay_open_for_reading(given: str | None, shown: int, tmp_path: Path) -> None:
    """[S-155, SET-1] The default depends on the descriptor limit, which bounds what is given too."""
    env = {} if given is None else {"TOPICS_MAX_FDS": given}
    with served(tmp_path, env=env, before=["sh", "-c", 'ulimit -n 600 && exec "$@"', "sh"]) as one:
        with one.ready().client() as client:
            rows = {row["name"]: (row["value"], row["source"]) for row in client.get("/v0/settings").json()["settings"]}
        assert rows["TOPICS_MAX_FDS"] == (shown, "default" if given is None else "environment")
        assert ("open for reading instead of" in one.messages) == (given == "301")


def test_connections_are_bounded_by_the_descriptor_limit(tmp_path: Path) -> None:
    """[RES-1] (09 §5)"""
    with served(tmp_path, before=["sh", "-c", 'ulimit -n 600 && exec "$@"', "sh"]) as one:
        with one.ready().client() as client:
            rows = {row["name"]: row["value"] for row in client.get("/v0/settings").json()["settings"]}
        assert rows["TOPICS_MAX_CONNECTIONS"] == 600 - 512
        assert "at most 88 connections instead of 20000" in one.messages
        address = ("127.0.0.1", int(one.url.rpartition(":")[2]))
        held = [socket.create_connection(address, timeout=WAIT_S) for _ in range(89)]
        answer = received(held[-1])
        assert b"429 Too Many Requests" in answer
        assert b'"max":88' in answer
        for sock in held:
            sock.close()


# -- refusals ------------------------------------------------------------------------------------------------------


def refusal(home: Path, *flags: str, status: int, **options: object) -> dict[str, object]:
    """Starts, is refused with one line, and that line."""
    with served(home, *flags, **options) as one:
        assert one.ended() == status, one.raw.decode()
        assert len(one.lines) == one.raw.count(b"\n") == 1, one.raw.decode()
    [line] = one.lines
    assert (line["event"], line["level"], line["status"]) == ("refused", "error", status)
    assert SECRET not in one.raw.decode()
    assert one.process.stdout is not None
    return line


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]:0", "no-such-host.invalid"])
def test_beyond_loopback_it_needs_keys(tmp_path: Path, host: str) -> None:
    """[BOOT-1]"""
    line = refusal(tmp_path, "--host", host, status=2)
    for remedy in ("TOPICS_API_KEYS", "TOPICS_API_KEYS_FILE", "127.0.0.1", "TOPICS_ALLOW_INSECURE_NO_AUTH"):
        assert remedy in str(line["message"])
    assert not (tmp_path / "topics-data").exists()


@pytest.mark.parametrize("env", [{"TOPICS_API_KEYS": SECRET}, {"TOPICS_ALLOW_INSECURE_NO_AUTH": "yes"}])
def test_beyond_loopback_it_starts_with_keys_or_the_waiver(tmp_path: Path, env: dict[str, str]) -> None:
    """[BOOT-1]"""
    with served(tmp_path, "--host", "0.0.0.0", env=env) as one:
        one.ready()
        assert ("authentication is OFF" in one.messages) is ("TOPICS_API_KEYS" not in env)
        assert one.stop() == 0


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        (f"good,{SECRET}:raed", "entry 2"),
        (f"{SECRET}:+:x", "entry 1"),
        (f"a,,:read:{SECRET}", "entry 3"),
        (f"{SECRET}\x01", "entry 1"),
    ],
)
def test_bad_keys_are_named_by_their_number_only(tmp_path: Path, keys: str, where: str) -> None:
    """[BOOT-2, KEY-5]"""
    line = refusal(tmp_path, env={"TOPICS_API_KEYS": keys}, status=2)
    assert str(line["message"]).startswith(f"TOPICS_API_KEYS: {where} ")
    assert "raed" not in str(line["message"])


def test_a_keys_file_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    """[KEY-4, BOOT-2]"""
    path = tmp_path / "keys"
    absent = refusal(tmp_path, "--api-keys-file", str(path), status=2)
    assert "No such file" in str(absent["message"])
    path.write_text(f"# ours\n\n{SECRET}:write\n{SECRET}:nothing\n")
    bad = refusal(tmp_path, "--api-keys-file", str(path), status=2)
    assert "line 4" in str(bad["message"])
    path.unlink()
    os.mkfifo(path)
    pipe = refusal(tmp_path, "--api-keys-file", str(path), status=2)
    assert "not a regular file" in str(pipe["message"])


@pytest.mark.parametrize(
    ("flags", "env", "named"),
    [
        (["--wal-shards", "65"], {}, "--wal-shards: '65'"),
        ([], {"TOPICS_MAX_BODY_BYTES": "1k"}, "TOPICS_MAX_BODY_BYTES: '1k'"),
        (["--tls-cert", str(TLS / "one.crt")], {}, "TOPICS_TLS_KEY: not set"),
        (["--tls-cert", str(TLS / "one.crt"), "--tls-key", str(TLS / "two.key")], {}, "no usable pair"),
        (["--tls-cert", str(TLS / "one.crt"), "--tls-key", "none"], {}, "cannot be read"),
        (["--cold", "s3://key:secret@bucket"], {}, "a URL with credentials in it"),
    ],
)
def test_a_bad_setting_is_named_and_nothing_is_opened(
    tmp_path: Path, flags: list[str], env: dict[str, str], named: str
) -> None:
    """[A-17, API-4, S-380]"""
    line = refusal(tmp_path, *flags, env=env, status=2)
    assert named in str(line["message"])
    assert os.listdir(tmp_path) == []


def test_a_data_directory_in_use_is_refused_before_the_port_file_is_touched(tmp_path: Path) -> None:
    """[BOOT-3]"""
    port_file = tmp_path / "port"
    with served(tmp_path, "--port-file", str(port_file)) as first:
        first.ready()
        told = port_file.read_text()
        line = refusal(tmp_path, "--port-file", str(port_file), status=3)
        assert line["code"] == "data_dir_in_use"
        assert f"pid={first.process.pid}" in str(line["message"])
        assert port_file.read_text() == told
        assert first.stop() == 0


def test_a_data_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    """[BOOT-3]"""
    (tmp_path / "file").write_text("")
    with served(tmp_path, "--data-dir", "file/data") as one:
        assert one.ended() == 3
    assert one.lines[-1]["event"] == "refused"


def test_a_store_that_cannot_be_recovered_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    """[BOOT-4]"""
    with served(tmp_path) as one:
        with one.ready().client() as client:
            client.post("/v0/topics/a", json=records(1))
        assert one.stop() == 0
    data = tmp_path / "topics-data"
    for name in ("meta", "wal"):
        shutil.rmtree(data / name)
    kept = sorted(str(path) for path in (data / "topics").rglob("*"))
    with served(tmp_path) as again:
        assert again.ended() == 3
        last = again.lines[-1]
        assert (last["event"], last["code"]) == ("refused", "metadata_lost")
    assert sorted(str(path) for path in (data / "topics").rglob("*")) == kept


def test_an_address_in_use_and_a_port_file_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    """[BOOT-5]"""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = refusal(tmp_path, "--port", str(port), status=1)
    assert f"127.0.0.1:{port}" in str(line["message"])
    line = refusal(tmp_path, "--port-file", str(tmp_path / "none" / "port"), status=1)
    assert "TOPICS_PORT_FILE" in str(line["message"])
    assert not (tmp_path / "topics-data").exists()


@pytest.mark.parametrize("flag", ["--api-keys", "--api-key", "--token"])
@pytest.mark.parametrize("joined", [True, False])
def test_a_key_as_an_argument_is_refused_and_not_repeated(tmp_path: Path, flag: str, joined: bool) -> None:
    """[KEY-5] (13 §5)"""
    words = [f"{flag}={SECRET}"] if joined else [flag, SECRET]
    with served(tmp_path, *words) as one:
        assert one.ended() == 2
    assert SECRET.encode() not in one.raw
    assert b"TOPICS_API_KEYS" in one.raw


def test_without_asserts_it_does_not_start(tmp_path: Path) -> None:
    """(13 §6)"""
    with served(tmp_path, interpreter=["-O"]) as one:
        assert one.ended() == 1
    assert one.raw.startswith(b"topics: optimized: ")
    assert not (tmp_path / "topics-data").exists()


# -- recovery ------------------------------------------------------------------------------------------------------

GATED = """
import sys
from topics.cli.main import main
from topics.engine import recover

replay = recover.Recovery._replay

def gated(self, one):
    self._progress(0.25)
    print("at the gate", flush=True)
    sys.stdin.readline()
    self._progress(0.5)
    replay(self, one)

recover.Recovery._replay = gated
sys.exit(main())
"""


@pytest.fixture
def gated(tmp_path: Path) -> Iterator[Served]:
    """A server whose recovery waits for a line, over a store with something to replay."""
    with served(tmp_path) as one:
        with one.ready().client() as client:
            client.post("/v0/topics/a", json=records(*range(100)))
        one.send(signal.SIGKILL)
        one.ended()
    with served(tmp_path, program=["-c", GATED]) as one:
        one.listening()
        assert one.process.stdout is not None
        assert one.process.stdout.readline() == b"at the gate\n"
        yield one


def open_gate(one: Served) -> None:
    assert one.process.stdin is not None
    one.process.stdin.write(b"\n")
    one.process.stdin.flush()


def test_while_the_log_is_replayed_it_answers_how_far_it_is(gated: Served) -> None:
    """[API-6, HLT-3]"""
    with gated.client() as client:
        for path in ("/v0/ready", "/v0/topics/a"):
            answer = client.get(path)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert answer.json()["error"]["detail"] == {"state": "replaying", "replay_progress": 0.25}
        assert client.post("/v0/topics/a", json=records(1)).status_code == 503
        assert client.get("/v0/health").status_code == 200
        open_gate(gated)
        gated.event("ready")
        assert client.get("/v0/ready").json()["topics"] == 1
        assert head_of(client, "a") == 100
    assert gated.stop() == 0


def test_a_stop_during_recovery_ends_it_and_the_next_start_has_everything(gated: Served, tmp_path: Path) -> None:
    """[API-5]"""
    gated.send(signal.SIGTERM)
    gated.event("stopping")
    open_gate(gated)
    assert gated.ended() == 0
    assert "ready after" not in gated.messages
    with served(tmp_path) as again, again.ready().client() as client:
        assert head_of(client, "a") == 100


def test_a_second_signal_during_recovery_leaves_at_once(gated: Served) -> None:
    """[API-5]"""
    gated.send(signal.SIGINT)
    gated.event("stopping")
    gated.send(signal.SIGTERM)
    assert gated.ended() == 1


# -- stopping ------------------------------------------------------------------------------------------------------


class Writer(threading.Thread):
    """Writes until it is refused; `acked` is what it was promised."""

    def __init__(self, url: str, name: str) -> None:
        super().__init__(daemon=True)
        self._url = f"{url}/v0/topics/{name}"
        self.acked: list[int] = []
        self.under_way = threading.Event()

    def run(self) -> None:
        with httpx.Client(timeout=WAIT_S, trust_env=False) as client:
            number = 0
            while True:
                try:
                    answer = client.post(self._url, json=records(number))
                except httpx.TransportError:
                    return
                if answer.status_code >= 300:
                    assert answer.status_code == 503, answer.text
                    return
                self.acked.append(number)
                number += 1
                if number == 20:
                    self.under_way.set()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_loses_nothing_acknowledged(tmp_path: Path, number: signal.Signals) -> None:
    """[API-5, S-352]"""
    with served(tmp_path) as one:
        one.ready()
        with one.client() as client:
            client.put("/v0/topics/t1", json={"durability": "fsync"})
        writers = [Writer(one.url, f"t{n % 3}") for n in range(6)]
        for writer in writers:
            writer.start()
        assert all(writer.under_way.wait(WAIT_S) for writer in writers)
        one.send(number)
        assert one.ended() == 0
        for writer in writers:
            writer.join(WAIT_S)
    with served(tmp_path) as again, again.ready().client() as client:
        for topic in range(3):
            page = client.post(f"/v0/topics/t{topic}/diff", json={"limit": 1000}).json()
            found = [record["data"] for record in page["records"]]
            while not page["caught_up"]:
                page = client.post(f"/v0/topics/t{topic}/diff", json={"from_seq": page["next_from_seq"]}).json()
                found += [record["data"] for record in page["records"]]
            for value in [value for n in (topic, topic + 3) for value in writers[n].acked]:
                found.remove(value)


def half_a_request(one: Served) -> socket.socket:
    """A connection that the server waits for when it drains."""
    sock = socket.create_connection(("127.0.0.1", int(one.url.rpartition(":")[2])), timeout=WAIT_S)
    head = b"POST /v0/topics/a HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    sock.sendall(head + b"expect: 100-continue\r\ncontent-length: 40\r\n\r\n")
    assert sock.recv(100).startswith(b"HTTP/1.1 100")
    return sock


def test_a_request_under_way_is_finished_and_kept(tmp_path: Path) -> None:
    """[API-5]"""
    with served(tmp_path) as one:
        one.ready()
        with half_a_request(one) as sock:
            one.send(signal.SIGTERM)
            one.event("stopping")
            sock.sendall(json.dumps(records("late")).encode().ljust(40))
            answer = received(sock)
        assert answer.startswith(b"HTTP/1.1 201")
        assert b"connection: close" in answer
        assert one.ended() == 0
    with served(tmp_path) as again, again.ready().client() as client:
        assert head_of(client, "a") == 1


def test_a_second_signal_leaves_at_once_and_loses_nothing_acknowledged(tmp_path: Path) -> None:
    """[API-5]"""
    with served(tmp_path) as one:
        with one.ready().client() as client:
            client.post("/v0/topics/a", json=records(1, 2, 3))
        with half_a_request(one):
            one.send(signal.SIGTERM)
            one.event("stopping")
            one.send(signal.SIGTERM)
            assert one.ended() == 1
        assert "without a checkpoint" in one.messages
    with served(tmp_path) as again, again.ready().client() as client:
        assert head_of(client, "a") == 3


# -- keys ----------------------------------------------------------------------------------------------------------


def status(client: httpx.Client, key: str) -> int:
    return client.get("/v0/topics", headers={"authorization": f"Bearer {key}"}).status_code


def test_sighup_rotates_keys_and_a_bad_file_changes_nothing(tmp_path: Path) -> None:
    """[KEY-4]"""
    path = tmp_path / "keys"
    path.write_text("# keys\nfirst\nboth:write\n")
    path.chmod(0o600)
    env = {"TOPICS_API_KEYS": "fixed,both:read"}
    with served(tmp_path, "--api-keys-file", str(path), env=env) as one:
        assert one.event("listening")["keys"] == 3
        one.event("ready")
        one.url = one.lines[0]["url"]
        with one.client() as client:
            assert [status(client, key) for key in ("first", "fixed", "second", "both")] == [200, 200, 401, 403]
            path.write_text("second\n")
            one.send(signal.SIGHUP)
            assert one.event("reloaded")["keys"] == 3
            assert [status(client, key) for key in ("first", "fixed", "second", "both")] == [401, 200, 200, 200]
            for bad in ("third:nothing\n", None):
                path.write_text(bad) if bad is not None else path.unlink()
                one.send(signal.SIGHUP)
                one.event("reload_failed")
                assert [status(client, key) for key in ("fixed", "second", "third")] == [200, 200, 401]
        assert one.stop() == 0
    assert "the keys in force stay" in one.messages


def test_an_emptied_keys_file_never_opens_the_server(tmp_path: Path) -> None:
    """[KEY-4, BOOT-1] A file that is just being written anew must not mean: no authentication."""
    path = tmp_path / "keys"
    path.write_text("only\n")
    with served(tmp_path, "--api-keys-file", str(path)) as one:
        one.ready()
        path.write_text("")
        one.send(signal.SIGHUP)
        one.event("reload_failed")
        with one.client() as client:
            assert [status(client, key) for key in ("only", "other")] == [200, 401]


def test_sighup_without_a_keys_file_is_logged_and_ignored(tmp_path: Path) -> None:
    """[KEY-4]"""
    with served(tmp_path) as one:
        one.ready()
        one.send(signal.SIGHUP)
        one.event("reloaded")
        with one.client() as client:
            assert client.get("/v0/ready").status_code == 200
        assert one.stop() == 0


def test_a_keys_file_readable_by_others_is_warned_about(tmp_path: Path) -> None:
    """[KEY-4]"""
    path = tmp_path / "keys"
    path.write_text("only\n")
    for mode, warned in ((0o644, True), (0o600, False)):
        path.chmod(mode)
        with served(tmp_path, "--api-keys-file", str(path)) as one:
            one.ready()
            assert one.stop() == 0
        assert ("readable by others" in one.messages) is warned


def test_secrets_are_nowhere_to_be_seen(tmp_path: Path) -> None:
    """[KEY-5] Not in logs, answers, arguments, nor in the process's own environment."""
    path = tmp_path / "keys"
    path.write_text(f"{SECRET}-file:rw\n")
    env = {"TOPICS_API_KEYS": f"{SECRET}-env", "TOPICS_LOG_LEVEL": "debug"}
    seen = b""
    with served(tmp_path, "--api-keys-file", str(path), env=env) as one:
        one.ready()
        proc = Path(f"/proc/{one.process.pid}")
        if proc.exists():
            seen += (proc / "environ").read_bytes() + (proc / "cmdline").read_bytes()
        for key in ("env", "file", "wrong"):
            with one.client(f"{SECRET}-{key}") as client:
                for where in ("/v0/settings", "/v0/metrics", "/v0/topics/a", "/nowhere", f"/v0/topics?token={SECRET}"):
                    seen += client.get(where).content
                seen += client.post("/v0/topics/a", content=b"{").content
        one.send(signal.SIGHUP)
        one.event("reloaded")
        assert one.stop() == 0
    assert SECRET.encode() not in seen + one.raw


# -- TLS -----------------------------------------------------------------------------------------------------------


def trusting(name: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(TLS / f"{name}.crt"))


def is_trusted(one: Served, name: str) -> bool:
    """Whether a new connection is shown this certificate."""
    try:
        with one.client(verify=trusting(name)) as client:
            return client.get("/v0/health").status_code == 200
    except httpx.ConnectError as error:
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            return False
        raise


def alpn(one: Served, *offered: str) -> str | None:
    context = trusting("one")
    context.set_alpn_protocols(list(offered))
    port = int(one.url.rpartition(":")[2])
    raw = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    with raw, context.wrap_socket(raw, server_hostname="localhost") as sock:
        return sock.selected_alpn_protocol()


def test_tls_is_spoken_and_its_certificate_exchanged_on_sighup(tmp_path: Path) -> None:
    """[A-6, API-2, KEY-4]"""
    cert, key = tmp_path / "cert", tmp_path / "key"

    def install(cert_of: str, key_of: str) -> None:
        cert.write_bytes((TLS / f"{cert_of}.crt").read_bytes())
        key.write_bytes((TLS / f"{key_of}.key").read_bytes())

    install("one", "one")
    with served(tmp_path, "--tls-cert", "cert", "--tls-key", "key") as one:
        one.ready()
        assert one.url.startswith("https://")
        assert (is_trusted(one, "one"), is_trusted(one, "two")) == (True, False)
        assert alpn(one, "http/1.1") == "http/1.1"
        assert alpn(one, "h2", "http/1.1") == "h2"
        with one.client(verify=trusting("one")) as kept:
            assert kept.post("/v0/topics/a", json=records(1)).status_code == 201
            install("two", "one")
            one.send(signal.SIGHUP)
            one.event("reload_failed")
            assert is_trusted(one, "one")
            install("two", "two")
            one.send(signal.SIGHUP)
            one.event("certificate_reloaded")
            assert (is_trusted(one, "one"), is_trusted(one, "two")) == (False, True)
            assert head_of(kept, "a") == 1
            assert one.stop() == 0
