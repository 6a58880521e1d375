"""`python -m topics.testing.faultyserver`: what `topics serve` runs, on a disk that fails when it is told to.

It is configured by `TOPICS_*` variables alone. Lines on standard input are JSON and change the disk:

    {"op": "fdatasync", "error": "EIO", "times": "always", "path": "wal"}     inject a fault (see `faultfs`)
    {"clear": true}                                                          take all faults away

Each is answered by a line on standard output, once it holds. Event loop, and a thread for standard input.
"""

from __future__ import annotations

import json
import sys
import threading

from topics.fs import OsFs
from topics.server import logs
from topics.server import main as server
from topics.testing.faultfs import Fault, FaultFs


def obey(fs: FaultFs) -> None:
    """Change the disk as standard input says."""
    for line in sys.stdin:
        told = json.loads(line)
        if told.pop("clear", False):
            fs.clear()
        else:
            fs.inject(Fault(**{"index": 1, **told}))
        print("ok", flush=True)


def main() -> int:
    """Run until a signal; the exit status."""
    fs = FaultFs(OsFs())
    threading.Thread(target=obey, args=(fs,), daemon=True).start()
    log = logs.to_stderr(as_json=False)
    try:
        return server.serve({}, log, fs=fs)
    finally:
        log.close()


if __name__ == "__main__":
    sys.exit(main())
