"""Ports for servers that are killed and started again at the same address. Any thread.

A port that the system chose may go to any client while nobody listens there, even to one that connects to that very
port and then talks to itself. So these lie below the ports that systems give to clients.
"""

from __future__ import annotations

import contextlib
import random
import socket

LOWEST, BEYOND = 15_000, 32_000
TRIES = 1_000


def free_port() -> int:
    """A port of 127.0.0.1 that nobody uses."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many, all different."""
    chance = random.SystemRandom()
    with contextlib.ExitStack() as held:
        found: list[int] = []
        for port in chance.sample(range(LOWEST, BEYOND), TRIES):
            sock = held.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                sock.bind(("127.0.0.1", port))
                found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports among {TRIES}")
