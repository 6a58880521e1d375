"""Frames of a watch: what the kernel makes of a batch is what Python makes of it [A-12, STR-4, RSM-1]."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec import kernel
from topics.engine.watch import Batch
from topics.server import sse

NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}", fullmatch=True)
SEQS = st.integers(0, 2**64 - 1)
PIECES = st.lists(st.binary(min_size=1, max_size=300), min_size=1, max_size=4)


def twin(batch: Batch, chunked: bool) -> bytes:
    """The frames as the framing says."""
    id = b"id: %b\n" % sse.cursor_id({batch.name: batch.to_seq})
    made = id + sse.FRAMING.record(batch)
    if batch.is_last:
        made += id + sse.FRAMING.caught_up(batch.name, batch.head)
    return b"%x\r\n%b\r\n" % (len(made), made) if chunked else made


@pytest.mark.skipif(kernel.installed() is None, reason="the native kernel is not installed")
@given(NAMES, SEQS, SEQS, SEQS, PIECES, st.booleans())
def test_the_kernel_s_frames_are_those_of_the_framing(
    name: str, from_seq: int, to_seq: int, head: int, pieces: list[bytes], chunked: bool
) -> None:
    native = kernel.installed()
    assert native is not None
    for top in (head, to_seq):
        batch = Batch(name, from_seq, to_seq, top, pieces, len(pieces))
        made = native.events(name, from_seq, to_seq, top, pieces, chunked)
        assert made == twin(batch, chunked)
        assert sse.cursors_of(made.split(b"id: ", 1)[1].split(b"\n", 1)[0]) == {name: to_seq}
