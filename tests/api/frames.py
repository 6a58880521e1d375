"""A client that speaks HTTP/2 by single frames, and so can say what no library would."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from h2.errors import ErrorCodes
from hpack import Decoder, Encoder, HeaderTuple
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

from tests.api.kit import WAIT_S, Running
from topics.server.http2 import PREFACE

Fields = Iterable[tuple[bytes, bytes]]
JSON = ((b"content-type", b"application/json"),)


class Answer:
    """What has come on a stream."""

    def __init__(self) -> None:
        self.status = 0
        self.interim: list[int] = []
        self.headers: dict[bytes, bytes] = {}
        self.body = b""
        self.ended = False
        self.reset: ErrorCodes | None = None

    @property
    def over(self) -> bool:
        return self.ended or self.reset is not None


class Talk:
    """One connection. `windows`: give window back for what arrives."""

    def __init__(
        self,
        server: Running,
        *,
        initial_window: int | None = None,
        windows: bool = True,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._sock = socket.create_connection((server.host, server.port), timeout=WAIT_S)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls is not None:
            self._sock = tls.wrap_socket(self._sock, server_hostname=server.host)
        self._encoder = Encoder()
        self._decoder = Decoder()
        self._received = b""
        self._windows = windows
        self.authority = f"{server.host}:{server.port}".encode()
        self.answers: dict[int, Answer] = {}
        self.settings: dict[int, int] = {}
        self.window = 65535
        """Of the server, for the connection."""
        self.stream_windows: dict[int, int] = {}
        """Increments of the server, by stream."""
        self.order: list[int] = []
        """Streams of the pieces of bodies, as they came."""
        self.pongs = 0
        self.pings = 0
        self.goaway: GoAwayFrame | None = None
        self.closed = False
        first = SettingsFrame(0)
        if initial_window is not None:
            first.settings = {SettingsFrame.INITIAL_WINDOW_SIZE: initial_window}
        self.send_bytes(PREFACE + first.serialize())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sock.close()

    # -- sending -----------------------------------------------------------------------------------------------------

    def send_bytes(self, data: bytes) -> None:
        self._sock.sendall(data)

    def send(self, *frames: Frame) -> None:
        """In one write."""
        self.send_bytes(b"".join(frame.serialize() for frame in frames))

    def end_input(self) -> None:
        """FIN; nothing is given back any more."""
        self._windows = False
        if isinstance(self._sock, ssl.SSLSocket):
            self._sock = self._sock.unwrap()
            return
        self._sock.shutdown(socket.SHUT_WR)

    def head(self, method: bytes, path: bytes, more: Fields = ()) -> list[tuple[bytes, bytes]]:
        pseudo = [(b":method", method), (b":scheme", b"http"), (b":authority", self.authority), (b":path", path)]
        return [*pseudo, *more]

    def headers(self, id: int, fields: Fields, *, end: bool = True) -> HeadersFrame:
        """A head as a frame."""
        frame = HeadersFrame(id, data=self._encoder.encode(list(fields)), flags=["END_HEADERS"])
        if end:
            frame.flags.add("END_STREAM")
        return frame

    def block(self, id: int, fields: Fields) -> list[Frame]:
        """A head in as many frames as it needs."""
        data = self._encoder.encode(list(fields))
        parts = [data[at : at + 16384] for at in range(0, len(data), 16384)]
        frames: list[Frame] = [HeadersFrame(id, data=parts[0], flags=["END_STREAM"])]
        frames += [ContinuationFrame(id, data=part) for part in parts[1:]]
        frames[-1].flags.add("END_HEADERS")
        return frames

    def data(self, id: int, body: bytes, *, end: bool = True) -> list[Frame]:
        """A body in as many frames as it needs."""
        parts = [body[at : at + 16384] for at in range(0, len(body), 16384)] or [b""]
        frames: list[Frame] = [DataFrame(id, data=part) for part in parts]
        if end:
            frames[-1].flags.add("END_STREAM")
        return frames

    def request(self, id: int, method: bytes, path: bytes, body: bytes | None = None, more: Fields = ()) -> None:
        """Head and body, whatever the window is."""
        if body is None:
            self.send(self.headers(id, self.head(method, path, more)))
        else:
            self.send(self.headers(id, self.head(method, path, (*JSON, *more)), end=False), *self.data(id, body))

    def give(self, size: int, *ids: int) -> None:
        """Window for streams; 0 is the connection."""
        self.send(*(WindowUpdateFrame(id, window_increment=size) for id in ids))

    # -- receiving ---------------------------------------------------------------------------------------------------

    def until(self, done: Callable[[], bool]) -> None:
        """Take frames until something is the case."""
        while not done():
            assert not self.closed, "the server closed the connection"
            self._take()

    def answer(self, id: int) -> Answer:
        """The answer on a stream, once it is over."""
        self.until(lambda: id in self.answers and self.answers[id].over)
        return self.answers[id]

    def reach(self) -> None:
        """The server has seen everything that was sent."""
        pongs = self.pongs
        self.send(PingFrame(0, opaque_data=b"reached?"))
        self.until(lambda: self.pongs > pongs)

    def parting(self) -> ErrorCodes | None:
        """What the server's GOAWAY said."""
        return None if self.goaway is None else ErrorCodes(self.goaway.error_code)

    def until_closed(self) -> None:
        while not self.closed:
            self._take()

    def _take(self) -> None:
        try:
            data = self._sock.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        if not data:
            self.closed = True
            return
        self._received += data
        while len(self._received) >= 9:
            frame, length = Frame.parse_frame_header(memoryview(self._received[:9]))
            if len(self._received) < 9 + length:
                return
            frame.parse_body(memoryview(self._received[9 : 9 + length]))
            self._received = self._received[9 + length :]
            self._see(frame)

    def _see(self, frame: Frame) -> None:
        answer = self.answers.setdefault(frame.stream_id, Answer()) if frame.stream_id else Answer()
        if isinstance(frame, HeadersFrame):
            self._see_head(answer, list(self._decoder.decode(frame.data, raw=True)))
        elif isinstance(frame, DataFrame):
            answer.body += frame.data
            self.order.append(frame.stream_id)
            if self._windows and frame.data:
                ids = [0] if "END_STREAM" in frame.flags else [0, frame.stream_id]
                self.give(len(frame.data), *ids)
        elif isinstance(frame, RstStreamFrame):
            answer.reset = ErrorCodes(frame.error_code)
        elif isinstance(frame, GoAwayFrame):
            self.goaway = frame
        elif isinstance(frame, PingFrame):
            self.pongs += "ACK" in frame.flags
            self.pings += "ACK" not in frame.flags
        elif isinstance(frame, WindowUpdateFrame):
            if frame.stream_id:
                given = self.stream_windows.get(frame.stream_id, 0)
                self.stream_windows[frame.stream_id] = given + frame.window_increment
            else:
                self.window += frame.window_increment
        elif isinstance(frame, SettingsFrame) and "ACK" not in frame.flags:
            self.settings.update(frame.settings)
            self.send(SettingsFrame(0, flags=["ACK"]))
        if "END_STREAM" in frame.flags:
            answer.ended = True

    def _see_head(self, answer: Answer, fields: list[HeaderTuple]) -> None:
        headers = {bytes(name): bytes(value) for name, value in fields}
        status = int(headers.pop(b":status"))
        if status < 200:
            answer.interim.append(status)
        else:
            answer.status, answer.headers = status, headers
