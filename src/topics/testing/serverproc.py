"""A server in a process of its own: started, asked, killed. Any thread, one at a time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from topics.testing.httpconn import HttpConn

SERVE = (sys.executable, "-m", "topics", "serve")
FAULTY = (sys.executable, "-m", "topics.testing.faultyserver")
START_S = 60.0
END_S = 5.0
POLL_S = 0.005


class ServerDied(Exception):
    """The process ended by itself, or never got ready; the message has its last words."""


class ServerProcess:
    """One life of a server on a data directory. `address` is known once `wait_ready` has returned."""

    def __init__(self, folder: Path, env: Mapping[str, str], command: Sequence[str] | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._port_file = folder / "port"
        self._port_file.unlink(missing_ok=True)
        self._log = folder / "server.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        given = {
            "TOPICS_PORT": "0",
            "TOPICS_PORT_FILE": str(self._port_file),
            "TOPICS_DATA_DIR": str(folder / "data"),
            **env,
        }
        with self._log.open("wb") as log:
            command = SERVE if command is None else command
            said = subprocess.PIPE if command == FAULTY else log
            self.process = subprocess.Popen(
                command, env={**own, **given}, stdin=subprocess.PIPE, stdout=said, stderr=log
            )
        self.address = ("", 0)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self.process.pid

    def wait_ready(self) -> None:
        """Return once it takes requests."""
        end = time.monotonic() + START_S
        while not self._port_file.exists():
            self._pause(end)
        host, _, port = self._port_file.read_text().strip().rpartition(":")
        self.address = (host.strip("[]"), int(port))
        with HttpConn(*self.address) as http:
            while True:
                try:
                    if http.call("GET", "/v0/ready").status == 200:
                        return
                except OSError as error:
                    raise ServerDied(f"{error}: {self.last_words()}") from error
                self._pause(end)

    def _pause(self, end: float) -> None:
        if self.process.poll() is not None or time.monotonic() > end:
            raise ServerDied(self.last_words())
        time.sleep(POLL_S)

    def last_words(self) -> str:
        """How it ended and the end of what it logged."""
        try:
            status: int | None = self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            status = None
        said = self._log.read_text(errors="replace")[-2000:]
        return f"the server {'hangs' if status is None else f'ended with {status}'}: {said}"

    def kill(self) -> None:
        """SIGKILL; raises if it had ended before."""
        status = self.process.poll()
        if status is not None:
            raise ServerDied(self.last_words())
        self.process.kill()
        self.process.wait()
        self._let_go()

    def stop(self) -> None:
        """SIGTERM, and wait for the clean end."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(START_S)
        except subprocess.TimeoutExpired:
            raise ServerDied(self.last_words()) from None
        self._let_go()
        if self.process.returncode != 0:
            raise ServerDied(self.last_words())

    def abandon(self) -> None:
        """End it somehow; for clean-up."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._let_go()

    def tell(self, line: str) -> None:
        """A line for `faultyserver`; returns once it holds."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        if not self.process.stdout.readline():
            raise ServerDied(self.last_words())

    def _let_go(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
