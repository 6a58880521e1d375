"""Bytes of WAL frames, span by span: each place once, in order, and nothing that lies far between (06 §10)."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.unit.storage import kit
from topics.storage import walread
from topics.storage.tail import OFFSET_BITS, WalFiles
from topics.storage.walread import WalReader

SIZE = 3 << 20
CONTENT = random.Random(1).randbytes(SIZE)


@pytest.fixture
def reader() -> WalReader:
    files = WalFiles()
    for number in (1, 2):
        assert files.reference("", number) == number
    disk = kit.layout({1: CONTENT, 2: CONTENT[::-1]})
    return WalReader(disk.fs, {"": kit.DIR}, files, 4)


def spans(reader: WalReader, places: list[tuple[int, int, int]]) -> list[int]:
    """Read frames by file, offset and size, see that they are right, and tell how long each read was."""
    locations = np.array([file << OFFSET_BITS | offset for file, offset, _ in places], np.uint64)
    lengths: list[int] = []
    found: list[bytes] = []
    sizes = iter([size for *_, size in places])

    def take(data: bytes, offsets: np.ndarray) -> None:
        lengths.append(len(data))
        found.extend(data[at : at + next(sizes)] for at in offsets.tolist())

    reader.raw_at(locations, np.array([size for *_, size in places], np.uint32), take)
    content = {1: CONTENT, 2: CONTENT[::-1]}
    assert found == [content[file][offset : offset + size] for file, offset, size in places]
    return lengths


def test_neighbours_are_one_read_and_what_is_far_apart_is_not(reader: WalReader) -> None:
    gap, most = walread.SPAN_GAP_BYTES, walread.SPAN_BYTES_MAX
    assert spans(reader, [(1, 0, 100), (1, 100, 50), (1, 150 + gap, 7)]) == [157 + gap]
    assert spans(reader, [(1, 0, 100), (1, 101 + gap, 50)]) == [100, 50]
    assert spans(reader, [(1, at, 200) for at in range(0, 900_001, 300_000)]) == [200] * 4
    assert spans(reader, [(1, 5, 9)]) == [9]
    assert spans(reader, [(1, 0, most), (1, most, 10)]) == [most, 10]
    assert spans(reader, [(1, 900, 10), (2, 0, 10), (2, 10, 10)]) == [10, 20]


@pytest.mark.parametrize("seed", range(20))
def test_every_place_comes_once_and_in_order(reader: WalReader, seed: int) -> None:
    """Whatever lies between them; places that go back are of no use to anybody, and are read all the same."""
    chance = random.Random(seed)
    places: list[tuple[int, int, int]] = []
    at = 0
    for _ in range(chance.randrange(1, 40)):
        size = chance.randrange(1, 5000)
        at = chance.randrange(SIZE - size) if chance.random() < 0.1 else at
        if at + size > SIZE:
            break
        places.append((1 + len(places) // 25, at, size))
        at += size + chance.choice((0, 0, 0, 40, 70_000))
    for length in spans(reader, places):
        assert length <= walread.SPAN_BYTES_MAX
