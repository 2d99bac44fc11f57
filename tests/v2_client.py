"""The tests' client of nsqd: bytes and commands go in, frames come out.

``Conversation`` has the words that all tests use. ``Client`` speaks over a socket; the one in tests/session/conftest.py
speaks to a session in memory. Nothing here uses nsq_compat, because a client that uses a codec does not notice an error
in it. The kit in conformance/ has a client of its own, because it is installed without the tests.
"""

import json
import socket
import struct
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Self

RESPONSE, ERROR, MESSAGE, MESSAGE_WITH_HEADERS = range(4)
MESSAGES = (MESSAGE, MESSAGE_WITH_HEADERS)
GONE = (OSError, EOFError)
"""What a call raises if nsqd has closed the connection, or does not answer in time."""

_HEAD = struct.Struct(">ii")
_MESSAGE_HEAD = struct.Struct(">qH16s")


ASKS_FOR_HEADERS: dict[str, object] = {"feature_negotiation": True, "nsq_compat": {"headers": True}}
"""Of IDENTIFY, by a client that takes messages with headers and publishes them."""


class Refused(Exception):
    """nsqd answered with an error frame; the text is its data."""


class Frame(NamedTuple):
    type: int
    data: bytes


HEARTBEAT = Frame(RESPONSE, b"_heartbeat_")


class Message(NamedTuple):
    timestamp_ns: int
    attempts: int
    id: bytes
    body: bytes
    headers: dict[str, str] | None = None
    """None in a frame of NSQ."""

    @classmethod
    def of(cls, frame: Frame) -> Self:
        timestamp_ns, attempts, message_id = _MESSAGE_HEAD.unpack_from(frame.data)
        body, headers = frame.data[_MESSAGE_HEAD.size :], None
        if frame.type == MESSAGE_WITH_HEADERS:
            headers, body = split_payload(body)
        return cls(timestamp_ns, attempts, message_id, body, headers)


def split_payload(payload: bytes) -> tuple[dict[str, str], bytes]:
    """The headers before a body, and the body."""
    end, headers = 2 + int.from_bytes(payload[:2], "big"), {}
    rest = payload[2:end]
    while rest:
        name, rest = rest[1 : 1 + rest[0]], rest[1 + rest[0] :]
        size = 2 + int.from_bytes(rest[:2], "big")
        headers[name.decode()], rest = rest[2:size].decode(), rest[size:]
    return headers, payload[end:]


def split_frames(data: bytes, most: int = 1 << 62) -> tuple[list[Frame], bytes]:
    """The complete frames in `data`, at most so many, and the bytes behind them."""
    frames: list[Frame] = []
    begin = 0
    while len(frames) < most and len(data) >= begin + _HEAD.size:
        size, kind = _HEAD.unpack_from(data, begin)
        assert size >= 4
        if len(data) < (end := begin + 4 + size):
            break
        frames.append(Frame(kind, data[begin + _HEAD.size : end]))
        begin = end
    return frames, data[begin:]


def sized(body: bytes) -> bytes:
    """A body behind its size."""
    return struct.pack(">i", len(body)) + body


def pub(*bodies: bytes, topic: bytes = b"t") -> bytes:
    """A PUB for each body."""
    return b"".join(b"PUB %b\n%b" % (topic, sized(body)) for body in bodies)


def mpub(bodies: Sequence[bytes], topic: bytes = b"t") -> bytes:
    return b"MPUB %b\n%b" % (topic, sized(struct.pack(">i", len(bodies)) + b"".join(map(sized, bodies))))


def dpub(body: bytes, delay_ms: int, topic: bytes = b"t") -> bytes:
    return b"DPUB %b %d\n%b" % (topic, delay_ms, sized(body))


def payload(body: bytes, headers: Mapping[str, str]) -> bytes:
    """A body behind its headers."""
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    block = b"".join(
        struct.pack(">B", len(name)) + name + struct.pack(">H", len(value)) + value for name, value in pairs
    )
    return struct.pack(">H", len(block)) + block + body


def hpub(body: bytes, headers: Mapping[str, str], topic: bytes = b"t", *parameters: bytes) -> bytes:
    return b" ".join((b"HPUB", topic, *parameters)) + b"\n" + sized(payload(body, headers))


def hmpub(messages: Sequence[tuple[bytes, Mapping[str, str]]], topic: bytes = b"t") -> bytes:
    payloads = b"".join(sized(payload(body, headers)) for body, headers in messages)
    return b"HMPUB %b\n%b" % (topic, sized(struct.pack(">i", len(messages)) + payloads))


def identify(**fields: object) -> bytes:
    return b"IDENTIFY\n" + sized(json.dumps(fields).encode())


class Conversation:
    """What a client says and hears. A subclass has the connection, with `says` and `hears`."""

    def says(self, *pieces: bytes) -> Self:
        raise NotImplementedError

    def hears(self, *texts: bytes) -> Self:
        raise NotImplementedError

    def says_with_body(self, line: bytes, body: bytes) -> Self:
        return self.says(line + b"\n" + sized(body))

    def identifies(self, **fields: object) -> Self:
        return self.says(identify(**fields))

    def publishes(self, *bodies: bytes, topic: bytes = b"t") -> Self:
        """One PUB each, all of them answered with OK."""
        return self.says(*(pub(body, topic=topic) for body in bodies)).hears(*[b"OK"] * len(bodies))

    def subscribes(self, topic: bytes = b"t", channel: bytes = b"c", ready: int = 0) -> Self:
        """SUB, and RDY unless `ready` is 0."""
        self.says(b"SUB %b %b\n" % (topic, channel)).hears(b"OK")
        return self.says(b"RDY %d\n" % ready) if ready else self


