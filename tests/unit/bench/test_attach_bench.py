"""The bulk load of `bench.attach` runs, checks every row and tells what it measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bench import attach


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it reads /proc")
def test_a_small_load_is_staged_attached_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """[TXN-8]: eight parts, over HTTP, with a second client beside it."""
    monkeypatch.setattr(attach, "PAUSE_S", 0.2)
    monkeypatch.setattr(attach, "CHUNK", 100)
    told = attach.run(3000, tmp_path)
    assert told["rows"] == 3000
    assert told["phases"].keys() <= {"alone", "staging", "committing", "behind", "over"}
    assert sum(one["writes"] for one in told["phases"].values()) > 0
    assert (told["p99_ratio_committing"] is None) == ("committing" not in told["phases"])
    assert max(told["server_own_mib"].values()) > 0
