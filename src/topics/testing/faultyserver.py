"""`python -m topics.testing.faultyserver`: the server in a process of its own, on a disk that fails when it is told to.

It is configured as `topics serve` is, by `TOPICS_*` variables. Lines on standard input are JSON and change the disk:

    {"op": "fdatasync", "error": "EIO", "times": "always", "path": "wal"}     inject a fault (see `faultfs`)
    {"clear": true}                                                          take all faults away

Each is answered by a line on standard output, once it holds. Event loop, and a thread for standard input.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from pathlib import Path

import uvloop

from topics import settings
from topics.fs import OsFs
from topics.server.keys import KeyRing
from topics.server.server import Server
from topics.testing.faultfs import Fault, FaultFs


async def serve(fs: FaultFs) -> None:
    """Listen, recover, serve until a signal, drain."""
    loaded = settings.from_env()
    server = Server(loaded, KeyRing([]), fs=fs)
    host, port = await server.listen()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    if loaded.settings.port_file is not None:
        scratch = Path(loaded.settings.port_file + ".tmp")
        scratch.write_text(f"{host}:{port}\n")
        os.replace(scratch, loaded.settings.port_file)
    await server.recover(loaded.settings.data_dir)
    await stop.wait()
    await server.drain()


def obey(fs: FaultFs) -> None:
    """Change the disk as standard input says."""
    for line in sys.stdin:
        told = json.loads(line)
        if told.pop("clear", False):
            fs.clear()
        else:
            fs.inject(Fault(**{"index": 1, **told}))
        print("ok", flush=True)


def main() -> None:
    """Run until a signal."""
    fs = FaultFs(OsFs())
    threading.Thread(target=obey, args=(fs,), daemon=True).start()
    uvloop.run(serve(fs))


if __name__ == "__main__":
    main()
