"""How callers share one write and one sync (W-52): who leads, who is waited for, and what a round writes."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count

import pytest

from tests.unit.wal import kit
from topics.errors import RecordTooLarge, WalClosed, WalIo, WriteFailed
from topics.wal import Position, Record, Wal
from topics.wal import rounds as rounds_module
from topics.wal.rounds import Door, Rounds, Sharing
from topics.wal.rounds import rounds as shared_rounds

FOR_EVER_S = 1e6
either = pytest.mark.usefixtures("kernel_used")


class Served:
    """Keeps what each round served; the first one stops at a gate."""

    def __init__(self) -> None:
        self.gate = kit.Gate()
        self.rounds: list[list[str]] = []
        self.leaders: list[int] = []
        self.moves = threading.Semaphore(0)
        """Released whenever somebody goes to wait, or leads behind the first."""

    def __call__(self, work: Sequence[str]) -> None:
        self.leaders.append(threading.get_ident())
        self.rounds.append(list(work))
        if len(self.rounds) == 1:
            self.gate.stop()
        else:
            self.moves.release()

    def sizes(self) -> list[int]:
        return [len(work) for work in self.rounds]


def three_wait_for_one(first: Sequence[str]) -> tuple[Rounds[str], Served, int]:
    """One caller shares all of `first`; while it is served three gather, and it goes on when one of them was woken.

    The rounds, what they served, and the thread of that one caller.
    """
    rounds: Rounds[str] = Rounds()
    served = Served()
    here, wait = kit.arrivals(rounds), rounds._wait

    def wait_and_tell(door: Door, me: int) -> None:
        served.moves.release()
        wait(door, me)

    def one() -> int:
        for n, work in enumerate(first):
            kit.wait_for(served.moves, 4 * n)
            rounds.share(work, served)
        return threading.get_ident()

    rounds._wait = wait_and_tell  # type: ignore[method-assign]

    leader = kit.spawn(one)
    served.gate.wait_reached()
    others = [kit.spawn(partial(rounds.share, f"other {n}", served)) for n in range(3)]
    kit.wait_for(here, 4)
    served.gate.open()
    kit.finish(others)
    return rounds, served, leader.result(kit.WAIT_S)


def test_a_lone_caller_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: it leads each of its rounds itself, at once."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", FOR_EVER_S)
    rounds: Rounds[str] = Rounds()
    served: list[list[str]] = []
    for n in range(3):
        rounds.share(f"{n}", lambda work: served.append(list(work)))
    assert served == [["0"], ["1"], ["2"]]


def test_a_round_waits_for_those_just_answered_and_the_last_to_come_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: three gather while one is served; the next sync serves four, and who completes them makes it."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", FOR_EVER_S)
    _, served, leader = three_wait_for_one(["first", "again"])
    assert served.sizes() == [1, 4]
    assert sorted(served.rounds[1]) == ["again", "other 0", "other 1", "other 2"]
    assert served.leaders == [leader, leader]


def test_those_who_stay_away_are_not_waited_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: who waited in vain leads those who are there; then a lone caller is served at once."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.0)
    rounds, served, _ = three_wait_for_one(["first"])
    assert served.sizes() == [1, 3]
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", FOR_EVER_S)
    kit.spawn(lambda: rounds.share("late", served)).result(kit.WAIT_S)
    assert served.sizes() == [1, 3, 1]


def test_a_caller_that_was_lost_while_it_waited_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: a signal may take away the one who would have begun the round; another looks for itself."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", FOR_EVER_S)
    monkeypatch.setattr(rounds_module, "LOOK_AGAIN_S", 0.001)
    rounds: Rounds[str] = Rounds()
    rounds._wanted = 3
    served: list[list[str]] = []
    assert rounds._join("lost", -1) is not None
    kit.spawn(lambda: rounds.share("other", lambda work: served.append(list(work)))).result(kit.WAIT_S)
    assert served == [["lost", "other"]]


def test_a_caller_interrupted_while_it_waits_leaves_the_round_to_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: the one who would have begun the round is struck; the next one does it, without looking again first."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.0)
    monkeypatch.setattr(rounds_module, "LOOK_AGAIN_S", FOR_EVER_S)
    rounds: Rounds[str] = Rounds()
    rounds._wanted = 3
    served: list[list[str]] = []
    gate, wait = kit.Gate(), rounds._wait
    here = kit.arrivals(rounds)

    def struck(door: Door, me: int) -> None:
        rounds._wait = wait  # type: ignore[method-assign]
        gate.stop()
        raise KeyboardInterrupt

    rounds._wait = struck  # type: ignore[method-assign]
    first = kit.spawn(lambda: rounds.share("struck", lambda work: served.append(list(work))))
    gate.wait_reached()
    second = kit.spawn(lambda: rounds.share("other", lambda work: served.append(list(work))))
    kit.wait_for(here, 2)
    gate.open()
    with pytest.raises(KeyboardInterrupt):
        first.result(kit.WAIT_S)
    second.result(kit.WAIT_S)
    assert served == [["struck", "other"]]


@pytest.mark.parametrize("ended", [False, True])
def test_a_leader_interrupted_while_it_ends_its_round_leaves_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch, ended: bool
) -> None:
    """W-52: wherever a signal strikes, the others are let through and the next caller is served."""
    monkeypatch.setattr(rounds_module, "LOOK_AGAIN_S", 0.001)
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.0)
    rounds: Rounds[str] = Rounds()
    struck: list[bool] = []
    end = rounds._end

    def interrupted() -> None:
        if struck or ended:
            end()
        if not struck:
            struck.append(True)
            raise KeyboardInterrupt

    rounds._end = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        rounds.share("first", lambda work: None)
    served: list[list[str]] = []
    kit.spawn(lambda: rounds.share("second", lambda work: served.append(list(work)))).result(kit.WAIT_S)
    assert served == [["second"]]


@either
def test_what_serving_raises_is_the_leaders_to_hear_and_ends_the_round() -> None:
    """W-52: a meter that raises, for instance; the next caller is served."""
    rounds: Sharing[str] = shared_rounds()

    def fails(work: Sequence[str]) -> None:
        raise ValueError(work[0])

    with pytest.raises(ValueError, match="first"):
        rounds.share("first", fails)
    rounds.share("second", lambda work: None)


@either
@pytest.mark.parametrize("back", [True, False])
def test_every_caller_is_served_once_whether_or_not_they_come_back(back: bool) -> None:
    """W-52: eight threads that share again and again, or that are others each time; none waits for ever."""
    rounds: Sharing[int] = shared_rounds()
    served: list[int] = []
    works, left = count(), 800

    def caller(times: int) -> None:
        for _ in range(times):
            rounds.share(next(works), served.extend)

    if back:
        kit.finish([kit.spawn(partial(caller, left // 8)) for _ in range(8)])
    else:
        for _ in range(left // 8):
            kit.finish([kit.spawn(partial(caller, 1)) for _ in range(8)])
    assert sorted(served) == list(range(left))


def test_a_starter_whose_round_another_began_sleeps_until_it_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: a sync may take long, and looking for it would take the interpreter each time."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.0)
    rounds: Rounds[str] = Rounds()
    rounds._wanted = 2
    door = rounds._join("starter", 1)
    assert door is not None
    assert door.starter == 1
    assert rounds._join("last", 2) is None
    rounds._wait(door, 1)
    assert door.starter is None


def test_those_who_keep_staying_away_are_waited_for_less_and_less(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: one late caller costs one round of nobody, a habit of it many; one round of several makes up for it."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.0)
    rounds: Rounds[str] = Rounds()

    def alone_for() -> int:
        """Rounds of one caller until the next one would wait for another again."""
        rounds._wanted = 2
        rounds.share("in vain", lambda work: None)
        alone = 0
        while rounds._hurry:
            rounds.share("alone", lambda work: None)
            alone += 1
        return alone

    assert [alone_for() for _ in range(6)] == [1, 2, 4, 8, 16, 16]
    rounds._gathered.append("another")
    rounds._wanted = 2
    rounds.share("both", lambda work: None)
    assert alone_for() == 1


@contextmanager
def struck_until(gone: threading.Event, rounds: Sharing[str], handler: Callable[[], None]) -> Iterator[None]:
    """Once the main thread waits for a round it is struck by signals until it has had enough; `handler` runs there."""
    main = threading.main_thread().ident
    assert main == threading.get_ident()
    before = signal.signal(signal.SIGUSR1, lambda *_: handler())

    def strike() -> None:
        kit.wait_gathered(rounds, 1)
        while not gone.wait(0.01):
            signal.pthread_kill(main, signal.SIGUSR1)

    striking = kit.spawn(strike)
    try:
        yield
    finally:
        gone.set()
        striking.result(kit.WAIT_S)
        signal.signal(signal.SIGUSR1, before)


@either
def test_a_signal_is_handled_while_its_thread_waits() -> None:
    """W-52: its handler does not wait for a sync; the thread then waits on, and its work is served once."""
    rounds: Sharing[str] = shared_rounds()
    served, handled = Served(), threading.Event()

    def handler() -> None:
        handled.set()
        served.gate.open()

    leader = kit.spawn(lambda: rounds.share("first", served))
    served.gate.wait_reached()
    with struck_until(handled, rounds, handler):
        rounds.share("main", served)
    leader.result(kit.WAIT_S)
    assert handled.is_set()
    assert served.rounds == [["first"], ["main"]]


@either
def test_a_thread_that_a_signal_takes_away_holds_up_nobody() -> None:
    """W-52: whoever presses Ctrl-C does not wait for a sync; what it brought is served with the next caller's."""
    rounds: Sharing[str] = shared_rounds()
    served, handled = Served(), threading.Event()

    def handler() -> None:
        if not handled.is_set():
            handled.set()
            raise KeyboardInterrupt

    leader = kit.spawn(lambda: rounds.share("first", served))
    served.gate.wait_reached()
    with struck_until(handled, rounds, handler), pytest.raises(KeyboardInterrupt):
        rounds.share("struck", served)
    other = kit.spawn(lambda: rounds.share("other", served))
    kit.wait_gathered(rounds, 2)
    served.gate.open()
    leader.result(kit.WAIT_S)
    other.result(kit.WAIT_S)
    assert served.rounds == [["first"], ["struck", "other"]]


