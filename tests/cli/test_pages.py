"""What the page of the command line tells people to type works [U-41]."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.api.kit import running
from tests.tidy import checks


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "topics"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m topics "$@"\n')
    program.chmod(0o755)
    page = (checks.ROOT / "docs/guides/cli.md").read_text(encoding="utf-8")
    scripts = [block.text for block in checks.blocks(page) if block.language == "sh"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TOPICS_")}
    with running() as server:
        env = {**clean, "PATH": f"{program.parent}:{os.environ['PATH']}", "TOPICS_URL": server.url}
        env["XDG_CONFIG_HOME"] = str(tmp_path)
        result = subprocess.run(
            ["sh", "-ec", "\n".join(scripts)], capture_output=True, text=True, check=False, env=env, cwd=tmp_path
        )
    assert result.returncode == 0, result.stderr
    assert len(scripts) == 5
    assert 'baking {"loaf":"rye"}\nbaking {"loaf":"spelt"}\n' in result.stdout
    assert "orders: 1 records deleted; 4 are there" in result.stdout
