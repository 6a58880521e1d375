"""What can be wrong with a backup, with what it is taken of, or with where it is restored to."""

from __future__ import annotations

from collections.abc import Sequence

from topics.errors import CallerError, DiskError, TimingError

SHOWN_MAX = 5


class NotABackup(CallerError):
    """The place holds no complete backup."""

    code = "not_a_backup"


class OtherStore(CallerError):
    """The place holds backups of another store."""

    code = "other_store"


class TargetNotEmpty(CallerError):
    """A store is restored to a directory of its own."""

    code = "target_not_empty"


class SourceDamaged(DiskError):
    """Segments of the store do not verify; `damage` names them. No backup was made of them."""

    code = "source_damaged"

    def __init__(self, damage: Sequence[str]) -> None:
        more = f" and {len(damage) - SHOWN_MAX} more" if len(damage) > SHOWN_MAX else ""
        super().__init__(f"the store is damaged: {'; '.join(damage[:SHOWN_MAX])}{more}")
        self.damage = list(damage)


class SourceChanged(TimingError):
    """What was being copied is not held any more: a new cut is needed; what was copied is not copied again."""

    code = "source_changed"


class BackupDamaged(DiskError):
    """A backup is not what was put there; nothing was restored from the damaged part."""

    code = "backup_damaged"
