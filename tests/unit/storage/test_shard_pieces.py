"""Submissions that come in pieces: the log has what it would have of the same bytes in one (06 §6.2, P-10)."""

from __future__ import annotations

import random

import pytest

from tests.unit.storage import kit
from topics.codec import frame
from topics.errors import CommitFailed
from topics.storage.shard import frames_bytes


def in_pieces(frames: bytes, rng: random.Random) -> list[bytes]:
    """The same frames, a few in each piece."""
    ends = (frame.scan_frames(frames).rows["offset"] + frame.scan_frames(frames).rows["len"]).tolist()
    places = [0, *(end for end in ends if rng.random() < 0.6)]
    return [frames[a:b] for a, b in zip(places, [*places[1:], len(frames)], strict=True) if a < b]


def send(run: kit.Run, frames: bytes | list[bytes], count: int, *, durable: bool) -> kit.Ticket:
    ticket = kit.Ticket(run, frames_bytes(frames), durable=durable, then=None)
    run.shard.submit(frames, count, ticket.done, durable=durable)
    return ticket


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("file_bytes", [3000, 1 << 16])
def test_pieces_are_logged_like_the_whole(seed: int, file_bytes: int) -> None:
    """S-71, S-72, S-25: among others, across files, behind synced bytes; places and bytes are the same."""
    runs = [kit.Run(kit.Disk(), kit.SteppedOwner(), file_bytes=file_bytes) for _ in range(2)]
    tickets: list[list[kit.Ticket]] = [[], []]
    rng = random.Random(f"pieces {seed}")
    seq = 1
    for _ in range(120):
        count, durable = rng.choice((1, 1, 3, 12)), rng.random() < 0.3
        frames = kit.chain(seq, count, rng.choice((64, 200)), durable=durable)
        pieces = in_pieces(frames, rng) if rng.random() < 0.5 else frames
        tickets[0].append(send(runs[0], frames, count, durable=durable))
        tickets[1].append(send(runs[1], pieces, count, durable=durable))
        seq += count
        if rng.random() < 0.5:
            for run in runs:
                run.settle()
        if rng.random() < 0.1:
            for run in runs:
                run.tick(100)
    for run in runs:
        assert run.close()
    assert [one.lsn for one in tickets[0]] == [one.lsn for one in tickets[1]]
    assert runs[0].disk.files() == runs[1].disk.files()
    assert runs[0].shard.counters.bytes_written == runs[1].shard.counters.bytes_written


def test_pieces_are_written_one_by_one_and_not_put_together(stepped: kit.Run) -> None:
    """P-10: nobody waits while megabytes are copied."""
    frames = kit.chain(10, 6, 100)
    pieces = [frames[at : at + 200] for at in range(0, 600, 200)]
    since = stepped.disk.sim.disk_calls
    ticket = send(stepped, pieces, 6, durable=False)
    stepped.settle()
    assert ticket.finished
    assert [op for op, name in stepped.disk.calls(since) if name.startswith("wal-")][:3] == ["pwrite"] * 3


@pytest.mark.parametrize("failing", [1, 2, 3])
@pytest.mark.parametrize("is_slow", [False, True])
def test_a_write_that_fails_at_any_piece_leaves_nothing(stepped: kit.Run, failing: int, is_slow: bool) -> None:
    """S-71, S-79: accepted whole, and failed whole; what stood before it stays."""
    stepped.shard.writes_aside = is_slow
    before = stepped.disk.file(1)[: stepped.shard.log.position()[1]]
    frames = kit.chain(10, 6, 100)
    stepped.disk.fail("pwrite", "ENOSPC", index=failing)
    small = send(stepped, kit.chain(9, 1, 64), 1, durable=False)
    large = send(stepped, [frames[:300], frames[300:]], 6, durable=False)
    stepped.settle()
    assert [type(one.error) for one in (small, large)] == [CommitFailed] * 2
    assert stepped.state == "full"
    assert stepped.disk.file(1) == stepped.disk.power_loss().file(1) == before


def test_a_first_piece_behind_synced_bytes_is_flagged_in_the_log_alone(stepped: kit.Run) -> None:
    """S-25: what was handed over may be somebody else's too."""
    frames = kit.chain(10, 4, 100)
    pieces = [frames[:200], frames[200:]]
    kept = [bytes(piece) for piece in pieces]
    stepped.shard._mark_end = stepped.shard.log.position()
    send(stepped, pieces, 4, durable=False)
    stepped.shard.flush()
    assert kit.kinds(stepped.disk.file(1))[-4:] == ["append*", "append", "append", "append"]
    assert pieces == kept
