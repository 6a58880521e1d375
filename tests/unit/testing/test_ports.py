"""Ports to come back to."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from topics.testing import ports

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_ports_are_free_and_different() -> None:
    found = ports.free_ports(8)
    assert len(set(found)) == 8
    for port in found:
        socket.create_server(("127.0.0.1", port)).close()


def test_a_port_in_use_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        monkeypatch.setattr(ports, "LOWEST", port)
        monkeypatch.setattr(ports, "BEYOND", port + 1)
        monkeypatch.setattr(ports, "TRIES", 1)
        with pytest.raises(OSError, match="no 1 free ports"):
            ports.free_port()


@pytest.mark.skipif(not RANGE.exists(), reason="only Linux tells it there")
def test_no_client_is_given_one_of_them() -> None:
    """Where the system has its usual range."""
    first = int(RANGE.read_text().split()[0])
    if first >= 32_768:
        assert first >= ports.BEYOND
