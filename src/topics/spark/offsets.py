"""Where the batches of a stream begin and end [K-20], and how much a trigger may take [K-21].

    {topic: {"epoch": e, "from": a, "seq": b, "store": id}}
                                            the batch that ends here is a < seq <= b of the instance e of this store

Epochs count in every store from 1, so without the store's id a checkpoint that meets another store, or one restored
from a backup, would take its records for those it has read. Offsets without it are of a time before it was kept.

An offset tells its whole batch, so a batch that is read again is the same one, whatever a new process takes for the
beginning. Spark compares offsets as text: topics are in order of their names, members in the order above.

Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from topics.spark.failure import SourceError
from topics.spark.plan import Stretch

_MEMBERS: Final = ("epoch", "from", "seq")


class Entry(NamedTuple):
    """What a batch holds of one topic."""

    epoch: int
    begin: int
    """Exclusive."""
    seq: int
    store: str = ""
    """Empty: not known."""

    @property
    def is_empty(self) -> bool:
        return self.begin == self.seq

    def after(self) -> Entry:
        """An empty batch behind this one."""
        return self._replace(begin=self.seq)

    def is_of(self, epoch: int, store: str) -> bool:
        """Whether it tells of this instance, as far as that is known."""
        return self.epoch == epoch and (not self.store or not store or self.store == store)


Offset = dict[str, Entry]


class Behind(NamedTuple):
    """A topic with seqs that are to be read: those behind `at`, up to `until`."""

    name: str
    at: int
    until: int

    @property
    def seqs(self) -> int:
        return self.until - self.at


def told(offset: Mapping[str, Entry]) -> dict[str, dict[str, int | str]]:
    """An offset as Spark keeps it."""
    return {name: _told(offset[name]) for name in sorted(offset)}


def _told(entry: Entry) -> dict[str, int | str]:
    numbers: dict[str, int | str] = dict(zip(_MEMBERS, entry, strict=False))
    return numbers | {"store": entry.store} if entry.store else numbers


def parse(given: Mapping[str, Any]) -> Offset:
    """An offset that Spark kept; `SourceError` if it is none of ours."""
    try:
        found = {name: _parsed(entry) for name, entry in given.items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _alien(given) from error
    if not all(0 <= entry.begin <= entry.seq for entry in found.values()):
        raise _alien(given)
    return found


def _parsed(entry: Mapping[str, Any]) -> Entry:
    epoch, begin, seq = (int(entry[member]) for member in _MEMBERS)
    return Entry(epoch, begin, seq, str(entry.get("store", "")))


def _alien(given: object) -> SourceError:
    what = f"{str(given)[:200]} is no offset of topics"
    return SourceError("bad_checkpoint", what, "if it is another stream's checkpoint, name a new one")


def shares(budget: int, wanted: Sequence[int]) -> list[int]:
    """A budget split in proportion to what is wanted, one at least for everybody who wants any; the first get more."""
    total = sum(wanted)
    if total <= budget:
        return list(wanted)
    given = [min(one, 1) for one in wanted]
    left, open_ = max(budget - sum(given), 0), total - sum(given)
    given = [one + (left * (want - one) // open_ if open_ else 0) for one, want in zip(given, wanted, strict=True)]
    left = budget - sum(given)
    for at, want in enumerate(wanted):
        if left > 0 and given[at] < want:
            given[at] += 1
            left -= 1
    return given


def within_records(budget: int, behind: Sequence[Behind]) -> dict[str, int]:
    """Up to where each topic is read so that about so many records come."""
    given = shares(budget, [one.seqs for one in behind])
    return {one.name: one.at + share for one, share in zip(behind, given, strict=True)}


def within_bytes(budget: int, behind: Sequence[Behind], sizes: Mapping[str, Sequence[Stretch]]) -> dict[str, int]:
    """Up to where each topic is read so that about so many bytes come, as far as its stretches tell."""
    wanted = [max(_bytes(sizes[one.name]), 1) for one in behind]
    given = shares(budget, wanted)
    return {
        one.name: one.until if share >= want else _reached(one, sizes[one.name], share)
        for one, share, want in zip(behind, given, wanted, strict=True)
    }


def _bytes(stretches: Iterable[Stretch]) -> int:
    return sum(one.bytes for one in stretches)


def _reached(behind: Behind, stretches: Sequence[Stretch], budget: int) -> int:
    """The last seq that the budget pays for; one record in any case."""
    at = behind.at
    for one in stretches:
        if one.bytes > budget:
            at = one.first - 1 + (one.last + 1 - one.first) * budget // one.bytes
            break
        at, budget = one.last, budget - one.bytes
    return min(max(at, behind.at + 1), behind.until)
