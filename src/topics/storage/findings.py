"""What an examination of a data directory can find, what each thing means for the data, and what to do about it.

    note      nothing is wrong: a trace of a crash, of work in progress, of something not looked at
    warning   damaged or missing, but made good by another copy; the store opens and serves every record it promised
    error     records are lost or unreadable, or the store refuses to open

`CODES` is the one table of it; a finding adds where, and the details. In a store that is in use the codes of `FLUX` are
what its engine does all the time, and become notes. Values only; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")

_NOTHING = "nothing"
_START = "nothing: the next start does it"
_SALVAGE = "`topics doctor --salvage DIR` (it copies first), or restore a backup"
_RESTORE = "restore these files from a backup if you have one"


class Code(NamedTuple):
    """One kind of finding."""

    severity: Severity
    means: str
    do: str


CODES: dict[str, Code] = {
    # The directory itself.
    "in_use": Code("note", "an engine has the store open; what changes while it is looked at is no fault", _NOTHING),
    "no_lock_file": Code("note", "no engine has opened this directory, or it was copied without the file", _NOTHING),
    "sync_failed": Code(
        "warning",
        "the disk refused to make writes durable; unconfirmed writes of that run may be gone",
        "check the disk; the next start tells readers of a gap where there is one",
    ),
    "store_id_missing": Code("warning", "the newest snapshot has the store's id too", _START),
    "store_id_bad": Code("error", "no snapshot tells whose store it is: it refuses to start", _RESTORE),
    "stray": Code("note", "not a file of the store; it is never touched", _NOTHING),
    "leftover": Code("note", "a write was cut short before it counted", _START),
    "salvaged_copy": Code("note", "the original of a file that salvage changed", "keep it until all is well"),
    "staging": Code("note", "staged writes; not part of the store", _START),
    "unreadable": Code("error", "the system could not read it; what is in it is not known", "check the disk"),
    # Snapshots.
    "snapshot_damaged": Code("warning", "the other snapshot is used", "take a checkpoint, so that two are kept again"),
    "snapshot_newer": Code("error", "a newer version wrote it; this one refuses to open the store", "use that version"),
    "snapshot_inconsistent": Code("warning", "what it says does not fit together", "report it, with the file"),
    "no_snapshot": Code("note", "everything is replayed from the log", _NOTHING),
    "one_snapshot": Code("note", "a store that is new, or was restored, has only one", _NOTHING),
    "metadata_lost": Code("error", "no topic can be opened: the store refuses to start", _RESTORE),
    "restore_unfinished": Code(
        "error", "a restore was cut short: the store refuses to start", "run `topics restore` again"
    ),
    # The write-ahead log.
    "torn_tail": Code("note", "a crash left it; nothing in it was acknowledged as durable", "nothing: a start cuts it"),
    "not_closed": Code("note", "the last run was killed or is still going; a start replays the log", _NOTHING),
    "wal_damaged": Code("error", "bytes that were durable are damaged: the store refuses to start", _SALVAGE),
    "wal_damaged_old": Code("warning", "the newest snapshot needs none of it, only the one before does", _NOTHING),
    "wal_newer": Code("error", "a newer version wrote it; this one refuses to open the store", "use that version"),
    "wal_missing": Code("error", "what was in it is lost: the store refuses to start", _SALVAGE),
    "wal_short": Code("error", "its end is lost: the store refuses to start", _SALVAGE),
    "wal_misplaced": Code(
        "error", "files changed places: the store refuses to start", "give the file the name its open mark says"
    ),
    "wal_no_open_mark": Code("warning", "its run is not known; its records are replayed", _NOTHING),
    "current_beyond": Code("error", "the newest log file is lost: the store refuses to start", _SALVAGE),
    "current_bad": Code("warning", "a cross-check is missing; the files themselves count", _START),
    "padded": Code("warning", "a salvage was begun and not finished", "run `topics doctor --salvage DIR` again"),
    # Topics and their segments.
    "topic_dir_missing": Code("error", "all records of the topic in segments are lost", _RESTORE),
    "orphan_dir": Code("warning", "no snapshot and no log knows this topic; it is left alone", "move it away"),
    "deleted_dir": Code("note", "a deleted topic whose files are being removed", _START),
    "segment_missing": Code("error", "its records are lost; readers are told of a gap", _RESTORE),
    "segment_refillable": Code("warning", "the log still has its records", _START),
    "data_missing": Code("error", "its records are lost; readers are told of a gap", _RESTORE),
    "frame_damaged": Code("error", "these records are lost; readers are told of a gap", _RESTORE),
    "dead_frame_damaged": Code("warning", "they are deleted or given up: nobody reads them", _NOTHING),
    "idx_damaged": Code("warning", "it is made anew from the records", _START),
    "stub_lost": Code("warning", "the index of a cold segment is lost; the cold tier has it", _START),
    "idx_lost": Code("error", "these seqs had no record; whether by deletion or loss is not known any more", _RESTORE),
    "gap_damaged": Code("error", "why these seqs have no record is not known any more", _RESTORE),
    "entry_wrong": Code("error", "the index verifies and contradicts the records", "report it, with the files"),
    "unsealed": Code("note", "a segment whose sealing a crash cut short", _START),
    "claim_mismatch": Code("warning", "the index of the newest segment is made anew from its records", _START),
    "unclaimed": Code("note", "written and not yet confirmed; the log has the records", _NOTHING),
    "attach_unfinished": Code("note", "segments of a committed bulk load that are not in their topic yet", _START),
    "overlap": Code("warning", "another segment holds these seqs; the file is left alone", "move it away"),
    "delete_mismatch": Code("warning", "only one of two marks says deleted; it stays deleted", _NOTHING),
    "delete_undone": Code("warning", "the index says deleted, the record live: it may show again", "delete it again"),
    "delete_byte_odd": Code("warning", "the byte that tells deleted from live is damaged; the index decides", _NOTHING),
    "tag_damaged": Code("warning", "the tag index is made anew from the records", _START),
    "tag_wrong": Code("error", "a delete by tag would miss records", "remove the .tag file: it is made anew"),
    "count_wrong": Code("warning", "counts shown for the topic are off until they are counted again", _START),
    "ts_order": Code("warning", "reading by time may miss records", "report it, with the files"),
    "old_generation": Code("note", "the file a rewrite replaced", _START),
    "extra_bytes": Code("note", "bytes behind the last record", _START),
    "topic_json": Code("note", "the description for people is damaged or old; it is never trusted", _NOTHING),
    "cold_unchecked": Code("note", "the cold tier was not looked at", _NOTHING),
    "cold_copy_damaged": Code("warning", "a copy in the cold tier for when the file here is lost", _NOTHING),
    "cold_missing": Code("error", "the only copy of these records is lost; readers are told of a gap", _RESTORE),
}  # fmt: skip

FLUX = frozenset(
    (
        "wal_missing", "wal_short", "current_beyond", "current_bad", "torn_tail", "segment_missing", "data_missing",
        "topic_dir_missing", "orphan_dir", "claim_mismatch", "delete_mismatch", "delete_undone", "count_wrong",
        "tag_damaged", "segment_refillable", "overlap", "cold_missing", "snapshot_inconsistent",
    )
)  # fmt: skip
"""What an engine at work may make of the files between two looks."""


class Finding(NamedTuple):
    """One thing found."""

    severity: Severity
    code: str
    where: str
    """File or directory, relative to the store."""
    what: str

    @property
    def means(self) -> str:
        return CODES[self.code].means

    @property
    def do(self) -> str:
        return CODES[self.code].do


class Area(NamedTuple):
    """A part of the store and what it came to."""

    name: str
    label: str
    """A topic's name, or empty."""
    files: int
    bytes: int
    records: int
    """Snapshots: topics; log: frames; topics: live records."""
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        """`ok`, or the worst that was found."""
        worst = worst_of(self.findings)
        return "ok" if worst in (None, "note") else str(worst)


def worst_of(findings: Iterable[Finding]) -> Severity | None:
    """The highest severity, None if nothing was found."""
    found = {one.severity for one in findings}
    return next((one for one in reversed(SEVERITIES) if one in found), None)


class Collector:
    """Findings and sizes of one area in the making. `lenient` is for topics whose class promises nothing."""

    def __init__(self, name: str, label: str = "", *, in_use: bool = False, lenient: bool = False) -> None:
        self.name = name
        self.label = label
        self.files = 0
        self.bytes = 0
        self.records = 0
        self._in_use = in_use
        self._lenient = lenient
        self._findings: list[Finding] = []

    def file(self, size: int) -> None:
        """One more file was looked at."""
        self.files += 1
        self.bytes += size

    def add(self, code: str, where: str, what: str = "", severity: Severity | None = None) -> None:
        """Something was found; the table's severity counts unless another is given."""
        chosen = CODES[code].severity if severity is None else severity
        if self._in_use and code in FLUX:
            chosen = "note"
        elif self._lenient and chosen == "error":
            chosen = "warning"
        self._findings.append(Finding(chosen, code, where, what))

    def area(self) -> Area:
        return Area(self.name, self.label, self.files, self.bytes, self.records, tuple(self._findings))
