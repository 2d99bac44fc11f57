"""A proxy in front of an nsqd, ours or Go's, that may break what passes.

nsqd is a child process with the options of the command line, and the proxy has the addresses that they ask for. Log
lines, signals and the exit status pass unchanged. The proxy does not read HTTPS, or a connection after its upgrade.
"""

import ctypes
import json
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, Protocol

_LISTENING = re.compile(r"(.*\b(TCP|HTTP): listening on \S+:)(\d+)$")
_WITH_BODY = (b"AUTH", b"DPUB", b"IDENTIFY", b"MPUB", b"PUB")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_MAX_BODY = 1 << 26
_PATIENCE_MS = 100
"""If a command or frame arrives more slowly, its connection is not read any further, so that nsqd sees the pieces."""
_READ = 1 << 16
_FRAME_HEAD = struct.Struct(">ii")
_FRAME_KINDS = ("response", "error", "message")
_RESPONSES = {b"OK": "OK", b"_heartbeat_": "heartbeat"}
_SIGKILL_WITH_PARENT = (1, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Passing:
    """A command, a frame, an HTTP request or an HTTP answer on its way."""

    unit: bytes
    following: list[tuple[str, bytes]] = field(default_factory=list)
    """The kinds and bytes of the commands or frames that were read together with it."""
    answer: Callable[[bytes], object] = len
    """Sends bytes to where the unit comes from."""


class Fault(NamedTuple):
    """Every so many units of a kind, one is replaced. A kind is a verb, a kind of frame, or ``answer to /pub``."""

    kind: str
    every: int
    replace: Callable[[Passing], bytes]
    caught_by: str
    """The test of ``conformance`` that detects it, as FILE::TEST."""


class Wire:
    """The state of all connections to an nsqd."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault
        self._count = 0
        self._lock = threading.Lock()
        self.ports: dict[int, int] = {}
        """The clients' ports, by those that nsqd sees."""

    def altered(self, kind: str, passing: Passing) -> bytes:
        if self._fault is None or kind != self._fault.kind:
            return passing.unit
        with self._lock:
            self._count += 1
            is_hit = self._count % self._fault.every == 0
        return self._fault.replace(passing) if is_hit else passing.unit

    def with_ports_of_clients(self, answer: bytes) -> bytes:
        for seen, port in tuple(self.ports.items()):
            answer = re.sub(rb'(127\.0\.0\.1:|"tcp_port":)%d\b' % seen, rb"\g<1>%d" % port, answer)
        return answer


# --- TCP --------------------------------------------------------------------------------------------------------------


class Reader(Protocol):
    def __call__(self, data: bytes) -> tuple[str, int] | None:
        """The kind and the size of the first unit, or None if it is incomplete."""


class CommandReader:
    """Finds the commands of a client, after its magic."""

    def __init__(self) -> None:
        self._has_begun = False

    def __call__(self, data: bytes) -> tuple[str, int] | None:
        if not self._has_begun:
            self._has_begun = len(data) >= 4
            return ("magic", 4) if self._has_begun else None
        line, newline, rest = data.partition(b"\n")
        verb = line.partition(b" ")[0].rstrip(b"\r")
        size = len(line) + 1
        if not newline:
            return None
        if verb in _WITH_BODY:
            if len(rest) < 4:
                return None
            body = int.from_bytes(rest[:4], "big", signed=True)
            size += 4 + (body if 0 <= body < _MAX_BODY else 0)
        return (verb.decode("latin-1"), size) if size <= len(data) else None


def read_frame(data: bytes) -> tuple[str, int] | None:
    if len(data) < _FRAME_HEAD.size:
        return None
    size, kind = _FRAME_HEAD.unpack_from(data)
    if len(data) < 4 + size:
        return None
    body = data[_FRAME_HEAD.size : 4 + size]
    name = "identify" if not kind and body.startswith(b"{") else _FRAME_KINDS[kind]
    return _RESPONSES.get(body, name) if not kind else name, 4 + size


class Relay:
    """A client's connection and the one to nsqd that belongs to it."""

    def __init__(self, wire: Wire, client: socket.socket, nsqd: socket.socket) -> None:
        self._wire = wire
        self._client = client
        self._nsqd = nsqd
        self._is_read = True

    def run(self) -> None:
        seen, port = self._nsqd.getsockname()[1], self._client.getpeername()[1]
        self._wire.ports[seen] = port
        with self._client, self._nsqd:
            sending = threading.Thread(target=self._forward, args=(self._client, self._nsqd, CommandReader()))
            sending.start()
            self._forward(self._nsqd, self._client, read_frame)
            sending.join()
        del self._wire.ports[seen]

    def _forward(self, source: socket.socket, sink: socket.socket, read: Reader) -> None:
        arrival = select.poll()
        arrival.register(source, select.POLLIN)
        pending, data = b"", b"..."
        with suppress(OSError):
            while data:
                if pending and not arrival.poll(_PATIENCE_MS):
                    self._is_read = False
                else:
                    data = source.recv(_READ)
                    pending += data
                if self._is_read:
                    pending = self._pass_units(pending, source, sink, read)
                if not self._is_read or not data:
                    sink.sendall(pending)
                    pending = b""
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while source.recv(_READ):
                pass

    def _pass_units(self, data: bytes, source: socket.socket, sink: socket.socket, read: Reader) -> bytes:
        """Send the complete units of `data`, and return the rest."""
        units: list[tuple[str, bytes]] = []
        while found := read(data):
            kind, size = found
            units.append((kind, data[:size]))
            data = data[size:]
        while units:
            kind, unit = units.pop(0)
            if kind == "identify":
                answer = json.loads(unit[_FRAME_HEAD.size :])
                self._is_read = not (answer["tls_v1"] or answer["deflate"] or answer["snappy"])
            sink.sendall(self._wire.altered(kind, Passing(unit, units, source.sendall)))
        return data


# --- HTTP -------------------------------------------------------------------------------------------------------------


def exchange(wire: Wire, client: socket.socket, nsqd: socket.socket) -> None:
    """Pass one request and its answer."""
    with client, nsqd, suppress(OSError):
        request = b""
        while b"\r\n\r\n" not in request and (data := client.recv(_READ)):
            request += data
        head, _, body = request.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        while length and len(body) < int(length[1]) and (data := client.recv(_READ)):
            body += data
        if not head:
            return
        path = head.split()[1].partition(b"?")[0].decode("latin-1")
        request = head + b"\r\nConnection: close\r\n\r\n" + body
        request = wire.altered(path, Passing(request, answer=client.sendall))
        with suppress(OSError):  # nsqd answers, and closes, before it has read a body that is too big
            nsqd.sendall(request)
        answer = b""
        while data := nsqd.recv(_READ):
            answer += data
        client.sendall(wire.altered("answer", Passing(wire.with_ports_of_clients(answer))))


# --- The process ------------------------------------------------------------------------------------------------------


class Proxy:
    """An nsqd as a child process, and the listeners in front of it."""

    def __init__(self, fault: Fault | None, command: Sequence[str]) -> None:
        self._wire = Wire(fault)
        self._listeners: dict[str, socket.socket] = {}
        self._command = list(command)
        for name in ("TCP", "HTTP"):
            self._take_address(name)

    def run(self) -> int:
        """Run nsqd until it ends, and return its exit status."""
        nsqd = subprocess.Popen(
            self._command,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            preexec_fn=lambda: ctypes.CDLL(None).prctl(*_SIGKILL_WITH_PARENT),
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: nsqd.send_signal(number))
        assert nsqd.stderr is not None
        for line in nsqd.stderr:
            print(self._with_own_address(line.rstrip("\n")), file=sys.stderr, flush=True)
        return nsqd.wait()

    def _take_address(self, name: str) -> None:
        """Listen on the address that nsqd was to have. If it is in use, nsqd shall say so."""
        option = f"--{name.lower()}-address="
        asked = [each.removeprefix(option) for each in self._command if each.startswith(option)]
        if not asked:
            return
        host, _, port = asked[-1].rpartition(":")
        with suppress(OSError):
            listener = socket.create_server((host, int(port)))
            broadcast = f"--broadcast-{name.lower()}-port={listener.getsockname()[1]}"
            self._command = [*(each for each in self._command if not each.startswith(option)), f"{option}{host}:0"]
            self._command.append(broadcast)
            self._listeners[name] = listener

    def _with_own_address(self, line: str) -> str:
        found = _LISTENING.match(line)
        if not found or found[2] not in self._listeners:
            return line
        listener, nsqds = self._listeners[found[2]], int(found[3])
        host, port = listener.getsockname()[:2]
        self._wire.ports[nsqds] = port
        threading.Thread(target=self._accept, args=(found[2], (host, nsqds)), daemon=True).start()
        return f"{found[1]}{port}"

    def _accept(self, name: str, address: tuple[str, int]) -> None:
        while True:
            client, _ = self._listeners[name].accept()
            try:
                nsqd = socket.create_connection(address)
            except OSError:
                client.close()
                continue
            for each in (client, nsqd):
                each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            run = Relay(self._wire, client, nsqd).run if name == "TCP" else partial(exchange, self._wire, client, nsqd)
            threading.Thread(target=run, daemon=True).start()
