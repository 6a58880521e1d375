"""The bad line of the tests leaves nothing open behind it."""

from __future__ import annotations

import gc
import socket

from topics.testing.tcpproxy import TcpProxy


def test_a_connection_that_comes_as_the_line_ends_is_closed() -> None:
    """Else some later test is told of it."""
    with socket.create_server(("127.0.0.1", 0)) as target:
        for _ in range(100):
            with TcpProxy("127.0.0.1", target.getsockname()[1]) as line:
                client = socket.create_connection(("127.0.0.1", line.port))
            client.close()
    gc.collect()
