"""What the pages tell people to type works: every `curl` of README and guide, against a real server [U-41]."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.api.kit import running
from tests.api.process import WAIT_S, served
from tests.tidy import checks

PAGES = ("README.md", "docs/guides/server.md")


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_every_curl_of_a_page_is_answered(tmp_path: Path) -> None:
    told: list[str] = []
    with served(tmp_path) as one:
        one.ready()
        for page in PAGES:
            for block in checks.blocks((checks.ROOT / page).read_text(encoding="utf-8")):
                if block.language == "sh" and "curl" in block.text:
                    told += answers(block.text, one.url)
    assert len(told) >= 10
    assert not [line for line in told if "error" in json.loads(line)]


def answers(block: str, url: str) -> list[str]:
    """Run a block as it is, but for the address and for how long it waits."""
    script = block.replace("http://127.0.0.1:4000", url).replace('"wait_ms":10000', '"wait_ms":10')
    strict = 'curl() { command curl --noproxy "*" "$@" && echo; }\n'
    result = subprocess.run(["sh", "-ec", strict + script], capture_output=True, text=True, check=True, timeout=WAIT_S)
    assert url in script
    return result.stdout.splitlines()


def test_the_program_of_the_websocket_page_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[U-41]"""
    page = (checks.ROOT / "docs/guides/websocket.md").read_text(encoding="utf-8")
    (program,) = [block.text for block in checks.blocks(page) if block.language == "python"]
    with running(tmp_path) as one:
        address = f"ws://{one.host}:{one.port}"
        assert "ws://127.0.0.1:4000" in program
        exec(compile(program.replace("ws://127.0.0.1:4000", address), "websocket.md", "exec"), {})
    assert capsys.readouterr().out == "[1]\n1 {'kg': 8}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_commands_and_program_of_the_watch_page_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """[U-41] And what the page shows as output is what comes, but for the instants."""
    blocks = list(checks.blocks((checks.ROOT / "docs/guides/watch.md").read_text(encoding="utf-8")))
    (script,) = [block.text for block in blocks if block.language == "sh"]
    (shown,) = [block.text for block in blocks if block.language == "text"]
    (program,) = [block.text for block in blocks if block.language == "python"]
    with running(tmp_path) as one:
        assert "http://127.0.0.1:4000" in program
        stream = "\n".join(answers(script, one.url)[1:])
        without = re.compile(r'"\$ts":\d+')
        assert without.sub("", stream).strip() == without.sub("", shown).replace(": hb", "").strip()
        scope: dict[str, Any] = {}
        exec(compile(program.replace("http://127.0.0.1:4000", one.url), "watch.md", "exec"), scope)
        scope["server"].close()
    assert capsys.readouterr().out == "1 {'kg': 9}\n2 {'kg': 412}\n"


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_commands_of_the_queue_page_work(tmp_path: Path) -> None:
    """[U-41] And what the page shows of a stream is what comes, but for the instants and the lease."""
    blocks = list(checks.blocks((checks.ROOT / "docs/guides/queues.md").read_text(encoding="utf-8")))
    calls, stream = [block.text for block in blocks if block.language == "sh"]
    (shown,) = [block.text for block in blocks if block.language == "text"]
    with running(tmp_path) as one:
        put, wrote, extended, acked, nacked, leases = map(json.loads, answers(calls, one.url))
        came = "\n".join(answers(stream, one.url))
    assert put["created"] is True
    assert (wrote["count"], extended["extended"], acked["acked"]) == (3, 1, 1)
    assert (nacked["skipped"], leases["leases"]) == ([2], [])
    changing = re.compile(r'"(\$ts|deadline)":\d+|lease_[0-9a-f]+')
    assert changing.sub("", came).strip() == changing.sub("", shown).strip()
