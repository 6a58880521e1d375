"""What `spark-chaos` calls a violation; a judge that never finds one would prove nothing."""

from __future__ import annotations

from topics.testing.sparkchaos import ROWS, Row, expected, judge

WANTED = [Row(file, n) for file in range(3) for n in range(4)]


def test_rows_in_any_order_within_their_batches_are_right() -> None:
    """T16: batches may come in another order, too."""
    assert judge("t", WANTED, WANTED) == []
    assert judge("t", WANTED, [*WANTED[4:8][::-1], *WANTED[8:], *WANTED[:4]]) == []


def test_a_lost_a_double_and_an_exchanged_row_are_found() -> None:
    """T16: the last one keeps the count."""
    (lost,) = judge("t", WANTED, WANTED[:-1])
    assert "lost 1 such as [Row(file=2, n=3)], too many 0" in lost
    (double,) = judge("t", WANTED, [*WANTED, WANTED[-1]])
    assert "lost 0 such as [], too many 1" in double
    (exchanged,) = judge("t", WANTED, [*WANTED[:-1], WANTED[-2]])
    assert "lost 1" in exchanged
    assert "too many 1" in exchanged


def test_a_batch_in_two_places_is_found() -> None:
    """K-31: it was not published whole."""
    assert judge("t", WANTED, [WANTED[0], *WANTED[4:8], *WANTED[1:4], *WANTED[8:]]) == [
        "whole: t has rows of a batch in several places"
    ]


def test_every_row_of_a_file_belongs_to_one_topic() -> None:
    """T16"""
    rows = expected(2)
    assert sum(map(len, rows.values())) == 2 * ROWS
    assert len({row for part in rows.values() for row in part}) == 2 * ROWS
