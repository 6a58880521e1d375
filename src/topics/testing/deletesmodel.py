"""The oracle of `$deletes`: what clients asked for, and what the topic may and must say about it [A-20].

    asked     a delete began: it may be told from now on
    acked     it was answered: it must be told after a close or a kill
    lasting   its frame is synced: it must be told whatever happens

At least once, in the order of the deletes of a topic, each with one number; nothing that nobody asked for (acks and
dead letters are no deletes), and nothing that a crash took back: what is told is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from topics.engine.engine import Engine
from topics.errors import TopicNotFound
from topics.model import DELETES, Selector
from topics.testing.enginemodel import Rec, View
from topics.testing.subject import Violation

Said = tuple[Any, ...]
"""What a delete selects: before_seq, match, seqs, bound; or that the topic went."""
DROP: Said = ("drop",)


class Asked:
    """One delete of a client."""

    __slots__ = ("acked", "id", "lasting", "logged", "said")

    def __init__(self, id: int, said: Said, *, logged: bool) -> None:
        self.id = id
        self.said = said
        self.logged = logged
        self.acked = False
        self.lasting = False

    def copy(self) -> Asked:
        twin = Asked(self.id, self.said, logged=self.logged)
        twin.acked, twin.lasting = self.acked, self.lasting
        return twin


class Deletes:
    """All that was asked for, in order."""

    def __init__(self) -> None:
        self._asked: list[Asked] = []

    def copy(self) -> Deletes:
        """For another life of the same store."""
        twin = Deletes()
        twin._asked = [one.copy() for one in self._asked]
        return twin

    def ask(self, engine: Engine, name: str, bound: int | None = None, **selector: Any) -> Asked:
        """A delete begins; `bound` is None where it is not known."""
        topic = engine.core.names[name]
        match = selector.get("match")
        chosen = None if match is None else Selector.parse(match)
        told = None if chosen is None else ("tag", chosen.kind, chosen.text)
        seqs = selector.get("seqs")
        said = (selector.get("before_seq"), told, None if seqs is None else tuple(seqs), bound)
        return self._add(Asked(topic.id, said, logged=topic.durability != "ephemeral"))

    def ask_drop(self, engine: Engine, name: str) -> Asked:
        """The deletion of a topic begins."""
        return self._add(Asked(engine.core.names[name].id, DROP, logged=True))

    def _add(self, one: Asked) -> Asked:
        self._asked.append(one)
        return one

    def ack(self, one: Asked, *, lasting: bool) -> None:
        """It was answered."""
        one.acked, one.lasting = True, lasting

    def settle(self) -> None:
        """Everything that was answered is synced."""
        for one in self._asked:
            one.lasting = one.acked

    def crashed(self) -> None:
        """What was not synced may be gone with the machine, or not."""
        for one in self._asked:
            one.acked = one.lasting

    def judge(self, engine: Engine, views: Mapping[str, View], *, crashed: bool) -> None:
        """Hold `$deletes` against what was asked for; the engine has had the time to tell."""
        told: dict[int, dict[int, Said]] = {}
        for record in _records(engine):
            numbers = told.setdefault(record["id"], {})
            said = _said(record)
            if numbers.setdefault(record["dn"], said) != said:
                raise Violation(f"{DELETES} has {record}, and {numbers[record['dn']]} with the same number")
        for id in sorted({*told, *(one.id for one in self._asked)}):
            self._judge_topic(id, [said for _, said in sorted(told.get(id, {}).items())], crashed)
        for name, view in views.items():
            _are_gone(name, view, told.get(engine.core.names[name].id, {}).values())

    def _judge_topic(self, id: int, told: list[Said], crashed: bool) -> None:
        asked = [one for one in self._asked if one.id == id]
        must = [one.said for one in asked if one.logged and (one.lasting if crashed else one.acked)]
        missing = _first_missing(must, told)
        if missing is not None:
            raise Violation(f"topic {id}: {DELETES} has {told}, and nothing of {missing}, which was acknowledged")
        strange = _first_missing(told, [one.said for one in asked])
        if strange is not None:
            raise Violation(f"topic {id}: {DELETES} has {strange}, which nobody asked for, or not in this order")


def _records(engine: Engine) -> Iterable[dict[str, Any]]:
    cursor = 0
    while True:
        try:
            page = engine.read(DELETES, cursor, limit=1000)
        except TopicNotFound:
            return
        if page.tombstone is not None:
            raise Violation(f"{DELETES} tells {page.tombstone}")
        for record in page.records:
            if record.tag != record.data["topic"]:
                raise Violation(f"{DELETES} has {record} with another topic's tag")
            yield record.data
        if page.caught_up:
            return
        cursor = page.next_from_seq


def _said(record: dict[str, Any]) -> Said:
    if record.get("drop"):
        return DROP
    match, seqs = record["match"], record["seqs"]
    listed = None if seqs is None else tuple(seqs)
    return (record["before_seq"], None if match is None else tuple(match), listed, record["bound"])


def _first_missing(few: list[Said], many: list[Said]) -> Said | None:
    """The first of some that the others do not have, in their order."""
    rest = iter(many)
    for one in few:
        if not any(_is_same(one, other) for other in rest):
            return one
    return None


def _is_same(one: Said, other: Said) -> bool:
    if one == other:
        return True
    return len(one) == len(other) > 1 and one[:3] == other[:3] and None in (one[3], other[3])


def _are_gone(name: str, view: View, told: Iterable[Said]) -> None:
    for said in told:
        for rec in view.records:
            if said == DROP or _selects(said, rec):
                raise Violation(f"{name}: {DELETES} has {said}, and {rec} is there")


def _selects(said: Said, rec: Rec) -> bool:
    before, match, seqs, bound = said
    if rec.seq >= min(before if before is not None else bound, bound):
        return False
    if seqs is not None and rec.seq not in seqs:
        return False
    return match is None or Selector.parse(list(match)).matches(rec.tag)
