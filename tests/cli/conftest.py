"""The program against a real server: in this process where output is looked at, as a process where signals are."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.api.kit import Running, running
from topics.cli.main import main
from topics.client.sync import Client


class Ran(NamedTuple):
    """What a command did."""

    status: int
    out: str
    err: str

    @property
    def told(self) -> Any:
        """Its output, which is one line of JSON."""
        assert self.status == 0, self.err
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        """Its output, which is lines of JSON."""
        assert self.status == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running() as one:
        yield one


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    with Client(server.url) as one:
        yield one


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the machine's environment or configuration."""
    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(server: Running, clean: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command; `stdin` is what it can read there."""
    monkeypatch.setenv("TOPICS_URL", server.url)

    def call(*words: str, stdin: bytes | None = None) -> Ran:
        capfd.readouterr()
        with tempfile.TemporaryFile() as raw, io.TextIOWrapper(raw) as here:
            raw.write(stdin or b"")
            raw.seek(0)
            monkeypatch.setattr("sys.stdin", here)
            try:
                status = main([str(word) for word in words])
            except SystemExit as ended:
                status = int(ended.code or 0)
        out, err = capfd.readouterr()
        return Ran(status, out, err)

    return call


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A topic of the test's own."""
    node: str = request.node.name
    return "".join(c if c.isalnum() else "-" for c in node)[:200]
