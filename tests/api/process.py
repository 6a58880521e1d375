"""`topics serve` as its users run it: a process of its own, its log read as it comes."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

WAIT_S = 60.0
Line = dict[str, Any]


class Served:
    """One process. Its log lines are JSON, since stderr is no terminal."""

    def __init__(
        self,
        home: Path,
        *flags: str,
        env: Mapping[str, str] | None = None,
        program: Sequence[str] = ("-m", "topics"),
        interpreter: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
        command = [*before, sys.executable, *interpreter, *program, "serve", *flags]
        self.process = subprocess.Popen(
            command, cwd=home, env={**clean, **(env or {})}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        self.lines: list[Line] = []
        self.raw = b""
        self.url = ""
        self._unseen: queue.Queue[Line | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.raw += line
            try:
                told = json.loads(line)
            except ValueError:
                continue
            self.lines.append(told)
            self._unseen.put(told)
        self._unseen.put(None)

    def event(self, name: str) -> Line:
        """The next line of this event; the process must not end before it."""
        try:
            while (line := self._unseen.get(timeout=WAIT_S)) is not None:
                if line.get("event") == name:
                    return line
        except queue.Empty:
            raise AssertionError(f"no {name} in time, status {self.process.poll()}: {self.raw.decode()}") from None
        raise AssertionError(f"no {name}, status {self.process.wait(WAIT_S)}: {self.raw.decode()}")

    def ready(self) -> Served:
        """Wait until it takes requests."""
        self.listening()
        self.event("ready")
        return self

    def listening(self) -> Served:
        """Wait until it accepts."""
        self.url = self.event("listening")["url"]
        return self

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit status; a test that expects another one shows what it said."""
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end: {self.raw.decode()}") from None
        self._reader.join(WAIT_S)
        if status:
            sys.stdout.write(f"status {status}: {self.raw.decode()}\n")
        return status

    def stop(self) -> int:
        """SIGTERM, and the status."""
        self.send(signal.SIGTERM)
        return self.ended()

    def close(self) -> None:
        """Whatever the test left behind."""
        if self.process.poll() is None:
            self.process.kill()
        self.ended()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            pipe.close()

    def client(self, key: str | None = None, **more: Any) -> httpx.Client:
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=self.url, headers=headers, timeout=WAIT_S, trust_env=False, **more)

    @property
    def messages(self) -> str:
        """Everything it logged, as text."""
        return "\n".join(str(line["message"]) for line in self.lines)


@contextmanager
def served(home: Path, *flags: str, **options: Any) -> Iterator[Served]:
    """A process for a block, on a port that the system chooses."""
    one = Served(home, "--port", "0", *flags, **options)
    try:
        yield one
    finally:
        one.close()
