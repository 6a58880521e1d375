"""`topics`: a durable event log.

Names are loaded when they are first used, so `import topics` costs next to nothing and a program
that needs one part never pays for the others.

    topics.open      a store in this process: `with topics.open("./data") as log: …`
    topics.Client    a server, with the same operations; `AsyncClient` is the same with await
    topics.new       a record to write; `TopicConfig`, `EngineConfig` and `Engine` go with it
    topics.Record    what reading yields, and `topics.Gap` where records were lost
    topics.CaughtUp  what a watch yields too, and `TopicDeleted`; its records and gaps are `TopicRecord` and `TopicGap`
    topics.errors    every exception, with a stable `code`
    topics.wal       the stand-alone write-ahead log
    topics.testing   simulated disk, fault injection and crash runner for tests
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics import errors as errors
    from topics.client.aio import AsyncClient as AsyncClient
    from topics.client.sync import Client as Client
    from topics.engine.config import EngineConfig as EngineConfig
    from topics.engine.engine import Engine as Engine
    from topics.engine.log import open_log as open
    from topics.model import CaughtUp as CaughtUp
    from topics.model import Gap as Gap
    from topics.model import Record as Record
    from topics.model import TopicConfig as TopicConfig
    from topics.model import TopicDeleted as TopicDeleted
    from topics.model import TopicGap as TopicGap
    from topics.model import TopicRecord as TopicRecord
    from topics.model import new as new

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "CaughtUp",
    "Client",
    "Engine",
    "EngineConfig",
    "Gap",
    "Record",
    "TopicConfig",
    "TopicDeleted",
    "TopicGap",
    "TopicRecord",
    "__version__",
    "errors",
    "new",
    "open",
]

# Public name -> "module" for a module, "module:attribute" for what it holds.
_LAZY = {
    "AsyncClient": "topics.client.aio:AsyncClient",
    "CaughtUp": "topics.model:CaughtUp",
    "Client": "topics.client.sync:Client",
    "Engine": "topics.engine.engine:Engine",
    "EngineConfig": "topics.engine.config:EngineConfig",
    "Gap": "topics.model:Gap",
    "Record": "topics.model:Record",
    "TopicConfig": "topics.model:TopicConfig",
    "TopicDeleted": "topics.model:TopicDeleted",
    "TopicGap": "topics.model:TopicGap",
    "TopicRecord": "topics.model:TopicRecord",
    "errors": "topics.errors",
    "new": "topics.model:new",
    "open": "topics.engine.log:open_log",
}


def __getattr__(name: str) -> object:
    target = _LAZY.get(name)
    if target is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module_name, _, attribute = target.partition(":")
    module = importlib.import_module(module_name)
    value: object = getattr(module, attribute) if attribute else module
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
