"""Disturbances of an nsqd: clients that misbehave, and actions of operators."""

import contextlib
import json
import signal
import socket
import struct
import threading
from collections.abc import Callable
from http.client import HTTPConnection, HTTPException
from random import Random

from tests.faults.client import Client, Gone, Refused, sized
from tests.faults.daemon import Daemon

_INCOMPLETE_COMMANDS = (b"", b"  V", b"  V2PUB or", b"  V2PUB orders\n\0\0", b"  V2PUB orders\n" + sized(b"half")[:-2])


class Trouble(threading.Thread):
    """A context manager that causes disturbances one after the other, in an order drawn from the seed.

    It does not use the topics of ``Traffic``, except for commands without effect.
    """

    def __init__(self, daemon: Daemon, seed: int) -> None:
        super().__init__(daemon=True)
        self.count = 0
        self._daemon = daemon
        self._random = Random(seed)
        self._over = threading.Event()
        self._troubles: tuple[Callable[[], None], ...] = (
            self._incomplete_commands,
            self._garbage,
            self._unread_deliveries,
            self._create_and_delete_topics,
            self._dead_letters,
            self._signals,
            self._read_requests,
        )

    def __enter__(self) -> "Trouble":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._random.uniform(0.0, 0.1)):
            with contextlib.suppress(OSError, HTTPException, Gone, Refused):  # nsqd may have ended
                self._random.choice(self._troubles)()
                self.count += 1

    def _incomplete_commands(self) -> None:
        with contextlib.ExitStack() as sockets:
            for _ in range(20):
                sockets.enter_context(self._daemon.connect()).sendall(self._random.choice(_INCOMPLETE_COMMANDS))
            self._over.wait(0.2)

    def _garbage(self) -> None:
        for port in ("TCP", "HTTP"):
            with socket.create_connection(self._daemon.address(port), timeout=10) as client:
                client.sendall(self._random.randbytes(1000))

    def _unread_deliveries(self) -> None:
        """Subscribe to a separate channel, read nothing, and close with a reset."""
        with self._daemon.connect() as client:
            client.sendall(b"  V2SUB orders deaf#ephemeral\nRDY 2500\n")
            self._over.wait(0.2)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _create_and_delete_topics(self) -> None:
        name = f"passing{self._random.randrange(5)}"
        self._daemon.create_channel(name, "c")
        with Client(self._daemon.address()) as client:
            client.publish_together(name, [b"x" * 1000] * 100)
            client.publish_deferred(name, b"late", 100)
        self._daemon.control("delete", name)

    def _dead_letters(self) -> None:
        """Set a policy, use it, and remove it."""
        self._put_policies([{"topic": "failing", "max_attempts": 1, "dead_letter_topic": "dead", "max_rate": 1000}])
        with Client(self._daemon.address()) as client:
            client.publish_together("failing", [b"bad"] * 20)
            client.subscribe("failing", "c", ready=20)
            for message in client.take(20, within=5):
                client.requeue(message.id, 0)
        self._put_policies([])
        for name in ("failing", "dead"):
            self._daemon.http("topic/delete", b"", topic=name)

    def _put_policies(self, policies: object) -> None:
        connection = HTTPConnection(*self._daemon.address("HTTP"), timeout=10)
        with contextlib.closing(connection):
            connection.request("PUT", "/config/policies", json.dumps(policies))
            connection.getresponse().read()

    def _signals(self) -> None:
        self._daemon.signal(signal.SIGHUP)
        self._daemon.signal(signal.SIGSTOP)
        try:
            self._over.wait(self._random.uniform(0.0, 0.3))
        finally:
            self._daemon.signal(signal.SIGCONT)

    def _read_requests(self) -> None:
        for path in ("stats", "metrics", "ping", "info", "topic/recent?topic=orders", "nothing"):
            self._daemon.http(path)
