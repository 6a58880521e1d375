"""The programs of the client's page work as they stand there [U-41]."""

from __future__ import annotations

import pytest

from tests.api.kit import running
from tests.tidy import checks


def test_the_programs_of_the_client_page_work(capsys: pytest.CaptureFixture[str]) -> None:
    page = (checks.ROOT / "docs/guides/client.md").read_text(encoding="utf-8")
    programs = [block for block in checks.blocks(page) if block.language == "python"]
    assert len(programs) == 5
    with running() as server:
        namespace: dict[str, object] = {"__name__": "__page__"}
        for block in programs:
            code = block.text.replace("http://127.0.0.1:4000", server.url)
            assert code != block.text
            exec(compile("\n" * (block.line - 1) + code, "client.md", "exec"), namespace)
    out = capsys.readouterr().out
    assert "orders is read up to 3\n{'orders': 3}" in out
    assert "baking rye\nbaking spelt\nSettled(acked=2, nacked=0, lost=0)" in out
    assert "[('orders', 1), ('stock', 1)]" in out
