"""When a log syncs, and the log's configuration (07 §4, [W-52]). Values only; any thread."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from topics.errors import InvalidConfig

SEGMENT_SIZE_MIN = 1 << 20


class FsyncPolicy(NamedTuple):
    """What `append` promises when it returns.

    `always()`: the record is on the medium. `batch(window_ms)`: it will be within two windows.
    `os()`: the operating system has it.
    """

    kind: Literal["always", "batch", "os"]
    window_ms: float = 0

    @classmethod
    def always(cls) -> FsyncPolicy:
        return cls("always")

    @classmethod
    def batch(cls, window_ms: float = 5) -> FsyncPolicy:
        return cls("batch", window_ms)

    @classmethod
    def os(cls) -> FsyncPolicy:
        return cls("os")


class WalConfig(msgspec.Struct, frozen=True):
    """Configuration of a log; `check` is called by `Wal.open` before anything on disk is touched."""

    dir: str = "wal"
    max_segment_size: int = 128 << 20
    fsync_policy: FsyncPolicy = FsyncPolicy.batch(5)
    preallocate: bool = True
    prepare_ahead: bool = False
    node_id: int = 0
    fd_cache_size: int = 16
    read_buffer: int = 65536
    corruption_policy: Literal["truncate", "fail"] = "truncate"

    def with_plain_dir(self) -> WalConfig:
        """The same with `dir` as a string, also when a path object was given."""
        spell = getattr(self.dir, "__fspath__", None)
        return self if spell is None else msgspec.structs.replace(self, dir=spell())

    def check(self) -> None:
        """Raise `InvalidConfig` naming the first field that breaks its rule [W-40]."""
        dir: object = self.dir
        if not isinstance(dir, str) or not dir or "\0" in dir:
            raise InvalidConfig("dir", "a non-empty path is needed")
        self._check_int("max_segment_size", SEGMENT_SIZE_MIN)
        self._check_int("fd_cache_size", 1)
        self._check_int("read_buffer", 4096)
        self._check_int("node_id", 0)
        for name in ("preallocate", "prepare_ahead"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidConfig(name, f"{getattr(self, name)!r} is neither True nor False")
        if self.corruption_policy not in ("truncate", "fail"):
            raise InvalidConfig("corruption_policy", f"{self.corruption_policy!r} is neither 'truncate' nor 'fail'")
        self._check_policy()

    def _check_int(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value < 1 << 63:
            raise InvalidConfig(name, f"{value!r} is not an integer of at least {low}")

    def _check_policy(self) -> None:
        policy: object = self.fsync_policy
        if not isinstance(policy, FsyncPolicy) or policy.kind not in ("always", "batch", "os"):
            raise InvalidConfig("fsync_policy", f"{policy!r} is not always(), batch(window_ms) or os()")
        if policy.kind == "batch":
            window: object = policy.window_ms
            if not isinstance(window, (int, float)) or isinstance(window, bool) or not 0 < window <= 1000:
                raise InvalidConfig("fsync_policy", f"a batch window of {window!r} ms is not above 0 and at most 1000")
