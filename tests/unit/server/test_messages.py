"""Bytes of a WebSocket become messages: cut anywhere, strict, bounded (RFC 6455) [WS-1, WS-4, WS-6, WS-19]."""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from websockets.frames import Close, Frame, Opcode
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.server.messages import (
    BINARY,
    CLOSE,
    NOTHING,
    PING,
    PONG,
    TEXT,
    MessageReader,
    Violation,
    closing,
    framed,
    handshake,
)

MOST = 1000
GOOD = {
    b"connection": b"keep-alive, Upgrade",
    b"upgrade": b"WebSocket",
    b"sec-websocket-version": b"13",
    b"sec-websocket-key": b"dGhlIHNhbXBsZSBub25jZQ==",
}

Message = tuple[int, bytes]


def masked(first: int, payload: bytes, mask: bytes = b"\x12\x34\x56\x78", length: int | None = None) -> bytes:
    """A frame as a client sends it, whatever its first byte is."""
    size = len(payload) if length is None else length
    if size < 126:
        head = struct.pack(">BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack(">BBH", first, 0xFE, size)
    else:
        head = struct.pack(">BBQ", first, 0xFF, size)
    return head + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(payload))


def text(payload: bytes) -> bytes:
    return masked(0x80 | TEXT, payload)


def read(reader: MessageReader, data: bytes) -> Iterator[Message]:
    at = 0
    while at < len(data):
        before = at
        at, kind, payload = reader.read(data, at)
        assert at > before
        if kind:
            yield kind, bytes(payload)


def in_pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def status(data: bytes, most: int = MOST, piece: int = 1 << 20) -> int:
    """The status that some bytes are refused with."""
    reader = MessageReader(most)
    with pytest.raises(Violation) as found:
        for part in in_pieces(data, piece):
            list(read(reader, part))
    return found.value.status


# -- handshake -------------------------------------------------------------------------------------------------------


def test_the_handshake_of_the_standard_is_accepted() -> None:
    """[WS-1], RFC 6455 §1.3"""
    found = handshake(GOOD)
    assert found.failure is None
    assert found.accept == b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo="


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"connection", None), (b"connection", b"keep-alive"), (b"connection", b"upgraded"),
        (b"upgrade", None), (b"upgrade", b"h2c"), (b"upgrade", b"websocket2"),
        (b"sec-websocket-version", None), (b"sec-websocket-version", b"8"), (b"sec-websocket-version", b"13, 13"),
        (b"sec-websocket-key", None), (b"sec-websocket-key", b""), (b"sec-websocket-key", b"c2hvcnQ="),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZQ==, dGhlIHNhbXBsZSBub25jZQ=="),
        (b"sec-websocket-key", b"dGhlIHNhbXBsZSBub25jZ\xff=="),
    ],
)  # fmt: skip
def test_what_is_no_upgrade_is_400(name: bytes, value: bytes | None) -> None:
    """[WS-1] The version that would do is named (RFC 6455 §4.4)."""
    fields = {key: one for key, one in {**GOOD, name: value}.items() if one is not None}
    why = handshake(fields).failure
    assert why is not None
    assert (why.status, why.code) == (400, "invalid_request")
    assert (b"sec-websocket-version", b"13") in why.fields()


