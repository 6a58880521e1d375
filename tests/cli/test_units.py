"""Numbers as people write them (11 §2)."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.cli import units


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("500", 500), ("10k", 10_000), ("1M", 10**6), ("1.5M", 1_500_000), ("2G", 2 * 10**9), ("64Ki", 65_536),
     ("1Gi", 2**30), ("18446744073709551615", 2**64 - 1), (" 7 ", 7), ("0.5k", 500)],
)  # fmt: skip
def test_counts(text: str, value: int) -> None:
    assert units.count(text) == value


@pytest.mark.parametrize(("text", "value"), [("1GB", 10**9), ("1GiB", 2**30), ("1Gi", 2**30), ("4096B", 4096)])
def test_sizes(text: str, value: int) -> None:
    assert units.size(text) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("250", 250), ("250ms", 250), ("10s", 10_000), ("5m", 300_000), ("1h", 3_600_000), ("7d", 604_800_000),
     ("1.5h", 5_400_000), ("0", 0)],
)  # fmt: skip
def test_spans(text: str, value: int) -> None:
    assert units.span_ms(text) == value


@pytest.mark.parametrize(
    "text", ["", "k", "-1", "1x", "1.5", "0.3ms", "1e3", "ten", "1 000", "99999999999T", "٣", "1kk"]
)
@pytest.mark.parametrize("parse", [units.count, units.size, units.span_ms])
def test_what_is_no_number_is_refused(parse: object, text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse(text)  # type: ignore[operator]


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_refused(text: str) -> None:
    for parse in (units.count, units.size, units.span_ms, units.seq):
        try:
            assert 0 <= parse(text) <= units.U64_MAX
        except argparse.ArgumentTypeError:
            continue


@given(st.integers(0, 10**12))
def test_a_span_that_is_shown_can_be_read(value: int) -> None:
    assert units.span_ms(units.shown_ms(value)) == value


def test_bytes_are_shown_in_powers_of_1024() -> None:
    assert [units.shown_bytes(n) for n in (0, 1023, 1024, 1536, 2**30, 2**50)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 GiB", "1024.0 TiB",
    ]  # fmt: skip
