"""`topics`: a durable event log.

Names are loaded when they are first used, so `import topics` costs next to nothing and a program
that needs one part never pays for the others.

    topics.open      a store in this process: `with topics.open("./data") as log: …`
    topics.new       a record to write; `TopicConfig`, `EngineConfig` and `Engine` go with it
    topics.Record    what reading yields, and `topics.Gap` where records were lost
    topics.errors    every exception, with a stable `code`
    topics.wal       the stand-alone write-ahead log
    topics.testing   simulated disk, fault injection and crash runner for tests
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics import errors as errors
    from topics.engine.config import EngineConfig as EngineConfig
    from topics.engine.engine import Engine as Engine
    from topics.engine.log import open_log as open
    from topics.model import Gap as Gap
    from topics.model import Record as Record
    from topics.model import TopicConfig as TopicConfig
    from topics.model import new as new

__version__ = "0.1.0"

__all__ = ["Engine", "EngineConfig", "Gap", "Record", "TopicConfig", "__version__", "errors", "new", "open"]

# Public name -> "module" for a module, "module:attribute" for what it holds.
_LAZY = {
    "Engine": "topics.engine.engine:Engine",
    "EngineConfig": "topics.engine.config:EngineConfig",
    "Gap": "topics.model:Gap",
    "Record": "topics.model:Record",
    "TopicConfig": "topics.model:TopicConfig",
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
