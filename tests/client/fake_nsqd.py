"""A fake nsqd on a real socket that misbehaves on demand and records the commands it receives."""

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Sequence

from nsq_compat.protocol.command_reader import Command, CommandReader, Finish, Publish
from nsq_compat.protocol.commands import COMMANDS, CommandSpec
from nsq_compat.protocol.errors import FatalClientError, SilentClose
from nsq_compat.protocol.frames import CLOSE_WAIT, HEARTBEAT, OK, response_frame
from nsq_compat.protocol.message import make_frames
from tests.client.waiting import wait_until

Answer = bytes | list[bytes] | None
"""The response to a command; None for none. The responses of a list are sent in turn, the last one repeatedly."""

CLOSE = b""
"""Instead of a response: close the connection."""

DEFAULTS: dict[str, Answer] = {
    "IDENTIFY": response_frame(json.dumps({"max_rdy_count": 2500, "msg_timeout": 60_000}).encode()),
    "AUTH": response_frame(b"{}"),
    "SUB": OK,
    "PUB": OK,
    "MPUB": OK,
    "DPUB": OK,
    "CLS": CLOSE_WAIT,
}


class Peer:
    """One client's connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.lines: list[str] = []
        self.bodies: list[bytes] = []
        self.finished: list[bytes] = []

    def send(self, data: bytes) -> None:
        with contextlib.suppress(OSError):
            self.socket.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            # Ends as a crashed machine does: with a reset if data was unread.
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()

    def said(self, name: str) -> list[str]:
        """The received lines of one command, in order."""
        return [line for line in list(self.lines) if line.split(" ")[0] == name]


class FakeNsqd:
    """Responds to each command as `answers` says; a test may change them."""

    def __init__(self, answers: dict[str, Answer] | None = None, *, listens: bool = True, **features: object) -> None:
        self.answers = {**DEFAULTS, **(answers or {})}
        if features:
            self.answers["IDENTIFY"] = response_frame(json.dumps(features).encode())
        self.peers: list[Peer] = []
        self._next_id = 0
        self._listener = socket.socket()
        self._listener.bind(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        if listens:
            self.listen()

    # --- What a test does ---------------------------------------------------------------------------------------------

    @property
    def peer(self) -> Peer:
        """The last connection."""
        return self.peers[-1]

    def listen(self) -> None:
        """Take connections. Until then they are refused, and the port belongs to this one."""
        self._listener.listen()
        self._threads.append(threading.Thread(target=self._accept, daemon=True))
        self._threads[-1].start()

    def said(self, name: str) -> list[str]:
        """The lines that the last peer sent; none without a peer."""
        return self.peers[-1].said(name) if self.peers else []

    def send_messages(self, bodies: Sequence[bytes], attempts: int = 1) -> list[bytes]:
        """Send messages to the last peer, after its first RDY, whatever that is. Returns their ids."""
        wait_until(lambda: self.said("RDY"))
        ids = [b"%016x" % (self._next_id + index) for index in range(len(bodies))]
        self._next_id += len(bodies)
        frames = b"".join(make_frames(ids, 1_000, bodies))
        if attempts != 1:
            assert len(bodies) == 1
            frames = frames[:16] + struct.pack(">H", attempts) + frames[18:]
        self.peer.send(frames)
        return ids

    def beat(self) -> None:
        self.peer.send(HEARTBEAT)

    def stop_listening(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def close(self) -> None:
        self.stop_listening()
        for peer in self.peers:
            peer.close()
        for thread in self._threads:
            thread.join(5)

    # --- What it does -------------------------------------------------------------------------------------------------

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            peer = Peer(connected)
            self.peers.append(peer)
            thread = threading.Thread(target=self._serve, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, peer: Peer) -> None:
        reader = CommandReader(_admit, max_msg_size=1 << 24, max_body_size=1 << 24)
        magic = b""
        with contextlib.suppress(OSError, FatalClientError, SilentClose):
            while data := peer.socket.recv(1 << 16):
                if len(magic) < 4:
                    magic, data = (magic + data)[:4], (magic + data)[4:]
                for command in reader.receive_data(data) if data else ():
                    self._on_command(peer, command)
        peer.close()

    def _on_command(self, peer: Peer, command: Command) -> None:
        if isinstance(command, Finish):
            peer.finished += command.ids
            return
        name = command.spec.name
        if isinstance(command, Publish):
            peer.bodies += command.bodies
        else:
            peer.bodies.append(command.body)
        for _ in command.bodies if isinstance(command, Publish) and name == "PUB" else (None,):
            peer.lines.append(b" ".join(command.tokens).decode())
            answer = self.answers.get(name)
            if isinstance(answer, list):
                answer = answer.pop(0) if len(answer) > 1 else answer[0]
            if answer == CLOSE:
                raise SilentClose
            if answer:
                peer.send(answer)


def _admit(tokens: Sequence[bytes]) -> CommandSpec:
    if tokens[0] not in COMMANDS:
        raise SilentClose
    return COMMANDS[tokens[0]]


MakeNsqd = Callable[..., FakeNsqd]
