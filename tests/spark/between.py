"""A proxy in front of a real server that tests can step into: what happens to a request is theirs to decide."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import urlsplit


class Reply(NamedTuple):
    """An answer, as far as it matters here."""

    status: int
    body: bytes
    retry_after: str | None = None


Pass = Callable[[], Reply]
Step = Callable[[str, bytes, Pass], Reply | None]
"""Path and body of a request, and how to pass it on; what to answer, None: the connection is cut."""


class Between:
    """Passes requests on, one connection each, through `step`."""

    def __init__(self, url: str) -> None:
        self.target = url
        self.step: Step = lambda path, body, forward: forward()
        self.asked: list[str] = []
        """Paths, without queries, in the order they came."""
        between = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                between.asked.append(self.path.partition("?")[0])
                reply = between.step(self.path, body, lambda: between._forward(self.path, body, dict(self.headers)))
                if reply is None:
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                self.send_response(reply.status)
                self.send_header("Content-Length", str(len(reply.body)))
                if reply.retry_after is not None:
                    self.send_header("Retry-After", reply.retry_after)
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, format: str, *args: Any) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def _forward(self, path: str, body: bytes, headers: dict[str, str]) -> Reply:
        parts = urlsplit(self.target)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request("POST", path, body, headers)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read(), answer.getheader("Retry-After"))
        finally:
            connection.close()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def of(self, path: str) -> int:
        """How often a path was asked for."""
        return self.asked.count(path)


@contextmanager
def between(url: str) -> Iterator[Between]:
    """A proxy for a block."""
    one = Between(url)
    try:
        yield one
    finally:
        one.close()
