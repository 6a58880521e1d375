"""The fault kit: a disk, a clock and an order monitor for tests of the product and of what is built on it (13 §2).

    ManualClock   time moved by hand
    SimFs         a disk in memory that can lose power, fail a sync, fill up and rot
    FaultFs       errors and short counts at chosen calls, over any disk
    MonitorFs     asserts the order of writes, syncs, renames and acknowledgements, over any disk

They stack: `MonitorFs(FaultFs(SimFs(seed)))`.
"""

from topics.testing.clock import ManualClock
from topics.testing.faultfs import Fault, FaultFs
from topics.testing.monitorfs import MonitorFs, OrderViolation
from topics.testing.simfs import PowerLoss, SimFs

__all__ = ["Fault", "FaultFs", "ManualClock", "MonitorFs", "OrderViolation", "PowerLoss", "SimFs"]