# -- messages --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 70000])
@pytest.mark.parametrize("piece", [1, 3, 7, 1000, 1 << 20])
def test_a_text_comes_out_as_it_went_in_however_it_is_cut(size: int, piece: int) -> None:
    """Also behind another message in the same bytes."""
    payload = (b"0123456789ab" * (size // 12 + 1))[:size]
    data = text(payload) + masked(0x80 | PING, b"are you there")
    reader = MessageReader(1 << 20)
    found = [one for part in in_pieces(data, piece) for one in read(reader, part)]
    assert found == [(TEXT, payload), (PING, b"are you there")]
    assert reader.held == 0


def test_pieces_become_one_message_and_control_frames_may_come_between() -> None:
    """RFC 6455 §5.4, §5.5"""
    data = (
        masked(TEXT, "grüß".encode()[:3]) + masked(0x80 | PING, b"?") + masked(0, b"") + masked(0x80 | PONG, b"")
        + masked(0x80, "grüß".encode()[3:]) + text(b"next")
    )  # fmt: skip
    assert list(read(MessageReader(MOST), data)) == [
        (PING, b"?"), (PONG, b""), (TEXT, "grüß".encode()), (TEXT, b"next"),
    ]  # fmt: skip


def test_of_a_binary_message_nothing_is_kept() -> None:
    """[WS-4]"""
    reader = MessageReader(MOST)
    assert list(read(reader, masked(BINARY, b"\xff" * 900))) == []
    assert reader.held == 0
    assert list(read(reader, masked(0x80, b"\xfe" * 100))) == [(BINARY, b"")]


@pytest.mark.parametrize(
    "data",
    [
        masked(0xC1, b"x"), masked(0xA1, b"x"), masked(0x91, b"x"), masked(0x83, b""), masked(0x8B, b""),
        masked(0x87, b""), masked(0x09, b""), masked(0x08, b""), masked(0x89, b"x" * 126), masked(0x80, b"x"),
        masked(0x00, b"x"), masked(0x01, b"x") + masked(0x81, b"y"), masked(0x01, b"x") + masked(0x02, b"y"),
        b"\x81\x01x", b"\x88\x00",
        masked(0x88, b"\x03"), masked(0x88, struct.pack(">H", 1005)), masked(0x88, struct.pack(">H", 999)),
        masked(0x88, struct.pack(">H", 1006)), masked(0x88, struct.pack(">H", 2999)),
        masked(0x88, struct.pack(">H", 5000)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_what_the_standard_forbids_is_1002(data: bytes, piece: int) -> None:
    """Reserved bits and opcodes, control frames in pieces or too long, pieces out of order, no mask, bad status."""
    assert status(data, piece=piece) == 1002


@pytest.mark.parametrize("bad", [b"\xff", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"abc\xc3"])
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_text_that_is_not_utf_8_is_1007(bad: bytes, piece: int) -> None:
    assert status(text(b"\xc3\xbc" + bad), piece=piece) == 1007
    assert status(masked(TEXT, bad[:1]) + masked(0x80, bad[1:] or b"x"), piece=piece) == 1007
    assert status(masked(0x88, struct.pack(">H", 1000) + bad)) == 1007


def test_bad_utf_8_is_told_before_the_message_is_complete() -> None:
    reader = MessageReader(MOST)
    with pytest.raises(Violation):
        list(read(reader, masked(TEXT, b"\xff", length=900)))


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_a_message_above_the_limit_is_1009_before_any_of_it_is_kept(opcode: int) -> None:
    """[WS-6]"""
    assert len(list(read(MessageReader(MOST), masked(0x80 | opcode, b"x" * MOST)))) == 1
    for first in (0x80 | opcode, opcode):
        for length in (MOST + 1, 1 << 40, (1 << 64) - 1):
            reader = MessageReader(MOST)
            with pytest.raises(Violation) as found:
                list(read(reader, masked(first, b"", length=length)))
            assert found.value.status == 1009
            assert reader.held == 0


@pytest.mark.parametrize("opcode", [TEXT, BINARY])
def test_the_limit_is_one_of_the_message_not_of_its_pieces(opcode: int) -> None:
    """[WS-6] Nor do control frames count."""
    start = masked(opcode, b"x" * 600) + masked(0x89, b"p" * 125) + masked(0, b"x" * 400) + masked(0, b"")
    assert list(read(MessageReader(MOST), start + masked(0x80, b"")))[-1][0] == opcode
    assert status(start + masked(0, b"x")) == 1009


def test_who_only_waits_for_the_close_keeps_nothing_of_messages() -> None:
    reader = MessageReader(MOST)
    list(read(reader, masked(TEXT, b"x" * 900)))
    assert reader.held == 900
    reader.keep_nothing()
    assert reader.held == 0
    assert list(read(reader, masked(0, b"x" * 100))) == []
    assert reader.held == 0
    close = masked(0x88, struct.pack(">H", 1000))
    assert list(read(reader, masked(0x80, b"") + close)) == [(TEXT, b""), (CLOSE, struct.pack(">H", 1000))]


# -- against another implementation ----------------------------------------------------------------------------------


def theirs(data: bytes, most: int) -> tuple[list[Message], int | None]:
    """What the protocol of the package `websockets` makes of some bytes: messages, and the status it fails with."""
    other = ServerProtocol(state=State.OPEN, max_size=most)
    other.receive_data(data)
    found: list[Message] = []
    kind, parts = NOTHING, b""
    for event in other.events_received():
        assert isinstance(event, Frame)
        if event.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
            if event.opcode is not Opcode.CONT:
                kind, parts = event.opcode, b""
            parts += bytes(event.data)
            if event.fin:
                found.append((kind, parts if kind == TEXT else b""))
        else:
            found.append((int(event.opcode), bytes(event.data)))
    failed = other.parser_exc is not None
    return found, int(other.close_sent.code) if failed and isinstance(other.close_sent, Close) else None


def ours(data: bytes, most: int, cuts: random.Random) -> tuple[list[Message], int | None]:
    reader = MessageReader(most)
    found: list[Message] = []
    at = 0
    try:
        while at < len(data):
            end = at + cuts.randint(1, 40)
            for one in read(reader, data[at:end]):
                found.append(one)
                if one[0] == CLOSE:
                    return found, None
            at = end
    except Violation as bad:
        return found, bad.status
    return found, None


FRAMES = st.builds(
    masked,
    st.one_of(st.sampled_from([0x81, 0x01, 0x00, 0x80, 0x82, 0x02, 0x89, 0x8A, 0x88]), st.integers(0, 255)),
    st.one_of(
        st.text(max_size=30).map(str.encode),
        st.sampled_from([b"", struct.pack(">H", 1000), b"x" * 126, b"y" * 200]),
    ),
    st.binary(min_size=4, max_size=4),
)


@settings(max_examples=500, deadline=None)
@given(st.lists(FRAMES, max_size=12).map(b"".join), st.binary(max_size=6), st.integers(0, 2**32), st.integers(125, 400))
def test_frames_mean_the_same_to_us_as_to_another_implementation(
    data: bytes, rubbish: bytes, seed: int, most: int
) -> None:
    """However they are cut; UTF-8 apart, which theirs leaves to somebody else.

    Theirs judges a frame when all of it is there, hence the zeros behind it, and takes a close between the pieces of a
    message for an error, which it is not.
    """
    data += rubbish + bytes(1000)
    mine, status = ours(data, most, random.Random(seed))
    other, their_status = theirs(data, most)
    if status == 1007:
        assert mine == other[: len(mine)]
    elif mine != other:
        assert mine[-1][0] == CLOSE
        assert (mine[:-1], status, their_status) == (other, None, 1002)
    else:
        assert (status is None) == (their_status is None)


# -- out -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_a_frame_of_ours_has_the_shortest_length_there_is(size: int) -> None:
    assert framed(b"x" * size) == Frame(Opcode.TEXT, b"x" * size).serialize(mask=False)


def test_a_close_frame_fits_whatever_the_reason_is() -> None:
    frame = closing(1009, "ü" * 200)
    assert frame[:2] == bytes([0x88, len(frame) - 2])
    assert len(frame) <= 127
    assert frame[2:4] == struct.pack(">H", 1009)
    frame[4:].decode()