@either
def test_a_caller_that_signals_strike_waits_for_others_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """W-52: a profiler's signals, for instance; those it was one of three with stay away."""
    monkeypatch.setattr(rounds_module, "HAND_OVER_S", 0.5)
    rounds: Sharing[str] = shared_rounds()
    served, enough, strikes = Served(), threading.Event(), list[None]()

    def handler() -> None:
        strikes.append(None)
        if len(strikes) == 500:
            enough.set()

    def twice() -> None:
        for work in ("first", "again"):
            rounds.share(work, served)

    leader = kit.spawn(twice)
    served.gate.wait_reached()
    others = [kit.spawn(partial(rounds.share, f"other {n}", served)) for n in range(2)]
    kit.wait_gathered(rounds, 2)
    served.gate.open()
    kit.finish([leader, *others])
    assert served.sizes() == [1, 3]
    with struck_until(enough, rounds, handler):
        rounds.share("alone", served)
    assert served.sizes() == [1, 3, 1]
    assert len(strikes) < 500


def together(wal: Wal, *batches: list[Record]) -> list[list[Position] | Exception]:
    """What the callers of one round get."""
    return wal.append_units(batches)


@either
def test_a_round_is_one_write_in_the_order_of_its_callers(disk: kit.Disk) -> None:
    """W-51, W-81: positions follow the order, batches stay together."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=1 << 20, preallocate=False)
    mark = disk.sim.disk_calls
    answers = together(wal, [kit.put(0)], [kit.put(n) for n in (1, 2, 3)], [], [kit.put(4)])
    calls = [call for call in disk.calls(mark) if call[0] in ("pwrite", "fdatasync")]
    assert calls == [("pwrite", "000000.wal"), ("fdatasync", "000000.wal")]
    positions = [position for answer in answers if isinstance(answer, list) for position in answer]
    assert [len(answer) for answer in answers if isinstance(answer, list)] == [1, 3, 0, 1]
    assert [(int(record.key), at) for record, at in wal.read_from(kit.START)] == list(enumerate(positions))
    wal.close()


@either
def test_a_round_that_does_not_fit_goes_on_in_the_next_segment_and_splits_nobody(disk: kit.Disk) -> None:
    """W-13: the segment is left when the next unit does not fit, not when the round does not."""
    size = len(kit.put(0, 200).encode())
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=4 * size)
    answers = together(wal, *([kit.put(2 * n, 200), kit.put(2 * n + 1, 200)] for n in range(5)), [kit.put(10, 200)])
    places = [[(at.segment_id, at.offset // size) for at in answer] for answer in answers if isinstance(answer, list)]
    assert places == [
        [(0, 0), (0, 1)], [(0, 2), (0, 3)],
        [(1, 0), (1, 1)], [(1, 2), (1, 3)],
        [(2, 0), (2, 1)], [(2, 2)],
    ]  # fmt: skip
    assert kit.numbers(wal) == list(range(11))
    assert wal._log.synced() == wal._log.position()
    wal.close()


@either
def test_nobody_fails_for_the_size_of_anothers_records() -> None:
    """07 §1.4 row 2: on a disk that is nearly full only the caller whose records find no room gets WriteFailed."""
    disk = kit.Disk(capacity=64 << 10)
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=1 << 20, preallocate=False)
    answers = together(wal, [kit.put(0)], [kit.put(1, 256 << 10)], [kit.put(2)])
    assert isinstance(answers[1], WriteFailed)
    assert answers[1].full
    assert (isinstance(answers[0], list), isinstance(answers[2], list)) == (True, True)
    assert kit.numbers(wal) == [0, 2]
    wal.append(kit.put(3))
    assert kit.numbers(kit.open_wal(disk.power_loss())[0]) == [0, 2, 3]
    wal.close()


@either
def test_one_bad_batch_of_a_round_is_its_own_callers_to_hear(disk: kit.Disk) -> None:
    """W-51: the others are written."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    answers = together(wal, [kit.put(0)], [kit.put(1, 5000)], [Record(b"k", None)], [kit.put(2)])  # type: ignore[arg-type]
    assert [type(answer) for answer in answers] == [list, RecordTooLarge, TypeError, list]
    assert kit.numbers(wal) == [0, 2]
    wal.close()


