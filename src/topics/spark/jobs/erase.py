"""Deletes that reach the lake [K-47]: which rows of a table the records of `$deletes` name.

Deletes of one instance are put together: all before a seq, single seqs, tags and prefixes each with the seq they end
before. Applying one twice is harmless. The deletion of a topic takes all its rows, unless the run keeps them. Pure; any
thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

ALL: Final = 1 << 63


class Erased:
    """What was deleted of one instance."""

    def __init__(self) -> None:
        self.below = 0
        self.seqs: set[int] = set()
        self.tags: dict[str, int] = {}
        self.prefixes: dict[str, int] = {}

    def add(self, told: Mapping[str, Any]) -> None:
        """One record of `$deletes`."""
        ends = [told[name] for name in ("before_seq", "bound") if told.get(name) is not None]
        end = min(ends, default=ALL)
        if told.get("drop"):
            self.below = ALL
        elif told.get("match") is not None:
            _, kind, value = told["match"]
            kept, value = (self.tags, value) if kind == "Eq" else (self.prefixes, value.removesuffix("*"))
            kept[value] = max(kept.get(value, 0), end)
        elif told.get("seqs") is not None:
            self.seqs.update(seq for seq in told["seqs"] if seq < end)
        else:
            self.below = max(self.below, end)

    def mask(self, seqs: npt.NDArray[np.int64], tags: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
        """Which of these rows are deleted."""
        gone: npt.NDArray[np.bool_] = seqs < self.below if self.below < ALL else np.ones(len(seqs), np.bool_)
        if self.seqs:
            gone |= np.isin(seqs, np.fromiter(self.seqs, np.int64, len(self.seqs)))
        for value, end in self.tags.items():
            gone |= _true(pc.equal(tags, value)) & _before(seqs, end)
        for value, end in self.prefixes.items():
            gone |= _true(pc.starts_with(tags, value)) & _before(seqs, end)
        return gone


def _true(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    return pc.fill_null(column, False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _before(seqs: npt.NDArray[np.int64], end: int) -> npt.NDArray[np.bool_]:
    return seqs < end if end < ALL else np.ones(len(seqs), np.bool_)


class Erasures:
    """What was deleted, by instance."""

    def __init__(self) -> None:
        self.of: dict[str, Erased] = {}

    def add(self, told: Mapping[str, Any]) -> None:
        """One record of `$deletes`."""
        self.of.setdefault(f"{told['id']}-{told['epoch']}", Erased()).add(told)

    def only(self, keys: set[str]) -> Erasures:
        """Those of these instances."""
        kept = Erasures()
        kept.of = {key: one for key, one in self.of.items() if key in keys}
        return kept

    def __bool__(self) -> bool:
        return bool(self.of)
