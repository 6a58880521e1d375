"""A server in a process of its own, for benchmarks over HTTP: `python -m bench.serving DIR`.

It prints its port once it is ready and drains when its standard input ends, so that it never outlives the benchmark.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvloop

from topics import settings
from topics.server.keys import KeyRing
from topics.server.main import SWITCH_S, spare_the_collector
from topics.server.server import Server


@contextmanager
def serving(dir: Path) -> Iterator[int]:
    """The port of a server whose data lies in `dir`."""
    command = [sys.executable, "-m", "bench.serving", str(dir)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline())
        finally:
            process.stdin.close()
            process.wait()


async def _serve(dir: str) -> None:
    server = Server(settings.parse({"TOPICS_PORT": "0"}), KeyRing())
    _, port = await server.listen()
    await server.recover(dir)
    spare_the_collector()
    print(port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    await server.drain()


if __name__ == "__main__":
    sys.setswitchinterval(SWITCH_S)  # as `topics serve` does
    uvloop.run(_serve(sys.argv[1]))
