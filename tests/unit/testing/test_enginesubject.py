"""The engine's driver in the sweeps: what it takes for decided, and what not (13 T4)."""

from __future__ import annotations

import pytest

from topics.testing import faults
from topics.testing.enginesubject import EngineSubject
from topics.testing.faultfs import Fault


@pytest.mark.parametrize("index", [3, 5, 8])
def test_an_ack_that_does_nothing_says_nothing_of_a_write_that_failed(index: int) -> None:
    """[S-78, ACK-3] Nothing is logged for it: what a failed sync left open may be there after a kill."""
    faults.run_case(EngineSubject(), faults.Case("queues", Fault("fdatasync", index, "EIO", "once", sync_mode="clean")))