class Client(Conversation):
    """A connection, by default after the magic. Calls that receive answer heartbeats, and may raise one of ``GONE``."""

    def __init__(
        self, address: str | tuple[str, int], opening: bytes = b"  V2", *, timeout: float = 30.0, **fields: object
    ) -> None:
        """`address` is HOST:PORT or a pair. `fields` are sent with IDENTIFY, if there are any."""
        self.timeout = timeout
        self.frames_heard: deque[Frame] = deque()
        self._unparsed = b""
        if isinstance(address, str):
            host, _, port = address.rpartition(":")
            address = host, int(port)
        self.socket = self._connect(address)
        try:
            self.says(opening)
            if fields:
                self.identifies(**fields).answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def local_address(self) -> str:
        """HOST:PORT, its ``remote_address`` in /stats."""
        host, port = self.socket.getsockname()[:2]
        return f"{host}:{port}"

    # --- What it says -------------------------------------------------------------------------------------------------

    def says(self, *pieces: bytes) -> Self:
        self.socket.settimeout(self.timeout)
        self.socket.sendall(b"".join(pieces))
        return self

    def publishes_together(self, bodies: Sequence[bytes], topic: bytes = b"t") -> Self:
        return self.says(mpub(bodies, topic)).hears(b"OK")

    def defers(self, body: bytes, delay_ms: int, topic: bytes = b"t") -> Self:
        return self.says(dpub(body, delay_ms, topic)).hears(b"OK")

    def pipelines(self, commands: Sequence[bytes], burst: int = 2000) -> Self:
        """Send commands that are answered with OK, a burst in a write."""
        for first in range(0, len(commands), burst):
            some = commands[first : first + burst]
            self.says(*some).hears(*[b"OK"] * len(some))
        return self

    def finishes(self, messages: Iterable[Message]) -> Self:
        return self.says(*(b"FIN %b\n" % message.id for message in messages))

    def requeues(self, message: Message, delay_ms: int = 0) -> Self:
        return self.says(b"REQ %b %d\n" % (message.id, delay_ms))

    # --- What it hears ------------------------------------------------------------------------------------------------

    def frame(self) -> Frame:
        """The next frame, of any type."""
        while not self.frames_heard:
            self._must_receive()
        return self.frames_heard.popleft()

    def hears(self, *texts: bytes) -> Self:
        """These are the next answers. Raises ``Refused`` for an error that is not among them."""
        for text in texts:
            answer = self._answer()
            if answer.type == ERROR and answer.data != text:
                raise Refused(answer.data.decode())
            assert answer.data == text
        return self

    def answer(self) -> bytes:
        """The data of the next response. Raises ``Refused`` for an error frame."""
        answer = self._answer()
        if answer.type == ERROR:
            raise Refused(answer.data.decode())
        return answer.data

    def errors(self) -> list[bytes]:
        """The error frames that have arrived."""
        return [frame.data for frame in self._heard(ERROR)]

    def messages(self, wait: float) -> list[Message]:
        """The messages that have arrived. Waits up to `wait` seconds for a frame."""
        deadline = time.monotonic() + wait
        while not self.frames_heard and self._receive(deadline - time.monotonic()):
            pass
        return list(map(Message.of, self._heard(*MESSAGES)))

    def takes(self, count: int, within: float = 30.0, finishing: bool = False) -> list[Message]:
        """Messages until there are `count`, or none arrives in time. With `finishing`, each is finished at once."""
        deadline = time.monotonic() + within
        taken: list[Message] = []
        while len(taken) < count and (left := deadline - time.monotonic()) > 0:
            messages = self.messages(left)
            assert not (errors := self.errors()), errors
            if finishing:
                self.finishes(messages)
            taken += messages
        return taken

    def rest(self) -> bytes:
        """All further bytes, up to the end of the connection."""
        received = self._unparsed
        try:
            while data := self.socket.recv(1 << 16):
                received += data
        except ConnectionResetError:
            pass
        return received

    # --- The connection -----------------------------------------------------------------------------------------------

    def _connect(self, address: tuple[str, int]) -> Any:
        return socket.create_connection(address, timeout=self.timeout)

    def _answer(self) -> Frame:
        """The next frame that is no message."""
        while True:
            for frame in self.frames_heard:
                if frame.type not in MESSAGES:
                    self.frames_heard.remove(frame)
                    return frame
            self._must_receive()

    def _heard(self, *kinds: int) -> list[Frame]:
        found = [frame for frame in self.frames_heard if frame.type in kinds]
        self.frames_heard = deque(frame for frame in self.frames_heard if frame.type not in kinds)
        return found

    def _must_receive(self) -> None:
        if not self._receive(self.timeout):
            raise TimeoutError(f"nsqd sent nothing within {self.timeout} s")

    def _receive(self, wait: float) -> bool:
        """Receive once; False if no data arrives within `wait` seconds."""
        self.socket.settimeout(max(wait, 0.001))
        try:
            data = self.socket.recv(1 << 18)
        except TimeoutError:
            return False
        if not data:
            raise EOFError("nsqd has closed the connection")
        frames, self._unparsed = split_frames(self._unparsed + data)
        if beats := frames.count(HEARTBEAT):
            frames = [frame for frame in frames if frame != HEARTBEAT]
            self.says(b"NOP\n" * beats)
        self.frames_heard += frames
        return True
