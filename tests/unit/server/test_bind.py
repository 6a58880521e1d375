"""Addresses: what counts as loopback, one port for all of them, and the port file [BOOT-1, BOOT-5]."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from topics.fs import OsFs
from topics.server import bind
from topics.server.bind import Address


def address(host: str) -> Address:
    return Address(socket.AF_INET6 if ":" in host else socket.AF_INET, (host, 0))


@pytest.mark.parametrize(
    ("hosts", "loopback"),
    [
        (["127.0.0.1"], True),
        (["127.8.8.8", "::1"], True),
        (["::ffff:127.0.0.1"], True),
        (["::1%lo"], True),
        (["127.0.0.1", "10.0.0.1"], False),
        (["0.0.0.0"], False),
        (["::"], False),
        (["::ffff:10.0.0.1"], False),
        ([], False),
    ],
)
def test_loopback_means_every_address(hosts: list[str], loopback: bool) -> None:
    """[BOOT-1]"""
    assert bind.is_loopback([address(host) for host in hosts]) is loopback


def test_hosts_are_resolved_with_and_without_brackets() -> None:
    assert bind.resolve("127.0.0.1", 80) == [Address(socket.AF_INET, ("127.0.0.1", 80))]
    assert bind.resolve("[::1]", 80)[0].place[:2] == ("::1", 80)
    with pytest.raises(OSError, match=r"."):
        bind.resolve("no-such-host.invalid", 80)


def test_all_addresses_get_the_port_that_the_system_chose() -> None:
    sockets = bind.listening([Address(socket.AF_INET, ("127.0.0.1", 0)), Address(socket.AF_INET, ("127.0.0.2", 0))])
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        bind.close(sockets)


def test_an_address_this_machine_lacks_is_left_out_unless_it_is_the_only_one() -> None:
    elsewhere = Address(socket.AF_INET, ("192.0.2.1", 0))
    [sock] = bind.listening([elsewhere, Address(socket.AF_INET, ("127.0.0.1", 0))])
    sock.close()
    [sock] = bind.listening([Address(socket.AF_INET, ("127.0.0.1", 0)), elsewhere])
    sock.close()
    with pytest.raises(OSError, match=r".") as caught:
        bind.listening([elsewhere])
    assert caught.value.errno == errno.EADDRNOTAVAIL


def test_an_address_in_use_is_refused() -> None:
    """[BOOT-5]"""
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match=r".") as caught:
        bind.listening([Address(socket.AF_INET, taken.getsockname())])
    assert caught.value.errno == errno.EADDRINUSE


def test_names_are_spelled_as_they_are_typed() -> None:
    assert bind.spelled(("127.0.0.1", 80)) == "127.0.0.1:80"
    assert bind.spelled(("::1", 80, 0, 0)) == "[::1]:80"


def test_the_port_file_is_replaced_whole_or_left_alone(tmp_path: Path) -> None:
    """(09 §6)"""
    path = tmp_path / "port"
    path.write_text("an old and longer text")
    bind.write_port_file(OsFs(), str(path), "127.0.0.1:80")
    assert path.read_text() == "127.0.0.1:80"
    with pytest.raises(OSError, match=r"."):
        bind.write_port_file(OsFs(), str(tmp_path), "x:1")
    assert [one.name for one in tmp_path.iterdir()] == ["port"]


def test_a_port_file_replaces_files_only(tmp_path: Path) -> None:
    """[BOOT-5] `--port-file /dev/stdout` must not leave a machine without it."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        bind.write_port_file(OsFs(), str(tmp_path / "pipe"), "127.0.0.1:1")
    assert [(path.name, path.is_fifo()) for path in tmp_path.iterdir()] == [("pipe", True)]
