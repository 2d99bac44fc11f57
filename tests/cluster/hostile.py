"""HTTP servers on real sockets that never end an answer, in various ways.

Each answer sends something every `STEP` seconds, so that no single wait is long, and would be complete after `STEPS`:
a client with a deadline for each wait receives it, a client with one deadline for the request does not.
"""

import gzip
import hmac
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305

STEP: Final = 0.03
STEPS: Final = 150
DEADLINE: Final = 0.6
"""A deadline for clients: longer than a step, and much shorter than the whole answer."""

Answer = Callable[["HostileServer"], Iterator[bytes]]
_OK = b"HTTP/1.1 200 OK\r\n"
_CHUNKED = _OK + b"Transfer-Encoding: chunked\r\n\r\n"


_END = b"\r\nContent-Length: 2\r\n\r\n{}"


def _dripping(name: str, before: bytes, piece: bytes, after: bytes = b"") -> Answer:
    def answer(_: "HostileServer") -> Iterator[bytes]:
        yield before
        yield from [piece] * STEPS
        yield after

    answer.__name__ = name  # in the names of tests
    return answer


dripping_status = _dripping("status", b"HTTP/1.1 200 ", b"x", _END)
dripping_header = _dripping("header", _OK + b"X: ", b"x", _END)
dripping_headers = _dripping("headers", _OK, b"X: x\r\n", b"Content-Length: 2\r\n\r\n{}")
dripping_chunk_size = _dripping("chunk_size", _CHUNKED, b"0", b"2\r\n{}\r\n0\r\n\r\n")
continuing = _dripping("continue", b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK" + _END)
silent = _dripping("nothing", b"", b"", b"HTTP/1.1 200 OK" + _END)
dripping_handshake = _dripping("handshake", b"\x16\x03\x03\x40\x00", b"\x02")
"""The beginning of a TLS record, sent slowly."""
DRIPPING: Final[list[Answer]] = [
    *(dripping_status, dripping_header, dripping_headers, dripping_chunk_size, continuing, silent),
    _dripping("chunk_extension", _CHUNKED + b"2;", b"x", b"\r\n{}\r\n0\r\n\r\n"),
    _dripping("trailer", _CHUNKED + b"2\r\n{}\r\n0\r\n", b"X: y\r\n", b"\r\n"),
    _dripping("body", _OK + b"Content-Length: %d\r\n\r\n{}" % (STEPS + 2), b" "),
    # Complete JSON at any time; it ends with the connection.
    _dripping("body_without_length", _OK + b"\r\n{}", b" "),
]


def endless_headers(server: "HostileServer") -> Iterator[bytes]:
    """As fast as they are taken."""
    yield _OK
    while not server.is_over:
        yield b"X: " + b"x" * 1000 + b"\r\n"


def endless_body(server: "HostileServer") -> Iterator[bytes]:
    yield _OK + b"\r\n["
    while not server.is_over:
        yield b"1," * 32768


def endless_interim_answers(server: "HostileServer") -> Iterator[bytes]:
    while not server.is_over:
        yield b"HTTP/1.1 100 Continue\r\n\r\n" * 1000


def endless_chunks(server: "HostileServer") -> Iterator[bytes]:
    yield _CHUNKED
    while not server.is_over:
        yield b"1\r\n \r\n" * 10_000


def endless_trailers(server: "HostileServer") -> Iterator[bytes]:
    yield _CHUNKED + b"2\r\n{}\r\n0\r\n"
    while not server.is_over:
        yield b"X: y\r\n" * 10_000


ENDLESS: Final[list[Answer]] = [endless_interim_answers, endless_chunks, endless_trailers]
"""Small parts without end, as fast as they are taken."""


def plain(_: "HostileServer") -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK" + _END


def compressed_twice(_: "HostileServer") -> Iterator[bytes]:
    body = gzip.compress(gzip.compress(b"{}"))
    yield _OK + b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def redirecting(server: "HostileServer") -> Iterator[bytes]:
    yield (
        b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://%s/again\r\nContent-Length: 0\r\n\r\n"
        % server.address.encode()
    )


def redirecting_with_endless_body(server: "HostileServer") -> Iterator[bytes]:
    yield b"HTTP/1.1 307 Temporary Redirect\r\nLocation: http://%s/again\r\n\r\n" % server.address.encode()
    while not server.is_over:
        yield b"x" * 65536


def dripping_redirects(server: "HostileServer") -> Iterator[bytes]:
    yield from [b""] * 10
    yield from redirecting(server)


FAST: Final = {*ENDLESS, endless_headers, endless_body, redirecting_with_endless_body, redirecting}


class HostileServer:
    """Sends the same answer to every request; with `tls` after a correct handshake."""

    def __init__(self, answer: Answer, *, tls: bool = False, reads: bool = True) -> None:
        self.requests = 0
        self.completed = 0
        self.cut_off = 0
        """Number of answers that the client did not read to the end."""
        self.error: OSError | None = None
        """Why the last of these was cut off."""
        self._answer = answer
        self._reads = reads
        self._context = tls_context() if tls else None
        self._over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "HostileServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def _accept(self) -> None:
        while not self.is_over:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            self.requests += 1
            thread = threading.Thread(target=self._serve, args=(connected,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connected: socket.socket) -> None:
        connected.settimeout(10)
        try:
            if self._context is not None:
                connected = self._context.wrap_socket(connected, server_side=True)
            if self._reads:
                connected.recv(1 << 16)
            for piece in self._answer(self):
                if piece:
                    connected.sendall(piece)
                if self._answer not in FAST and self._over.wait(STEP):
                    return
            self.completed += 1
        except OSError as error:
            self.cut_off += 1
            self.error = error
        finally:
            connected.close()


class TicketServer(HostileServer):
    """Sends session tickets of TLS 1.3 without end, as fast as they are taken: hundreds in a record, of one byte each.

    OpenSSL makes tickets more slowly than a client reads them, so they are encrypted here, with the keys of its
    handshakes, which it writes to files in `folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = count()
        super().__init__(silent)

    def _serve(self, connected: socket.socket) -> None:
        connected.settimeout(10)
        key_log = self._folder / f"keys-{next(self._numbers)}"
        context = tls_context()
        context.num_tickets = 0
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.keylog_filename = str(key_log)
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        handshake = context.wrap_bio(incoming, outgoing, server_side=True)
        with connected, suppress(OSError):
            while True:
                try:
                    handshake.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    connected.sendall(outgoing.read())
                    incoming.write(connected.recv(1 << 16))
            connected.sendall(outgoing.read())
            for record in self._records(handshake, key_log.read_text()):
                connected.sendall(record)

    def _records(self, handshake: ssl.SSLObject, keys: str) -> Iterator[bytes]:
        """RFC 8446, 4.6.1 and 5.2."""
        name, _, _ = handshake.cipher() or ("", "", 0)
        digest = "sha384" if name.endswith("SHA384") else "sha256"
        lines = [line.split() for line in keys.splitlines() if not line.startswith("#")]
        secret = next(bytes.fromhex(value) for label, _, value in lines if label == "SERVER_TRAFFIC_SECRET_0")
        key = _expand(secret, b"key", 16 if "AES_128" in name else 32, digest)
        nonce = int.from_bytes(_expand(secret, b"iv", 12, digest), "big")
        cipher = ChaCha20Poly1305(key) if "CHACHA20" in name else AESGCM(key)
        ticket = bytes.fromhex("0400000f 0000003c 00000001 01 00 0001 00 0000".replace(" ", ""))
        plain = ticket * (16_000 // len(ticket)) + b"\x16"
        head = b"\x17\x03\x03" + (len(plain) + 16).to_bytes(2, "big")
        for number in count():
            if self.is_over:
                return
            yield head + cipher.encrypt((nonce ^ number).to_bytes(12, "big"), plain, head)


def _expand(secret: bytes, label: bytes, length: int, digest: str) -> bytes:
    """HKDF-Expand-Label of RFC 8446, 7.1, for at most one block."""
    label = b"tls13 " + label
    info = length.to_bytes(2, "big") + bytes([len(label)]) + label + b"\0"
    return hmac.digest(secret, info + b"\1", digest)[:length]


def tls_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    return context
