"""nsq_pubsub or nsq_pull as a child process, with the requests that tests need."""

import socket
from collections.abc import Sequence
from http.client import HTTPConnection

from nsq_conformance.daemon_process import DaemonProcess


class HttpConsumerProcess(DaemonProcess):
    """A running program that hands out messages over HTTP."""

    speaks_tcp = False

    def __init__(self, command: str, *, options: Sequence[str]) -> None:
        self.program = command
        super().__init__(command, options=options)

    def ask(self, target: str, body: bytes | None = None, method: str = "") -> tuple[int, bytes]:
        """Status and body of an answer; POST if there is a `body`."""
        connection = HTTPConnection(self.http_address, timeout=30)
        try:
            connection.request(method or ("GET" if body is None else "POST"), target, body)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def call(self, target: str, receive_buffer: int = 0) -> socket.socket:
        """A connection on which a GET was sent and nothing read; a small `receive_buffer` makes it full soon."""
        host, _, port = self.http_address.rpartition(":")
        caller = socket.socket()
        if receive_buffer:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        caller.settimeout(30)
        caller.connect((host, int(port)))
        caller.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode("ascii"))
        return caller