@either
def test_a_failed_write_of_a_round_that_latches_is_told_to_each_and_leaves_nothing(disk: kit.Disk) -> None:
    """07 §1.4 row 2, W-70: cut back, latched, every caller gets an error of its own."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS, preallocate=False)
    wal.append(kit.put(0))
    end = wal.current_position()
    disk.fail("pwrite", "EIO")
    answers = together(wal, [kit.put(1)], [kit.put(2)])
    assert all(isinstance(answer, Exception) for answer in answers)
    assert answers[0] is not answers[1]
    assert wal.current_position() == end
    assert kit.numbers(wal) == [0]
    assert kit.numbers(kit.open_wal(disk.killed())[0]) == [0]
    wal.close()


@either
def test_who_was_covered_by_a_rotation_keeps_his_record_when_the_sync_of_the_round_fails(disk: kit.Disk) -> None:
    """W-16, W-17: a failed sync fails those it should have covered, and readers see exactly those answered well."""
    size = len(kit.put(0, 200).encode())
    wal, _ = kit.open_wal(disk, kit.ALWAYS, size=2 * size)
    disk.fail("fdatasync", "EIO", path="000001.wal")
    answers = together(wal, *([kit.put(n, 200)] for n in range(3)))
    assert answers[:2] == [[Position(0, 0)], [Position(0, size)]]
    assert isinstance(answers[2], WalIo)
    assert kit.numbers(wal) == [0, 1]
    assert kit.numbers(kit.open_wal(disk.power_loss())[0]) == [0, 1]
    wal.close()


@either
def test_a_closed_log_answers_each_of_a_round_with_an_error_of_its_own(disk: kit.Disk) -> None:
    """W-56."""
    wal, _ = kit.open_wal(disk, kit.ALWAYS)
    wal.close()
    answers = together(wal, [kit.put(0)], [kit.put(1)])
    assert [type(answer) for answer in answers] == [WalClosed, WalClosed]
    assert answers[0] is not answers[1]
