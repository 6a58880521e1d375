"""What an engine is configured with: every setting [S-354], and the fixed numbers of 06 §20 for tests to set."""

from __future__ import annotations

from dataclasses import dataclass, fields

from topics.errors import SettingsError
from topics.model import Limits
from topics.settings import TABLE, Settings
from topics.storage import descriptor

WAL_FILE_BYTES_MIN = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig(Settings):
    """Settings of one engine. Immutable; any thread may read it."""

    snapshot_bytes: int = 64 << 20
    snapshot_ms: int = 60_000
    snapshot_check_ms: int = 5_000
    snapshot_gap_ms: int = 10_000
    ttl_sweep_ms: int = 1_000
    tail_records_max: int = 1_000_000
    tail_bytes_max: int = 256 << 20
    reserve_min: int = 256
    reserve_max: int = 1 << 20
    reserve_span_ms: int = 2_000
    reserve_idle_ms: int = 10_000
    checkpoint_records: int = 256
    checkpoint_bytes: int = 1 << 20
    queue_submissions: int = 4096
    queue_bytes: int = 64 << 20
    rewrite_min_bytes: int = 1 << 20
    rewrite_every_ms: int = 10_000
    relocate_ms: int = 5_000
    deletes_gather_ms: int = 100
    deletes_pending_max: int = 100_000
    loss_merge_ms: int = 10_000
    cold_follow_ms: int = 60_000
    cold_rewrite_ms: int = 86_400_000

    def __post_init__(self) -> None:
        known = {row.field: row for row in TABLE}
        for one in fields(self):
            value, row = getattr(self, one.name), known.get(one.name)
            if row is not None and row.kind not in ("count", "bytes", "ms"):
                continue
            if value is None and one.default is None:
                continue
            low, high = (0, 2**63 - 1) if row is None else (row.low, row.high)
            if one.name == "wal_file_bytes":
                low = WAL_FILE_BYTES_MIN
            if row is not None and row.zero and not value:
                low = 0
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                raise SettingsError(
                    one.name, f"{value!r} is not accepted; expected a whole number from {low} to {high}"
                )

    @classmethod
    def of(cls, settings: Settings) -> EngineConfig:
        """The same settings with the fixed numbers at their values."""
        if isinstance(settings, EngineConfig):
            return settings
        return cls(**{one.name: getattr(settings, one.name) for one in fields(settings)})

    @property
    def limits(self) -> Limits:
        """The request limits among them."""
        own = {one.name for one in fields(self)}
        return Limits(**{name: getattr(self, name) for name in Limits._fields if name in own})

    @property
    def segment_limits(self) -> descriptor.Limits:
        """When a segment is sealed [S-127]."""
        return descriptor.Limits(
            max_events=self.segment_max_events,
            max_bytes=self.segment_max_bytes,
            max_age_ms=self.segment_max_age_ms,
        )
