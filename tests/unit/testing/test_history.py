"""The history checker catches every forged violation and accepts every legal history (13 §3)."""

from __future__ import annotations

from itertools import count

import pytest

from topics.testing.history import Delete, Event, Finding, Gap, History, Read, Rules, Write, check

RULES = {
    "fsync": Rules("fsync"),
    "disk": Rules("disk"),
    "memory": Rules("memory"),
    "capped": Rules("fsync", cap_records=3),
}


class Story:
    """Makes events one after another; each call lies wholly behind the one before."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.life = 1
        self._clock = count(10, 10)

    def kill(self) -> None:
        self.life += 1

    def _when(self) -> tuple[int, int]:
        at = next(self._clock)
        return at, at + 5

    def write(self, topic: str, first: int | None, *texts: str, **more: object) -> Write:
        """Acknowledged at `first`, unless `outcome` says otherwise."""
        head = 0 if first is None else first + len(texts) - 1
        fields = {"outcome": "acked", "first": first, "head": head, **more}
        event = Write(self.life, topic, *self._when(), texts, **fields)
        self.events.append(event)
        return event

    def unanswered(self, topic: str, *texts: str, **more: object) -> Write:
        return self.write(topic, None, *texts, outcome="unknown", **more)

    def read(self, topic: str, start: int, *records: tuple[int, str], **more: object) -> Read:
        """A page that is caught up, unless `more` says otherwise."""
        last = records[-1][0] if records else start
        head = more.pop("head", last)
        gap = more.get("gap")
        earliest = gap.gap_to + 1 if isinstance(gap, Gap) and gap.reason == "cap" else 1
        fields = {"next_from": head, "head": head, "earliest": earliest, "caught_up": True, **more}
        event = Read(self.life, topic, *self._when(), start, records, **fields)
        self.events.append(event)
        return event

    def delete(self, topic: str, outcome: str = "acked", **more: object) -> Delete:
        event = Delete(self.life, topic, *self._when(), outcome, **more)
        self.events.append(event)
        return event

    def found(self) -> list[Finding]:
        return check(RULES, self.events)

    def rules(self) -> set[str]:
        return {one.rule for one in self.found()}


@pytest.fixture
def story() -> Story:
    return Story()


# -- legal ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("topic", ["fsync", "disk", "memory"])
def test_a_history_without_faults_is_accepted(story: Story, topic: str) -> None:
    story.write(topic, 1, "a")
    story.write(topic, 2, "b", "c")
    story.read(topic, 0, (1, "a"), (2, "b"), (3, "c"))
    story.kill()
    story.read(topic, 0, (1, "a"), (2, "b"), (3, "c"))
    story.read(topic, 3)
    story.write(topic, 4, "d")
    story.read(topic, 2, (3, "c"), (4, "d"))
    assert story.found() == []


@pytest.mark.parametrize("landed", [True, False])
def test_a_write_without_an_answer_may_have_happened_once_or_not(story: Story, landed: bool) -> None:
    """[R-6]"""
    story.write("disk", 1, "a")
    story.unanswered("disk", "b")
    story.kill()
    if landed:
        story.read("disk", 0, (1, "a"), (2, "b"))
        story.write("disk", 3, "c")
    else:
        story.read("disk", 0, (1, "a"))
        story.write("disk", 2, "c")
    assert story.found() == []


@pytest.mark.parametrize("name", ["key", "producer"])
@pytest.mark.parametrize("landed", [True, False])
def test_a_repeated_write_may_be_deduped_or_be_new(story: Story, name: str, landed: bool) -> None:
    """[IDM-2, A-3, A-4]"""
    story.unanswered("fsync", "a", "b", name=name)
    story.kill()
    story.write("fsync", 1, "a", "b", name=name, deduped=landed)
    story.write("fsync", 3, "c")
    story.write("fsync", 1, "a", "b", name=name, deduped=True)
    story.read("fsync", 0, (1, "a"), (2, "b"), (3, "c"))
    assert story.found() == []


def test_an_older_write_of_a_producer_is_answered_without_seqs(story: Story) -> None:
    """[A-4]"""
    story.write("fsync", 1, "a", name="producer")
    story.write("fsync", 2, "b", name="producer")
    story.write("fsync", None, "a", name="producer", deduped=True)
    assert story.found() == []


@pytest.mark.parametrize("selector", [{"tag": "t"}, {"seqs": (1,)}])
@pytest.mark.parametrize("outcome", ["acked", "unknown"])
def test_deleted_records_are_skipped_silently(story: Story, selector: dict[str, object], outcome: str) -> None:
    """[DEL-7, TMB-3]"""
    story.write("fsync", 1, "a", tag="t")
    story.write("fsync", 2, "b", tag="other")
    story.delete("fsync", outcome, **selector)
    story.read("fsync", 0, (2, "b"))
    story.kill()
    story.read("fsync", 0, (2, "b"))
    assert story.found() == []


def test_a_delete_without_an_answer_may_not_have_happened(story: Story) -> None:
    story.write("fsync", 1, "a", tag="t")
    story.delete("fsync", "unknown", tag="t")
    story.read("fsync", 0, (1, "a"))
    assert story.found() == []


@pytest.mark.parametrize("selector", [{"tag": "t"}, {"seqs": (2,)}])
def test_a_record_that_nobody_saw_may_be_deleted(story: Story, selector: dict[str, object]) -> None:
    """A write without an answer lands, and its record is deleted before anybody reads."""
    story.write("disk", 1, "a")
    story.unanswered("disk", "b", tag="t")
    story.delete("disk", **selector)
    story.write("disk", 3, "c")
    story.read("disk", 0, (1, "a"), (3, "c"))
    assert story.found() == []


def test_a_capped_topic_tells_what_it_evicted(story: Story) -> None:
    """[CAP-2, INV-5]"""
    story.write("capped", 1, "a", "b", "c", "d")
    story.read("capped", 0, (2, "b"), (3, "c"), (4, "d"), gap=Gap(1, 1, "cap"))
    story.kill()
    story.write("capped", 5, "e")
    story.read("capped", 1, (3, "c"), (4, "d"), (5, "e"), gap=Gap(2, 2, "cap"))
    assert story.found() == []


def test_a_memory_topic_may_lose_its_end_with_the_process_and_give_seqs_out_again(story: Story) -> None:
    """[DUR-6, DUR-8]"""
    story.write("memory", 1, "a")
    story.write("memory", 2, "b", name="key")
    story.write("memory", 3, "c", tag="t")
    story.delete("memory", tag="t")
    story.kill()
    story.read("memory", 3, (1, "a"), gap=Gap(1, 1, "recreated"), head=1)
    story.write("memory", 2, "d")
    story.write("memory", 3, "b", name="key")
    story.read("memory", 1, (2, "d"), (3, "b"))
    assert story.found() == []


def test_reads_and_writes_at_the_same_time_may_miss_each_other(story: Story) -> None:
    story.write("fsync", 1, "a")
    late = story.write("fsync", 2, "b")
    story.events.append(Read(1, "fsync", late.at - 1, late.until + 1, 0, ((1, "a"),), 1, 1, 1, True))
    story.read("fsync", 0, (1, "a"), (2, "b"))
    assert story.found() == []


# -- forged ---------------------------------------------------------------------------------------------------------


def test_a_lost_acknowledged_fsync_write_is_caught(story: Story) -> None:
    """[R-1]"""
    story.write("fsync", 1, "a")
    story.write("fsync", 2, "b")
    story.kill()
    story.read("fsync", 0, (1, "a"))
    assert story.rules() == {"head"}
    story.write("fsync", 2, "c")
    assert "changed" in story.rules()


def test_a_disk_write_lost_by_a_mere_kill_is_caught(story: Story) -> None:
    """[DUR-4, A-16]"""
    story.write("disk", 1, "a")
    story.write("disk", 2, "b")
    story.write("disk", 3, "c")
    story.kill()
    story.read("disk", 0, (1, "a"), (3, "c"))
    assert [one.rule for one in story.found()] == ["lost"]
    assert "seq 2 (b)" in str(story.found()[0])


def test_a_kill_that_is_told_as_a_crash_is_caught(story: Story) -> None:
    """[DUR-4]: after a mere kill the head does not jump and nothing is told."""
    story.write("disk", 1, "a")
    story.kill()
    story.read("disk", 1, (258, "b"), gap=Gap(2, 257, "crash"))
    story.unanswered("disk", "b")
    assert {"gap", "head", "fabricated"} <= story.rules()


@pytest.mark.parametrize("topic", ["fsync", "memory"])
def test_an_acknowledged_write_that_the_same_process_does_not_show_is_caught(story: Story, topic: str) -> None:
    """[INV-3, DUR-1]"""
    story.write(topic, 1, "a")
    story.write(topic, 2, "b")
    story.read(topic, 0, (2, "b"))
    assert story.rules() == {"lost"}


def test_a_visible_record_that_disappears_is_caught_though_it_was_never_acknowledged(story: Story) -> None:
    """[DUR-1]"""
    story.unanswered("fsync", "a")
    story.read("fsync", 0, (1, "a"))
    story.kill()
    story.read("fsync", 0)
    assert story.rules() == {"head"}


def test_a_failed_write_that_is_visible_twice_is_caught(story: Story) -> None:
    """[R-6]"""
    story.unanswered("fsync", "a")
    story.unanswered("fsync", "x")
    story.read("fsync", 0, (1, "a"), (2, "a"))
    assert story.rules() == {"twice"}


def test_a_payload_that_lies_at_two_seqs_is_caught(story: Story) -> None:
    """[IDM-3]: the retry was appended although the first attempt had been."""
    story.unanswered("fsync", "a", name="key")
    story.kill()
    story.write("fsync", 2, "a", name="key")
    story.read("fsync", 0, (1, "a"), (2, "a"))
    assert story.rules() == {"twice"}


def test_two_values_for_one_seq_are_caught(story: Story) -> None:
    """[REC-1]"""
    story.unanswered("disk", "a")
    story.unanswered("disk", "b")
    story.read("disk", 0, (1, "a"))
    story.read("disk", 0, (1, "b"))
    assert story.rules() == {"changed"}


@pytest.mark.parametrize("topic", ["fsync", "memory"])
def test_a_seq_that_is_given_out_again_is_caught(story: Story, topic: str) -> None:
    """[INV-1]; within one life a memory topic keeps that too."""
    story.write(topic, 1, "a")
    story.write(topic, 1, "b")
    assert {"changed", "order"} <= story.rules()


def test_a_cursor_that_goes_back_is_caught(story: Story) -> None:
    """[CUR-4]"""
    story.write("fsync", 1, "a", "b")
    story.read("fsync", 2, head=2, next_from=1, caught_up=False)
    assert story.rules() == {"cursor"}


@pytest.mark.parametrize(
    "page",
    [
        {"next_from": 1, "head": 2, "caught_up": True},
        {"next_from": 2, "head": 2, "caught_up": False},
        {"next_from": 3, "head": 2, "caught_up": False},
    ],
)
def test_a_page_that_contradicts_itself_is_caught(story: Story, page: dict[str, object]) -> None:
    """[CUR-5]"""
    story.write("fsync", 1, "a", "b")
    story.read("fsync", 1, **page)
    assert "cursor" in story.rules()


def test_records_out_of_order_or_outside_of_the_page_are_caught(story: Story) -> None:
    """[SEQ-3]"""
    story.write("fsync", 1, "a", "b")
    story.read("fsync", 0, (2, "b"), (1, "a"), head=2)
    assert story.rules() == {"cursor"}
    story.events.pop()
    story.read("fsync", 1, (1, "a"), (2, "b"))
    assert story.rules() == {"cursor"}


def test_a_skip_without_a_tombstone_is_caught(story: Story) -> None:
    """[INV-5]: a capped topic must tell what it evicted."""
    story.write("capped", 1, "a", "b", "c", "d")
    story.read("capped", 0, (2, "b"), (3, "c"), (4, "d"), earliest=2)
    assert story.rules() == {"lost"}


@pytest.mark.parametrize("gap", [Gap(1, 2, "cap"), Gap(2, 1, "cap"), Gap(1, 1, "ttl"), Gap(1, 1, "corrupt")])
def test_a_tombstone_with_another_range_or_reason_is_caught(story: Story, gap: Gap) -> None:
    """[INV-5]"""
    story.write("capped", 1, "a", "b", "c", "d")
    kept = [(seq, text) for seq, text in ((2, "b"), (3, "c"), (4, "d")) if seq > gap.gap_to]
    story.read("capped", 0, *kept, gap=gap, earliest=kept[0][0])
    assert "gap" in story.rules()


def test_a_tombstone_on_a_topic_that_keeps_everything_is_caught(story: Story) -> None:
    story.write("fsync", 1, "a", "b")
    story.read("fsync", 0, (2, "b"), gap=Gap(1, 1, "cap"))
    assert "gap" in story.rules()


@pytest.mark.parametrize("selector", [{"tag": "t"}, {"seqs": (1,)}])
@pytest.mark.parametrize("killed", [True, False])
def test_a_deleted_record_that_returns_is_caught(story: Story, selector: dict[str, object], killed: bool) -> None:
    """[DEL-6, DEL-7]"""
    story.write("disk", 1, "a", tag="t")
    story.delete("disk", **selector)
    if killed:
        story.kill()
    story.read("disk", 0, (1, "a"))
    assert story.rules() == {"returned"}


def test_a_delete_that_was_seen_is_caught_when_it_is_undone(story: Story) -> None:
    """[INV-8]: nobody acknowledged it, but a reader saw its effect."""
    story.write("disk", 1, "a", tag="t")
    story.write("disk", 2, "b")
    story.delete("disk", "unknown", tag="t")
    story.read("disk", 0, (2, "b"))
    story.kill()
    story.read("disk", 0, (1, "a"), (2, "b"))
    assert story.rules() == {"returned"}


def test_a_delete_that_takes_a_later_record_is_caught(story: Story) -> None:
    """[DEL-5, INV-9]"""
    story.write("fsync", 1, "a", tag="t")
    story.delete("fsync", tag="t")
    story.write("fsync", 2, "b", tag="t")
    story.write("fsync", 3, "c")
    story.read("fsync", 0, (3, "c"))
    assert [str(one) for one in story.found() if "seq 2 (b)" in one.what]
    assert story.rules() == {"lost"}


def test_a_refused_delete_excuses_nothing(story: Story) -> None:
    story.write("fsync", 1, "a", tag="t")
    story.write("fsync", 2, "b")
    story.delete("fsync", "refused", tag="t")
    story.read("fsync", 0, (2, "b"))
    assert story.rules() == {"lost"}


def test_an_evicted_record_that_returns_is_caught(story: Story) -> None:
    """[INV-7, DUR-12]"""
    story.write("capped", 1, "a", "b", "c", "d")
    story.read("capped", 0, (2, "b"), (3, "c"), (4, "d"), gap=Gap(1, 1, "cap"))
    story.kill()
    story.read("capped", 0, (1, "a"), (2, "b"), (3, "c"), (4, "d"))
    assert "returned" in story.rules()


def test_a_repetition_that_is_answered_with_other_seqs_is_caught(story: Story) -> None:
    """[IDM-2]"""
    story.write("fsync", 1, "a", name="key")
    story.write("fsync", 2, "b")
    story.write("fsync", 2, "a", name="key", deduped=True)
    assert story.rules() == {"dedupe"}


@pytest.mark.parametrize(
    ("first", "more"),
    [(1, {"deduped": True}), (None, {}), (None, {"deduped": True, "name": "key"})],
    ids=["new but deduped", "no seqs", "a key without seqs"],
)
def test_an_acknowledgement_that_cannot_be_is_caught(story: Story, first: int | None, more: dict[str, object]) -> None:
    """[IDM-2, A-4]"""
    story.write("fsync", first, "a", **more)
    assert "dedupe" in story.rules()


def test_a_repetition_that_is_answered_as_new_is_caught(story: Story) -> None:
    """[IDM-2]"""
    story.write("fsync", 1, "a", name="key")
    story.write("fsync", 1, "a", name="key")
    assert "dedupe" in story.rules()


def test_a_deduped_answer_for_a_record_that_is_not_there_is_caught(story: Story) -> None:
    """C19, for a memory topic too."""
    story.write("memory", 1, "a")
    story.write("memory", 2, "b", name="key")
    story.kill()
    story.write("memory", 2, "b", name="key", deduped=True)
    story.read("memory", 0, (1, "a"))
    assert "head" in story.rules()


def test_half_of_a_write_is_caught(story: Story) -> None:
    """[INV-2]"""
    story.unanswered("fsync", "a", "b", "c")
    story.kill()
    story.read("fsync", 0, (1, "a"), (2, "b"))
    assert story.rules() == {"torn"}


def test_a_write_whose_records_are_apart_is_caught(story: Story) -> None:
    """[SEQ-2]"""
    story.unanswered("fsync", "a", "b")
    story.unanswered("fsync", "c")
    story.read("fsync", 0, (1, "a"), (2, "c"), (3, "b"))
    assert "twice" in story.rules()


def test_a_record_that_nobody_wrote_is_caught(story: Story) -> None:
    """[INV-13]"""
    story.unanswered("fsync", "a")
    story.read("fsync", 0, (1, "ghost"))
    assert story.rules() == {"fabricated"}


def test_a_record_of_another_topic_is_caught(story: Story) -> None:
    """[R-7]"""
    story.unanswered("fsync", "a")
    story.unanswered("disk", "b")
    story.read("fsync", 0, (1, "b"))
    assert story.rules() == {"fabricated"}


def test_a_record_that_is_read_before_it_is_written_is_caught(story: Story) -> None:
    story.unanswered("fsync", "x")
    story.read("fsync", 0, (1, "a"))
    story.unanswered("fsync", "a")
    assert story.rules() == {"fabricated"}


def test_a_refused_write_that_is_visible_is_caught(story: Story) -> None:
    """[INV-3]"""
    story.write("fsync", None, "a", outcome="refused")
    story.unanswered("fsync", "b")
    story.read("fsync", 0, (1, "a"))
    assert story.rules() == {"refused"}


def test_a_head_that_goes_back_is_caught_within_a_life_of_a_memory_topic(story: Story) -> None:
    """[STA-3]"""
    story.write("memory", 1, "a", "b")
    story.read("memory", 0, (1, "a"), head=1)
    assert "head" in story.rules()


def test_a_head_above_everything_written_is_caught(story: Story) -> None:
    """[DUR-6]"""
    story.write("memory", 1, "a")
    story.kill()
    story.read("memory", 0, (1, "a"), head=257)
    assert story.rules() == {"head"}


def test_an_absurd_head_is_caught_without_work_that_never_ends(story: Story) -> None:
    story.write("disk", 1, "a")
    story.read("disk", 0, (1, "a"), head=2**64 - 1)
    assert story.rules() == {"head"}


def test_a_strict_topic_that_says_recreated_is_caught(story: Story) -> None:
    """[EPO-3]"""
    story.write("disk", 1, "a", "b")
    story.kill()
    story.read("disk", 2, (1, "a"), gap=Gap(1, 1, "recreated"), head=1)
    assert {"gap", "head"} <= story.rules()


def test_a_later_write_that_lies_before_an_earlier_one_is_caught(story: Story) -> None:
    """[SEQ-3]"""
    story.write("fsync", 2, "a")
    story.write("fsync", 1, "b")
    assert story.rules() == {"order"}


def test_a_history_is_judged_piece_by_piece_as_at_once(story: Story) -> None:
    story.write("disk", 1, "a", tag="t")
    story.delete("disk", tag="t")
    story.kill()
    story.read("disk", 0, (1, "a"))
    history = History(RULES)
    pieces = [history.add([event]) for event in story.events]
    assert [one for piece in pieces for one in piece] == story.found()


def test_payloads_must_be_unique(story: Story) -> None:
    story.write("disk", 1, "a")
    story.write("disk", 2, "b", "a")
    with pytest.raises(ValueError, match="unique"):
        story.found()
