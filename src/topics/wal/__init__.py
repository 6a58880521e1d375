"""`topics.wal`: a stand-alone write-ahead log of key-value records.

    from topics.wal import FsyncPolicy, Record, Wal, WalConfig

    wal, found = Wal.open(WalConfig(dir="orders", fsync_policy=FsyncPolicy.always()))
    with wal:
        start = wal.append(Record.put(b"order-1", b"12 bolts"))
        for record, position in wal.read_from(start):
            ...

It needs nothing of the server. `topics.wal.aio` is the same for asyncio.
"""

import sys

from topics.errors import UnsupportedPlatform

if sys.platform == "win32":
    raise UnsupportedPlatform("topics.wal needs flock, pread and directory syncs: on Windows use WSL")

from topics.wal.core import SegmentInfo
from topics.wal.events import EventStream, Meter, NoopMeter, PrometheusMeter, WalEvent
from topics.wal.log import Wal
from topics.wal.policy import FsyncPolicy, WalConfig
from topics.wal.reader import WalReader
from topics.wal.record import Record
from topics.wal.recovery import Hole, Position, RecoveryInfo

__all__ = [
    "EventStream",
    "FsyncPolicy",
    "Hole",
    "Meter",
    "NoopMeter",
    "Position",
    "PrometheusMeter",
    "Record",
    "RecoveryInfo",
    "SegmentInfo",
    "Wal",
    "WalConfig",
    "WalEvent",
    "WalReader",
]
